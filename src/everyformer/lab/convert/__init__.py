"""Third-party checkpoints into our models and back, tensor by tensor accounted for."""

from everyformer.lab.convert.checkpoint import export_checkpoint, import_checkpoint
from everyformer.lab.convert.gguf import export_gguf
from everyformer.lab.convert.rules import Report
from everyformer.lab.convert.timm import import_timm

__all__ = ["Report", "export_checkpoint", "export_gguf", "import_checkpoint", "import_timm"]
