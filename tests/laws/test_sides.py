"""Padding that a model claims to take, on some sides alone."""

from pathlib import Path

import pytest
import torch
from programs import shown
from torch import Tensor, nn

from sequence_laws import check
from sequence_laws.command import main
from sequence_laws.errors import ConfigError

LAWS = ("padding", "agreement", "batch", "gradients", "causality")


class Places(nn.Module):
    """Sums of what is real, at places that count from the first column."""

    def __init__(self, wrong: bool = False) -> None:
        super().__init__()
        self.wrong, self.embed, self.places = wrong, nn.Embedding(16, 8), nn.Embedding(400, 8)
        self.head = nn.Linear(8, 16)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        h = self.embed(x) + self.places(torch.arange(x.shape[1]))
        h = h / x.shape[1] if self.wrong else h
        h = h if mask is None else h * mask[..., None]
        return self.head(h.cumsum(1))


class Last(nn.Module):
    """A classifier that reads the last position, real or not; ``right`` reads the last real one."""

    def __init__(self, right: bool = False) -> None:
        super().__init__()
        self.right, self.embed, self.head = right, nn.Embedding(16, 8), nn.Linear(8, 3)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        real = torch.ones_like(x) if mask is None else mask.long()
        h = (self.embed(x) * real[..., None]).cumsum(1) / real.cumsum(1).clamp(1)[..., None]
        h = h + 0.1 * self.embed(x)
        last = (torch.arange(x.shape[1]) * real).argmax(1) if self.right else x.shape[1] - 1
        return self.head(h[torch.arange(len(x)), last])


def test_padding_on_the_right_alone_is_judged_alone() -> None:
    torch.manual_seed(0)
    [found] = check(Places(), laws=["padding"])
    assert found.status == "failed"
    assert "on the left" in found.detail
    first, *others = check(Places(), laws=LAWS, masks=["right"])
    assert {one.status for one in (first, *others)} == {"held"}
    assert first.detail.startswith("what stands in padding (right) changes nothing")
    [found] = check(model := Places(wrong=True), laws=["padding"], masks=["right"])
    assert found.status == "failed"
    assert shown(found, model) > 1e-3


def test_a_classifier_of_the_last_position_takes_padding_on_the_left_alone() -> None:
    torch.manual_seed(0)
    [found] = check(model := Last(), laws=["padding"])
    assert found.status == "failed"
    assert "(right: " in found.detail
    assert shown(found, model) > 1e-3
    [found] = check(Last(), laws=["padding"], masks=["left"])
    assert found.status == "held", found
    assert "a row padded on the left is the row alone" in found.detail
    [found] = check(Last(right=True), laws=["padding"])
    assert found.status == "held", found


def test_what_claims_to_take_none_is_not_judged_for_it() -> None:
    [found] = check(Places(), laws=["padding"], masks=["none"])
    assert (found.status, found.detail) == ("exempt", "it claims to take no mask")
    [found] = check(Places(), laws=["padding"], masks=["left"], depth="quick")
    assert (found.status, found.detail) == ("exempt", "it takes no padding on the right")


@pytest.mark.parametrize("masks", [[], ["up"], ["none", "left"]])
def test_a_side_that_there_is_not_is_refused(masks: list[str]) -> None:
    with pytest.raises(ConfigError, match="masks are some of right, left, holes, or none alone"):
        check(Places(), masks=masks)


def test_a_mask_that_is_not_taken_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"takes no padding \(right\): it takes no mask"):
        check(nn.Sequential(nn.Embedding(16, 8), nn.Linear(8, 16)), masks=["right"])


def test_masks_of_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "placed.py"
    file.write_text(
        "import torch\nclass Mine(torch.nn.Module):\n    def forward(self, x, mask=None):\n"
        "        h = x + torch.arange(x.shape[1])[:, None]\n"
        "        return (h if mask is None else h * mask[..., None]).cumsum(1)\n"
    )
    words = [f"{file}:Mine", "--width", "4", "--laws", "padding"]
    assert main(words) == 1
    capsys.readouterr()
    assert main([*words, "--masks", "right"]) == 0
    assert "(right) changes nothing" in capsys.readouterr().err
    assert main(["hf:all", "--masks", "right"]) == 2
    assert "--masks, --claims, --quick and --deep are of one model" in capsys.readouterr().err
