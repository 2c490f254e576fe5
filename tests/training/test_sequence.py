"""Texts split over processes: the loss and every gradient of one process that reads them whole."""

from collections.abc import Iterator
from multiprocessing.context import ForkServerContext
from typing import Any

import pytest
import torch
import torch.distributed as dist
from sequence_stand_ins import (
    Answer,
    Ranks,
    agree,
    alone,
    gradients,
    in_parts,
    in_segments,
    own_rows,
    streaming_members,
    texts,
    tiny,
    variants,
)

from everyformer.core.errors import ConfigError, UnsupportedError
from everyformer.core.state import named_tensors
from everyformer.engines.flops import count_flops
from everyformer.training.parallel.world import World
from everyformer.training.sequence.chain import Chain
from everyformer.training.sequence.hand_over import Post
from everyformer.training.sequence.passes import Sequence, sequence_reason, sums_alone
from everyformer.training.step import seed_step

MEMBERS = streaming_members()
RANDOM = {("depth-adaptive", 2)}
"""forms that draw in training"""
NUMBERS = dict.fromkeys(("longformer", "image-transformer", "bigbird", "blockwise"), 1)
"""of members whose first form has windows larger than the texts, the form that is tried"""
SUMS = ("aft-local", "aft-simple", "aft-conv", "linear", "performer", "rfa")
BY_HEAD: dict[str, Any] = {
    "mixer": "by-head",
    "mixer_options": {"mixers": ("linear", "aft-conv", "linear")},
}


@pytest.fixture(scope="module")
def started(children: ForkServerContext) -> Iterator[dict[int, Ranks]]:
    running: dict[int, Ranks] = {}
    yield running
    for ranks in running.values():
        ranks.close()


@pytest.fixture
def ranks(started: dict[int, Ranks], children: ForkServerContext) -> Any:
    """Gives so many processes, the same ones to all tests, as long as they live."""

    def of(size: int) -> Ranks:
        if size not in started or started[size].closed:
            started[size] = Ranks(children, size)
        return started[size]

    return of


def split(
    world: World, member: str, batch: dict[str, Any], parts: int, slices: int = 1,
    waits: bool = False, **options: Any,
) -> Answer:  # fmt: skip
    """One process's answer; runs in a child."""
    model = tiny(member, **options)
    seed_step(0, 1)
    world = in_parts(world, parts)
    losses = Sequence(model, world, waits).backward(own_rows(world, **batch), slices=slices)
    return losses, gradients(model)


def of_one(member: str, batch: dict[str, Any], parts: int, **options: Any) -> Answer:
    """The answer of one process; what a memory holds of earlier parts takes no gradient there."""
    model = tiny(member, **options)
    if model.config.genes["memory"].name is None:  # type: ignore[union-attr]
        return alone(model, texts(**batch))
    return in_segments(model, texts(**batch), parts)


@pytest.mark.full("many cases", parts=3)
@pytest.mark.parametrize(("padding", "slices"), [(None, 3), ("right", 1)])
@pytest.mark.parametrize("member", MEMBERS)
def test_two_parts_are_one_text(member: str, padding: str | None, slices: int, ranks: Any) -> None:
    batch, number = {"padding": padding}, NUMBERS.get(member, 0)
    expected = of_one(member, batch, 2, number=number)
    for answer in ranks(2).run(split, member, batch, 2, slices, True, number=number):
        agree(answer, expected)


def trials() -> Iterator[Any]:
    for member in MEMBERS:
        for number in range(len(variants(member))):
            for padding in (None, "right", "left"):
                yield pytest.param(member, number, padding, id=f"{member}-{number}-{padding}")


