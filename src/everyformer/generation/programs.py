"""Steps of one token as programs without Python: traced by torch.export, made by AOTInductor.

A program takes a token, the tensors of a state and the room of what grows, into which it writes;
one serves all lengths of a text, and all numbers of rows from two on. It is kept, of most models
without weights, in the folder of torch's compiler (`TORCHINDUCTOR_CACHE_DIR`, default: one in the
system's temporary folder) by a name of the model, the state, the code and the versions, so that
later processes load it.
"""

from __future__ import annotations

import functools
import hashlib
import inspect
import sys
import uuid
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, fx, nn
from torch.utils._pytree import tree_map

import everyformer
from everyformer.core.devices import check_compiler
from everyformer.core.errors import UnsupportedError
from everyformer.core.leaving import stays_in_torch
from everyformer.core.state import StackState, in_step, innermost, named_tensors, refilled
from everyformer.engines.growing import Growing, Room
from everyformer.engines.softmax.visibility import told
from everyformer.models.base import Model
from everyformer.system.files import file_written_whole
from everyformer.system.plain import from_json, to_json

IN_PARALLEL = 2**19
"""entries from which a matrix times one row is shared among threads, which wait for one another"""
SIDE_BY_SIDE = 4
"""rows that are summed at a time: one sum waits for itself longer than for memory"""
ENDLESS = 2**62
ATEN = torch.ops.aten


class Program(NamedTuple):
    """A step that was compiled."""

    run: Callable[[list[Tensor]], list[Tensor]]
    """of inputs in the order of `Step.forward`"""
    spans: list[tuple[int, int]]
    """the fewest and the most tokens that each part that grows may hold before the step"""
    weights: dict[str, Tensor]
    """what it reads, kept so long"""

    def serves(self, taken: Sequence[int]) -> bool:
        """Whether it is right after so many tokens."""
        return all(a <= n <= b for (a, b), n in zip(self.spans, taken, strict=True))


class Layout(NamedTuple):
    """How the tensors of a state are given to a program."""

    like: StackState
    """a state of this kind"""
    fixed: dict[str, int]
    """name of a tensor that does not grow -> its number: the count of tokens is one of all"""
    slots: list[tuple[str, ...]]
    """names of the tensors of each part that grows"""
    opens: list[dict[int, int]]
    """of tensors that do not grow, `open_dims`"""
    counted: int | None = None
    """number of a part that has a slot for each token that every row has read, if there is one"""

    @classmethod
    def of(cls, state: StackState, rooms: bool) -> tuple[Layout, list[Tensor], list[Growing]]:
        """The layout of a state, its tensors that do not grow, and its parts that do in ``rooms``;
        without these nothing grows."""
        growing = [part for part in innermost(state) if rooms and isinstance(part, Growing)]
        named, count = named_tensors(state), state.num_tokens
        names = {id(tensor): name for name, tensor in named.items()}
        slots = [tuple(names[id(getattr(part, slot))] for slot in part.grows) for part in growing]
        grows = {name for each in slots for name in each}
        others = {k: t for k, t in named.items() if k not in grows and t is not count}
        fixed = {name: 0 for name, tensor in named.items() if tensor is count}
        fixed |= {name: number for number, name in enumerate(others, 1)}
        # a program reads memory as it was traced, and asks no tensor how it lies
        tensors = [tensor.contiguous() for tensor in (count, *others.values())]
        return cls(state, fixed, slots, []), tensors, growing

    def filled(
        self, fixed: Sequence[Tensor], rooms: Sequence[Room], taken: Sequence[int]
    ) -> StackState:
        """The state of these tensors, and of the first slots that are taken in the rooms."""
        tensors = {name: fixed[number] for name, number in self.fixed.items()}
        for names, room, count in zip(self.slots, rooms, taken, strict=True):
            tensors |= zip(names, room.first(count), strict=True)
        state = cast(StackState, refilled(self.like, tensors))
        growing = (part for part in innermost(state) if isinstance(part, Growing))
        for part, room in zip(growing, rooms, strict=False):  # where there are any
            part.in_room(room)
        return state

    def described(self, fixed: Sequence[Tensor], growing: Sequence[Growing]) -> str:
        """Kinds and sizes of the tensors of such a state, but for what a program leaves open."""
        batch = len(fixed[0])
        each = zip(fixed, self.opens, strict=True)
        shapes = [(rows_of(t.shape, batch, opens), t.dtype) for t, opens in each]
        parts = [
            (type(part).__name__, part.slot_dim, [(*p.shape[: part.slot_dim][1:],
             *p.shape[part.slot_dim + 1 :], p.dtype) for p in cast(Room, part.room).parts])
            for part in growing
        ]  # fmt: skip
        more = self.fixed, self.slots, self.counted, fixed[0].device
        return repr((min(batch, 2), shapes, parts, more))


