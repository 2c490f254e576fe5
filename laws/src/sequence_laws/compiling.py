"""Compiling: the model as one graph, captured and exported."""

import contextlib
import itertools
import logging
import re
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch._dynamo import config as dynamo
from torch._dynamo import lookup_backend
from torch._dynamo.exc import TorchDynamoException
from torch.fx.experimental.symbolic_shapes import ConstraintViolationError

from sequence_laws.foreign import FAILURES, cut
from sequence_laws.inputs import seed
from sequence_laws.padding import real
from sequence_laws.subject import TRIED, Subject
from sequence_laws.verdict import Inapplicable, LawBroken

LONGEST = 17
"""inputs of a text that is captured"""
UNROLLED = 2000
"""operations of a graph: those of models with loops over places, whose export takes minutes"""
BACKEND = "aot_eager"
"""of a usual look: it takes operations at what they declare to change, as the real compiler does,
and generates no code"""
LENGTHS = (9, 31)
"""of texts for which a `strict` subject has one graph"""
REAL = 5e-4
"""by how much of the largest what the real compiler sums in another order may differ"""
GUARD = re.compile(r"generated guard|^ *- \d+/\d+:")
"""of what a compiler or exporter says, the line with the condition that only some lengths meet"""


class _Called(nn.Module):
    """The outputs of a model for its inputs alone."""

    def __init__(self, subject: Subject, model: nn.Module) -> None:
        super().__init__()
        self.subject, self.model = subject, model

    def forward(self, x: Tensor) -> Tensor:
        return self.subject.called(self.model, x)


def compiles(subject: Subject) -> str:
    """One graph with the same outputs, captured by `torch.compile`; at depth "deep" also by its
    real compiler, and by `torch.export` for any length; of a `strict` subject `one_graph`.

    Raises:
        LawBroken: outputs differ from those without it, or it is not compiled in parts either.
        Inapplicable: the model is no single graph: that is reported, with the reason.
    """
    subject.require_weights()
    if subject.strict:
        return one_graph(subject)
    every = subject.lengths()
    # what is unrolled over a text would make long ones take minutes
    lengths = [n for n in every if 1 < n <= LONGEST][-2:] or every[:1]
    if not lengths:
        raise Inapplicable("it takes none of the lengths that were tried", "undecided")
    model = subject.as_graph(subject.copy(torch.float32))
    x = subject.inputs.draw(2, lengths[-1])
    side = next((side for side in ("left", *subject.masks) if side in subject.masks), "")
    mask = real(lengths[-1], side) if side and runs_with(subject, model, x, side) else None
    try:
        operations = one_capture(subject, model, x, mask)
        with_mask = f" with padding on the {side}" * (mask is not None)
    except NotOneGraph as error:
        if mask is None:
            raise Inapplicable(f"not one graph: {error}", "reported") from error
        with_mask = f"; with a mask not one graph: {error}"
        try:
            operations = one_capture(subject, model, x, None)
        except NotOneGraph as other:
            raise Inapplicable(f"not one graph: {other}", "reported") from other
    found = f"one graph of {operations:,} operations, equal at length {lengths[-1]}{with_mask}"
    if subject.depth != "deep":
        return found
    longest = max((n for n in every if n <= TRIED[-1]), default=lengths[-1])
    side = "" if mask is None else side
    texts = [(lengths[-1], ""), (lengths[-1], side)]
    texts += [(longest, side)] if operations <= UNROLLED else []
    found += by_the_real_compiler(subject, model, texts)
    if operations > UNROLLED:
        return f"{found}; not exported, since it is unrolled: above {UNROLLED:,} operations"
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return f"{found}; {exports(subject, model, lengths)}"


def runs_with(subject: Subject, model: nn.Module, x: Tensor, side: str) -> bool:
    """Whether a model that is not compiled takes padding: if not, another law says so."""
    with contextlib.suppress(*FAILURES), torch.no_grad():
        subject.run(model, x, real(x.shape[1], side))
        return True
    return False


class NotOneGraph(Exception):
    """What the compiler says of a model that it cannot capture whole."""


def one_capture(subject: Subject, model: nn.Module, x: Tensor, padding_mask: Tensor | None) -> int:
    """The operations of a model, captured as one graph, whose outputs are its own.

    Raises:
        LawBroken: they are not. NotOneGraph: it cannot be captured.
    """
    compiled, graphs = captured(model, BACKEND)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            y = subject.run(compiled, x, padding_mask)
        except TorchDynamoException as error:
            runs_in_parts(subject, model, x, padding_mask)
            raise NotOneGraph(cut(str(error).partition("\n")[0])) from error
        how = "compiled" if padding_mask is None else "compiled, with a mask,"
        same(subject, model, x, y, how, f"torch.compile(model, backend='{BACKEND}')", padding_mask)
    return sum(graphs)