@pytest.mark.full("every form of every member, of which two parts are tried each time", parts=12)
@pytest.mark.parametrize(("member", "number", "padding"), list(trials()))
def test_two_parts_of_every_form_are_one_text(
    member: str, number: int, padding: str | None, ranks: Any
) -> None:
    if (member, number) in RANDOM:
        pytest.skip("it draws in training")
    try:
        model = tiny(member, number=number)
    except ConfigError as error:
        pytest.skip(str(error))
    if (reason := sequence_reason(model)) is not None:
        pytest.skip(reason)
    batch = {"padding": padding}
    expected = of_one(member, batch, 2, number=number)
    for waits in (True, False) if sums_alone(model) else (True,):
        slices = 2 if padding == "left" else 1
        for answer in ranks(2).run(split, member, batch, 2, slices, waits, number=number):
            agree(answer, expected)


@pytest.mark.parametrize("slices", [1, 3])
@pytest.mark.parametrize("padding", [None, "right", "left"])
@pytest.mark.parametrize("member", SUMS)
def test_sums_that_nobody_waits_for_are_those_of_one_text(
    member: str, padding: str | None, slices: int, ranks: Any
) -> None:
    batch = {"padding": padding}
    expected = of_one(member, batch, 2)
    for answer in ranks(2).run(split, member, batch, 2, slices):
        agree(answer, expected)


@pytest.mark.parametrize(
    ("member", "options"),
    [
        ("rfa", {"gate": True}),
        ("linear", {"feature_map": "exp"}),
        ("performer", {"position": "rope"}),
        ("attention", BY_HEAD),
        ("aft-conv", {"kernel": 7, "tied": False}),
    ],
)
@pytest.mark.parametrize("padding", [None, "left"])
def test_gates_levels_and_last_tokens_go_with_the_sums(
    member: str, options: dict[str, Any], padding: str | None, ranks: Any
) -> None:
    assert sums_alone(tiny(member, **options))
    batch = {"padding": padding, "length": 17}
    expected = of_one(member, batch, 3, **options)
    for answer in ranks(3).run(split, member, batch, 3, 2, **options):
        agree(answer, expected)


@pytest.mark.parametrize(("parts", "slices"), [(1, 2), (2, 1), (4, 1)])
@pytest.mark.parametrize("member", ["attention", "linear", "transformer-xl", "adaptive-span"])
def test_rows_and_parts_share_out_a_batch(member: str, parts: int, slices: int, ranks: Any) -> None:
    """Four rows of one part, two of two, one of four."""
    batch = {"rows": 9, "padding": "right"}
    expected = of_one(member, batch, parts)
    for answer in ranks(4).run(split, member, batch, parts, slices):
        agree(answer, expected)


def test_in_bfloat16_both_ways_are_near(ranks: Any) -> None:
    expected = alone(tiny("linear").float(), texts())[0]["task"]
    for waits in (True, False):
        found = ranks(2).run(in_bfloat16, waits)
        assert found[0] == found[1] == pytest.approx(expected, rel=0.02)


def in_bfloat16(world: World, waits: bool) -> float:
    model = tiny("linear").float()
    steps = Sequence(model, in_parts(world, 2), waits)
    return steps.backward(texts(), precision="bfloat16")["task"]


def bytes_sent(world: World, member: str, length: int, waits: bool) -> list[int]:
    """Bytes of states and their gradients that a process sends in each of two steps."""
    model = tiny(member, NUMBERS.get(member, 0), layers=1, max_length=length)
    steps = Sequence(model, in_parts(world, 2), waits)
    counts = []
    for _ in range(2):
        with pytest.MonkeyPatch.context() as patched:
            count = 0

            def counted(name: str, of: int) -> None:
                real = getattr(dist, name)

                def call(*given: Any, **named: Any) -> Any:
                    nonlocal count
                    count += given[of].nbytes
                    return real(*given, **named)

                patched.setattr(dist, name, call)

            # of sums every process sends its own, and then its share of the others' gradients
            for name, of in (("isend", 0), ("all_gather", 1), ("reduce_scatter", 0)):
                counted(name, of)
            steps.backward(texts(2, length))
            counts.append(count)
    return counts