def open_dims(tensor: Tensor, taken: Sequence[int]) -> dict[int, int]:
    """Dimensions of a tensor beside slots that grow with them, as a mask's, and numbers of parts
    with as many."""
    sizes = enumerate(tensor.shape)
    return {dim: taken.index(size) for dim, size in sizes if dim and size in taken}


def rows_of(shape: torch.Size, batch: int, opens: Mapping[int, int]) -> list[int | str]:
    """A shape in which several rows, and what grows with slots, are left open."""
    first: list[int | str] = ["rows" if batch > 1 and n == batch else n for n in shape[:1]]
    rest = enumerate(shape[1:], 1)
    return [*first, *(f"slots {opens[dim]}" if dim in opens else n for dim, n in rest)]


def kept(before: int, after: int, slots: int) -> bool:
    """Whether a size stays, or goes on with ``slots``; nothing is asked of what is not known yet,
    which would be known of this length alone."""
    if isinstance(before, int) or isinstance(after, int):
        return type(before) is type(after) and before == after
    return bool(after == before or (slots and after == slots + 1))


class Step(nn.Module):
    """A model that reads one token, with tensors alone going in and coming out.

    Args:
        dims: that grow, of each part.
    """

    def __init__(self, model: Model, layout: Layout, dims: Sequence[int]) -> None:
        super().__init__()
        self.model, self.layout, self.dims = model, layout, dims

    def forward(
        self, token: Tensor, fixed: list[Tensor], slots: list[list[Tensor]], taken: list[Tensor]
    ) -> list[Tensor]:
        lengths = [numbers.shape[0] for numbers in taken]
        rooms = [Room(*each) for each in zip(slots, self.dims, lengths, strict=True)]
        before = self.layout.filled(fixed, rooms, lengths)
        counted = self.layout.counted
        counts = None if counted is None else told(before.num_tokens, lengths[counted])
        with stays_in_torch(), counts or nullcontext():
            out = self.model(token, state=before, last=1)
        after, tensors, growing = Layout.of(in_step(out.state), bool(self.dims))
        each = zip(growing, rooms, lengths, strict=True)
        if after.fixed != self.layout.fixed or any(
            part.room is not room or part.taken != count + 1 for part, room, count in each
        ):
            raise MovesError
        for old, new, opens in zip(fixed, tensors, self.layout.opens, strict=True):
            sizes = enumerate(zip(old.shape, new.shape, strict=True))
            if not all(kept(a, b, lengths[opens[d]] if d in opens else 0) for d, (a, b) in sizes):
                raise MovesError
        return [out.logits, *tensors]


class MovesError(Exception):
    """A step leaves a state that is no longer of the sizes, or in the room, that it was given."""


_process = uuid.uuid4()
_moves = set[tuple[Path, tuple[int, ...]]]()
"""programs that were not made, since the step after so many tokens moves to other room"""


def program_of(
    model: Model, layout: Layout, fixed: Sequence[Tensor], growing: Sequence[Growing], file: Path
) -> Program | None:
    """The program in a file, which is made where there is none; None for a step that moves."""
    taken = tuple(part.taken for part in growing)
    if file.exists() and (program := loaded(model, file)) is not None:
        return program
    if (file, taken) in _moves:
        return None
    check_compiler(fixed[0].device)
    step = Step(model, layout, [part.slot_dim for part in growing])
    try:
        traced = trace(step, fixed, growing)
    except MovesError:
        _moves.add((file, taken))
        return None
    about = {"spans": spans(traced, len(fixed[0]), taken)}
    traced = by_rows(traced)
    # numbers that are no weight, as some operations are taken apart into, need the second way
    for whole in (False, True):
        build(traced, to_json(about | {"whole": whole}), file)
        if (program := loaded(model, file)) is not None:
            return program
    raise UnsupportedError(f"the program in {file} cannot be read again: generate without compile")


