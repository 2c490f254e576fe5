"""Agreement: each way to compute the same gives the same, for every mask that other laws use.

Ways are a plain call (a mask of ones for none, a cache that is kept), the inputs in another form
(embeddings for token ids), flags of a cache, labels, gradients that are recorded or not, since some
take a faster path without, also in float32, for which such paths are made, inference mode, and each
implementation of attention; of a deep look also flex attention, as it is written and compiled.
Compiled models are the law `compiles`.
"""

import contextlib
import warnings
from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor, nn

from sequence_laws.errors import LawsError
from sequence_laws.foreign import FAILURES, describe
from sequence_laws.inputs import seed
from sequence_laws.kernels import Kernels
from sequence_laws.padding import real
from sequence_laws.rounding import computed, rounding
from sequence_laws.subject import Subject
from sequence_laws.verdict import BrokenByDefault, Inapplicable, LawBroken, ShortError

FASTER = 2.0**8
"""times the rounding of float32 by which a faster path in it may differ: half-way, in orders of
magnitude, to that of bfloat16"""
INFERENCE = "in inference mode"
FLEX = "with attention flex"
UNCOMPILED = "torch.compiler.set_stance('force_eager')  # which refuses float64"


class Given(NamedTuple):
    """What a model is given next to its inputs."""

    words: str
    padding_mask: Tensor | None = None
    documents: Tensor | None = None


class Way(NamedTuple):
    """A way to compute the same."""

    words: str
    subject: Subject
    recorded: bool = False
    """whether gradients are"""
    right: str = ""
    """of a plain call what to do instead"""
    compiles: bool | None = None
    """whether attention that its library compiles is, in float32, or runs as it is written, in
    `Subject.wide`; None: there is none"""


def agreement(subject: Subject) -> str:
    """Outputs at real positions are those of the model as it is called, in each way that there is,
    without a mask, with padding on each side, and of documents in a row.

    Raises:
        LawBroken: the first position that differs. BrokenByDefault: it does by a plain call.
        Inapplicable: there is one way.
    """
    subject.require_weights()
    most = max([33, *(2 * n + 1 for n in subject.marks())])  # beyond windows and blocks, too
    length = max((n for n in subject.lengths() if n <= most), default=subject.usual())
    names, left_out, refused = list[str](), list[str](), list[str]()
    every = [*ways(subject)]
    try:
        every += flex(subject, length) if subject.depth == "deep" else ()
    except FAILURES as error:  # of many sentences the first
        refused.append(f"not {FLEX}: {describe(error).partition('. ')[0]}")
    for given in readings(subject, length):
        x = subject.inputs.draw(1 if given.documents is not None else 2, length)
        y = outputs(Way("", subject), x, given)
        exact = subject.bound(x, given.padding_mask)
        for way in every:
            bound = exact * (2.0**29 if way.compiles else 1)  # as `Subject.room`
            if given.words and (way.right or way.words in left_out):
                continue
            try:
                off = (outputs(way, x, given) - y).abs().amax(-1)
            except FAILURES as error:
                if way.right:
                    raise BrokenByDefault(
                        f"{way.words} it fails: {describe(error)}; to have it hold, {way.right}"
                    ) from error
                if isinstance(error, ShortError) and way.subject.labelled:
                    raise LawBroken(
                        f"{way.words} it gives {error.outputs} outputs of {length} inputs",
                        subject.code(
                            subject.inputs.code(*x.shape[:2]),
                            f"y = {subject.call_code('x')}",
                            f"print(y.shape[1] - {way.subject.call_code('x')}.shape[1])  # not 0",
                        ),
                    ) from error
                left_out.append(way.words)
                refused.append(f"not {way.words}{given.words}: {describe(error)}")
                continue
            names += [way.words] * (way.words not in names)
            if given.padding_mask is not None and not subject.pools:
                off = off.masked_fill(~given.padding_mask, 0.0)
            if not bool((off <= bound).all()):
                raise broken(subject, way, given, x, off, bound)
    if not names:
        raise Inapplicable("; ".join(["there is one way to call it", *refused]))
    if subject.wide is torch.float64:
        faster(subject, length)
    attend = [Way("", subject), *(Way(*one) for one in subject.implementations)]
    ran = kernels(subject, length, *attend, *(way for way in every if way.compiles is False))
    by = f" (by {', '.join(sorted(ran))})" if ran else ""
    return "; ".join([f"equal {', '.join(names)}{by}", *refused])


def kernels(subject: Subject, length: int, *ways: Way) -> set[str]:
    """Which functions of torch attend, in passes of their own: some paths are not taken then."""
    with Kernels() as seen:
        for way in ways:
            outputs(way, subject.inputs.draw(2, length), Given(""))
    return seen.names


def readings(subject: Subject, length: int) -> Iterator[Given]:
    """What is given to a model: nothing, a mask of each kind, and documents where they are kept
    apart."""
    yield Given("")
    for side in subject.masks:
        where = "holes in a row" if side == "holes" else f"padding on the {side}"
        yield Given(f", with {where}", padding_mask=real(length, side))
    if subject.packs and (subject.separates or subject.depth == "deep"):
        yield Given(", of two documents", documents=(torch.arange(length) >= 5).long()[None])