@pytest.mark.parametrize(
    ("member", "waits"),
    [
        *((member, False) for member in SUMS),
        *((member, True) for member in ("linear", "transformer-xl", "longformer")),
        *((member, True) for member in ("image-transformer", "adaptive-span", "compressive")),
    ],
)
def test_a_state_is_as_many_bytes_whatever_the_length(member: str, waits: bool, ranks: Any) -> None:
    """Behind the first step, in which a header goes with it."""
    model = tiny(member, NUMBERS.get(member, 0), layers=1, max_length=1024)
    batch = texts(2, 64)
    after = model(batch.inputs, state=model.init_state(2)).state  # type: ignore[operator]
    held = sum(t.nbytes for t in {id(t): t for t in after.tensors()}.values())
    short, long = (ranks(2).run(bytes_sent, member, n, waits) for n in (64, 1024))
    assert [steps[1] for steps in short] == [steps[1] for steps in long]
    first, last = (steps[1] for steps in short)
    if waits:
        assert first == 8 + held
        assert last <= held
        assert 0 < short[0][0] - first < 1000
    else:
        assert max(first, last) <= 2 * held


def kept_bytes(world: World, member: str, waits: bool) -> int:
    """Bytes that a process keeps for its backward pass."""
    model, batch = tiny(member, NUMBERS.get(member, 0), max_length=256), texts(2, 256)
    if world.size == 1:
        return saved(model, lambda: alone(model, batch))
    steps = Sequence(model, in_parts(world, world.size), waits)
    return saved(model, lambda: steps.backward(batch))


def saved(model: torch.nn.Module, run: Any) -> int:
    """Bytes of what autograd saves in ``run()``, parameters left out, each storage once."""
    kept: dict[int, torch.Tensor] = {}

    def pack(t: torch.Tensor) -> torch.Tensor:
        kept.setdefault(t.untyped_storage().data_ptr(), t)
        return t

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
        run()
    own = {p.untyped_storage().data_ptr() for p in model.parameters()}
    return sum(t.untyped_storage().nbytes() for at, t in kept.items() if at not in own)


@pytest.mark.parametrize(
    ("member", "waits"),
    [
        *((member, True) for member in ("linear", "longformer", "attention", "gpt", "rope")),
        *((member, False) for member in ("linear", "aft-conv")),
    ],
)
def test_half_a_text_keeps_half_of_what_a_whole_one_does(
    member: str, waits: bool, ranks: Any
) -> None:
    whole = kept_bytes(World(torch.device("cpu")), member, waits)
    assert whole > 10**6
    for half in ranks(2).run(kept_bytes, member, waits):
        assert 0.4 * whole < half < 0.6 * whole


def operations(world: World, member: str) -> int:
    model, batch = tiny(member, max_length=512), texts(2, 512)
    if world.size == 1:
        return count_flops(lambda: alone(model, batch))
    steps = Sequence(model, in_parts(world, world.size))
    return count_flops(lambda: steps.backward(batch))


@pytest.mark.parametrize("member", ["linear", "performer", "aft-conv"])
def test_sums_of_a_part_are_few_operations_beside_its_outputs(member: str, ranks: Any) -> None:
    whole = operations(World(torch.device("cpu")), member)
    halves = ranks(2).run(operations, member)
    assert whole <= sum(halves) < 1.1 * whole


def handed(world: World) -> Any:
    """What the second of two processes gets of states that the first sends, and the bytes."""
    post, sizes = Post(Chain.of(in_parts(world, 2))), list[int]()
    model, tokens = tiny("attention"), texts(2, 9).inputs
    begun: Any = model.init_state(2)  # type: ignore[operator]
    with torch.no_grad():
        states = [model(tokens, state=begun.reserve(50)).state, model(tokens, state=begun).state]
    states.append(states[0].reorder(torch.tensor([1])))
    got = []
    with pytest.MonkeyPatch.context() as patched:
        real = dist.isend

        def counted(buffer: torch.Tensor, *rest: Any, **named: Any) -> Any:
            sizes.append(buffer.nbytes)
            return real(buffer, *rest, **named)

        patched.setattr(dist, "isend", counted)
        for state in states:
            if world.first:
                sent = post.send(state)
                assert sent is not None
                assert sent.gradients() == []
            else:
                state, learned = post.receive(begun)
                assert learned == []
            got.append({name: t.numpy().copy() for name, t in named_tensors(state).items()})
        assert len({id(layer.seen) for layer in (state, *state.layers)}) == 1 or world.first
    return got, sizes