def trace(
    step: Step, fixed: Sequence[Tensor], growing: Sequence[Growing]
) -> torch.export.ExportedProgram:
    """A step as one graph, in which the numbers of tokens and of several rows are open."""
    batch, auto = len(fixed[0]), torch.export.Dim.AUTO
    rows = {0: auto} if batch > 1 else {}
    slots = [list(cast(Room, part.room).parts) for part in growing]
    counts = [part.taken for part in growing]
    taken = [torch.arange(count, device=fixed[0].device) for count in counts]
    token = torch.zeros(batch, 1, dtype=torch.long, device=fixed[0].device)
    shapes = {
        "token": rows,
        "fixed": [
            {**(rows if len(t) == batch else {}), **dict.fromkeys(opens, auto)}
            for t, opens in zip(fixed, step.layout.opens, strict=True)
        ],
        "slots": [[{**rows, part.slot_dim: auto} for _ in part.grows] for part in growing],
        "taken": [{0: auto} for _ in growing],
    }
    inputs = token, [*fixed], slots, taken
    try:
        with torch.inference_mode(False), torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            # what was made in inference mode is not traced
            inputs = tree_map(torch.clone, inputs)
            return torch.export.export(step, inputs, dynamic_shapes=shapes)
    except MovesError:
        raise
    except Exception as error:  # whatever torch says of code that it cannot follow
        raise UnsupportedError(
            f"a step of {step.model.config.member} cannot be compiled, since it is not one program "
            f"({str(error).splitlines()[0]}): generate without compile"
        ) from error


def spans(
    traced: torch.export.ExportedProgram, batch: int, taken: Sequence[int]
) -> list[tuple[int, int]]:
    """The fewest and the most tokens for which a graph is right, of each part that grows.

    Raises:
        UnsupportedError: it is right for this number of tokens, or of rows, alone.
    """
    inputs = [node for node in traced.graph.nodes if node.op == "placeholder"]
    lengths = [n.meta["val"].shape[0] for n in inputs[len(inputs) - len(taken) :]]
    token = next(node for node in inputs if node.name == "token")
    rows = [] if batch == 1 else [token.meta["val"].shape[0]]
    if any(isinstance(size, int) for size in (*rows, *lengths)):
        raise UnsupportedError(
            f"a step cannot be compiled but for {batch} rows and {max(taken, default=0)} tokens: "
            "generate without compile"
        )
    ranges = [traced.range_constraints[length.node.expr] for length in lengths]
    return [(int(r.lower), int(r.upper) if r.upper < ENDLESS else ENDLESS) for r in ranges]


def by_rows(traced: torch.export.ExportedProgram) -> torch.export.ExportedProgram:
    """A graph where a product of weights with one token is a sum over each row of the weights: a
    CPU reads these from end to end, as fast as its memory is, which BLAS does not."""
    graph: fx.Graph = traced.graph_module.graph
    for node in graph.nodes:
        if node.target is not ATEN.linear.default:
            continue
        x, weight, *bias = node.args
        value = x.meta["val"]
        one = all(isinstance(size, int) and size == 1 for size in value.shape[:-1])
        if value.device.type != "cpu" or not one:
            continue
        with graph.inserting_before(node):
            # written down first: torch would else make all of x again, its norm too, for every row
            ordered = torch.ops.prims.inductor_force_stride_order.default
            row = graph.call_function(ordered, (x, value.stride()))
            row = graph.call_function(ATEN.unsqueeze.default, (row, -2))
            y = product(graph, row, weight)
            if bias:
                y = graph.call_function(ATEN.add.Tensor, (y, bias[0]))
        node.replace_all_uses_with(y)
        graph.erase_node(node)
    traced.graph_module.recompile()
    return traced


