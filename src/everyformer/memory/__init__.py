"""Memories: what attention reads beside its own tokens. `MEMORIES` finds them by name."""

from everyformer.core.registry import Registry
from everyformer.memory.base import Memory

MEMORIES: Registry[type[Memory]] = Registry("memory", __name__)
