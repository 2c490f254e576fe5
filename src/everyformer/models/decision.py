"""Decision Transformer: a window of an episode in, the action of every step out.

    tokens     R_t, s_t, a_t of every step t, in this order;   R_t = sum of r from t to the end
    gym        u = LN(W_m m + b_m + E_time[t])  for each m of R_t / scale, s_t, a_t
    atari      u = tanh(W_m m + b_m) + P[place in the window] + E_time[first step of the window]
    action     of step t from the layers' output at s_t;   a causal stack, any member's

So the action of a step follows from its own return-to-go and state and from whole earlier steps.
The timestep t counts from the episode's start, wherever the window begins; there is no further
position unless the position gene adds one. The loss is the mean over real steps of a step's
cross-entropy, or of the mean squared error of its numbers, in units of half their range where all
are bounded.

States that are numbers are normalised by what is known of the training data. Pictures go through
the three convolutions of the paper (32 of 8x8 by 4, 64 of 4x4 by 2, 64 of 3x3), or, with a side
below 36 pixels, which these do not fit, through three of 3x3 with as many channels, by 2, 2 and 1.

Behaviour cloning, the baseline, is a plain network on the last K states of the same window, padding
and what comes before the window being zeros: a_t = head(MLP(s_{t-K+1}, ..., s_t)).

Source: Chen et al. 2021, arXiv 2106.01345, and its code (kzl/decision-transformer), in which
weights start as torch has them, embeddings of time from N(0, 1); in the variant atari those of
actions from N(0, 0.02^2), and tables of time and places at 0.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from everyformer.blocks.parts import drop, make_norm
from everyformer.core.errors import ConfigError, GeneError, ShapeError
from everyformer.core.mask import Mask, positions_of
from everyformer.core.outputs import Losses, ModelOutput, StackOutput
from everyformer.core.state import StackState
from everyformer.engines.softmax.visibility import surely
from everyformer.genes.config import ModelConfig
from everyformer.models.base import Model, refuse_state
from everyformer.models.language import added, total_loss
from everyformer.models.states import StateReader


class PresentStep(NamedTuple):
    """The present step of every row."""

    states: Tensor
    """(B, ...)"""
    returns: Tensor
    """(B,), returns-to-go"""
    timesteps: Tensor
    """(B,) int64"""
    before: Tensor
    """(B,) or (B, N), the actions of the step before"""
    padding_mask: Tensor
    """(B,) bool, rows in which there is such a step; others take nothing in and give anything"""


def decision_model(config: ModelConfig) -> DecisionModel:
    """The model that ``config.decision.body`` names."""
    return (DecisionTransformer if config.decision.body == "layers" else StatesNetwork)(config)


class DecisionModel(Model):
    """Base of models that act: states (B, K, ...) in, logits (B, K, C) or actions (B, K, N) out.

    Raises:
        ConfigError: the data have episodes that are longer than the table of timesteps.
    """

    middle: Tensor
    """(N or 1,), that of the bounds of each number of an action"""
    reach: Tensor
    """(N or 1,), half the range of each"""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__(config)
        shape = config.episodes
        if shape.longest > config.timesteps:
            raise ConfigError(
                f"the data have episodes of up to {shape.longest:,} steps, but the table of "
                f"timesteps has {config.timesteps:,}: raise `model.decision.table`"
            )
        if self.layered:
            # what follows starts as torch has it
            self.start_weights([])
        self.states = StateReader(shape)
        tanh = config.decision.tanh
        self.tanh = bool(shape.low) if tanh is None else tanh
        if self.tanh and shape.discrete and tanh is not None:
            raise GeneError(
                "`decision.tanh` is for actions that are numbers, and these are chosen from "
                f"{shape.actions}: leave it out"
            )
        low = torch.tensor(shape.low or (-1.0,), dtype=torch.float64)
        high = torch.tensor(shape.high or (1.0,), dtype=torch.float64)
        dtype = torch.get_default_dtype()
        self.register_buffer("middle", ((high + low) / 2).to(dtype), persistent=False)
        self.register_buffer("reach", ((high - low) / 2).to(dtype), persistent=False)

    def chosen(
        self, z: Tensor, targets: Tensor | None, padding_mask: Tensor | None, terms: Losses
    ) -> ModelOutput:
        """The output of the action head's outputs ``z`` (B, K, C), with the loss if there are
        targets; ``terms`` are other losses."""
        if self.config.episodes.discrete:
            loss, losses = total_loss(z, targets, terms, self.config)
            return ModelOutput(z, loss, losses, None)
        z = torch.tanh(z) if self.tanh else z
        actions = self.middle + self.reach * z
        if targets is None:
            return ModelOutput(actions, None, dict(terms), None)
        if targets.shape != z.shape:
            raise ShapeError(
                f"targets must be actions {tuple(z.shape)}, not {tuple(targets.shape)}"
            )
        goals = self.scaled(targets)
        wide = torch.promote_types(z.dtype, torch.float32)
        each = _real((z.to(wide) - goals.to(wide)).square().mean(-1), padding_mask)
        return ModelOutput(
            actions, *added(each.sum() / _count(each, padding_mask), terms), None, each
        )

    def scaled(self, actions: Tensor) -> Tensor:
        """Actions of numbers in half ranges from the middle of their bounds."""
        return (actions.to(self.reach.dtype) - self.middle) / self.reach

    def extra_inputs(self, inputs: Tensor) -> dict[str, Any]:
        shape = self.config.episodes
        rows, steps = inputs.shape[:2]
        done = torch.zeros(rows, steps, dtype=torch.long, device=inputs.device)
        if not shape.discrete:
            done = (self.middle + self.reach).expand(rows, steps, shape.actions)
        return {
            "returns": self.reach.new_full((rows, steps), shape.scale),
            "actions": done,
            "timesteps": torch.arange(steps, device=inputs.device).expand(rows, -1),
        }


class DecisionTransformer(DecisionModel):
    """The stack over tokens of returns-to-go, states and actions."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__(config)
        shape, chosen, width = config.episodes, config.decision, config.width
        self.gym = chosen.variant == "gym"
        self.returns = nn.Linear(1, width) if chosen.return_to_go else None
        self.state = nn.Linear(self.states.size, width)
        self.action = (
            nn.Embedding(shape.actions, width)
            if shape.discrete
            else nn.Linear(shape.actions, width)
        )
        self.time = nn.Embedding(config.timesteps, width)
        self.norm = make_norm(width, config.block) if self.gym else None
        self.places = None
        if not self.gym:
            count = config.step_tokens * shape.context + 1
            self.places = nn.Parameter(torch.zeros(count, width))
            nn.init.zeros_(self.time.weight)
            if shape.discrete:
                nn.init.normal_(self.action.weight, std=0.02)
        channels = self.stack.out_width
        self.head = nn.Linear(channels, shape.actions)
        self.next_state = self.next_return = None
        if chosen.state_weight is not None:
            if shape.state_values is not None or len(shape.state) != 1:
                raise GeneError(
                    "`decision.state_weight` is for states that are numbers, and these are "
                    "pictures or whole numbers: leave it out"
                )
            self.next_state = nn.Linear(channels, self.states.size)
        if chosen.return_weight is not None:
            self.next_return = nn.Linear(channels, 1)

    def forward(
        self,
        inputs: Tensor,
        *,
        targets: Tensor | None = None,
        mask: Mask | None = None,
        state: StackState | None = None,
        taps: Sequence[str] = (),
        returns: Tensor | None = None,
        actions: Tensor | None = None,
        timesteps: Tensor | None = None,
    ) -> ModelOutput:
        """The action of every step of windows.

        Args:
            inputs: states (B, K, ...). returns: (B, K). actions: (B, K) int64 or (B, K, N).
            timesteps: (B, K) int64, counted from the start of the episode.
            mask: ``padding_mask`` (B, K) says which steps are real; padding may stand on the left.
            targets: as ``actions``; -100 is not scored.

        Raises:
            ShapeError: tensors that do not go together, timesteps beyond the table.
        """
        refuse_state(self, state)
        if returns is None or actions is None or timesteps is None:
            raise ShapeError("a model that acts reads returns, actions and timesteps: give all")
        padding_mask = None
        if mask is not None:
            mask.require("a model that acts", frozenset({"padding_mask"}))
            padding_mask = mask.padding_mask
        y, features, out = self._read(inputs, returns, actions, timesteps, padding_mask, taps)
        terms = dict(out.losses)
        if targets is not None:
            terms |= self._further(y[:, :, -1], features, returns, padding_mask)
        chosen = self.chosen(self.head(y[:, :, -2]), targets, padding_mask, terms)
        return chosen._replace(taps=out.taps)

    def act(self, step: PresentStep, state: StackState) -> tuple[Tensor, StackState]:
        """The next step of a stream that began with the episode: (B, C) or (B, N) of its action.

        What it reads are the action before, the return-to-go and the state, three tokens at most;
        so it equals `forward` over the steps so far as long as those are one window.
        """
        times = step.timesteps[:, None]
        self._check(step.states[:, None], step.returns[:, None], None, times)
        features = self.states(step.states[:, None], None)
        x = self._embedded(step.returns[:, None], features, step.before[:, None])[:, 0]
        # what was done stands in front, one step earlier
        x = x.roll(1, 1)
        padding_mask = step.padding_mask[:, None].repeat(1, x.shape[1])
        padding_mask[:, 0] &= step.timesteps > 0
        if self.gym:
            now = times.repeat(1, x.shape[1])
            now[:, 0] -= padding_mask[:, 0].long()
            x = x + self.time(now)
        if surely(~padding_mask[:, 0]):
            x, padding_mask = x[:, 1:], padding_mask[:, 1:]
        # a mask costs more than the layers' arithmetic on three tokens
        tokens = None if surely(padding_mask) else Mask(padding_mask=padding_mask)
        x = self._placed(x, tokens, state, torch.zeros_like(times))
        out = self.stack(x, mask=tokens, state=state)
        assert out.state is not None
        logits = self.chosen(self.head(out.y[:, -1:]), None, None, {}).logits
        return logits[:, 0], out.state

    def term_counts(self, inputs: Tensor, targets: Tensor, mask: Mask | None) -> dict[str, float]:
        padding_mask = None if mask is None else mask.padding_mask
        pairs = inputs[:, 1:, None].shape[:2].numel()
        if padding_mask is not None:
            pairs = int((padding_mask[:, 1:] & padding_mask[:, :-1]).sum())
        return super().term_counts(inputs, targets, mask) | {"state": pairs, "return": pairs}

    def _read(
        self,
        inputs: Tensor,
        returns: Tensor,
        actions: Tensor,
        timesteps: Tensor,
        padding_mask: Tensor | None,
        taps: Sequence[str] = (),
    ) -> tuple[Tensor, Tensor, StackOutput]:
        """Outputs of the layers for every token of every step (B, K, tokens, channels), the
        features of the states, and all that came out of the stack."""
        self._check(inputs, returns, actions, timesteps)
        features = self.states(inputs, padding_mask)
        x = self._embedded(returns, features, actions)
        count = x.shape[2]
        if self.gym:
            x = x + self.time(timesteps)[:, :, None]
        x = x.flatten(1, 2)
        tokens = (
            None
            if padding_mask is None
            else Mask(padding_mask=padding_mask.repeat_interleave(count, 1))
        )
        first = (
            timesteps[:, :1] if padding_mask is None else timesteps.gather(1, _first(padding_mask))
        )
        out = self.stack(self._placed(x, tokens, None, first), mask=tokens, taps=taps)
        return out.y.unflatten(1, (-1, count)), features, out

    def _embedded(self, returns: Tensor, features: Tensor, actions: Tensor) -> Tensor:
        """The tokens of steps (B, K), less what tells their time: (B, K, tokens, width)."""
        done = actions.long() if self.config.episodes.discrete else self.scaled(actions)
        parts = [self.state(features), self.action(done)]
        if self.returns is not None:
            scaled = returns.to(self.reach.dtype) / self.config.episodes.scale
            parts.insert(0, self.returns(scaled[..., None]))
        x = torch.stack(parts, 2)
        return x if self.gym else torch.tanh(x)

    def _placed(
        self, x: Tensor, mask: Mask | None, state: StackState | None, first: Tensor
    ) -> Tensor:
        """Tokens normed, with what tells their place in the window; ``first`` (B, 1) is its first
        step."""
        if self.norm is not None:
            x = self.norm(x)
        if self.places is not None:
            num_tokens = None if state is None else state.num_tokens
            where = positions_of(x.shape[0], x.shape[1], mask, num_tokens, x.device)
            x = x + self.places[where] + self.time(first)
        return self.add_positions(x, mask, state)

    def _further(
        self, y: Tensor, features: Tensor, returns: Tensor, padding_mask: Tensor | None
    ) -> Losses:
        """Losses of the heads that foretell the next step."""
        pairs = None if padding_mask is None else padding_mask[:, 1:] & padding_mask[:, :-1]
        losses: Losses = {}
        chosen = self.config.decision
        for name, head, goals, weight in (
            ("state", self.next_state, features, chosen.state_weight),
            ("return", self.next_return, returns[..., None], chosen.return_weight),
        ):
            if head is None:
                continue
            assert weight is not None
            goals = goals if name == "state" else goals / self.config.episodes.scale
            error = (head(y[:, :-1]) - goals[:, 1:].to(y.dtype)).square().mean(-1)
            losses[name] = weight * _real(error, pairs).sum() / _count(error, pairs)
        return losses

    def _check(
        self, inputs: Tensor, returns: Tensor, actions: Tensor | None, timesteps: Tensor
    ) -> None:
        steps = tuple(timesteps.shape)
        tensors = {"states": inputs, "returns": returns, "actions": actions}
        for name, tensor in tensors.items():
            if tensor is not None and tuple(tensor.shape[:2]) != steps:
                raise ShapeError(
                    f"{name} are {tuple(tensor.shape)}, but timesteps are {steps}: give all for "
                    "the same rows and steps"
                )
        known = timesteps.device.type == "cpu" and not torch.compiler.is_compiling()
        if known and int(timesteps.max()) >= self.config.timesteps:
            raise ShapeError(
                f"timestep {int(timesteps.max()):,} is beyond the model's table of "
                f"{self.config.timesteps:,}: train one with a larger `model.decision.table`"
            )


