"""What the fixtures of a command line are."""

from collections.abc import Callable
from pathlib import Path

Say = Callable[..., tuple[int, str, str]]
"""words -> exit code, stdout, stderr"""
Refused = Callable[..., str]
"""words that must be refused -> the one sentence"""
Train = Callable[..., Path]
"""a member and further words -> its run"""