def runs_in_parts(
    subject: Subject, model: nn.Module, x: Tensor, padding_mask: Tensor | None
) -> None:
    """Raise `LawBroken` where a model that is not one graph is not compiled in several either."""
    torch._dynamo.reset()
    try:
        subject.run(cast(nn.Module, torch.compile(model, backend=BACKEND)), x, padding_mask)
    except TorchDynamoException as error:
        raise LawBroken(
            f"torch.compile(model) fails: {cut(str(error))}",
            _code(
                subject,
                x,
                padding_mask,
                f"model = torch.compile(model, backend='{BACKEND}')",
                f"{_call_code(subject, padding_mask)}  # fails",
            ),
        ) from error


def by_the_real_compiler(
    subject: Subject, model: nn.Module, texts: Sequence[tuple[int, str]]
) -> str:
    """Remark that the code that is generated gives equal outputs, up to the order of sums.

    Args:
        texts: a length of each, and the side of its padding, or "".

    Raises:
        LawBroken: it gives others.
    """
    equal, found = list[str](), ""
    for length, side in dict.fromkeys(texts):
        x, mask = subject.inputs.draw(2, length), real(length, side) if side else None
        where = f"at length {length}" + f" with padding on the {side}" * bool(side)
        torch._dynamo.reset()
        try:
            y = subject.run(cast(nn.Module, torch.compile(model)), x, mask)
        except TorchDynamoException as error:
            found += f"; not {where}: {cut(str(error).partition(chr(10))[0])}"
            continue
        how = f"the real compiler's{', with a mask,' * bool(side)}"
        same(subject, model, x, y, how, "torch.compile(model)", mask, REAL)
        equal.append(where)
    return f"; by the real compiler equal {', '.join(equal) or 'nowhere'}{found}"


def captured(model: nn.Module, backend: str) -> tuple[nn.Module, list[int]]:
    """A compiled model, and a list of the operations of each graph that will be made of it."""
    made = lookup_backend(backend)
    graphs: list[int] = []

    def count(graph: torch.fx.GraphModule, inputs: list[Tensor]) -> Callable[..., Any]:
        graphs.append(len(graph.graph.nodes))
        return cast(Callable[..., Any], made(graph, inputs))

    torch._dynamo.reset()
    return cast(nn.Module, torch.compile(model, backend=count, fullgraph=True)), graphs


def one_graph(subject: Subject, lengths: Sequence[int] = LENGTHS, dynamic: bool = True) -> str:
    """One graph with the same outputs at some lengths, another of a step with a cache, and one
    that is exported.

    Args:
        dynamic: tell the compiler that lengths differ; else it may make two graphs to find out.

    Raises:
        LawBroken: there are more graphs, or outputs differ.
    """
    model = subject.copy(torch.float32)
    compiled, graphs = captured(model, "eager")
    how = "torch.compile(model, backend='eager')"
    for length in lengths:
        x = subject.placed(subject.inputs.draw(2, length, seed=length))
        if dynamic:
            torch._dynamo.mark_dynamic(x, 1)
        with captures(f"length {length}"), dynamo.patch(error_on_recompile=dynamic):
            y = subject.run(compiled, x)
        same(subject, model, x, y, "compiled", how)
    if len(graphs) > 2:
        raise LawBroken(f"{len(graphs)} graphs for {len(lengths)} lengths, not 2")
    if subject.streams and subject.causal:
        with torch.no_grad():
            _, cache = subject.feed(model, x[:, :5], None)
            direct: Tensor = subject.feed(model, x[:, 5:6], cache)[0]
            with captures("one step with a cache"):
                got: Tensor = subject.feed(compiled, x[:, 5:6], cache)[0]
        if not float((got - direct).abs().max()) <= subject.room(x):
            raise LawBroken("one step with a cache differs where it is compiled")
    detail = f"one graph, equal at lengths {', '.join(map(str, lengths))}"
    if not subject.exports:
        return detail
    x, longer = (subject.placed(subject.inputs.draw(2, n)) for n in (9, LONGEST))
    open_length = ({1: torch.export.Dim("length", min=2, max=32)},)
    with captures("torch.export"):
        program = torch.export.export(_Called(subject, model), (x,), dynamic_shapes=open_length)
    same(subject, model, longer, program.module()(longer), "exported", "torch.export.export(...)")
    return f"{detail}; exported"


