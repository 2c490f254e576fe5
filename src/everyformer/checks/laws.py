"""Laws 1 to 4, 6 and 11: equation, causality, chunks, padding, numbers, bidirectional.

Each goes through a member's cases, raises `LawBroken` where it fails and fills a `Check` where it
holds. Identities are checked in float64 unless the user asks for another dtype; tolerances follow
from the dtype alone.
"""

import itertools
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from everyformer.checks.cases import LENGTHS, cases, draw, known, stir
from everyformer.checks.check import Check
from everyformer.checks.conditions import together
from everyformer.core.devices import widest
from everyformer.core.leaks import cuts
from everyformer.core.mask import Mask
from everyformer.core.member import Member
from everyformer.core.mixer import Mixer
from everyformer.core.trials import HEADS, LENGTH, LONGEST, WIDTH
from everyformer.models.build import create_mixer, create_model

# About 2^14 roundings of the dtype: enough for sums over lengths <= 40 through a few products.
TOLERANCE = {torch.float64: 1e-10, torch.float32: 5e-5, torch.bfloat16: 6e-2, torch.float16: 1e-2}
LONG = 150
"""of a text beyond blocks and windows of usual sizes"""
SPLITS = ((0, 3, 4, 11), (0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11), (0, 10, 11), (0, 11))


def equation(member: Member, check: Check, device: str, dtype: torch.dtype) -> None:
    """The fast path equals the member's reference, outputs and gradients."""
    for case in cases(member):
        mixer = case.mixer(dtype, device)
        for length, padded in itertools.product(LENGTHS, (False, True)):
            x = draw(2, length, WIDTH, seed=length, dtype=dtype, device=device).requires_grad_()
            mask, _, seen = _holes(length, dtype, device, padded)
            weight = draw(2, length, WIDTH, seed=99, dtype=dtype, device=device) * seen
            got, expected = mixer(x, mask=mask).y, mixer.reference(x, mask=mask)
            where = f"{case} L={length} padded={padded}"
            check.close(got * seen, expected * seen, TOLERANCE[dtype], where)
            inputs = [x, *(p for p in mixer.parameters() if p.requires_grad)]
            first = torch.autograd.grad((got * weight).sum(), inputs, allow_unused=True)
            second = torch.autograd.grad((expected * weight).sum(), inputs, allow_unused=True)
            for a, b, p in zip(first, second, inputs, strict=True):
                zero = torch.zeros_like(p)
                a, b = zero if a is None else a, zero if b is None else b
                check.close(a, b, 10 * TOLERANCE[dtype], f"{where} gradient {tuple(p.shape)}")


def causality(member: Member, check: Check, device: str, dtype: torch.dtype) -> None:
    """Output t has exactly zero gradient to later inputs; another future changes nothing, nor does
    it at some places of a long text.

    A choice of options that leaks, and says so, is left out, here and where states are checked.
    """
    for case in (c for c in cases(member) if c.causal):
        mixer, length = case.mixer(dtype, device), 9
        if mixer.leaks is not None:
            continue
        x = draw(1, length, WIDTH, dtype=dtype, device=device).requires_grad_()
        y = mixer(x).y
        for t in range(length - 1):
            (gradient,) = torch.autograd.grad(y[:, t].sum(), x, retain_graph=True)
            later = gradient[:, t + 1 :]
            check.true(bool((later == 0).all()), f"{case}: output {t} has a gradient to the future")
            changed = x.detach().clone()
            changed[:, t + 1 :] = 50 * draw(1, length - t - 1, WIDTH, seed=7).to(changed)
            early = mixer(changed).y[:, : t + 1]
            check.close(early, y[:, : t + 1], TOLERANCE[dtype], f"{case}: future after {t} matters")
        mixer = case.mixer(dtype, device, length=LONG)
        parts = [part.max_length for part in mixer.modules() if isinstance(part, Mixer)]
        length = min([LONG, *filter(None, parts)])
        x = draw(1, length, WIDTH, seed=5, dtype=dtype, device=device)
        y = mixer(x).y
        for cut in cuts(length):
            changed = torch.cat([x[:, :cut], 50 * x[:, cut:].flip(1)], 1)
            early = mixer(changed).y[:, :cut]
            check.close(early, y[:, :cut], TOLERANCE[dtype], f"{case}: future from {cut} matters")


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


def chunks(member: Member, check: Check, device: str, dtype: torch.dtype) -> None:
    """Any split carried by a state equals one pass; a reset row starts afresh.

    So also of models of several layers, and together with padding, packing or a long text.
    """
    length = SPLITS[0][-1]
    for case in (c for c in cases(member) if c.causal):
        mixer = case.mixer(dtype, device)
        if mixer.leaks is not None:
            continue
        x = draw(2, length, WIDTH, dtype=dtype, device=device)
        for padded, split in itertools.product((False, True), SPLITS):
            mask, real, seen = _holes(length, dtype, device, padded)
            whole = mixer(x, mask=mask).y
            parts = run_chunks(mixer, x, split, real)
            sizes = " + ".join(str(b - a) for a, b in itertools.pairwise(split))
            where = f"{case}: {'padded ' * padded}pieces of {sizes} tokens are not one pass"
            check.close(parts * seen, whole * seen, TOLERANCE[dtype], where)
        state = mixer(x, state=mixer.init_state(2)).state
        assert state is not None
        counted = f"{case}: after {length} tokens the state has seen {state.seen.tolist()}"
        check.true(state.seen.tolist() == [length, length], counted)
        rows = torch.tensor([True, False], device=device)
        y = mixer(x, state=state.reset(rows)).y
        check.close(y[0], mixer(x[:1]).y[0], TOLERANCE[dtype], f"{case}: a reset row remembers")
        order = torch.tensor([1, 0], device=device)
        swapped = mixer(x.flip(0), state=state.reorder(order)).y
        direct = mixer(x, state=state).y
        check.close(swapped.flip(0), direct, TOLERANCE[dtype], f"{case}: reorder")
    if member.genes["memory"].name is None:
        together(member, check, device, carried=True)


