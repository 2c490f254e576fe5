"""Law 5: where a paper has a limit, the member equals a simpler member there."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from everyformer.core.member import Member
from everyformer.core.mixer import Mixer
from everyformer.core.trials import HEADS, LENGTH, LONGEST, WIDTH
from everyformer.models.build import create_mixer, create_model
from everyformer.verification.cases import draw, known, stir
from everyformer.verification.laws import TOLERANCE
from everyformer.verification.result import Check


def limits(member: Member, check: Check, device: str, dtype: torch.dtype) -> None:
    """Every limit that the member's mixer, memory or position knows."""
    find = known(member, "limits")
    if find is None:
        return
    x = draw(2, LENGTH, WIDTH, dtype=dtype, device=device)
    for causal in (True, False):
        if not member.can("causal" if causal else "bidirectional"):
            continue
        for what, got, expected in find(Maker(causal, device, dtype)):
            check.close(got(x), expected(x), TOLERANCE[dtype], f"{what} (causal={causal})")


@dataclass(frozen=True)
class Maker:
    """What limits are made with (`everyformer.core.trials.Make`)."""

    causal: bool
    device: str
    dtype: torch.dtype

    def __call__(self, name: str, **options: Any) -> Mixer:
        sizes = {"width": WIDTH, "heads": HEADS, "causal": self.causal, "max_length": LONGEST}
        mixer = create_mixer(name, **{**sizes, **options}).to(self.device, self.dtype)
        stir(mixer)
        return mixer

    def model(self, name: str, **options: Any) -> nn.Module:
        sizes = {"width": WIDTH, "heads": HEADS, "max_length": LONGEST}
        return create_model(name, **{**sizes, **options}).to(self.device, self.dtype).eval()
