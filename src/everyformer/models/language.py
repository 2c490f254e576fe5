"""Causal language model: tokens in, a distribution over the next token at every position out.

    x = s E[token] + position;   h = stack(x);   logits = h E^T (tied) or h W^T;   loss in nats

s is sqrt(width) with fixed waves and 1 otherwise. Sources: Vaswani et al. 2017, arXiv 1706.03762;
Radford et al. 2019 (GPT-2).

Two losses help deep models to begin (Al-Rfou et al. 2018, arXiv 1808.04444, section "Auxiliary
Losses"); both are of the training alone and off by default:

    layer_losses   layer l < N predicts as the last one does, until l / 2N of the training is over
    lookahead w    a second output layer predicts the token after the next, at w times its loss,
                   from every layer that predicts

Here all layers that predict share the final norm and the output layers.
"""

from collections.abc import Callable, Iterable, Sequence
from functools import partial, reduce
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from everyformer.core.errors import GeneError, ShapeError, UnsupportedError
from everyformer.core.mask import Mask, runs_of
from everyformer.core.outputs import Losses, ModelOutput, add_losses
from everyformer.core.state import StackState
from everyformer.core.subset import gather_rows, order_of_real
from everyformer.engines.remade import remade
from everyformer.genes.config import ModelConfig
from everyformer.genes.retrieval import RETRIEVAL
from everyformer.models.base import Model
from everyformer.models.exits import ExitHeads


