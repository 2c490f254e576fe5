"""Laws for any sequence model: `check` tries all, each `check_...` asserts one.

    from sequence_laws import check, check_causality

    print(check(model))        a table: causality, streaming, padding, batch, lengths, numbers ...
    check_causality(model)     raises AssertionError with the positions, the size and a program

A model is any `torch.nn.Module` that reads token ids (B, L) or features (B, L, d) and gives an
output at each position, or one a row. In pytest the fixture ``sequence_laws`` does the same
(`sequence_laws.pytest_plugin`). Names are imported when first used.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sequence_laws.inputs import Inputs as Inputs
    from sequence_laws.judging import LAWS as LAWS
    from sequence_laws.judging import Checked as Checked
    from sequence_laws.judging import check as check
    from sequence_laws.subject import Subject as Subject
    from sequence_laws.verdict import LawBroken as LawBroken
    from sequence_laws.verdict import LawResult as LawResult

_HOMES = {
    **dict.fromkeys(("LAWS", "Checked", "check"), "judging"),
    **dict.fromkeys(("LawBroken", "LawResult"), "verdict"),
    "Inputs": "inputs",
    "Subject": "subject",
    **{
        f"check_{law}": "asserts"
        for law in (
            *("causality", "streaming", "padding", "packing", "batch", "lengths", "numbers"),
            *("gradients", "agreement", "order", "determinism", "saving", "compiles", "cost"),
        )
    },
}
__all__ = list(_HOMES)
__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
