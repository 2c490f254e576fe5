"""`Model`, the base of all models: config, stack of layers, position embeddings, states."""

import math
from collections.abc import Sequence
from typing import Any, ClassVar, final

import torch
from torch import Tensor, nn

from everyformer.blocks.parts import drop, make_norm
from everyformer.blocks.stack import Stack
from everyformer.core.errors import ConfigError, ShapeError, UnsupportedError
from everyformer.core.leaks import Whole
from everyformer.core.mask import Mask, positions_of, require_mask
from everyformer.core.mixer import Mixer
from everyformer.core.outputs import ModelOutput, StackOutput
from everyformer.core.position import Position
from everyformer.core.state import StackState, State, check_batch
from everyformer.genes.config import ModelConfig
from everyformer.genes.positions import POSITION
from everyformer.models.deep import OUTPUTS, deep_weights, linear_parts, residual_outputs
from everyformer.models.layers import build_stack, decoder_config
from everyformer.models.summaries import Summaries, Summarised, TextParts

UNIT_GAIN = 0.2
"""of tensor2tensor's image models"""
TOKEN_MEANS = ("commitment", "ponder", "span")
"""losses of layers that are means over the tokens that they read"""


class Model(nn.Module):
    """Base of all models: ``forward(inputs, *, targets, mask, ...) -> ModelOutput``."""

    reads: ClassVar[bool] = False
    """whether its layers read what an encoder gives"""
    layered: ClassVar[bool] = True
    """whether it has layers"""
    stack: Stack
    head: nn.Linear
    """of models that give logits over tokens or values"""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        self.position = POSITION.embedded(config)
        self.types = nn.Embedding(config.token_types, config.width) if config.token_types else None
        self.embedding_norm = (
            make_norm(config.width, config.block) if config.embedding_norm else None
        )
        layers = decoder_config(config) if self.reads else config
        if self.layered:
            self.stack = build_stack(layers, reads=self.reads)
        self.summaries: Summaries | None = None
        if config.summaries.per is not None:
            labelled = all("sentences" in mixer.supported_masks for mixer in self.stack.mixers)
            self.summaries = Summaries(config.width, config.summaries, labelled)
        self.dropout = config.embedding_dropout

    def forward(
        self,
        inputs: Tensor,
        *,
        targets: Tensor | None = None,
        mask: Mask | None = None,
        state: StackState | None = None,
        taps: Sequence[str] = (),
    ) -> ModelOutput:
        """See the concrete model for the shapes of ``inputs``, ``targets`` and the logits.

        ``taps`` names what is wanted of the inside (`everyformer.core.taps`): datastores, exits and
        pictures read it from `ModelOutput.taps`.
        """
        raise NotImplementedError

    @property
    @final
    def longest(self) -> int | None:
        """Tokens that the smallest table over positions allows, a class token not counted; None
        where there is no table."""
        tables = [
            part.max_length
            for part in self.modules()
            if isinstance(part, Mixer | Position | Whole) and part.max_length is not None
        ]
        return min(tables) - (self.config.pooling == "class") if tables else None

    def init_state(
        self,
        batch_size: int,
        *,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> StackState:
        """The state before the first token; raises where a mixer has no exact streaming form."""
        if not self.layered:
            raise UnsupportedError("a model without layers carries no state from step to step")
        return self.stack.init_state(batch_size, device=device, dtype=dtype)

    def encode(self, inputs: Tensor, mask: Mask | None = None) -> Any:
        """The context of ``inputs`` for a decoder, in models that `reads`, once for all steps."""
        raise NotImplementedError

    def extra_inputs(self, inputs: Tensor) -> dict[str, Any]:
        """Further arguments that `forward` needs, where something will do."""
        return {}

    @final
    def inspect(self, inputs: Tensor, **known: Any) -> None:
        """One pass through the layers that pictures of its inside show (an encoder's, if any).

        ``known``: what `extra_inputs` would make up.
        """
        if self.reads:
            self.encode(inputs)
        else:
            self(inputs, **{**self.extra_inputs(inputs), **known})

    def set_progress(self, done: float) -> None:
        """Report, before every training step, of the share of the training that is over.

        Models with losses that end before the training does change them by it.
        """

    @final
    def end_step(self) -> None:
        """Hook after every training step, before weights are averaged, saved or evaluated."""
        for part in self.modules():
            if isinstance(part, Mixer):
                part.end_step()

    def positions_read(self, rows: int) -> int | None:
        """Positions of so many pictures that layers read; None of texts, whose tokens are counted.

        Of a picture that is enlarged those of the small one too.
        """
        config = self.config
        if config.image is None:
            return None
        return rows * (config.tokens + math.prod(config.source_image or (0,)))

    def term_counts(self, inputs: Tensor, targets: Tensor, mask: Mask | None) -> dict[str, float]:
        """Over how many tokens or targets of these rows each of its further losses is a mean.

        Those that are not named are means over rows.
        """
        counts: dict[str, float] = {}
        if self.config.image is None:
            padding_mask = None if mask is None else mask.padding_mask
            real = inputs.shape[:2].numel() if padding_mask is None else int(padding_mask.sum())
            real += len(inputs) * (self.config.pooling == "class")
            counts = dict.fromkeys(TOKEN_MEANS, float(real))
        return counts

    def enable_checkpointing(self, on: bool = True) -> None:
        """Keep only each layer's input for the backward pass and compute the rest again."""
        if not self.layered:
            raise ConfigError("`checkpoint_activations` is set, but this model has no layers")
        self.stack.checkpointing = on

    def embed(self, embedding: nn.Embedding, tokens: Tensor, types: Tensor | None = None) -> Tensor:
        """Vectors (B, L, width) of ``tokens`` (B, L), scaled, and of their ``types``."""
        if tokens.dim() != 2 or tokens.is_floating_point():
            raise ShapeError(f"tokens must be (batch, length) integers, not {tuple(tokens.shape)}")
        if min(tokens.shape) < 1:
            raise ShapeError(
                f"tokens are {tuple(tokens.shape)}: there must be at least one row and one token"
            )
        x = embedding(tokens.long()) * self.config.embedding_scale
        if self.types is not None:
            x = x + (self.types.weight[0] if types is None else self.types(types.long()))
        elif types is not None:
            raise ConfigError("types are given, but the model was built with `token_types=0`")
        return x

    def add_positions(
        self, x: Tensor, mask: Mask | None, state: State | None, position: Position | None = None
    ) -> Tensor:
        """Embeddings ``x`` (B, L, width) with what the position gene adds, normed, dropped out.

        ``position`` replaces the model's own (an encoder's, in an encoder-decoder).
        """
        require_mask(mask)
        if state is not None:
            if not isinstance(state, StackState):
                raise ShapeError(
                    f"a model continues from a StackState, not from a {type(state).__name__}: "
                    "begin with init_state() of this model"
                )
            check_batch(state, x.shape[0])
            if len(state.layers) != len(self.stack.order):
                raise ShapeError(
                    f"the state is of {len(state.layers)} layers, but this model has "
                    f"{len(self.stack.order)}: begin with init_state() of this model"
                )
        position = position or self.position
        if position is not None:
            num_tokens = None if state is None else state.num_tokens
            where = positions_of(x.shape[0], x.shape[1], mask, num_tokens, x.device)
            x = x + position.added(where, x)
        if self.embedding_norm is not None:
            x = self.embedding_norm(x)
        return drop(x, self.dropout, self.training)

    def read_text(
        self,
        x: Tensor,
        tokens: Tensor,
        mask: Mask | None,
        *,
        taps: Sequence[str] = (),
        parts: TextParts | None = None,
    ) -> tuple[StackOutput, Summarised | None]:
        """Embeddings ``x`` (B, L, width) of ``tokens`` (B, L) through all layers.

        With summaries their global tokens go the same way, and what came of them comes too.

        Args:
            taps: what is wanted of the inside (`everyformer.core.taps`), of the text alone.
            parts: how the text is divided (default: as ``tokens`` say).
        """
        if self.summaries is None:
            return self.stack(x, mask=mask, taps=taps), None
        parts = self.summaries.divide(tokens, mask) if parts is None else parts
        first = self.summaries.vector.weight[0] * self.config.embedding_scale
        first = drop(first.expand(*parts.padding_mask.shape, -1), self.dropout, self.training)
        opened = self.summaries.open(x, first, parts, mask)
        out: StackOutput = self.stack(opened.x, mask=opened.mask, taps=taps)
        text, summarised = self.summaries.close(out.y, opened, parts)
        inside = {tap: self.summaries.close(t, opened, parts)[0] for tap, t in out.taps.items()}
        return out._replace(y=text, taps=inside), summarised

    def start_weights(
        self, embeddings: Sequence[nn.Module], tied: nn.Embedding | None = None
    ) -> None:
        """Apply ``config.init``; called by concrete models when all their parts stand.

        A scale that is given as an option of the position stays, whatever the init.
        ``embeddings`` are modules with one matrix each, ``weight``, that is read as a table is.
        With ``config.tie`` the output layer shares that of ``tied``; biases of outputs start at 0.
        """
        chosen = {"std", "start_std"} & self.config.genes["position"].options.keys()
        positions = [part for part in self.modules() if isinstance(part, Position) and chosen]
        tables = [p for part in positions for p in part.parameters() if hasattr(p, "no_decay")]
        drawn = [table.detach().clone() for table in tables]
        self._start(embeddings)
        with torch.no_grad():
            for table, before in zip(tables, drawn, strict=True):
                table.copy_(before)
        heads = (getattr(self, name, None) for name in OUTPUTS)
        for head in heads:
            if isinstance(head, nn.Linear) and head.bias is not None:
                nn.init.zeros_(head.bias)
        if tied is not None and self.config.tie:
            self.head.weight = tied.weight

    def _start(self, embeddings: Sequence[nn.Module]) -> None:
        config = self.config
        if config.init == "sparse-transformer":
            deep_weights(self, [*embeddings])
            return
        if config.init == "image-transformer":
            _even_weights(self)
        std = config.embedding_std
        tables = list(embeddings) if self.types is None else [*embeddings, self.types]
        if self.summaries is not None:
            tables.append(self.summaries.vector)
        for table in tables:
            weight = table.weight
            assert isinstance(weight, Tensor)
            nn.init.normal_(weight, std=std)
        if config.init in ("bert", "gpt2"):
            for weight in linear_parts(self)[0]:
                nn.init.normal_(weight, std=0.02)
        if config.init == "gpt2":
            # what is added to the residual stream starts smaller by sqrt(2 layers)
            for linear in residual_outputs(self.stack, "gpt2"):
                nn.init.normal_(linear.weight, std=0.02 / math.sqrt(2 * len(self.stack.order)))


def refuse_state(model: Model, state: StackState | None) -> None:
    """Models that read their whole input at once have nothing to continue."""
    if state is not None:
        raise UnsupportedError(
            f"a model of the task '{model.config.task}' reads its whole input at once; it takes no "
            "state"
        )


def _even_weights(model: Model) -> None:
    """All matrices U(-a, a) with a = 0.2 sqrt(3 / inputs): unit scaling by a gain of 0.2."""
    matrices, biases = linear_parts(model)
    for weight in matrices:
        bound = UNIT_GAIN * math.sqrt(3 / weight[0].numel())
        nn.init.uniform_(weight, -bound, bound)
    for bias in biases:
        nn.init.zeros_(bias)