class StatesNetwork(DecisionModel):
    """Behaviour cloning: a plain network on the last K states, without returns and actions."""

    layered = False

    def __init__(self, config: ModelConfig) -> None:
        super().__init__(config)
        sizes = [self.states.size * config.episodes.context, *[config.width] * config.layers]
        self.hidden = nn.ModuleList(
            nn.Linear(size, after) for size, after in itertools.pairwise(sizes)
        )
        self.head = nn.Linear(config.width, config.episodes.actions)

    def forward(
        self,
        inputs: Tensor,
        *,
        targets: Tensor | None = None,
        mask: Mask | None = None,
        state: StackState | None = None,
        taps: Sequence[str] = (),
        returns: Tensor | None = None,
        actions: Tensor | None = None,
        timesteps: Tensor | None = None,
    ) -> ModelOutput:
        """The action of every step from the states of the window up to it; the rest is not read."""
        refuse_state(self, state)
        if taps:
            raise ConfigError(f"tap '{taps[0]}': this network has no layers to look into")
        padding_mask = None if mask is None else mask.padding_mask
        features = self.states(inputs, padding_mask)
        context = self.config.episodes.context
        # (B, K, size, K): the last so many states of every step, the oldest first
        windows = F.pad(features, (0, 0, context - 1, 0)).unfold(1, context, 1)
        x = windows.transpose(2, 3).flatten(2)
        for linear in self.hidden:
            x = drop(F.relu(linear(x)), self.config.block.dropout, self.training)
        return self.chosen(self.head(x), targets, padding_mask, {})


def _first(padding_mask: Tensor) -> Tensor:
    """Index (B, 1) of the first real step of every row."""
    return padding_mask.long().argmax(1, keepdim=True)


def _real(each: Tensor, padding_mask: Tensor | None) -> Tensor:
    return each if padding_mask is None else each.where(padding_mask, 0.0)


def _count(each: Tensor, padding_mask: Tensor | None) -> Tensor | int:
    return max(each.numel(), 1) if padding_mask is None else padding_mask.sum().clamp(min=1)
