"""`check`: every law for any sequence model."""

import contextlib
import functools
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from traceback import walk_tb
from typing import Any, Literal

import torch
from torch import Tensor, nn

from sequence_laws import (
    agreement,
    behaviour,
    caches,
    causality,
    gradients,
    numbers,
    padding,
    rows,
    saving,
    streaming,
)
from sequence_laws import cost as costs
from sequence_laws.adapters import subject_of
from sequence_laws.confined import needs_cuda, one_process
from sequence_laws.errors import ConfigError, UnknownNameError, unknown
from sequence_laws.foreign import FAILURES, describe, source
from sequence_laws.quick import QUICK
from sequence_laws.subject import Subject
from sequence_laws.verdict import (
    BROKEN,
    BrokenByDefault,
    Inapplicable,
    LawBroken,
    LawResult,
    Status,
)

Law = Callable[[Subject], str]


def compiles(subject: Subject) -> str:
    """`sequence_laws.compiling.compiles`, with the compiler, which takes seconds to import."""
    from sequence_laws import compiling

    return compiling.compiles(subject)


LAWS: dict[str, Law] = {
    "causality": causality.causality,
    "streaming": streaming.streaming,
    "padding": padding.padding,
    "packing": rows.packing,
    "batch": rows.batch,
    "lengths": behaviour.lengths,
    "numbers": numbers.numbers,
    "gradients": gradients.gradients,
    "agreement": agreement.agreement,
    "order": behaviour.order,
    "determinism": behaviour.determinism,
    "saving": saving.saving,
    "compiles": compiles,
    "cost": costs.cost,
}


FORMER = {"chunks": "streaming", "keeps": "saving", "reproducible": "determinism", "growth": "cost"}
"""names that laws had"""


class Checked(tuple[LawResult, ...]):
    """Verdicts of a model, which print as a table."""

    def __str__(self) -> str:
        width = max((len(one.law) for one in self), default=0)
        lines = [f"{one.law:<{width}}  {one.status:<17}  {one.detail}" for one in self]
        for one in self:
            if one.reproduction:
                lines += ["", f"# {one.law}", one.reproduction]
        return "\n".join(lines)

    @property
    def held(self) -> bool:
        """True where no law is broken."""
        return all(one.status not in BROKEN for one in self)


def check(
    model: nn.Module | Subject,
    *,
    laws: Sequence[str] = (),
    causal: bool | None = None,
    vocabulary: int | None = None,
    width: int | None = None,
    inputs: Tensor | None = None,
    masks: Sequence[str] | None = None,
    claims: str | float | None = None,
    name: str | None = None,
    depth: Literal["quick", "usual", "deep"] = "usual",
) -> Checked:
    """Every law that applies to a live module, tried on copies of it.

    Args:
        model: it reads token ids (B, L) or features (B, L, d), and gives an output at each
            position, or one a row (B, classes): a tensor, a tuple that begins with one, or a
            mapping with ``logits`` or ``last_hidden_state``.
        laws: names in `LAWS` (default: all).
        causal: whether it claims that outputs depend on their own and earlier inputs alone
            (default: as its kind does; a module of one's own does).
        vocabulary, width, inputs: what it reads, where that cannot be guessed: number of tokens,
            channels of features, or a batch of its own.
        masks: where padding may stand of which it claims to take masks, some of "right", "left" and
            "holes", or "none" (default: all that its kind takes).
        claims: cost that it claims: "constant", "linear", "quadratic" or an exponent of length.
        name: of the model in messages (default: its class).
        depth: how far laws look: "quick" (one look of each of five laws), "usual", or "deep".

    Raises:
        ConfigError: a law that there is not, or inputs that cannot be guessed.
    """
    laws = laws_of(depth, laws)
    claim = known_claim(claims, laws)
    reads: dict[str, Any] = {"vocabulary": vocabulary, "width": width, "inputs": inputs}
    subject = subject_of(model, name, causal=causal, masks=masks, **reads)
    subject.depth = depth
    return Checked(judge(subject, laws, claim))


def laws_of(depth: str, names: Sequence[str] = ()) -> tuple[str, ...]:
    """The names of laws that are tried at a `Subject.depth`."""
    return known_laws(names, QUICK if depth == "quick" else LAWS)


def known_laws(names: Sequence[str], known: Iterable[str] = LAWS) -> tuple[str, ...]:
    """The names of laws, all where there are none."""
    for name in names:
        if name in FORMER:
            raise UnknownNameError(f"the law '{name}' is called '{FORMER[name]}' now")
        if name not in known:
            raise unknown("law", name, known)
    return tuple(names) or tuple(known)


def known_claim(claim: str | float | None, laws: Sequence[str] = ("cost",)) -> float | None:
    """The exponent of length that a claim is, which one of the ``laws`` tries."""
    if claim is not None and "cost" not in laws:
        raise ConfigError("a claim of cost is tried by the law 'cost' alone, which is left out")
    if claim is None or isinstance(claim, float | int):
        return claim
    if claim in costs.CLAIMS:
        return costs.CLAIMS[claim]
    try:
        return float(claim)
    except ValueError:
        raise unknown("claim", claim, costs.CLAIMS) from None