def compiled_gradients(subject: Subject) -> str:
    """Outputs and gradients by the real compiler.

    Raises:
        LawBroken: they are others.
    """
    model = subject.copy(torch.float32)
    torch._dynamo.reset()
    x = subject.placed(subject.inputs.draw(2, LONGEST)).requires_grad_()
    with captures("compiled"):
        got = subject.run(cast(nn.Module, torch.compile(model, fullgraph=True)), x)
    expected = subject.run(model, x)
    parts = [torch.autograd.grad(y.square().sum(), x)[0] for y in (got, expected)]
    for what, a, b in (("outputs", got, expected), ("gradients", parts[0], parts[1])):
        a, b = a.detach(), b.detach()
        off = float((a - b).abs().max()) / max(1.0, float(b.abs().max()))
        if not off <= REAL:
            raise LawBroken(f"compiled {what} are off by {off:.2g}")
    return "outputs and gradients of the real compiler"


@contextlib.contextmanager
def captures(where: str) -> Iterator[None]:
    """A block in which code that is not one graph breaks the law, by a branch on numbers, say.

    Before torch raises that lengths are fixed it logs the traceback, which the law's own sentence
    replaces.
    """
    logger = logging.getLogger("torch._guards")
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        yield
    except TorchDynamoException as error:
        first, *rest = str(error).splitlines()
        guards = (line.strip(" -") for line in rest if GUARD.search(line))
        reason = "; ".join((first, *itertools.islice(guards, 1)))
        raise LawBroken(f"{where}: not one graph: {reason}") from error
    except ConstraintViolationError as error:
        raise LawBroken(
            f"{where}: other graphs for other lengths, as of a loop over inputs"
        ) from error
    finally:
        logger.setLevel(level)


def exports(subject: Subject, model: nn.Module, lengths: Sequence[int]) -> str:
    """Sentence on whether `torch.export` takes the model, with a length that is open."""
    last = subject.inputs.draw(2, lengths[-1])
    try:
        any_length = ({1: torch.export.Dim.AUTO},)
        whole = _Called(subject, model).eval()
        program = torch.export.export(whole, (last,), dynamic_shapes=any_length).module()
        outputs = {}
        for length in lengths:
            seed(0)
            outputs[length] = program(subject.inputs.draw(2, length))
    except Exception as error:  # whatever the exporter, or a guard of what it made, says
        return f"not exported for any length: {type(error).__name__}: {cut(str(error))[:100]}"
    for length, y in outputs.items():
        x = subject.inputs.draw(2, length)
        same(subject, model, x, y, "exported", "torch.export.export(model, (x,)).module()")
    return f"exported, equal at lengths {', '.join(map(str, lengths))}"


def same(
    subject: Subject,
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    how: str,
    expression: str,
    padding_mask: Tensor | None = None,
    share: float | None = None,
) -> None:
    """Outputs y in float32 are those of the model at real positions, with as much room for rounding
    as elsewhere, or a ``share`` of the largest; both with gradients recorded, or both without."""
    expected = subject.run(model, x, padding_mask).detach().double()
    moved = (y.detach().double() - expected).abs()
    if padding_mask is not None and not subject.pools:
        moved, expected = moved[padding_mask], expected[padding_mask]
    off = float(moved.max())
    room = subject.room(x) if share is None else share * float(expected.abs().max())
    if not off <= room:
        called = _call_code(subject, padding_mask)
        at = "" if padding_mask is None or subject.pools else "[padding_mask]"
        raise LawBroken(
            f"{how} outputs are off by {off:.2g} at length {x.shape[1]}",
            _code(
                subject,
                x,
                padding_mask,
                f"with torch.set_grad_enabled({torch.is_grad_enabled()}):",
                f"    y = {called}",
                f"    model = {expression}",
                f"    print(({called} - y){at}.abs().max())  # not 0",
            ),
        )


def _call_code(subject: Subject, padding_mask: Tensor | None) -> str:
    return subject.call_code("x", None if padding_mask is None else "padding_mask")


def _code(subject: Subject, x: Tensor, padding_mask: Tensor | None, *lines: str) -> str:
    """The Python of a model in float32, its inputs, and ``lines``."""
    mask = [] if padding_mask is None else [f"padding_mask = torch.tensor({padding_mask.tolist()})"]
    return subject.code(
        subject.inputs.code(*x.shape[:2]),
        *["x = x.float()"] * x.is_floating_point(),
        *mask,
        *subject.as_graph_code(),
        *lines,
        double=False,
    )
