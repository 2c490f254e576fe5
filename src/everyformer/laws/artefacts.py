"""Numbers, saving and compiling: the model in other dtypes, from a file, and as one graph."""

import io
import warnings
from collections.abc import Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn

from everyformer.core.foreign import cut
from everyformer.core.wording import few
from everyformer.laws.inputs import in_float64, seed
from everyformer.laws.rounding import doubled
from everyformer.laws.subject import Subject
from everyformer.laws.verdict import LawBroken, NotJudged

LONGEST = 17
"""inputs of a text that is captured"""
UNROLLED = 2000
"""operations of a graph: those of models with loops over places, whose export takes minutes"""


def numbers(subject: Subject) -> str:
    """Finite outputs, of features of 1e4 and in bfloat16 too, which leaves a digit right at least.

    bfloat16 rounds 2^16 times as coarsely as float32; what it is off by is said beside that.

    Raises:
        LawBroken: an output is not finite, or in bfloat16 no nearer to the output in float64 than
            outputs are to each other.
    """
    subject.require_weights()
    x, said = subject.inputs.draw(2, subject.usual()), []
    if subject.inputs.vocabulary is None:
        with torch.no_grad():
            large = subject.run(subject.copy(torch.float32), 1e4 * x)
        finding = "features of 1e4 give outputs that are not finite"
        require_finite(subject, large, finding, "float32", "1e4 * x")
        said.append("finite at 1e4")
    y = subject.exact(x)
    require_finite(subject, y, "outputs are not finite", "float64")
    one = subject.bound(x)
    half = in_half(subject, x)
    if half is None:
        return ", ".join([*said, "it does not run in bfloat16"])
    require_finite(subject, half, "outputs in bfloat16 are not finite", "bfloat16")
    off, spread = float((half - y).abs().median()), float((y - y.mean()).abs().median())
    if off > spread > one:
        raise LawBroken(f"bfloat16 is off by {off:.2g}, outputs differ by {spread:.2g} themselves")
    said.append(f"bfloat16 is off by {off:.1g} where outputs differ by {spread:.1g}")
    return ", ".join(said)


def require_finite(subject: Subject, y: Tensor, finding: str, dtype: str, x: str = "x") -> None:
    """Raise `LawBroken` with the finding where outputs of ``x`` in a dtype are not finite."""
    if torch.isfinite(y).all():
        return
    raise LawBroken(
        finding,
        subject.code(
            f"model = model.to(torch.{dtype})",
            subject.inputs.code(*y.shape[:2]).replace("float64", dtype),
            f"print({subject.call_code(x)}.isfinite().all())  # False",
            double=False,
        ),
    )


def in_half(subject: Subject, x: Tensor) -> Tensor | None:
    """Outputs in bfloat16, as float64; None where the model does not run in it on this device."""
    half = x.bfloat16() if x.is_floating_point() else x
    try:
        with torch.no_grad():
            return subject.run(subject.copy(torch.bfloat16), half).double()
    except RuntimeError:  # an operation that this device lacks in this dtype
        return None


def saving(subject: Subject) -> str:
    """Weights written by ``state_dict`` and read into a model that differs give equal outputs.

    Raises:
        LawBroken: outputs differ, or the model does not take its own state.
    """
    subject.require_weights()
    x = subject.inputs.draw(2, subject.usual())
    made, other = subject.copy(), subject.copy()
    lines = [subject.inputs.code(2, x.shape[1])]
    if subject.make is None:
        lines += ["import copy", "other = copy.deepcopy(model)"]
        lines += ["[p.data.add_(1) for p in other.parameters()]"]
        _stir(other)
    else:
        torch.manual_seed(1)
        other = subject.converted(subject.make()).eval()
        made_anew = [line for line in subject.build if line.startswith("model")]
        lines += ["first = model", "torch.manual_seed(1)", *made_anew]
        lines += ["model, other = first, model.double().eval()"]
    file = io.BytesIO()
    try:
        torch.save(made.state_dict(), file)
        file.seek(0)
        other.load_state_dict(torch.load(file, weights_only=True))
    except Exception as error:  # what a model says of its own state
        says = f"{type(error).__name__}: {cut(str(error))[:150]}"
        raise LawBroken(
            f"its own state_dict cannot be read back: {says}",
            subject.code(*lines, "other.load_state_dict(model.state_dict())"),
        ) from error
    with torch.no_grad(), doubled():
        wide = in_float64(x)
        off = float((subject.run(other, wide) - subject.run(made, wide)).abs().max())
    if off > subject.bound(x):
        raise LawBroken(
            f"another that read the state_dict gives outputs that are off by {off:.2g}: something "
            "that outputs depend on is not in it",
            subject.code(
                *lines,
                "other.load_state_dict(model.state_dict())",
                f"y = {subject.call_code('x')}",
                "model = other",
                f"print(({subject.call_code('x')} - y).abs().max())  # not 0",
            ),
        )
    unsaved = "" if subject.make is not None else _unsaved(made)
    return f"{len(made.state_dict())} tensors, read into one whose weights were others{unsaved}"


