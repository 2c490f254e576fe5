"""What of texts cannot be split over processes, and who holds what of those that can."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from sequence_stand_ins import in_parts, streaming_members, texts, tiny
from training_stand_ins import TinyModel, tiny_text

from everyformer.core.errors import ConfigError, DataError, UnsupportedError
from everyformer.data.batch import Batch
from everyformer.genes.config import ModelConfig
from everyformer.system.stopping import Gentle
from everyformer.training.config import TrainingConfig
from everyformer.training.loop import _Job
from everyformer.training.parallel.world import World
from everyformer.training.sequence.chain import Chain
from everyformer.training.sequence.passes import Sequence, order, sequence_reason

ALONE = World(torch.device("cpu"))


@pytest.mark.parametrize(
    ("member", "options", "told"),
    [
        ("reformer", {}, "reformer has no exact state (not exactly: later tokens move"),
        ("performer", {"redraw": 1000}, "of performer, its random features are drawn anew"),
        ("rfa", {"redraw": 1}, "of rfa, its random features are drawn anew in training"),
        ("learned-per-layer", {"lookahead": 0.5}, "set 'lookahead' to 0"),
        ("learned-per-layer", {"align": "end"}, "with align='end' the rows o"),
        ("routing", {"routing": "paper"}, "routing has no exact streaming form"),
    ],
)
def test_what_cannot_be_split_says_why(member: str, options: dict[str, Any], told: str) -> None:
    model = tiny(member, **options)
    assert told in str(sequence_reason(model))
    with pytest.raises(UnsupportedError, match="texts cannot be split over processes: "):
        Sequence(model, ALONE)


@pytest.mark.parametrize(
    ("member", "task", "told"),
    [
        ("attention", "mlm", "the task 'mlm' does not go on from token to token of one text"),
        ("attention", "seq2seq", "the task 'seq2seq' does not go on"),
        ("attention", "forecast", "the task 'forecast' does not go on"),
        ("linear", "pixels", "the task 'pixels' does not go on"),
        ("reformer", "lm", "reformer has no exact state"),
        ("linear", "lm", None),
    ],
)
def test_a_config_is_refused_by_its_task_and_member(
    member: str, task: Any, told: str | None
) -> None:
    reason = sequence_reason(ModelConfig(member=member, task=task))
    assert reason is None if told is None else told in str(reason)


def test_modules_of_other_kinds_are_refused() -> None:
    assert "no model of this library" in str(sequence_reason(torch.nn.Linear(2, 2)))
    assert "no model of this library" in str(sequence_reason(TinyModel()))


@pytest.mark.parametrize("member", streaming_members())
def test_every_member_that_streams_can_be_split(member: str) -> None:
    assert sequence_reason(tiny(member)) is None


@pytest.mark.parametrize(
    ("batch", "error", "told"),
    [
        (texts(5, 1), ConfigError, "texts of 1 tokens cannot be cut into 2 parts"),
        (
            replace(texts(5, 9), documents=torch.zeros(5, 9, dtype=torch.long)),
            UnsupportedError, "packed documents cannot be cut into parts",
        ),
        (
            replace(texts(5, 9), separate=True, targets=torch.zeros(5, 4, dtype=torch.long)),
            UnsupportedError, r"inputs \(5, 9\) with targets \(5, 4\) cannot be cut into parts",
        ),
        (
            replace(texts(5, 9), labels=torch.zeros(5, dtype=torch.long)),
            UnsupportedError, "'labels' of this batch is not said token by token",
        ),
        (
            Batch(torch.zeros(5, 1, 3, 3, dtype=torch.uint8), torch.zeros(5, dtype=torch.long)),
            UnsupportedError, "only texts of one target a token can",
        ),
    ],
)  # fmt: skip
def test_a_batch_that_cannot_be_cut_is_refused(
    batch: Batch, error: type[Exception], told: str
) -> None:
    with pytest.raises(error, match=told):
        Chain(in_parts(World(torch.device("cpu"), 1, 2), 2)).check(batch)


def test_packed_data_are_refused_before_anything_is_written() -> None:
    world, packed = (
        in_parts(World(torch.device("cpu"), 1, 2), 2),
        replace(tiny_text(5), packed=True),
    )
    config = TrainingConfig(steps=1, batch=2, device="cpu", parallel="sequence")
    with pytest.raises(ConfigError, match=r"'parallel' sequence .* leave out 'data.packing'"):
        _Job(tiny("linear"), packed, config, world, None, Gentle(), False, 0)


def test_more_slices_than_rows_are_refused() -> None:
    told = r"has 5 sequences, fewer than 1 processes times 'accumulate' \(6\) need"
    with pytest.raises(ConfigError, match=told):
        Sequence(tiny("linear"), ALONE).backward(texts(5, 9), slices=6)
    assert in_parts(World(torch.device("cpu"), 3, 6), 2).readers == "3 groups of 2 processes"


def test_targets_that_none_scores_are_refused() -> None:
    batch = texts()
    nothing = replace(batch, targets=torch.full_like(batch.targets, -100))
    with pytest.raises(DataError, match="no target of this batch is scored"):
        Sequence(tiny("linear"), ALONE).backward(nothing)


@pytest.mark.parametrize(("size", "parts"), [(3, 2), (2, 4)])
def test_processes_that_do_not_divide_are_refused(size: int, parts: int) -> None:
    with pytest.raises(ConfigError, match=f"{size} processes cannot be parted into groups of"):
        Chain.of(in_parts(World(torch.device("cpu"), 0, size), parts))


@pytest.mark.parametrize(("parts", "length"), [(1, 5), (2, 31), (3, 31), (5, 7)])
def test_parts_cover_texts_and_rows_cover_batches(parts: int, length: int) -> None:
    whole = World(torch.device("cpu"), 0, 2 * parts)
    chains = [Chain(in_parts(replace(whole, rank=p), parts)) for p in range(2 * parts)]
    read = [
        (row, column)
        for chain in chains
        for row in range(*chain.world.own.of(7))
        for column in range(*chain.columns(length))
    ]
    assert sorted(read) == [(row, column) for row in range(7) for column in range(length)]
    assert [chain.neighbour(-1) for chain in chains[:parts]] == [None, *range(parts - 1)]
    assert [chain.neighbour(1) for chain in chains[:parts]] == [*range(1, parts), None]


@pytest.mark.parametrize("slices", [1, 2, 3, 7])
@pytest.mark.parametrize("parts", [1, 2, 3, 5])
def test_no_process_waits_for_what_another_will_not_send(parts: int, slices: int) -> None:
    """Passes run in some order in which what each needs has been sent, and each runs once."""
    left = [list(order(slices, parts - part)) for part in range(parts)]
    done: set[tuple[int, int, bool]] = set()
    while any(left):
        before = len(done)
        for part, passes in enumerate(left):
            if not passes:
                continue
            n, back = passes[0]
            at = part + 1 if back else part - 1
            if not 0 <= at < parts or (at, n, back) in done:
                assert not back or (part, n, False) in done
                done.add((part, n, back))
                passes.pop(0)
                under_way = sum(
                    (part, m, True) not in done for p, m, b in done if p == part and not b
                )
                assert under_way <= parts - part
        assert len(done) > before
    assert len(done) == 2 * parts * slices