def run_chunks(mixer: Mixer, x: Tensor, split: tuple[int, ...], real: Tensor | None) -> Tensor:
    """Outputs of ``x`` fed in pieces, each continuing the state of the one before."""
    state: Any = mixer.init_state(x.shape[0])
    parts = []
    for a, b in itertools.pairwise(split):
        mask = None if real is None else Mask(keep=real[:, a:b])
        y, state, _ = mixer(x[:, a:b], mask=mask, state=state)
        parts.append(y)
    return torch.cat(parts, 1)


def padding(member: Member, check: Check, device: str, dtype: torch.dtype) -> None:
    """A padded row equals the row alone, whatever stands in the padding; packing = separation.

    So also of models of several layers, and of any two conditions together (`conditions`).
    """
    for case in cases(member):
        mixer = case.mixer(dtype, device)
        alone = [draw(1, n, WIDTH, seed=n, dtype=dtype, device=device) for n in (5, 3)]
        expected = [mixer(x).y[0] for x in alone]
        for positions in ((range(5), range(3)), (range(5), range(2, 5)), (range(1, 6), (0, 3, 5))):
            batch = torch.full((2, 6, WIDTH), 1e4, dtype=dtype, device=device)
            keep = torch.zeros(2, 6, dtype=torch.bool, device=device)
            for row, spots in enumerate(positions):
                batch[row, list(spots)] = alone[row][0]
                keep[row, list(spots)] = True
            y = mixer(batch, mask=Mask(keep=keep)).y
            for row in range(2):
                where = f"{case}: row {row} with real tokens at {list(positions[row])}"
                check.close(y[row, keep[row]], expected[row], TOLERANCE[dtype], where)
        packed = torch.cat(alone, 1)
        ids = torch.tensor([[4] * 5 + [9] * 3], device=device)
        y = mixer(packed, mask=Mask(documents=ids)).y
        check.close(y[0], torch.cat(expected), TOLERANCE[dtype], f"{case}: packed documents mix")
        if "equation" in member.exempt:
            continue
        literal = mixer.reference(packed, mask=Mask(documents=ids))
        check.close(literal[0], y[0], TOLERANCE[dtype], f"{case}: the reference of documents")
    together(member, check, device, carried=False)
    if member.genes["memory"].name is not None:
        # a member that may not be cut anywhere is still the same beside padding
        together(member, check, device, carried=True)


def numbers(member: Member, check: Check, device: str, dtype: torch.dtype) -> None:
    """Nothing but finite numbers: inputs of 1e4, one token, rows without any, three dtypes."""
    kinds = (torch.float32, torch.bfloat16, torch.float16)
    for case, kind in itertools.product(cases(member), kinds):
        mixer = case.mixer(kind, device)
        # beyond sqrt(65504) the projections themselves leave float16's range
        size = 1e4 if kind != torch.float16 else 100.0
        for length in (1, 6):
            x = (draw(2, length, WIDTH, dtype=kind, device=device) * size).requires_grad_()
            nothing = torch.zeros(2, length, dtype=torch.bool, device=device)
            nothing[0] = True
            for mask in (None, Mask(keep=nothing)):
                y = mixer(x, mask=mask).y
                (gradient,) = torch.autograd.grad(y.float().sum(), x)
                where = f"{case} {kind} L={length} {'masked row' if mask else ''}"
                check.true(bool(torch.isfinite(y).all()), f"{where}: output not finite")
                check.true(bool(torch.isfinite(gradient).all()), f"{where}: gradient not finite")
        wide = device if widest(torch.device(device)) is torch.float64 else "cpu"
        exact = case.mixer(torch.float64, wide)
        exact.load_state_dict(mixer.state_dict())
        x = draw(2, 9, WIDTH, device=wide)
        low = mixer(x.to(device, kind)).y
        check.close(low, exact(x).y, TOLERANCE[kind], f"{case}: {kind} against float64")


def _holes(
    length: int, dtype: torch.dtype, device: str, padded: bool
) -> tuple[Mask | None, Tensor | None, Tensor | float]:
    """A mask of two rows, which tokens are real, and the same as factors; of rows without padding
    nothing.

    Row 0 starts and ends with padding and has a hole; the other row is whole.
    """
    if not padded:
        return None, None, 1.0
    keep = torch.ones(2, length, dtype=torch.bool, device=device)
    if length > 2:
        keep[0, 0] = keep[0, length // 2] = keep[0, -1] = False
    return Mask(keep=keep), keep, keep[..., None].to(dtype)


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
        stir(mixer)
        return mixer

    def model(self, name: str, **options: Any) -> nn.Module:
        sizes = {"width": WIDTH, "heads": HEADS, "max_length": LONGEST}
        return create_model(name, **{**sizes, **options}).to(self.device, self.dtype).eval()
