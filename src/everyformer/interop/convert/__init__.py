"""Checkpoints of others into our models and back, tensor by tensor accounted for."""

from everyformer.interop.convert.checkpoint import export_checkpoint, import_checkpoint
from everyformer.interop.convert.rules import Report
from everyformer.interop.convert.timm import import_timm

__all__ = ["Report", "export_checkpoint", "import_checkpoint", "import_timm"]