def judge(subject: Subject, laws: Sequence[str], claim: float | None = None) -> Iterator[LawResult]:
    """Each verdict as it is known."""
    for name in laws:
        law = LAWS[name] if name != "cost" else lambda s: costs.cost(s, claim)
        law = QUICK[name] if subject.depth == "quick" else law
        yield judged(subject, name, law)


def judged(subject: Subject, name: str, law: Law) -> LawResult:
    """The verdict of a law. A model that fails breaks the law that ran it."""
    start = time.perf_counter()
    status: Status = "held"
    code = ""
    try:
        if name in subject.exempts:
            raise Inapplicable(subject.exempts[name])
        with one_thread(), contextlib.redirect_stdout(sys.stderr), one_process():
            detail = kept(subject, name, law)
    except LawBroken as broken:
        status = "failed_by_default" if isinstance(broken, BrokenByDefault) else "failed"
        detail, code = broken.finding, broken.reproduction
    except Inapplicable as reason:
        status, detail = reason.status, str(reason)
    except FAILURES as error:
        if is_ours(error):
            raise
        # order is never judged
        status = "undecided" if name == "order" else "failed"
        detail = f"it fails: {describe(error)}"
        if asks := needs_cuda(error):
            status, detail = "undecided", asks
    if name in BY_SIDES and subject.refused:
        detail += f"; {subject.refused}"
    place = source(type(subject.model)) if status in BROKEN else ""
    took = time.perf_counter() - start
    return LawResult(subject.name, name, status, detail, took, code, place)


def kept(subject: Subject, name: str, law: Law) -> str:
    """What a law found, of a subject as it is called, with each of its contexts, and by each of its
    plain calls.

    Raises:
        LawBroken: it is broken. BrokenByDefault: it is by a plain call alone.
        Inapplicable: it was not judged.
    """
    detail = law(subject)
    if subject.depth == "quick":
        return detail
    for words, other in subject.with_contexts if name in WITH_CONTEXT else ():
        if broken := breaks(other, QUICK.get(name, law)):
            raise LawBroken(f"{words} {broken.finding}", broken.reproduction)
        detail += f"; also {words}"
    for call in subject.called_plainly:
        if name in call.laws or (name in BY_OUTPUTS and differs(subject, call.subject)):
            broken = breaks(call.subject, PARTS.get(name, law))
            if broken is not None:
                finding = f"{call.words} {broken.finding}; to have it hold, {call.right}"
                raise BrokenByDefault(finding, broken.reproduction)
    return detail


def breaks(subject: Subject, law: Law) -> LawBroken | None:
    """How a law is broken, which may fail; None where it holds or is not judged."""
    try:
        law(subject)
    except Inapplicable:
        return None
    except LawBroken as broken:
        return broken
    except FAILURES as error:
        if is_ours(error):
            raise
        return LawBroken(f"it fails: {describe(error)}")
    return None


BY_SIDES = ("padding", "gradients", "agreement")
"""laws that are tried with padding on each side that a model takes"""
WITH_CONTEXT = ("causality", "streaming", "padding", "batch", "agreement")
"""laws that are tried with each context, by their quick looks where they have such"""
PARTS: dict[str, Law] = {"streaming": caches.padded}
"""of a law, what a plain call may change"""
BY_OUTPUTS = ("causality", "batch", "lengths", "determinism")
"""laws that a plain call cannot break while its outputs are those of the call that a law makes"""


@functools.lru_cache(maxsize=8)
def differs(subject: Subject, other: Subject) -> bool:
    """Whether a plain call gives other outputs, in evaluation or in training, or none; several laws
    ask that of one."""
    for training in (False, True) if subject.doubles else (False,):
        try:
            x = subject.inputs.draw(2, subject.usual(training))
            off = other.exact(x, training=training) - subject.exact(x, training=training)
            if not float(off.abs().max()) <= subject.bound(x, training=training):
                return True
        except FAILURES:
            return True
    return False


def is_ours(error: BaseException) -> bool:
    """True if an error rose in a law itself, and not in the model that it called."""
    named = (str(frame.f_globals.get("__name__")) for frame, _ in walk_tb(error.__traceback__))
    last = [name for name in named if not name.startswith(BETWEEN)][-1]
    return last.startswith("sequence_laws") and not last.startswith(CALLS)


MODES = ("kernels", "lost_digits", "operations", "rounding")
"""modules that see each operation of a model"""
BETWEEN = ("torch.", "contextlib", *(f"sequence_laws.{name}" for name in MODES))
CALLS = tuple(f"sequence_laws.{name}" for name in ("adapters", "calls", "inputs", "subject"))
"""where models are called"""


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """A block of small products, which more threads would slow."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
