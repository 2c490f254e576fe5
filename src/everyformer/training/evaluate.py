"""Evaluation of a model on held-out data, with 95% intervals over sequences."""

import math
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import torch
from torch import Tensor, nn

from everyformer.core.devices import forked_random
from everyformer.core.errors import UnsupportedError
from everyformer.core.modules import evaluating, memories_of
from everyformer.core.outputs import ModelOutput
from everyformer.core.tally import tallied
from everyformer.data.batch import Batch, batched
from everyformer.data.dataset import Dataset
from everyformer.training.checks import check_reading
from everyformer.training.parallel.world import World
from everyformer.training.step import autocast, forward

if TYPE_CHECKING:
    from everyformer.tasks.scores import Scores


class Read(NamedTuple):
    """A scored batch with the model's output."""

    out: ModelOutput
    batch: Batch
    before: Tensor
    """(B,) tokens of its text that each row had read before its first"""


def evaluate(
    model: nn.Module,
    dataset: Dataset,
    *,
    batch: int = 32,
    limit: int | None = None,
    precision: str = "float32",
    seed: int = 0,
    world: World | None = None,
    should_stop: Callable[[], bool] = lambda: False,
    remember: bool = True,
    reads: Iterator[Read | None] | None = None,
    each: Callable[[Read], None] = lambda read: None,
    details: bool = False,
) -> dict[str, Any] | None:
    """Losses and accuracies of a model on the validation part.

    Args:
        batch: sequences a forward pass.
        limit: sequences read; None reads all.
        precision: float32, or bfloat16 for autocast.
        seed: of members that draw random numbers in evaluation too; the caller's go on unchanged.
        world: the processes that share the work; None is this one alone.
        should_stop: called before each batch; once it is True the result is None.
        remember: whether a model with a memory reads what it needs before each window of a text.
        reads: what to read instead of such windows.
        each: called with all that is read.
        details: of classes, count each by itself too, what was answered to it, and how sure.

    Returns:
        ``loss`` (nats a scored target), ``loss_interval``, ``perplexity``, ``accuracy``,
        ``accuracy_interval``, ``top5`` (of more than five classes), ``scored``, ``sequences``; with
        depth that differs by token ``mean_depth`` (`everyformer.core.tally`); with text
        ``bits_per_byte``, with pixels
        ``bits_per_dim``, each with its interval; with numbers ``mae``, ``rmse``, ``r2`` and the
        same of answering the mean (``mean_mae`` ...), of several numbers in ``by_number``, and
        ``scaled_rmse`` and ``r2`` over all of them; with classes the measures of `ClassErrors` and
        ``always``, the commonest one of training, and ``held_out_always``, that of the held-out
        part; with text ``counting_loss`` and ``counting_bits_per_byte``, those of counting tokens
        (`Dataset.counting`), likewise with pixels; with actions
        ``action_loss`` in place of ``perplexity``. Intervals are normal over sequences; of
        classifiers' accuracy, Wilson's. A model whose losses are no cross-entropies of its logits
        makes no guesses, so it has no accuracy.

    Raises:
        DataError: there is no scored target in what was read.
    """
    world = world or World(next(model.parameters()).device)
    if reads is None:
        if (text := dataset.running_text) is not None:
            check_reading(model, text, min(batch, len(text.window_starts(limit)[0])), world.device)
        reads = read_windows(model, dataset, batch, limit, world, remember)
    scores = dataset.does.scores(model, dataset, details)
    with (
        forked_random(world.device),
        torch.no_grad(),
        autocast(world.device, precision),
        evaluating(model),
        tallied() as tally,
    ):
        torch.manual_seed(seed)
        stopped = _count(reads, scores, each, world, should_stop)
    if world.in_step:
        # a pass without a backward pass leaves weights gathered, which are not those to step
        cast(Any, model).reshard()
    if world.sum([float(stopped)])[0]:
        return None
    tally.sums = torch.tensor(world.sum(tally.sums.flatten().tolist())).view_as(tally.sums)
    scores.share(world.total)
    return scores.summary() | tally.means()


