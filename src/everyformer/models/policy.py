"""Policies: what is seen of an environment, step by step; the next action and a value of it.

    x_t = relu(W_in s_t + b_in)        y, state = layers(x, state, reset)
    logits or means of a_t = W_a y_t + b_a           v_t = w_v y_t + b_v

The layers are any member's that streams (see `everyformer.models.body`): acting goes on with their
state a step at a time, learning reads segments that begin with the states that were there when they
were played (`everyformer.training.rollouts`); the loss is that of `everyformer.models.ppo`.
Numbers of an action are normal around what comes out, with a learned deviation each; brought
between their bounds where the environment takes them.

W_in, W_a and w_v start orthogonal, of gain sqrt 2, 0.01 and 1, biases at 0, deviations at 1.
"""

import functools
import math
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from everyformer.core.devices import widest
from everyformer.core.errors import GeneError, ShapeError
from everyformer.core.mask import Mask
from everyformer.core.outputs import ModelOutput, StackOutput
from everyformer.core.state import StackState
from everyformer.genes.config import ModelConfig
from everyformer.models import ppo
from everyformer.models.base import Model
from everyformer.models.body import require_streams, through_episodes
from everyformer.models.states import StateReader

POLICY_GAIN = 0.01
SLOW = 0.9
"""share that the size of earlier returns keeps at every turn"""
TINY = 1e-4
"""smallest unit of values"""


