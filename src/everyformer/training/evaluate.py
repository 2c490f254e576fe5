"""Evaluation of a model on held-out data, with 95% intervals over sequences."""

import dataclasses
import math
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Literal, cast

import torch
from torch import nn

from everyformer.core.devices import forked_random
from everyformer.core.errors import ConfigError, UnsupportedError
from everyformer.core.modules import evaluating
from everyformer.core.tally import tallied
from everyformer.data.dataset import Dataset
from everyformer.data.tokenizers.plain import ByteTokenizer
from everyformer.training.footprint import check_reading
from everyformer.training.parallel.world import World
from everyformer.training.reading import Curves, Read, read_in_order, read_windows
from everyformer.training.step import autocast

if TYPE_CHECKING:
    from everyformer.tasks.scores import Scores


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
    streams: int | None = None,
    curves: Curves | None = None,
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
        streams: read a text in order instead, in so many stretches side by side, each going on from
            segment to segment with the model's state.
        curves: takes in the loss of every target with its position.
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
    if (text := dataset.running_text) is not None:
        rows = streams or min(batch, len(text.window_starts(limit)[0]))
        check_reading(model, text, rows, world.device)
    scores = dataset.does.scores(model, dataset, details)
    with (
        forked_random(world.device),
        torch.no_grad(),
        autocast(world.device, precision),
        evaluating(model),
        tallied() as tally,
    ):
        torch.manual_seed(seed)
        if streams is None:
            reads = read_windows(model, dataset, batch, limit, world, remember)
        else:
            assert text is not None
            reads = read_in_order(model, text, streams, limit, world)
        stopped = _count(reads, scores, curves, world, should_stop)
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
    curves: Curves | None,
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
            if curves is not None:
                curves.add(read)
    return False


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


Mode = Literal["nonoverlapping", "sliding", "recurrent"]


def evaluate_long(
    model: nn.Module,
    dataset: Dataset,
    *,
    mode: Mode = "nonoverlapping",
    stride: int | None = None,
    streams: int = 1,
    each: list[torch.Tensor] | None = None,
    **options: Any,
) -> dict[str, Any] | None:
    """Losses of a long held-out text under a model that reads windows of ``length`` tokens.

        nonoverlapping   windows side by side: the first target of each has a context of one token
        sliding          windows S apart: each scores its last S targets, the first all of its L,
                         so every other target has a context of at least L - S + 1 tokens
        recurrent        segments of L side by side, continuing what the model's state carries

    Every target is scored exactly once in every mode, and S = L is the first mode. A window costs
    the same in all, so sliding costs L / S times as much and never scores worse for want of context
    that a window could hold.

    Args:
        mode: how the windows lie.
        stride: S, tokens between windows that slide (default: half a window).
        streams: stretches of the text that are read side by side (recurrent); each starts with an
            empty state, so 1 is the exact reading of one text.
        each: takes in the loss of every target, in the order of the text where ``streams`` is 1.
        options: of `evaluate`.

    Returns:
        What `evaluate` gives (but no ``bits_per_byte`` of a part of a text that is read in order,
        unless tokens are bytes), with ``window`` and ``stride`` in tokens, ``by_place`` and
        ``by_context`` (see `Curves`), and ``tokens_per_second`` scored, on this machine now.

    Raises:
        ConfigError: a stride that does not fit the mode or the window.
        UnsupportedError: the data is no text to predict, or the model carries no state.
    """
    text = dataset.running_text
    if text is None:
        raise UnsupportedError(
            f"windows lie over a text that is predicted (task lm); {dataset.name} is data of the "
            f"task {dataset.task}: leave `mode` and `each` out"
        )
    if mode != "sliding":
        if stride is not None:
            raise ConfigError("windows side by side have no `stride`: leave it out, or slide")
        stride = text.length
    if stride is None:
        stride = max(1, text.length // 2)
    if not 1 <= stride <= text.length:
        raise ConfigError(
            f"`stride` must be 1 to {text.length} tokens, the length of a window, not {stride}: "
            "beyond it targets would be left out"
        )
    if streams < 1 or (streams > 1 and mode != "recurrent"):
        raise ConfigError(
            f"`streams` counts stretches that are read in order (mode recurrent), 1 or more; it is "
            f"{streams}, and the mode {mode}"
        )
    if mode == "recurrent":
        # beyond as many as there are windows, stretches have nothing to read
        windows = -(-(len(text.validation) - 1) // text.length)
        options |= {"streams": min(streams, windows)}
        options.pop("batch", None)
        if options.get("limit") is not None and not isinstance(text.tokenizer, ByteTokenizer):
            # tokens of a beginning may be longer or shorter than those of the whole
            text = dataclasses.replace(text, bytes_per_token=None)
    curves, start = Curves(text.length, each), time.perf_counter()
    strided = dataclasses.replace(text, stride=stride)
    result = evaluate(model, strided, remember=False, curves=curves, **options)
    if result is None:
        return None
    return result | {
        "window": text.length,
        "stride": stride,
        "tokens_per_second": result["scored"] / (time.perf_counter() - start),
        "by_place": curves.by_position(),
        "by_context": curves.by_context(),
    }
