"""Names that are known without importing anything: of models that are no members, of padding."""

GROUPS = (":all", ":causal", ":encoders")
"""ends of names of many models of a library"""
SIDES = ("right", "left", "holes")
"""where padding may stand"""


def is_group(name: str) -> bool:
    """True if a name is of many models: ``hf:all``, ``FILE.py:all``."""
    return name.endswith(GROUPS)


def is_target(name: str) -> bool:
    """True if a name is ``file.py:factory``, ``module:factory``, ``hf:NAME``, ``onnx:FILE`` or a
    file of a program."""
    return ":" in name or name.endswith((".pt2", ".onnx"))
