"""Mixers on rows: what stands in the padding is not read, by forward, backward or definition."""

import math

import pytest
import torch

from everyformer.core.mask import Mask
from everyformer.core.outputs import MixerOutput
from everyformer.genes.mixers import MIXERS
from everyformer.genes.mixers.base import RowMixer, Rows, rows_of

NAMES = [name for name in MIXERS.names() if issubclass(MIXERS.get(name), RowMixer)]
KEEPS = {"right": [0, 1, 2, 3, 4], "left": [3, 4, 5, 6, 7], "between": [0, 2, 3, 5, 7]}


def padded(at):
    padding_mask = torch.zeros(2, 8, dtype=torch.bool)
    padding_mask[0, at] = padding_mask[1] = True
    return padding_mask


@pytest.mark.parametrize("where", KEEPS)
@pytest.mark.parametrize("name", NAMES)
def test_nothing_in_the_padding_is_read_and_zeros_are_written_there(name, where):
    torch.manual_seed(0)
    mixer = MIXERS.get(name)(width=16, heads=2, causal=False, max_length=8).double().eval()
    # the last row has no real token
    padding_mask = torch.cat((padded(KEEPS[where]), torch.zeros(1, 8, dtype=torch.bool)))
    x = torch.randn(3, 8, 16, dtype=torch.float64)
    alone = mixer(x[:1, padding_mask[0]]).y
    x = x.masked_fill(~padding_mask[..., None], math.nan).requires_grad_()
    for run in (mixer, mixer.reference):
        y = run(x, mask=Mask(padding_mask=padding_mask))
        y = y if isinstance(y, torch.Tensor) else y.y
        torch.testing.assert_close(y[:1, padding_mask[0]], alone, rtol=0, atol=1e-10)
        assert (y[~padding_mask] == 0).all()
    out = mixer(x, mask=Mask(padding_mask=padding_mask)).y
    gradients = torch.autograd.grad(
        out.square().sum(), [x, *mixer.parameters()], allow_unused=True, materialize_grads=True
    )
    assert all(gradient.isfinite().all() for gradient in gradients)
    assert (gradients[0][~padding_mask] == 0).all()


def test_what_is_told_of_tokens_moves_with_them():
    padding_mask = padded(KEEPS["between"])
    tokens = torch.arange(16).view(2, 8)
    mask = Mask(padding_mask=padding_mask, global_tokens=tokens % 3 == 0, sentences=10 * tokens)
    rows, restore = rows_of(tokens[..., None].double(), mask)
    assert rows.x[0, :5, 0].tolist() == KEEPS["between"]
    assert rows.lengths.tolist() == [5, 8]
    real = rows.padding_mask
    assert torch.equal(rows.global_tokens[real], rows.x[real][:, 0] % 3 == 0)
    assert torch.equal(rows.sentences[real], 10 * rows.x[real][:, 0].long())
    assert torch.equal(restore(rows.x)[..., 0], (tokens * padding_mask).double())


def test_rows_that_are_right_padded_are_not_gathered(monkeypatch):
    monkeypatch.setattr("everyformer.genes.mixers.base.compact", None)
    rows, _ = rows_of(torch.randn(2, 8, 3), Mask(padding_mask=padded(KEEPS["right"])))
    assert torch.equal(rows.padding_mask, padded(KEEPS["right"]))


def test_the_former_name_of_forward_rows_warns() -> None:
    def mix(self: RowMixer, rows: Rows, state: None) -> MixerOutput:
        return MixerOutput(2 * rows.x, None, {})

    with pytest.warns(FutureWarning, match="Old.mix is called forward_rows now"):
        old = type("Old", (RowMixer,), {"mix": mix, "__qualname__": "Old"})

    y = old.forward_rows(None, Rows(torch.ones(1, 2, 3)), None).y
    assert torch.equal(y, torch.full((1, 2, 3), 2.0))