class LanguageModel(Model):
    """Language model: inputs and targets (B, L) int64, -100 = not scored, logits (B, L, V)."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__(config)
        self.embedding = nn.Embedding(config.vocabulary, config.width)
        width, vocabulary, bias = self.stack.out_width, config.vocabulary, config.head_bias
        self.head = nn.Linear(width, vocabulary, bias=bias)
        retrieval = RETRIEVAL.of(config)
        self.gating = None if retrieval is None else retrieval.make_part(width)
        self.ahead = nn.Linear(width, vocabulary, bias=bias) if config.lookahead else None
        self.exits = ExitHeads.of(config, self.stack, self.head, predict)
        for name in ("layer_losses", "lookahead"):
            if self.exits is not None and getattr(config, name):
                raise GeneError(
                    f"`{name}` and depth '{config.genes['depth'].name}' both say what inner layers "
                    f"are taught: leave `{name}` out"
                )
        self.predicting: tuple[int, ...] = ()
        self.set_progress(0.0)
        self.start_weights([self.embedding], tied=self.embedding)

    def extra_inputs(self, inputs: Tensor) -> dict[str, Any]:
        """Neighbours, two a token, where the model reads any."""
        if self.gating is None:
            return {}
        both = inputs[..., None] + inputs.new_tensor([0, 1])
        return {"neighbours": both % self.config.vocabulary}

    def set_progress(self, done: float) -> None:
        layers = len(self.stack.order) if self.config.layer_losses else 0
        self.predicting = tuple(n for n in range(1, layers) if done < n / (2 * layers))

    def term_counts(self, inputs: Tensor, targets: Tensor, mask: Mask | None) -> dict[str, float]:
        later = _moved(targets, mask)
        targets_of = {"layers": targets, "ahead": later, "exits": targets}
        scored = {name: int((goals != -100).sum()) for name, goals in targets_of.items()}
        return super().term_counts(inputs, targets, mask) | scored

    def forward(
        self,
        inputs: Tensor,
        *,
        targets: Tensor | None = None,
        mask: Mask | None = None,
        state: StackState | None = None,
        embeddings: Tensor | None = None,
        neighbours: Tensor | None = None,
        taps: Sequence[str] = (),
        last: int | None = None,
    ) -> ModelOutput:
        """Predict each next token.

        Args:
            embeddings: (B, L, width) read instead of the tokens' embeddings.
            neighbours: (B, L, k) int64, what followed contexts like each token's, -1 where there
                are fewer; only a model with a part that reads them (`genes.retrieval`) takes
                any, and without them it predicts from its own states.
            last: predict after so many last real tokens of each row alone, as reading a long prompt
                needs it; rows with fewer have padding in front.
        """
        if embeddings is not None and embeddings.shape[:-1] != inputs.shape:
            raise ShapeError(
                f"embeddings are {tuple(embeddings.shape)}, but the tokens {tuple(inputs.shape)}: "
                "give a vector for each"
            )
        if last is not None and last < 1:
            raise ShapeError(f"'last' is a number of tokens from 1 on, not {last}")
        x = self.embed(self.embedding, inputs) if embeddings is None else embeddings
        x = self.add_positions(x, mask, state)
        taught = self.training and targets is not None and last is None
        if taught and targets is not None and self.exits is not None:
            run = partial(self.stack, x, mask=mask, state=state)
            return self.exits.teach(run, targets, mask, taps=taps)
        early = [f"block-output:{n}" for n in self.predicting] if taught else []
        exiting = None if self.exits is None else self.exits.request()
        out = self.stack(x, mask=mask, state=state, taps=(*taps, *early), exiting=exiting)
        y, left = out.y, None
        if self.exits is not None and exiting is not None:
            y, left = self.exits.read(exiting, y), exiting.left
        if last is not None:
            at = last_of(inputs if embeddings is None else embeddings, last, mask)
            y, targets = gather_rows(y, at), None if targets is None else targets.gather(1, at)
            neighbours = None if neighbours is None else gather_rows(neighbours, at)
            left = None if left is None else left.gather(1, at)
        if taught and targets is not None:
            layers = [self.stack.norm(out.taps[tap]) for tap in early]
            add_losses(out.losses, self._auxiliary(y, layers, targets, mask))
        if neighbours is not None:
            y = self._reading(y, neighbours)
        head = self.head if self.exits is None else self.exits.heads_at(left)
        predicted = predict(head, y, targets, out.losses, self.config, self.training)
        return ModelOutput(*predicted, out.state, taps={tap: out.taps[tap] for tap in taps})

    def _reading(self, y: Tensor, neighbours: Tensor) -> Tensor:
        """``y`` (B, L, channels) with what followed its ``neighbours`` (B, L, k) in it."""
        if self.gating is None:
            raise UnsupportedError(
                f"neighbours are given, but {self.config.member} reads none: take retrieval 'spalm'"
            )
        if neighbours.shape[:2] != y.shape[:2] or neighbours.dim() != 3:
            raise ShapeError(
                f"neighbours are {tuple(neighbours.shape)}, but the tokens {tuple(y.shape[:2])}: "
                "give (batch, length, k)"
            )
        read: Tensor = self.gating(y, neighbours, self.head.weight)
        return read

    def _auxiliary(
        self, y: Tensor, layers: Sequence[Tensor], targets: Tensor, mask: Mask | None
    ) -> Losses:
        """Losses of the layers that predict besides the last, and of the token after the next."""
        losses: Losses = {}
        if layers:
            losses["layers"] = _sum(self._loss(self.head, h, targets) for h in layers)
        if self.ahead is not None:
            later = _moved(targets, mask)
            each = [self._loss(self.ahead, h, later) for h in (*layers, y)]
            losses["ahead"] = self.config.lookahead * _sum(each)
        return losses

    def _loss(self, head: nn.Linear, y: Tensor, targets: Tensor) -> Tensor:
        return predict(head, y, targets, {}, self.config, self.training)[2]["task"]


def predict(
    head: Callable[[Tensor], Tensor],
    y: Tensor,
    targets: Tensor | None,
    terms: Losses,
    config: ModelConfig,
    training: bool,
) -> tuple[Tensor, Tensor | None, Losses]:
    """Logits ``head(y)`` of ``y`` (B, L, channels), and their loss as `total_loss` gives it.

    In training with ``config.loss_chunk`` the loss is summed over pieces of so many tokens, whose
    logits are made again in the backward pass; the logits are then those of no token (B, 0, V).
    """
    if config.loss_chunk is None or targets is None or not training:
        with remade(y):
            logits = head(y)
        return logits, *total_loss(logits, targets, terms, config)

    def piece(part: Tensor, goals: Tensor) -> Tensor:
        return _summed(head(part), goals, config)

    goals = targets.flatten().long()
    cut = (y.flatten(0, -2).split(config.loss_chunk), goals.split(config.loss_chunk))
    sums = [checkpoint(piece, *both, use_reentrant=False) for both in zip(*cut, strict=True)]
    return head(y[:, :0]), *with_terms(torch.stack(sums).sum(), goals, terms)


def last_of(tokens: Tensor, last: int, mask: Mask | None) -> Tensor:
    """Indices (B, last) of the last real tokens of each row of ``tokens`` (B, L, ...)."""
    batch, length = tokens.shape[:2]
    if mask is None or mask.padding_mask is None:
        return torch.arange(length, device=tokens.device)[-last:].expand(batch, -1)
    return order_of_real(mask.padding_mask, last=True)[:, -last:]


def _moved(targets: Tensor, mask: Mask | None) -> Tensor:
    """The targets of one real token later, none where that is another document's or missing."""
    length = targets.shape[1]
    padding_mask = None if mask is None else mask.padding_mask
    real = torch.ones_like(targets, dtype=torch.bool) if padding_mask is None else padding_mask
    places = torch.arange(length, device=targets.device).expand_as(targets)
    places = F.pad(places.masked_fill(~real, length), (0, 1), value=length)
    after = places[:, 1:].flip(1).cummin(1).values.flip(1)
    later = F.pad(targets, (0, 1), value=-100).gather(1, after).masked_fill(~real, -100)
    if mask is None or mask.documents is None:
        return later
    runs = runs_of(mask.documents, padding_mask)
    return later.masked_fill(F.pad(runs, (0, 1)).gather(1, after) != runs, -100)


