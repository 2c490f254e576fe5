"""Laws for models of anyone: `check` tries all, each `check_...` asserts one.

    from everyformer.laws import check, check_causality

    print(check(model))        a table: causality, streaming, padding, batch, lengths, numbers ...
    check_causality(model)     raises AssertionError with the positions, the size and a program

A model is any `torch.nn.Module` that reads token ids (B, L) or features (B, L, d) and gives an
output at each position, or one a row. Nothing of everyformer's members is needed. In pytest the
fixture ``everyformer_laws`` does the same (`everyformer.laws.pytest_plugin`). Names are imported
when first used.
"""

from typing import TYPE_CHECKING

from everyformer.system.lazy import late_names

if TYPE_CHECKING:
    from everyformer.laws.asserts import check_batch as check_batch
    from everyformer.laws.asserts import check_causality as check_causality
    from everyformer.laws.asserts import check_compiles as check_compiles
    from everyformer.laws.asserts import check_determinism as check_determinism
    from everyformer.laws.asserts import check_gradients as check_gradients
    from everyformer.laws.asserts import check_growth as check_growth
    from everyformer.laws.asserts import check_lengths as check_lengths
    from everyformer.laws.asserts import check_numbers as check_numbers
    from everyformer.laws.asserts import check_order as check_order
    from everyformer.laws.asserts import check_packing as check_packing
    from everyformer.laws.asserts import check_padding as check_padding
    from everyformer.laws.asserts import check_saving as check_saving
    from everyformer.laws.asserts import check_streaming as check_streaming
    from everyformer.laws.inputs import Inputs as Inputs
    from everyformer.laws.judging import LAWS as LAWS
    from everyformer.laws.judging import Checked as Checked
    from everyformer.laws.judging import check as check
    from everyformer.laws.subject import Subject as Subject
    from everyformer.laws.verdict import LawBroken as LawBroken
    from everyformer.laws.verdict import LawResult as LawResult

_HOMES = {
    "LAWS": "judging",
    "Checked": "judging",
    "check": "judging",
    "Inputs": "inputs",
    "Subject": "subject",
    "LawBroken": "verdict",
    "LawResult": "verdict",
    **{
        f"check_{law}": "asserts"
        for law in (
            *("causality", "streaming", "padding", "packing", "batch", "lengths", "numbers"),
            *("gradients", "order", "determinism", "saving", "compiles", "growth"),
        )
    },
}
__all__ = list(_HOMES)
__getattr__ = late_names(__name__, _HOMES)
