"""Flags of padding and numbers of documents that do not fit the tokens are refused."""

import pytest
import torch

import everyformer as ef
from everyformer.core.errors import ShapeError
from everyformer.core.mask import Mask

MEMBERS = ("linear", "performer", "rfa", "linformer", "reformer", "routing", "sinkhorn")
UNFIT = [
    ({"keep": torch.ones(2, 5, dtype=torch.bool)}, r"keep is \(2, 5\) bool.*\(2, 6\)"),
    ({"keep": torch.ones(1, 6, dtype=torch.bool)}, r"keep is \(1, 6\) bool"),
    ({"keep": torch.ones(2, 6)}, r"keep is \(2, 6\) float32.*True where it is real"),
    ({"documents": torch.zeros(2, 5, dtype=torch.long)}, r"documents is \(2, 5\) int64"),
    ({"documents": torch.zeros(2, 6)}, r"documents is \(2, 6\) float32.*whole number"),
]


@pytest.mark.parametrize("name", MEMBERS)
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize(("parts", "says"), UNFIT)
def test_masks_that_do_not_fit_are_refused(name, causal, parts, says):
    own = {"causal_chunk": 4} if name == "linformer" and causal else {}
    sizes = {"width": 8, "heads": 2, "max_length": 32, "causal": causal}
    mixer = ef.create_mixer(name, **sizes, **own)
    with pytest.raises(ShapeError, match=says):
        mixer(torch.randn(2, 6, 8), mask=Mask(**parts))
