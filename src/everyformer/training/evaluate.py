"""Evaluation of a model on held-out data, with 95% intervals over sequences."""

import dataclasses
import math
import time
from collections.abc import Callable, Iterator
from typing import Any, Literal, cast

import torch
import torch.nn.functional as F
from torch import nn

from everyformer.core.devices import forked_random
from everyformer.core.errors import ConfigError, DataError, UnsupportedError
from everyformer.core.tally import tallied
from everyformer.core.tasks import TASKS
from everyformer.data.dataset import ClassedDataset, Dataset
from everyformer.data.text import TextDataset
from everyformer.data.tokenizers.plain import ByteTokenizer
from everyformer.models.base import evaluating
from everyformer.models.knn_lm import KnnLanguageModel
from everyformer.training.footprint import check_reading
from everyformer.training.measures import ClassErrors, NumberErrors, perplexity, ratio, wilson
from everyformer.training.parallel.world import World
from everyformer.training.reading import Curves, Read, read_in_order, read_windows
from everyformer.training.step import autocast

Errors = NumberErrors | ClassErrors


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
    if isinstance(dataset, TextDataset):
        rows = streams or min(batch, len(dataset.window_starts(limit)[0]))
        check_reading(model, dataset, rows, world.device)
    losses, errors = _Losses(dataset), _errors(model, dataset, details)
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
            assert isinstance(dataset, TextDataset)
            reads = read_in_order(model, dataset, streams, limit, world)
        stopped = _count(reads, losses, errors, curves, world, should_stop)
    if world.in_step:
        # a pass without a backward pass leaves weights gathered, which are not those to step
        cast(Any, model).reshard()
    if world.sum([float(stopped)])[0]:
        return None
    tally.sums = torch.tensor(world.sum(tally.sums.flatten().tolist())).view_as(tally.sums)
    for counter in (losses, errors):
        if counter is not None:
            counter.sums = world.total(counter.sums)
    return _measured(dataset, losses, errors) | tally.means()