def _unsaved(model: nn.Module) -> str:
    """Remark on tensors that a living model holds and saves nowhere: its copy holds them, too."""
    plain = [
        name
        for module in model.modules()
        for name, value in vars(module).items()
        if isinstance(value, Tensor) and value.is_floating_point()
    ]
    return f"; {few(plain)}, which it does not save, taken for constant" if plain else ""


def _stir(model: nn.Module) -> None:
    """Move all weights, and all buffers of numbers that are no function of the configuration."""
    with torch.no_grad():
        kept = {id(t) for t in model.state_dict(keep_vars=True).values()}
        buffers = [b for b in model.buffers() if id(b) in kept and b.is_floating_point()]
        for tensor in (*model.parameters(), *buffers):
            tensor += 1.0


class _Called(nn.Module):
    """The outputs of a model for its inputs alone."""

    def __init__(self, subject: Subject, model: nn.Module) -> None:
        super().__init__()
        self.subject, self.model = subject, model

    def forward(self, x: Tensor) -> Tensor:
        return self.subject.called(self.model, x)


def compiles(subject: Subject) -> str:
    """One graph with the same outputs, captured by `torch.compile`, and by `torch.export` for any
    length.

    Raises:
        LawBroken: outputs differ from those without it.
        NotJudged: the model is no single graph: that is said, with the reason.
    """
    subject.require_weights()
    every = subject.lengths()
    # what is unrolled over a text would make long ones take minutes
    lengths = [n for n in every if 1 < n <= LONGEST][-2:] or every[:1]
    if not lengths:
        raise NotJudged("it takes none of the lengths that were tried", "undecided")
    model = subject.as_graph(subject.copy(torch.float32))
    x = subject.inputs.draw(2, lengths[-1])
    torch._dynamo.reset()
    operations = 0

    def counted(graph: torch.fx.GraphModule, inputs: Sequence[Any]) -> Any:
        nonlocal operations
        operations += len(graph.graph.nodes)
        return graph.forward

    compiled = cast(nn.Module, torch.compile(model, backend=counted, fullgraph=True))
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            y = subject.run(compiled, x)
        except torch._dynamo.exc.TorchDynamoException as error:
            reason = cut(str(error).partition("\n")[0])
            raise NotJudged(f"not one graph: {reason}", "said") from error
        same(subject, model, x, y, "compiled", "torch.compile(model, backend='eager')")
        found = f"one graph of {operations:,} operations, equal at length {lengths[-1]}"
        if operations > UNROLLED:
            return f"{found}; not exported, since it is unrolled: above {UNROLLED:,} operations"
        return f"{found}; {exports(subject, model, lengths)}"


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
    subject: Subject, model: nn.Module, x: Tensor, y: Tensor, how: str, expression: str
) -> None:
    """Outputs y in float32 are those of the model, with as much room for rounding as elsewhere."""
    off = float((y.double() - subject.run(model, x).double()).abs().max())
    if not off <= subject.bound(x) * 2.0**29:
        raise LawBroken(
            f"{how} outputs are off by {off:.2g} at length {x.shape[1]}",
            subject.code(
                subject.inputs.code(*x.shape[:2]),
                *subject.as_graph_code(),
                f"y = {subject.call_code('x')}",
                f"model = {expression}",
                f"print(({subject.call_code('x')} - y).abs().max())  # not 0",
                double=False,
            ),
        )