def test_a_state_arrives_as_it_was_sent_without_spare_room(ranks: Any) -> None:
    """A header goes with what differs in shape from the last alone; what layers share goes once."""
    (sent, sizes), (received, _) = ranks(2).run(handed)
    for first, second in zip(sent, received, strict=True):
        assert first.keys() == second.keys()
        for name, tensor in first.items():
            assert tensor.dtype == second[name].dtype
            assert (tensor == second[name]).all()
    # two layers of 9 keys and values of 12 numbers, and `seen`
    held = 2 * (2 * 2 * 9 * 12 * 8) + 2 * 8
    first, again, fewer = sizes[:3], sizes[3:5], sizes[5:]
    assert (first[0], first[2]) == (8, held)
    assert again == [8, held]
    assert (fewer[0], fewer[2]) == (8, held // 2)


def some_unused(world: World) -> list[Any]:
    """Gradients that some processes lack are zero there; those that all lack stay so."""
    model = torch.nn.ModuleList(torch.nn.Linear(2, 2, bias=False) for _ in range(4)).double()
    model[3].requires_grad_(False)
    for n in (0, 1) if world.first else (0,):
        model[n].weight.grad = torch.full((2, 2), 4.0 + world.rank).double()
    Chain.of(in_parts(world, 2)).average(model)
    return [None if p.grad is None else p.grad[0, 0].item() for p in model.parameters()]


def test_gradients_are_means_over_processes_that_have_them_or_not(ranks: Any) -> None:
    assert ranks(2).run(some_unused) == [[4.5, 2.0, None, None]] * 2


def unasked(world: World) -> str:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("everyformer.genes.mixers._kernel.past", lambda given, part: given)
        try:
            Sequence(tiny("linear"), in_parts(world, 2)).backward(texts())
        except UnsupportedError as error:
            return str(error)
    return ""


def test_a_mixer_that_does_not_ask_for_the_past_is_refused(ranks: Any) -> None:
    for told in ranks(2).run(unasked):
        assert told.startswith("2 states of this model are sums over the past, but its mixers ask")


@pytest.mark.parametrize(
    "options",
    [{"wiring": "reversible", "tie": False}, {"depth": "universal"}, {"again": "checkpoints"}],
)
def test_layers_that_run_again_wait_for_their_states(options: dict[str, Any], ranks: Any) -> None:
    """What a layer does again in the backward pass, or by tokens, nobody else waits for."""
    expected = of_one("linear", {}, 2, **{k: v for k, v in options.items() if k != "again"})
    for waited, answer in ranks(2).run(run_again, **options):
        assert waited
        agree(answer, expected)


def run_again(world: World, again: str = "", **options: Any) -> tuple[bool, Answer]:
    model: Any = tiny("linear", **options)
    model.enable_checkpointing(again == "checkpoints")
    called = torch.compile(model, backend="aot_eager") if again == "graph" else model
    # each number of rows would be another graph
    slices = 1 if again == "graph" else 2
    losses = Sequence(called, in_parts(world, 2)).backward(texts(), slices=slices)
    return not sums_alone(called), (losses, gradients(model))


@pytest.mark.full("a graph takes half a minute to make", parts=6)
def test_a_compiled_model_waits_for_its_states(ranks: Any) -> None:
    expected = of_one("linear", {}, 2)
    for waited, answer in ranks(2).run(run_again, "graph"):
        assert waited
        agree(answer, expected)