class PolicyModel(Model):
    """Observations (B, L, ...) in, logits (B, L, C) or means (B, L, N) of actions out.

    Raises:
        GeneError: something is dropped out, so that what is learned from would not be what acted.
        UnsupportedError: the layers have no exact stream.
    """

    unaveraged = ("critic.weight", "critic.bias")
    """weights whose unit, `value_scale`, changes from turn to turn"""
    value_scale: Tensor
    """(), the unit that values are learned in"""
    square: Tensor
    """(), the running mean of squared returns; 0 before any"""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__(config)
        self._refuse_dropout()
        require_streams(self)
        self.start_weights([])
        shape = config.episodes
        self.states = StateReader(shape)
        self.enter = nn.Linear(self.states.size, config.width)
        self.actor = nn.Linear(self.stack.out_width, shape.actions)
        self.critic = nn.Linear(self.stack.out_width, 1)
        gains = ((self.enter, math.sqrt(2)), (self.actor, POLICY_GAIN), (self.critic, 1.0))
        for linear, gain in gains:
            nn.init.orthogonal_(linear.weight, gain)
            nn.init.zeros_(linear.bias)
        self.register_buffer("value_scale", torch.ones(()))
        self.register_buffer("square", torch.zeros(()))
        self.log_std = None if shape.discrete else nn.Parameter(torch.zeros(shape.actions))

    def forward(
        self,
        inputs: Tensor,
        *,
        targets: Tensor | None = None,
        mask: Mask | None = None,
        state: StackState | None = None,
        taps: Sequence[str] = (),
        reset: Tensor | None = None,
        advantages: Tensor | None = None,
        before: Tensor | None = None,
        values: Tensor | None = None,
        returns: Tensor | None = None,
    ) -> ModelOutput:
        """Segments of episodes, each row going on with ``state``.

        Args:
            inputs: observations (B, L, ...).
            targets: (B, L) int64 or (B, L, N), what was done.
            reset: (B, L) bool, where an episode begins.
            advantages, before, values, returns: (B, L), of what was done, as in `Batch`. Without
                them the loss is minus the log-probability of the targets.

        Raises:
            ShapeError: tensors that do not go together.
        """
        if mask is not None:
            mask.require("a policy", frozenset())
        outputs, result, out = self.read(inputs, state, reset, taps)
        terms = dict(out.losses)
        loss = None
        if targets is not None:
            if targets.shape != (outputs.shape if self.log_std is not None else outputs.shape[:2]):
                raise ShapeError(
                    f"targets are {tuple(targets.shape)}, but the actions of "
                    f"{tuple(outputs.shape[:2])} steps are expected"
                )
            now = ppo.log_probability(outputs, targets, self.log_std)
            if advantages is None:
                terms = {"task": -now.mean(), **terms}
            else:
                assert before is not None
                assert values is not None
                assert returns is not None
                chosen = self.config.policy
                terms = {
                    "task": ppo.surrogate(now, before, advantages, chosen.clip),
                    "value": chosen.value_weight
                    * ppo.value_error(result, values, returns, chosen.value_clip)
                    / self.value_scale.square(),
                    "entropy": -chosen.entropy * ppo.entropy(outputs, self.log_std),
                    **terms,
                }
            loss = functools.reduce(torch.add, terms.values())
        return ModelOutput(outputs, loss, terms, out.state if state is not None else None, None,
                           out.taps)  # fmt: skip

    def act(
        self, observations: Tensor, state: StackState, reset: Tensor
    ) -> tuple[Tensor, Tensor, StackState]:
        """One step of every row: observations (B, ...); ``reset`` (B,) says where episodes begin.

        Returns:
            (B, C) logits or (B, N) means, (B,) values, and the state behind the step.
        """
        outputs, values, out = self.read(observations[:, None], state, reset[:, None], ())
        assert out.state is not None
        return outputs[:, 0], values[:, 0], out.state

    def chosen(self, outputs: Tensor, noise: Tensor, temperature: float = 1.0) -> Tensor:
        """Actions (B,) or (B, N) from `act`'s outputs and ``noise``: numbers (B,) from 0 to 1, or
        normal ones (B, N). ``temperature`` divides logits and multiplies deviations; 0 takes the
        likeliest."""
        if self.log_std is not None:
            return outputs + temperature * self.log_std.exp() * noise.to(outputs.dtype)
        if temperature == 0:
            return outputs.argmax(-1)
        sums = (outputs.to(widest(outputs.device)) / temperature).softmax(-1).cumsum(-1)
        below = (sums < noise[:, None] * sums[:, -1:]).sum(-1)
        return below.clamp(max=outputs.shape[-1] - 1)

    def extra_inputs(self, inputs: Tensor) -> dict[str, Any]:
        """Arguments as if every action had been sure, and worth one more than expected."""
        steps = inputs.shape[:2]
        none, some = inputs.new_zeros(steps, dtype=torch.float), self.value_scale.new_ones(steps)
        return {"advantages": some, "before": none, "values": none, "returns": some}

    def term_counts(self, inputs: Tensor, targets: Tensor, mask: Mask | None) -> dict[str, float]:
        steps = inputs.shape[:2].numel()
        return super().term_counts(inputs, targets, mask) | {"value": steps, "entropy": steps}

    def read(
        self,
        inputs: Tensor,
        state: StackState | None,
        reset: Tensor | None,
        taps: Sequence[str] = (),
    ) -> tuple[Tensor, Tensor, StackOutput]:
        """Outputs of the action head, values (B, L), and what came out of the layers."""
        x = F.relu(self.enter(self.states(inputs, None)))
        if state is None:
            state = self.init_state(len(x), device=x.device, dtype=x.dtype)
        out = through_episodes(self, x, state, reset, taps)
        return self.actor(out.y), self.value_scale * self.critic(out.y)[..., 0], out

    @torch.no_grad()
    def scale_values(self, returns: Tensor) -> None:
        """Take in how large returns are: values stay what they are, in other units."""
        now = returns.square().mean()
        self.square.copy_(now if self.square == 0 else torch.lerp(now, self.square, SLOW))
        before, after = self.value_scale.clone(), self.square.sqrt().clamp(min=TINY)
        self.critic.weight.mul_(before / after)
        self.critic.bias.mul_(before / after)
        self.value_scale.copy_(after)

    def _refuse_dropout(self) -> None:
        config = self.config
        rates = {**vars(config.block), **config.genes["mixer"].options}
        rates["embedding_dropout"] = config.embedding_dropout
        dropped = sorted(
            name
            for name, value in rates.items()
            if (name.endswith("dropout") or name == "drop_path") and value
        )
        if dropped:
            raise GeneError(
                f"{dropped[0]} is not 0, so that a policy would learn from other outputs than "
                "those that it acted by: leave it at 0 for the task 'policy'"
            )
