"""Laws of members alone: equation, limits, bidirectional.

Each goes through a member's cases, raises `LawBroken` where it fails and fills a `Check` where it
holds. Identities are checked in float64 unless the user asks for another dtype; tolerances follow
from the dtype alone.
"""

import itertools
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from everyformer.checks.cases import LENGTHS, cases, draw, known, randomize_
from everyformer.checks.check import TOLERANCE, Check
from everyformer.core.mask import Mask
from everyformer.core.member import Member
from everyformer.core.mixer import Mixer
from everyformer.core.trials import HEADS, LENGTH, LONGEST, WIDTH
from everyformer.models.build import create_mixer, create_model


def equation(
    member: Member, check: Check, device: str, dtype: torch.dtype, *, few: bool = False
) -> None:
    """The fast path equals the member's reference, outputs and gradients, with padding, packed, and
    without. ``few``: one length and one mask for each case."""
    kinds = (None, "padded", *["packed"] * member.can("padding"))
    every = list(itertools.product(LENGTHS, kinds))
    for number, case in enumerate(cases(member)):
        mixer = case.mixer(dtype, device)
        for length, kind in [every[(5 * number - 2) % len(every)]] if few else every:
            x = draw(2, length, WIDTH, seed=length, dtype=dtype, device=device).requires_grad_()
            mask, seen = _masked(kind, length, dtype, device)
            weight = draw(2, length, WIDTH, seed=99, dtype=dtype, device=device) * seen
            got, expected = mixer(x, mask=mask).y, mixer.reference(x, mask=mask)
            where = f"{case} L={length} {kind or 'plain'}"
            check.close(got * seen, expected * seen, TOLERANCE[dtype], where)
            inputs = [x, *(p for p in mixer.parameters() if p.requires_grad)]
            first = torch.autograd.grad((got * weight).sum(), inputs, allow_unused=True)
            second = torch.autograd.grad((expected * weight).sum(), inputs, allow_unused=True)
            for a, b, p in zip(first, second, inputs, strict=True):
                zero = torch.zeros_like(p)
                a, b = zero if a is None else a, zero if b is None else b
                check.close(a, b, 10 * TOLERANCE[dtype], f"{where} gradient {tuple(p.shape)}")


def _masked(
    kind: str | None, length: int, dtype: torch.dtype, device: str
) -> tuple[Mask | None, Tensor | float]:
    """A mask of two rows, and what is real as factors.

    Row 0 starts and ends with padding and has a hole, the other row is whole; or both are three
    documents, of which the last has the id of the first.
    """
    if kind is None:
        return None, 1.0
    if kind == "packed":
        ids = 4 + 5 * (3 * torch.arange(length, device=device) // length % 2)
        return Mask(documents=ids.repeat(2, 1)), 1.0
    padding_mask = torch.ones(2, length, dtype=torch.bool, device=device)
    if length > 2:
        padding_mask[0, 0] = padding_mask[0, length // 2] = padding_mask[0, -1] = False
    return Mask(padding_mask=padding_mask), padding_mask[..., None].to(dtype)


def bidirectional(member: Member, check: Check, device: str, dtype: torch.dtype) -> None:
    """Outputs have a gradient to later inputs, in every form that reads other tokens at all."""
    reads = 0
    for case in (c for c in cases(member) if not c.causal):
        x = draw(1, 9, WIDTH, dtype=dtype, device=device).requires_grad_()
        y = case.mixer(dtype, device)(x).y[0]
        rows = [torch.autograd.grad(out.sum(), x, retain_graph=True)[0][0] for out in y]
        seen = torch.stack([(row != 0).any(1) for row in rows])
        later = bool(seen.triu(1).any())
        check.true(
            later or not bool(seen.tril(-1).any()),
            f"{case}: no output depends on a later input, so it is causal alone",
        )
        reads += later
    check.true(reads > 0, f"{member.name}: no output depends on a later input in any form")


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
    """Makers of mixers and models for limits (`everyformer.core.trials.Make`)."""

    causal: bool
    device: str
    dtype: torch.dtype

    def __call__(self, name: str, **options: Any) -> Mixer:
        sizes = {"width": WIDTH, "heads": HEADS, "causal": self.causal, "max_length": LONGEST}
        mixer = create_mixer(name, **{**sizes, **options}).to(self.device, self.dtype)
        randomize_(mixer)
        return mixer

    def model(self, name: str, **options: Any) -> nn.Module:
        sizes = {"width": WIDTH, "heads": HEADS, "max_length": LONGEST}
        return create_model(name, **{**sizes, **options}).to(self.device, self.dtype).eval()
