"""Laws 7 to 10: cost, compiles, keeps, reproducible: what the member does on the machine."""

import itertools
import logging
import os
import re
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch._dynamo import config as dynamo
from torch._dynamo.exc import TorchDynamoException
from torch.fx.experimental.symbolic_shapes import ConstraintViolationError
from torch.profiler import ProfilerActivity, profile

from everyformer.checks.cases import Case, cases, draw, small_model
from everyformer.checks.check import Check
from everyformer.checks.laws import TOLERANCE
from everyformer.core.dispatch import all_pairs_allowed
from everyformer.core.errors import CheckpointError
from everyformer.core.member import Member
from everyformer.core.mixer import Mixer
from everyformer.core.trials import WIDTH
from everyformer.genes.config import ModelConfig
from everyformer.training.saved import load_model, save_model
from sequence_laws.flops import count_flops
from sequence_laws.verdict import LawBroken

# Wide and long enough that tensors outgrow the 2 MB of scratch that torch's fused attention takes.
COST_WIDTH, COST_LENGTHS = 96, (2048, 4096)
GUARD = re.compile(r"generated guard|^ *- \d+/\d+:")
"""of what a compiler or exporter says, the line with the condition that only some lengths meet"""


def cost(member: Member, check: Check, device: str, dtype: torch.dtype) -> None:
    """FLOPs and the largest tensor of a training step grow with L as claimed, from L to 2 L.

    A claim of 1 means that doubling L doubles the count; a claim of 2 that it more than doubles it,
    at most fourfold (the projections beside the mixing are linear). Tensors of a claim of 1 may
    grow less: blocks of a fixed size can be the largest.
    """
    case = Case(member, {}, member.can("causal"))
    sizes = [{"width": COST_WIDTH, "length": n} for n in COST_LENGTHS]
    mixers = [case.mixer(torch.float32, "cpu", **size) for size in sizes]
    pairs = list(zip(mixers, COST_LENGTHS, strict=True))
    flops = [_flops(mixer, length) for mixer, length in pairs]
    largest = [largest_allocation(mixer, length) for mixer, length in pairs]
    for what, counts, claim in (
        ("FLOPs", flops, member.cost.time),
        ("largest tensor", largest, member.cost.memory),
    ):
        if claim is None:
            continue
        growth = counts[1] / counts[0]
        low, high = (1.9, 2.1) if claim == 1 else (2.1, 4.1)
        if what == "largest tensor" and claim == 1:
            low = 1.0
        where = f"{case}: {what} {counts} grow {growth:.2f}-fold for twice the length"
        check.true(low <= growth <= high, f"{where}, claimed exponent {claim:g}")


def _flops(mixer: Mixer, length: int) -> int:
    x = draw(1, length, mixer.width, dtype=torch.float32).requires_grad_()
    return count_flops(lambda: mixer(x).y.sum().backward())


def largest_allocation(mixer: Mixer, length: int) -> int:
    """Bytes of the largest single allocation of one forward and backward pass on the CPU."""
    x = draw(1, length, mixer.width, dtype=torch.float32).requires_grad_()
    mixer(x).y.sum().backward()
    with (
        _without_profiler_lines(),
        profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiled,
    ):
        mixer(x).y.sum().backward()
    events = profiled.profiler.kineto_results.events()
    return max(event.nbytes() for event in events if event.name() == "[memory]")


@contextmanager
def _without_profiler_lines() -> Iterator[None]:
    """Leaves out the lines with which the profiler's library tells stderr that it starts and ends.

    It has no setting for them. Whatever else is written to stderr meanwhile follows at the end.
    """
    sys.stderr.flush()
    stderr = os.dup(2)
    with tempfile.TemporaryFile() as written:
        os.dup2(written.fileno(), 2)
        try:
            yield
        finally:
            os.dup2(stderr, 2)
            os.close(stderr)
            written.seek(0)
            for line in written:
                if not line.startswith(b"USDT:"):
                    os.write(2, line)


def compiles(member: Member, check: Check, device: str, dtype: torch.dtype) -> None:
    """One graph with the same result at two lengths, of the first case of each form."""
    first: dict[bool, Case] = {}
    for case in cases(member):
        first.setdefault(case.causal, case)
    for case in first.values():
        _compiles(case, check, device, (9, 31), dynamic=True)
    exports(member, check, device)


def compiles_everywhere(member: Member, check: Check, device: str, dtype: torch.dtype) -> None:
    """One graph with the same result at five lengths, of every case (minutes; `verify --full`).

    Of the first case the compiler finds out by itself that lengths differ; of the others it is
    told, which takes a third less time.
    """
    for number, case in enumerate(cases(member)):
        _compiles(case, check, device, (9, 12, 17, 23, 31), dynamic=number > 0)


def _compiles(
    case: Case, check: Check, device: str, lengths: tuple[int, ...], dynamic: bool
) -> None:
    """One case at these lengths, which the compiler knows as ``dynamic`` or not; and one step."""
    mixer = case.mixer(torch.float32, device)
    torch._dynamo.reset()
    graphs = 0

    def count(module: Any, inputs: Any) -> Any:
        nonlocal graphs
        graphs += 1
        return module.forward

    compiled = torch.compile(mixer, backend=count, fullgraph=True)
    for length in lengths:
        x = draw(2, length, WIDTH, seed=length, dtype=torch.float32, device=device)
        if dynamic:
            torch._dynamo.mark_dynamic(x, 1)
        with _one_graph(f"{case} L={length}"), dynamo.patch(error_on_recompile=dynamic):
            got = compiled(x).y
        check.close(got, mixer(x).y, TOLERANCE[torch.float32], f"{case} L={length}")
    check.true(graphs <= 2, f"{case}: {graphs} graphs for {len(lengths)} lengths, not 2")
    if case.causal and case.member.can("streaming") and mixer.leaks is None:
        before = mixer(x[:, :5], state=mixer.init_state(2, device=device)).state
        assert before is not None
        state = before.detach()
        step = torch.compile(mixer, backend=count, fullgraph=True)
        direct = mixer(x[:, 5:6], state=state).y
        with _one_graph(f"{case}: one step with a state"):
            got = step(x[:, 5:6], state=state).y
        check.close(got, direct, TOLERANCE[torch.float32], f"{case}: one step with a state")


