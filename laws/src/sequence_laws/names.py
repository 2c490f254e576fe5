"""Names of models that are no members, recognised without importing anything."""

GROUPS = ("hf:all", "hf:causal", "hf:encoders")
"""names of many classes of transformers"""


def is_target(name: str) -> bool:
    """True if a name is ``file.py:factory``, ``module:factory``, ``hf:NAME``, ``onnx:FILE`` or a
    file of a program."""
    return ":" in name or name.endswith((".pt2", ".onnx"))