def _sum(terms: Iterable[Tensor]) -> Tensor:
    return torch.stack(list(terms)).sum()


def total_loss(
    logits: Tensor,
    targets: Tensor | None,
    terms: Losses,
    config: ModelConfig,
    weights: Tensor | None = None,
) -> tuple[Tensor | None, Losses]:
    """Mean cross-entropy over scored targets as ``task``, and its sum with the members' terms.

    With ``weights`` (V,) of the classes, whose mean over the training rows is 1, it is the mean of
    w_y l over targets: whichever classes a batch holds, each row counts by its own.

    ``config.label_smoothing`` e is spread over all V classes (torch), e / V each, or over the
    others (tensor2tensor), e / (V - 1) each, which is the first with e V / (V - 1).
    """
    if targets is None:
        return None, dict(terms)
    require_targets(targets, logits.shape[:-1])
    goals = targets.flatten().long()
    logits = logits.flatten(0, -2)
    return with_terms(_summed(logits, goals, config, weights), goals, terms)


def require_targets(targets: Tensor, shape: Sequence[int]) -> None:
    """Refuse targets that are not one class for each of what is predicted."""
    if targets.shape != torch.Size(shape) or targets.is_floating_point():
        raise ShapeError(
            f"targets must be {tuple(shape)} integers, one for each that is predicted, not "
            f"{tuple(targets.shape)} {str(targets.dtype).removeprefix('torch.')}"
        )


def _summed(
    logits: Tensor, goals: Tensor, config: ModelConfig, weights: Tensor | None = None
) -> Tensor:
    """Cross-entropy of logits (N, V) with ``goals`` (N,), summed over those that are scored."""
    smoothing = config.label_smoothing
    if config.smoothing_over == "others":
        smoothing *= logits.shape[-1] / (logits.shape[-1] - 1)
    wide = torch.promote_types(logits.dtype, torch.float32)
    weights = None if weights is None else weights.to(wide)
    logits = logits.to(wide)
    return F.cross_entropy(logits, goals, weights, reduction="sum", label_smoothing=smoothing)


def with_terms(summed: Tensor, goals: Tensor, terms: Losses) -> tuple[Tensor, Losses]:
    """The mean of a loss that was ``summed`` over ``goals``, with the members' terms and alone."""
    return added(summed / (goals != -100).sum().clamp(min=1), terms)


def added(task: Tensor, terms: Losses) -> tuple[Tensor, Losses]:
    """The loss: the task's with the members' terms, and each of them by name."""
    losses = {"task": task, **terms}
    return reduce(torch.add, losses.values()), losses