def _count(
    reads: Iterator[Read | None],
    scores: "Scores",
    each: Callable[[Read], None],
    world: World,
    should_stop: Callable[[], bool],
) -> bool:
    """Take in all that is read; True once this process is to stop, or all of them are."""
    for read in reads:
        stop = should_stop()
        # whose passes need all of them stop together
        if world.sum([float(stop)])[0] if world.in_step else stop:
            return True
        if read is not None:
            scores.add(read.out, read.batch)
            each(read)
    return False


def read_windows(
    model: nn.Module,
    dataset: Dataset,
    size: int,
    limit: int | None,
    world: World,
    remember: bool = True,
) -> Iterator[Read | None]:
    """Validation batches; a model with a memory first reads what is `Memory.ahead` of each.

    Each process reads one in ``world.size``. Where passes need all of them, they make equally many,
    the last ones perhaps for nothing, which is given as None. Without ``remember`` windows are read
    by themselves.
    """
    windows: Iterable[tuple[list[Batch], Batch]]
    segments = segments_ahead(model, dataset) if remember else None
    text = dataset.running_text
    if segments is not None and text is not None:
        windows = text.warmed(size, limit, segments)
    else:
        windows = (([], batch) for batch in dataset.validation_batches(size, limit))
    # one for each process; the last time there may be fewer
    for turn in batched(windows, world.size):
        ahead, batch = turn[min(world.rank, len(turn) - 1)]
        counts = world.rank < len(turn)
        if not counts and not world.in_step:
            yield None
            continue
        batch = batch.to(world.device)
        state: Any = None
        before = torch.zeros(len(batch.targets), dtype=torch.long)
        if segments is not None:
            state = empty_state(model, len(batch.targets))
            for part in ahead:
                state = forward(model, part.to(world.device), state, last=1).state
            before = state.num_tokens.cpu()
        out = forward(model, batch, state)
        idle = max(len(parts) for parts, _ in turn) - len(ahead) if world.in_step else 0
        for _ in range(idle):
            forward(model, batch, empty_state(model, len(batch.targets)), last=1)
        yield Read(out, batch, before) if counts else None


def segments_ahead(model: nn.Module, dataset: Dataset) -> int | None:
    """How many segments a model with a memory reads before those that are scored; None of
    models without one, and of data in no order."""
    memories = memories_of(model)
    if not memories or dataset.running_text is None:
        return None
    return -(-max(memory.ahead for memory in memories) // dataset.length)


def empty_state(model: Any, rows: int) -> Any:
    """An empty state.

    Raises:
        UnsupportedError: the model carries nothing from segment to segment.
    """
    initial: Any = getattr(model, "init_state", None)
    if initial is None:
        raise UnsupportedError("this model carries nothing from one segment to the next")
    return initial(rows)


def why_not_finite(model: nn.Module, loss: float) -> str:
    """The cause of a ``loss`` that is no finite number, as far as it is known, and what to do."""
    weights = [weight.detach() for weight in model.parameters()]
    if not all(bool(weight.isfinite().all()) for weight in weights):
        return "its weights are not finite: its training diverged; train it again with a lower `lr`"
    own = getattr(model, "why_infinite", None) if loss == math.inf else None
    if own is not None:
        return str(own)
    largest = max(float(weight.abs().max()) for weight in weights)
    return (
        f"its weights are finite, the largest is {largest:.3g}, but what it computes with them is "
        "not: if that is large, its training diverged; train it again with a lower `lr`"
    )


def in_words(evaluation: dict[str, Any]) -> str:
    """The main number of an evaluation and its interval, in one line."""
    parts = [f"validation loss {evaluation['loss']:.4f}"]
    bits = (name for name in evaluation if name.startswith("bits_per_") and "interval" not in name)
    numbers = ("accuracy", "scaled_rmse", "rmse", "r2")
    for name in (*bits, *numbers):
        if name in evaluation:
            around = evaluation.get(f"{name}_interval")
            span = "" if around is None else f" ({around[0]:.4f} to {around[1]:.4f})"
            parts.append(f"{name.replace('_', ' ')} {evaluation[name]:.4f}{span}")
    return ", ".join(parts)
