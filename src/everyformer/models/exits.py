"""Predictions of every layer: what a model with early exits reads its layers by, and its losses.

    L = sum_n omega_n L_n / sum_n omega_n,   or the mean of L of drawn layers;   + L_exit

The layers share the final norm and the output layer, or each has its own. All is in depths
(`everyformer.genes.depth.calm`, `everyformer.genes.depth.depth_adaptive`); here it meets tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from everyformer.blocks.depth import Exiting
from everyformer.blocks.parts import make_norm
from everyformer.blocks.stack import Stack
from everyformer.core.mask import Mask, runs_of
from everyformer.core.modules import evaluating
from everyformer.core.outputs import Losses, ModelOutput, StackOutput, add_losses
from everyformer.core.state import State
from everyformer.engines.drawing import uniform_rows
from everyformer.genes.config import ModelConfig
from everyformer.genes.depth.early_exits import Evidence, Exits, layer_weights

Run = Callable[..., StackOutput]
"""the layers over a text, called with ``exiting=`` and ``taps=``"""
Predict = Callable[..., tuple[Tensor, Tensor | None, Losses]]
"""`everyformer.models.language.predict`"""


class ExitHeads(nn.Module):
    """Norms and heads by which each layer predicts.

    Args:
        stack: whose depth has early exits. head: the model's output layer. predict: its loss.
    """

    def __init__(
        self, config: ModelConfig, stack: Stack, head: nn.Linear, predict: Predict
    ) -> None:
        super().__init__()
        assert isinstance(stack.depth, Exits)
        self.config, self.predict = config, predict
        # the model's own modules, registered there
        self._shared = stack, head
        self.separate = stack.depth.options.heads == "separate"
        if self.separate:
            layers, width = range(len(stack.order) - 1), stack.out_width
            last = stack.residual.last_norm
            self.norms = nn.ModuleList(
                make_norm(width, config.block) if last else nn.Identity() for _ in layers
            )
            self.heads = nn.ModuleList(
                nn.Linear(width, config.vocabulary, bias=config.head_bias) for _ in layers
            )

    @classmethod
    def of(
        cls, config: ModelConfig, stack: Stack, head: nn.Linear, predict: Predict
    ) -> ExitHeads | None:
        """The exit heads of a model; None: its tokens do not leave early."""
        return cls(config, stack, head, predict) if isinstance(stack.depth, Exits) else None

    @property
    def depth(self) -> Exits:
        """The depth gene, which decides."""
        result = self._shared[0].depth
        assert isinstance(result, Exits)
        return result

    def norm(self, stream: Tensor, n: int) -> Tensor:
        """The stream (..., width) behind layer ``n``, from 1, as it predicts from it."""
        separate = self.separate and n <= len(self.norms)
        normed: Tensor = self.norms[n - 1](stream) if separate else self._shared[0].norm(stream)
        return normed

    def head(self, y: Tensor, n: int) -> Tensor:
        """Logits (..., vocabulary) of layer ``n`` from ``y`` (..., width)."""
        separate = self.separate and n <= len(self.heads)
        logits: Tensor = self.heads[n - 1](y) if separate else self._shared[1](y)
        return logits

    def request(self, **options: Any) -> Exiting:
        """The request with which the layers are called."""
        return Exiting(self.norm, self.head, **options)

    def read(self, exiting: Exiting, y: Tensor) -> Tensor:
        """Hidden states (B, L, width) that tokens predict from, wherever they left.

        Args:
            y: the stack's output, normed as the last layer's is.
        """
        if not self.separate or exiting.left is None or exiting.stream is None:
            return y
        for n in range(1, len(self.norms) + 1):
            there = exiting.left == n
            if bool(there.any()):
                y = torch.where(there[..., None], self.norm(exiting.stream, n), y)
        return y

    def heads_at(self, left: Tensor | None) -> Callable[[Tensor], Tensor]:
        """The map from `read` of tokens that ``left`` (B, L) at these layers to logits."""
        if not self.separate or left is None:
            return self._shared[1]
        return partial(self._each, left)

    def _each(self, left: Tensor, y: Tensor) -> Tensor:
        logits: Tensor = self._shared[1](y)
        for n in range(1, len(self.heads) + 1):
            there = (left == n).nonzero(as_tuple=True)
            if len(there[0]):
                logits = logits.index_put(there, self.head(y[there], n).to(logits.dtype))
        return logits

    def teach(
        self,
        run: Run,
        targets: Tensor,
        mask: Mask | None,
        context: Sequence[State] | None = None,
        taps: Sequence[str] = (),
        terms: Losses | None = None,
    ) -> ModelOutput:
        """One pass of a training, or as many as layers are drawn.

        Args:
            run: the layers over the text. targets: (B, T), -100: not scored. mask: of the text.
            context: of a decoder, what was made of the encoder's output.
            terms: further losses, of an encoder.
        """
        learns, stack = self.depth.learns, self._shared[0]
        if learns.alone:
            with torch.no_grad(), evaluating(stack):
                out, states = self._all(run, None, taps)
                logits, _, result = self._loss(out.y, len(states), targets)
            result = {"task": result["task"]}
        elif learns.weighting is None:
            drawn = [self._drawn(run, targets, taps) for _ in range(learns.samples)]
            out, logits = drawn[0][:2]
            result = {"task": torch.stack([task for _, _, task in drawn]).mean()}
            states = []
            if learns.decides:
                with evaluating(stack):
                    states = self._all(run, None)[1]
        else:
            weights = layer_weights(learns.weighting, len(stack.order), targets.device)
            out, states = self._all(run, weights, taps)
            layers = [self._loss(y, n, targets) for n, y in enumerate(states, 1)]
            logits = layers[-1][0]
            tasks = torch.stack([losses["task"] for _, _, losses in layers])
            result = {"task": (weights.to(tasks) * tasks).sum() / weights.sum().to(tasks)}
        if learns.decides:
            evidence = self._evidence(states, targets, mask, context)
            decides = self.depth.exit_loss(evidence)
            assert decides is not None
            result["exits"] = decides / (targets != -100).sum().clamp(min=1)
        if learns.alone:
            total = result["exits"]
        else:
            add_losses(result, out.losses)
            add_losses(result, terms or {})
            total = torch.stack([*result.values()]).sum()
        inside = {tap: out.taps[tap] for tap in taps}
        return ModelOutput(logits, total, result, out.state, taps=inside)

    def _all(
        self, run: Run, weights: Tensor | None, taps: Sequence[str] = ()
    ) -> tuple[StackOutput, list[Tensor]]:
        """A pass through all layers, and what each predicts from."""
        exiting = self.request(full=True, weights=weights, streams=[])
        out = run(exiting=exiting, taps=taps)
        assert exiting.streams is not None
        return out, [self.norm(stream, n) for n, stream in enumerate(exiting.streams, 1)]

    def _drawn(
        self, run: Run, targets: Tensor, taps: Sequence[str]
    ) -> tuple[StackOutput, Tensor, Tensor]:
        """A pass whose tokens leave at layers that are drawn."""
        layers = len(self._shared[0].order)
        at = 1 + (uniform_rows(targets.shape, targets.device) * layers).long()
        exiting = self.request(at=at)
        out = run(exiting=exiting, taps=taps)
        y, heads = self.read(exiting, out.y), self.heads_at(exiting.left)
        logits, _, result = self.predict(heads, y, targets, {}, self.config, self.training)
        return out, logits, result["task"]

    def _loss(self, y: Tensor, n: int, targets: Tensor) -> tuple[Tensor, Tensor | None, Losses]:
        head = partial(self.head, n=n)
        return self.predict(head, y, targets, {}, self.config, self.training)

    @torch.no_grad()
    def _judged(self, y: Tensor, n: int, targets: Tensor) -> tuple[Tensor, Tensor]:
        """log p of the targets (B, T) by layer ``n``, and its likeliest tokens."""
        logits = self.head(y, n)
        logs = logits.to(torch.promote_types(logits.dtype, torch.float32)).log_softmax(-1)
        log_p = logs.gather(-1, targets.clamp(min=0).long()[..., None]).squeeze(-1)
        return log_p, logs.argmax(-1)

    def _evidence(
        self,
        states: list[Tensor],
        targets: Tensor,
        mask: Mask | None,
        context: Sequence[State] | None,
    ) -> Evidence:
        judged = [self._judged(y.detach(), n, targets) for n, y in enumerate(states, 1)]
        runs = None
        if mask is not None and mask.documents is not None:
            runs = runs_of(mask.documents, mask.padding_mask)
        logs, best = (torch.stack(parts) for parts in zip(*judged, strict=True))
        return Evidence(states, logs, best, targets, runs, context)