def _count(
    reads: Iterator[Read | None],
    losses: "_Losses",
    errors: Errors | None,
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
            losses.add(read)
            if errors is not None:
                errors.add(read.out.logits, read.batch.targets)
            if curves is not None:
                curves.add(read)
    return False


def _measured(dataset: Dataset, losses: "_Losses", errors: Errors | None) -> dict[str, Any]:
    """The measures that follow from what was counted."""
    result = losses.summary()
    if isinstance(errors, NumberErrors):
        return errors.summary()
    if errors is not None:
        result |= errors.summary()
        if isinstance(dataset, ClassedDataset) and dataset.commonest is not None:
            result["always"] = dataset.classes[dataset.commonest]
            result["held_out_always"] = dataset.classes[errors.commonest]
    return result


def _errors(model: nn.Module, dataset: Dataset, details: bool) -> Errors | None:
    """The counter of errors of predicted classes or numbers, where the task has such."""
    task = TASKS[dataset.task]
    config: Any = getattr(getattr(model, "module", model), "config", None)
    if task.classifies:
        answer = dataset.commonest if isinstance(dataset, ClassedDataset) else None
        known = len(dataset.classes), getattr(config, "classes", 0)
        return ClassErrors(max(known), answer, details)
    if config is None or not task.measures:
        return None
    return NumberErrors(config.target_mean, config.target_std)


def why_not_finite(model: nn.Module, loss: float) -> str:
    """The cause of a ``loss`` that is no finite number, as far as it is known, and what to do."""
    weights = [weight.detach() for weight in model.parameters()]
    if not all(bool(weight.isfinite().all()) for weight in weights):
        return "its weights are not finite: its training diverged; train it again with a lower 'lr'"
    if isinstance(model, KnnLanguageModel) and model.options.weight == 1 and loss == math.inf:
        return (
            "with lambda 1 the neighbours alone predict, so a token that none of them has gets the "
            "probability 0: give a weight below 1 (--retrieval.weight of train, --knn.weight "
            "beside --store)"
        )
    largest = max(float(weight.abs().max()) for weight in weights)
    return (
        f"its weights are finite, the largest is {largest:.3g}, but what it computes with them is "
        "not: if that is large, its training diverged; train it again with a lower 'lr'"
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


class _Losses:
    """Sums over sequences, of losses of targets and of guesses that are right."""

    def __init__(self, dataset: Dataset) -> None:
        self.dataset, self.sums = dataset, torch.zeros(10, dtype=torch.float64)
        self.guesses = self.top5 = True

    def add(self, read: Read) -> None:
        """Take in a batch: of each sequence n scored targets, s loss, c hits, and top 5."""
        out, targets = read.out, read.batch.targets
        self.guesses = self.guesses and out.each is None
        self.top5 = self.top5 and self.guesses and out.logits.shape[-1] > 5
        if out.each is not None:
            n, s = (each.cpu().double().sum(1) for each in (read.batch.counted, out.each))
            c = five = torch.zeros_like(n)
        elif targets.is_floating_point() or out.logits.shape[:-1] != targets.shape:
            # the model's loss is not one over classes: a batch is the smallest unit known
            n = torch.tensor([float(read.batch.scored)], dtype=torch.float64)
            s = out.losses["task"].cpu().double() * n
            c = five = torch.zeros_like(n)
        else:
            logits = out.logits.flatten(0, -2)
            logits = logits if logits.dtype == torch.float64 else logits.float()
            flat = targets.flatten().long()
            losses = F.cross_entropy(logits, flat, reduction="none")
            best = logits.topk(min(5, logits.shape[-1]), dim=-1).indices == flat[:, None]
            parts = (flat != -100, losses, best[:, 0], best.any(1))
            n, s, c, five = (part.view(len(targets), -1).cpu().double().sum(1) for part in parts)
        products = ((n > 0).double(), n, n * n, s, s * s, s * n, c, c * c, c * n, five)
        self.sums += torch.stack([product.sum() for product in products])

    def summary(self) -> dict[str, Any]:
        """The measures that follow; raises `DataError` where no target was scored."""
        dataset = self.dataset
        rows, n, nn_, s, ss, sn, c, cc, cn, five = self.sums.tolist()
        if n == 0:
            raise DataError(
                f"the validation part of {dataset.name} has no scored target: give more data"
            )
        loss, interval = ratio(rows, n, nn_, s, ss, sn)
        result: dict[str, Any] = {"loss": loss, "loss_interval": interval}
        if TASKS[dataset.task].classifies:
            result |= {"accuracy": c / n, "accuracy_interval": wilson(c, n)}
        else:
            accuracy, around = ratio(rows, n, nn_, c, cc, cn)
            clipped = around and [max(0.0, around[0]), min(1.0, around[1])]
            if TASKS[dataset.task].acts:
                result |= {"action_loss": loss, "action_loss_interval": interval}
                if dataset.counting is not None:
                    result["counting_action_loss"] = dataset.counting
            else:
                result["perplexity"] = perplexity(loss)
            result |= {"accuracy": accuracy, "accuracy_interval": clipped}
        if self.top5:
            result["top5"] = five / n
        unit, size = "bits_per_byte", dataset.bytes_per_token
        if TASKS[dataset.task].draws:
            unit, size = "bits_per_dim", 1.0
        if size is not None:
            scale = 1 / (math.log(2) * size)
            result[unit] = loss * scale
            result[f"{unit}_interval"] = interval and [bound * scale for bound in interval]
        if dataset.counting is not None:
            result["counting_loss"] = dataset.counting
            if size is not None:
                result[f"counting_{unit}"] = dataset.counting * scale
        result |= {"scored": int(n), "sequences": int(rows)}
        return result if self.guesses else {k: v for k, v in result.items() if "accuracy" not in k}


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
        recurrent        segments of L side by side, going on with what the model's state carries

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
    if not isinstance(dataset, TextDataset):
        raise UnsupportedError(
            f"windows lie over a text that is predicted (task lm); {dataset.name} is data of the "
            f"task {dataset.task}: leave 'mode' and 'each' out"
        )
    if mode != "sliding":
        if stride is not None:
            raise ConfigError("windows side by side have no 'stride': leave it out, or slide")
        stride = dataset.length
    if stride is None:
        stride = max(1, dataset.length // 2)
    if not 1 <= stride <= dataset.length:
        raise ConfigError(
            f"'stride' must be 1 to {dataset.length} tokens, the length of a window, not {stride}: "
            "beyond it targets would be left out"
        )
    if streams < 1 or (streams > 1 and mode != "recurrent"):
        raise ConfigError(
            f"'streams' counts stretches that are read in order (mode recurrent), 1 or more; it is "
            f"{streams}, and the mode {mode}"
        )
    if mode == "recurrent":
        # beyond as many as there are windows, stretches have nothing to read
        windows = -(-(len(dataset.validation) - 1) // dataset.length)
        options |= {"streams": min(streams, windows)}
        options.pop("batch", None)
        if options.get("limit") is not None and not isinstance(dataset.tokenizer, ByteTokenizer):
            # tokens of a beginning may be longer or shorter than those of the whole
            dataset = dataclasses.replace(dataset, bytes_per_token=None)
    curves, start = Curves(dataset.length, each), time.perf_counter()
    strided = dataclasses.replace(dataset, stride=stride)
    result = evaluate(model, strided, remember=False, curves=curves, **options)
    if result is None:
        return None
    return result | {
        "window": dataset.length,
        "stride": stride,
        "tokens_per_second": result["scored"] / (time.perf_counter() - start),
        "by_place": curves.by_position(),
        "by_context": curves.by_context(),
    }
