"""Quick looks: one each of the laws that are broken most often, of few passes at one length."""

import math
from collections.abc import Callable

import torch
from torch import Tensor

from sequence_laws.rounding import GAP, rounding
from sequence_laws.subject import Subject
from sequence_laws.verdict import Inapplicable, LawBroken

LENGTHS = (16, 12, 32, 64, 8, 128)
"""of which the first that the model takes is tried"""


class _Look:
    """Two rows, their outputs in float64, and what of a difference is rounding."""

    def __init__(self, subject: Subject) -> None:
        self.subject = subject
        length = next((n for n in LENGTHS if subject.takes(n)), None)
        if length is None:
            raise Inapplicable(f"it takes none of the lengths {LENGTHS}", "undecided")
        self.length, self.half = length, length // 2
        self.x = subject.inputs.draw(2, length)
        self.y, again = subject.exact(self.x), subject.exact(self.x)
        if not torch.equal(self.y, again):
            raise Inapplicable("outputs differ from run to run: see determinism", "undecided")
        with torch.no_grad():
            self.single = subject.run(subject.copy(torch.float32), self.x)
        self.bound = GAP * rounding(self.single, self.y)

    def require(self, what: str, y: Tensor, expected: Tensor, *program: str) -> None:
        """Raise `LawBroken` where outputs (B, L, channels) differ."""
        off = float((y - expected).abs().max())
        if math.isnan(self.bound):
            raise Inapplicable("its outputs in float32 are not finite: see numbers", "undecided")
        if not off <= self.bound:
            lines = (self.subject.inputs.code(2, self.length), *program)
            finding = f"{what} are off by {off:.2g} (rounding {self.bound:.0e})"
            raise LawBroken(finding, self.subject.code(*lines))


def _look(subject: Subject) -> _Look:
    """Made once for all laws."""
    known = vars(subject)
    if "_look" not in known:
        known["_look"] = _Look(subject)
    look: _Look = known["_look"]
    return look


def causality(subject: Subject) -> str:
    """Outputs of the first half do not move with the second."""
    if not subject.causal:
        raise Inapplicable("it reads both ways")
    subject.require_positions()
    look = _look(subject)
    half, other = look.half, look.x.clone()
    other[:, half:] = subject.inputs.other(look.x)[:, half:]
    look.require(
        f"outputs before {half}, when inputs from there on change{subject.assumed},",
        subject.exact(other)[:, :half],
        look.y[:, :half],
        "other = x.clone()",
        f"other[:, {half}:] = ({subject.inputs.other_code()})[:, {half}:]",
        f"y = {subject.call_code('x')}",
        f"print((y - {subject.call_code('other')})[:, :{half}].abs().max())  # not 0",
    )
    return f"no output moves by inputs from {half} of {look.length} on"


def streaming(subject: Subject) -> str:
    """Two pieces with a cache give what one pass gives."""
    if not subject.streams:
        raise Inapplicable(subject.uncached, subject.uncached_as)
    if not subject.causal:
        raise Inapplicable("it reads both ways")
    subject.require_positions()
    look, half = _look(subject), _look(subject).half
    model, wide = subject.copy(), subject.widened(look.x)
    with torch.no_grad(), subject.exactly():
        one, cache = subject.feed(model, wide[:, :half], None)
        two, _ = subject.feed(model, wide[:, half:], cache)
    look.require(
        f"outputs of pieces of {half} and {look.length - half}",
        torch.cat((one, two), 1).flatten(2),
        look.y,
        *subject.feed_code(),
        f"one, cache = feed(x[:, :{half}], None)",
        f"two, _ = feed(x[:, {half}:], cache)",
        f"print((torch.cat((one, two), 1) - {subject.call_code('x')}).abs().max())  # not 0",
    )
    return f"pieces of {half} and {look.length - half}"


def padding(subject: Subject) -> str:
    """A row padded on the right is the row alone."""
    if "right" not in subject.masks:
        why = "it takes no padding on the right" if subject.masks else subject.unmasked
        raise Inapplicable(why, "undecided" if subject.untried and not subject.masks else "exempt")
    look, half = _look(subject), _look(subject).half
    if not subject.takes(half):
        raise Inapplicable(f"it does not take a length of {half}", "undecided")
    mask = (torch.arange(look.length) < half).expand(2, -1)
    look.require(
        f"outputs of {half} inputs padded on the right to {look.length}",
        subject.exact(look.x, mask)[:, :half],
        subject.exact(look.x[:, :half]),
        f"padding_mask = (torch.arange({look.length}) < {half}).expand(2, -1)",
        f"y = {subject.call_code('x', 'padding_mask')}" + f"[:, :{half}]" * (not subject.pools),
        f"print((y - {subject.call_code(f'x[:, :{half}]')}).abs().max())  # not 0",
    )
    return f"{half} inputs padded on the right to {look.length}"


def batch(subject: Subject) -> str:
    """A row alone is the row in a batch."""
    look = _look(subject)
    look.require(
        "outputs of a row alone, and in a batch,",
        subject.exact(look.x[:1]),
        look.y[:1],
        f"print(({subject.call_code('x')}[:1] - {subject.call_code('x[:1]')}).abs().max())",
    )
    return "a row alone"


def numbers(subject: Subject) -> str:
    """Outputs are finite in float32."""
    look = _look(subject)
    if not torch.isfinite(look.single).all():
        raise LawBroken(
            f"outputs of {look.length} inputs are not finite in float32",
            subject.code(
                subject.inputs.code(2, look.length),
                f"print({subject.call_code('x')}.isfinite().all())",
                double=False,
            ),
        )
    return "finite in float32"


QUICK: dict[str, Callable[[Subject], str]] = {
    "causality": causality,
    "streaming": streaming,
    "padding": padding,
    "batch": batch,
    "numbers": numbers,
}