@contextmanager
def _one_graph(where: str) -> Iterator[None]:
    """A block in which code that is not one graph breaks the law, by a branch on numbers, say.

    A graph may compute all pairs: it says so, and the law asks for its results alone. Before torch
    raises that lengths are fixed it logs the traceback, which the law's own sentence replaces.
    """
    logger = logging.getLogger("torch._guards")
    level = logger.level
    with all_pairs_allowed():
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
                f"{where}: other graphs for other lengths, as of a loop over tokens"
            ) from error
        finally:
            logger.setLevel(level)


def exports(member: Member, check: Check, device: str) -> None:
    """`torch.export` with a dynamic length gives the same result."""
    mixer = Case(member, {}, member.can("causal")).mixer(torch.float32, device)
    length = torch.export.Dim("length", min=2, max=32)
    x = draw(2, 9, WIDTH, dtype=torch.float32, device=device)
    with _one_graph("torch.export"):
        program = torch.export.export(mixer, (x,), dynamic_shapes={"x": {1: length}})
    other = draw(2, 17, WIDTH, seed=3, dtype=torch.float32, device=device)
    expected = mixer(other).y
    check.close(program.module()(other).y, expected, TOLERANCE[torch.float32], "torch.export")


def compiles_fully(member: Member, check: Check, device: str, dtype: torch.dtype) -> None:
    """The real compiler gives the same outputs and gradients (minutes; `verify --full`)."""
    mixer = Case(member, {}, member.can("causal")).mixer(torch.float32, device)
    torch._dynamo.reset()
    compiled = torch.compile(mixer, fullgraph=True)
    x = draw(2, 19, WIDTH, dtype=torch.float32, device=device).requires_grad_()
    with _one_graph("compiled output"):
        got = compiled(x).y
    expected = mixer(x).y
    check.close(got, expected, TOLERANCE[torch.float32], "compiled output")
    (first,) = torch.autograd.grad(got.square().sum(), x)
    (second,) = torch.autograd.grad(expected.square().sum(), x)
    check.close(first, second, 10 * TOLERANCE[torch.float32], "compiled gradient")


def keeps(member: Member, check: Check, device: str, dtype: torch.dtype) -> None:
    """Saved and loaded, every task's model gives the same outputs; damage is a clear error."""
    for task in member.tasks:
        model, inputs, targets = small_model(member, task)
        model, inputs, targets = model.to(device).eval(), inputs.to(device), targets.to(device)
        with tempfile.TemporaryDirectory() as folder:
            save_model(model, Path(folder) / "model")
            loaded = load_model(Path(folder) / "model").to(device).eval()
            extra = model.extra_inputs(inputs)
            same = loaded(inputs, targets=targets, **extra).logits
            expected = model(inputs, targets=targets, **extra).logits
            check.close(same, expected, room(device), f"{task}: loaded")
            check.true(isinstance(loaded.config, ModelConfig), f"{task}: config came back")
            weights = Path(folder) / "model" / "model.safetensors"
            damaged = bytearray(weights.read_bytes())
            damaged[-5] ^= 16
            weights.write_bytes(bytes(damaged))
            try:
                load_model(Path(folder) / "model")
            except CheckpointError:
                check.true(True, "")
            else:
                check.true(False, f"{task}: a flipped bit was not noticed")


def reproducible(member: Member, check: Check, device: str, dtype: torch.dtype) -> None:
    """Equal seeds give equal losses; stopping, saving and going on changes nothing."""
    task = member.tasks[0]
    whole = _losses(member, task, device, stop=None)
    for stop, run in ((None, "two equal runs"), (2, "a run and one that was resumed")):
        again = _losses(member, task, device, stop=stop)
        check.close(again, whole, room(device), f"{task}: losses of {run} differ")


def room(device: str) -> float:
    """By how much what is computed twice may differ: by nothing on the CPU; other devices add in
    whatever order they come to it."""
    return 0.0 if torch.device(device).type == "cpu" else TOLERANCE[torch.float32]


def _losses(member: Member, task: str, device: str, stop: int | None) -> Tensor:
    torch.manual_seed(5)
    model, inputs, targets = small_model(member, task, dropout=0.1)
    model, inputs, targets = model.to(device), inputs.to(device), targets.to(device)
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-2)
    losses = []
    for step in range(4):
        if step == stop:
            model, optimiser = _through_disk(model, optimiser, device)
        torch.manual_seed(step)
        loss = model(inputs, targets=targets, **model.extra_inputs(inputs)).loss
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
    return torch.tensor(losses)


def _through_disk(model: Any, optimiser: torch.optim.Optimizer, device: str) -> tuple[Any, Any]:
    moments: dict[str, Any] = optimiser.state_dict()
    with tempfile.TemporaryDirectory() as folder:
        save_model(model, Path(folder) / "model")
        again = load_model(Path(folder) / "model").to(device).train()
    fresh = torch.optim.AdamW(again.parameters(), lr=1e-2)
    fresh.load_state_dict(moments)
    return again, fresh