def product(graph: fx.Graph, row: fx.Node, weight: fx.Node) -> fx.Node:
    """Sums over each row of a weight (n, k), or of one in 8 bits, whose scales come after."""
    scales, rows = weight.args if weight.target is ATEN.mul.Tensor else (None, weight)
    assert isinstance(rows, fx.Node)
    if rows.meta["val"].dtype != torch.int8:
        scales, rows = None, weight
    count = rows.meta["val"].shape[0]
    step, y = -(-count // SIDE_BY_SIDE), list[fx.Node]()
    for start in range(0, count, step):
        part = graph.call_function(ATEN.slice.Tensor, (rows, 0, start, min(start + step, count)))
        part = graph.call_function(ATEN.mul.Tensor, (row, part))
        y.append(graph.call_function(ATEN.sum.dim_IntList, (part, [-1])))
    joined = graph.call_function(ATEN.cat.default, (y, -1))
    if scales is None:
        return joined
    scales = graph.call_function(ATEN.squeeze.dim, (scales, -1))
    return graph.call_function(ATEN.mul.Tensor, (joined, scales))


def build(traced: torch.export.ExportedProgram, about: str, file: Path) -> None:
    """Compile a graph into a file, with what is said ``about`` it, without weights or ``whole``.

    Raises:
        UnsupportedError: there is no compiler, or it fails.
    """
    import torch._inductor  # and the cost of it, which is that of a compiler

    settings = {
        # inputs come from a state of the model's own
        "size_asserts": False,
        "alignment_asserts": False,
        "cpp.enable_floating_point_contract_flag": "fast",  # sums take one instruction, not two
        "cpp.min_chunk_size": max(512, IN_PARALLEL // torch.get_num_threads()),
        "aot_inductor.package_constants_in_so": from_json(about)["whole"],
        "aot_inductor.metadata": {"everyformer": about},
    }
    with file_written_whole(file, parents=True) as temporary, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            torch._inductor.aoti_compile_and_package(
                traced, package_path=str(temporary), inductor_configs=settings
            )
        except Exception as error:  # whatever the compiler, or the system, says
            raise UnsupportedError(
                f"the compiler fails ({str(error).splitlines()[0]}): generate without compile"
            ) from error


def loaded(model: Model, file: Path) -> Program | None:
    """The program in a file, with the weights of a model, whose memory it reads; None where it
    needs other numbers and does not hold them."""
    import torch._inductor

    package: Any = torch._inductor.aoti_load_package(str(file))
    about = from_json(package.get_metadata()["everyformer"])
    names = package.get_constant_fqns()
    tensors = dict(model.state_dict(keep_vars=False, prefix="model."))
    tensors |= {f"model.{name}": buffer for name, buffer in model.named_buffers()}
    weights = {name: tensors[name] for name in names if name in tensors}
    if len(weights) < len(names) and not about["whole"]:
        return None
    package.load_constants(weights, check_full_update=not about["whole"], user_managed=True)
    return Program(package.loader.run, [(low, high) for low, high in about["spans"]], weights)


def folder() -> Path:
    """Where programs are kept."""
    from torch._inductor.runtime.cache_dir_utils import cache_dir

    return Path(cache_dir()) / "everyformer"


def described(model: Model) -> str:
    """Classes, settings and sizes of a model, code and versions: all that a program depends on."""
    parts = [torch.__version__, torch.backends.cpu.get_cpu_capability(), code()]
    for name, module in model.named_modules():
        kind = type(module)
        parts += [f"{name} {kind.__module__}.{kind.__qualname__}", *settings_of(module)]
        if kind.__module__.partition(".")[0] not in ("torch", "everyformer"):
            parts.append(source(kind))
    for name, tensor in model.state_dict().items():
        parts.append(f"{name} {tuple(tensor.shape)} {tensor.dtype} {tensor.device}")
    return "\n".join(parts)


def settings_of(module: nn.Module) -> Iterator[str]:
    """Names and values of what is set in a module, but for what is told by its place in memory."""
    for name, value in vars(module).items():
        if not name.startswith("_") and " at 0x" not in (said := repr(value)):
            yield f"{name}={said}"


@functools.cache
def code() -> str:
    """A sum of all source of this library."""
    files = sorted(Path(everyformer.__file__).parent.rglob("*.py"))
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()


def source(kind: type) -> str:
    """A sum of the source of a plug-in's class and what stands beside it."""
    try:
        text = inspect.getsource(sys.modules[kind.__module__])
    except (OSError, TypeError, KeyError):  # made in a prompt: it serves this process alone
        text = f"{_process} {id(kind)}"
    return hashlib.sha256(text.encode()).hexdigest()