def ways(subject: Subject) -> Iterator[Way]:
    """Ways to compute the same as a subject does."""
    for call in subject.called_plainly:
        if "padding" in call.laws:  # of masks alone, which that law tries
            continue
        yield Way(call.words, call.subject, right=call.right)
    yield Way("with gradients", subject, recorded=True)
    yield Way(INFERENCE, subject)
    for words, other in subject.encodings():
        yield Way(words, other)
    for words, other in subject.implementations:
        if words:
            yield Way(f"with {words}", other)


def flex(subject: Subject, length: int) -> Iterator[Way]:
    """Flex attention, as it is written and compiled.

    Raises:
        LawsError: another runs. Exception: its class refuses it.
    """
    for other in subject.flexible():
        way = Way(FLEX, other.otherwise(build=(*other.build, UNCOMPILED)), compiles=False)
        if "flex_attention" not in kernels(subject, length, way):
            raise LawsError("its class takes it, and another runs")
        torch._dynamo.reset()  # or the number of compiled forms may be used up
        yield way
        yield Way(f"{FLEX} that is compiled", other, compiles=True)


@contextlib.contextmanager
def attending(way: Way) -> Iterator[None]:
    """A block in which what a library compiles itself is compiled or not, as a way has it."""
    if way.compiles is None:  # nothing is, and torch need not import its compiler
        yield
        return
    stance = "default" if way.compiles else "force_eager"
    with torch.compiler.set_stance(stance), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of flex attention, that it is slow
        yield


def outputs(way: Way, x: Tensor, given: Given) -> Tensor:
    """Outputs in a way, in `Subject.wide`, or in float32 where that is compiled."""
    subject = way.subject
    inference = way.words == INFERENCE
    mode = torch.inference_mode() if inference else torch.set_grad_enabled(way.recorded)
    exactly = contextlib.nullcontext() if way.compiles else subject.exactly()
    with mode, exactly, attending(way):
        seed(0)
        # what a model keeps of a way is not for another pass
        model: nn.Module = subject.copy() if way.words else subject.fresh()
        wide = subject.widened(x)
        if way.compiles:
            model, wide = subject.copy(torch.float32), x
        if given.documents is not None:
            return subject.outputs(subject.packed(model, wide, given.documents), wide).detach()
        return subject.run(model, wide, given.padding_mask).detach()


def faster(subject: Subject, length: int) -> None:
    """Raise `LawBroken` where float32 without gradients has fewer digits than with them, or with
    them than without."""
    x = subject.inputs.draw(2, length)
    y, ways = subject.exact(x), list[Tensor]()
    for recorded in (True, False):
        with torch.set_grad_enabled(recorded):
            ways.append(subject.run(subject.copy(torch.float32), x).detach())
    bound = FASTER * min(rounding(one, y) for one in ways)
    off = (ways[0] - ways[1]).double()[..., computed(y)].abs().amax(-1)
    if not float(off.quantile(0.75)) <= bound:
        raise LawBroken(
            f"in float32 outputs with gradients and without differ by {float(off.max()):.2g}, "
            f"rounding {bound / FASTER:.0e} (length {length})",
            subject.code(
                subject.inputs.code(2, length),
                *["x = x.float()"] * x.is_floating_point(),
                "with torch.no_grad():",
                f"    y = {subject.call_code('x')}",
                f"print(({subject.call_code('x')} - y).abs().max())  # not 0",
                double=False,
                gradients=True,
            ),
        )


def broken(
    subject: Subject, way: Way, given: Given, x: Tensor, off: Tensor, bound: float
) -> LawBroken:
    """Where a way differs first."""
    row, at = (~(off <= bound)).nonzero()[0].tolist()
    place = f"output {at} of row {row}" if off.shape[1] > 1 else f"the output of row {row}"
    finding = f"{way.words} {place} is off by {float(off[row, at]):.2g}, rounding {bound:.0e}"
    finding += f", from that of {subject.call_code('x')}{given.words} (length {x.shape[1]})"
    lines = [subject.inputs.code(*x.shape[:2])]
    mask = None
    if given.padding_mask is not None:
        lines.append(f"padding_mask = torch.tensor({given.padding_mask.int().tolist()}).bool()")
        mask = "padding_mask"
    if given.documents is not None:
        lines.append(f"documents = torch.tensor({given.documents.tolist()})")

    def called(one: Subject) -> str:
        return one.packed_code() if given.documents is not None else one.call_code("x", mask)

    changed = way.subject.build[len(subject.build) :]
    lines += ["with torch.no_grad():", f"    y = {called(subject)}", *changed]
    if way.words == INFERENCE:
        lines += ["with torch.inference_mode():", f"    off = ({called(subject)} - y).abs()"]
    else:
        lines += [f"off = ({called(way.subject)} - y).detach().abs()"]
    lines += [f"print(off[{row}{f', {at}' if off.shape[1] > 1 else ''}].max())  # not 0"]
    code = subject.code(*lines, double=not way.compiles, gradients=way.recorded)
    if way.right:
        return BrokenByDefault(f"{finding}; to have it hold, {way.right}", code)
    return LawBroken(finding, code)
