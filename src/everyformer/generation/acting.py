"""`DecisionPolicy`: a trained Decision Transformer that acts, step by step, for a target return.

    R_0 = target,   R_{t+1} = R_t - r_t   (unchanged while rewards are delayed)

    policy = DecisionPolicy(model, target=200.0)
    observation, _ = environment.reset()
    over = False
    while not over:
        [action] = policy.act(observation[None])
        observation, reward, ended, cut, _ = environment.step(action)
        policy.reward([reward])
        over = ended or cut

The model reads the last K steps. As long as an episode is no longer than that, its states are kept
and a step reads three tokens: what was done, what is still wanted, what is seen. Then the window
slides and is read again at every step, which is what the model was trained on; ``rolling`` goes on
with states instead. Members without an exact stream read again from the start. Both are equal as
long as the episode fits the window.
"""

import math
from collections.abc import Sequence
from dataclasses import fields
from typing import Any

import numpy as np
import torch
from torch import Tensor

from everyformer.core.errors import ShapeError, UnsupportedError
from everyformer.core.mask import Mask
from everyformer.core.modules import evaluating
from everyformer.core.state import StackState, State
from everyformer.data.episodes.kind import as_states
from everyformer.engines.softmax.cache import KeyValueState, freed
from everyformer.family import info
from everyformer.models.decision import DecisionModel, DecisionTransformer, PresentStep


class DecisionPolicy:
    """A model of the task `decision` that acts in N episodes side by side, one a row.

    Args:
        target: the target return; None where the model reads none.
        seeds: one a row, from which its draws follow, whatever the other rows are.
        delayed: whether rewards come with the last step, so that the target stays.
        temperature: divides the logits of actions that are chosen; 0 takes the likeliest.
        rolling: see above.

    Raises:
        UnsupportedError: ``rolling`` of a model that has no such stream.
    """

    def __init__(
        self,
        model: DecisionModel,
        target: float | None = None,
        *,
        seeds: Sequence[int] = (0,),
        delayed: bool = False,
        temperature: float = 1.0,
        rolling: bool = False,
    ) -> None:
        self.model, self.shape = model, model.config.episodes
        self.target, self.delayed, self.temperature = target, delayed, temperature
        self.context = self.shape.context
        self.streams = _streams(model)
        self.rolling = rolling and self.context > 1
        if rolling:
            _check_rolling(model, self.streams)
        # another stream than that of an environment with the same seed
        self._generators = [np.random.default_rng((seed, 1)) for seed in seeds]
        self._state: StackState | None = None
        self._begin(len(self._generators))

    def reset(self, where: np.ndarray | None = None) -> None:
        """Episodes start over in the rows ``where`` (N,) bool, or in all."""
        where = np.ones(len(self._generators), bool) if where is None else where
        self._time[where] = 0
        self._to_go[where] = 0.0 if self.target is None else self.target
        self._keep[where] = False
        if self._state is not None:
            self._state = freed(self._state.reset(torch.from_numpy(where).to(self._device)))

    def act(self, observations: np.ndarray) -> np.ndarray:
        """Actions (N,) or (N, numbers) for observations (N, ...)."""
        self._check_time()
        self._enter(self._read(np.asarray(observations)))
        stream = self.streams & (self.rolling | (self._time < self.context))
        with torch.inference_mode(), evaluating(self.model):
            logits = self._anew(~stream) if not stream.all() else None
            if stream.any():
                outputs = self._go_on(stream)
                logits = outputs if logits is None else np.where(stream[:, None], outputs, logits)
        assert logits is not None
        chosen = self._chosen(logits)
        self._actions[:, -1] = chosen
        return chosen.astype(self._actions.dtype)

    def reward(self, rewards: Sequence[float] | np.ndarray) -> None:
        """Take the rewards (N,) of the last actions."""
        if not self.delayed:
            self._to_go -= rewards
        self._time += 1

    def _read(self, observations: np.ndarray) -> np.ndarray:
        """Observations as states of the model's shape."""
        rows, shape, values = len(self._generators), self.shape, self.shape.state_values
        fits = len(observations) == rows and observations.size == rows * math.prod(shape.state)
        if fits and values is not None:
            whole = observations.dtype.kind in "iu"
            fits = whole and bool(((observations >= 0) & (observations < values)).all())
        if not fits:
            raise ShapeError(
                f"observations are {observations.dtype} in the shape {observations.shape}, but the "
                f"model reads {shape.states_are} in each of {rows} rows: give what it was trained "
                "on, a row an episode"
            )
        return as_states(observations, shape.state)

    def _begin(self, rows: int) -> None:
        """Empty windows and states of so many rows, the present step last."""
        shape, size = self.shape, (rows, self.context)
        kind: type = np.uint8 if len(shape.state) == 3 else np.float32
        kind = np.int64 if shape.state_values is not None else kind
        self._states: np.ndarray = np.zeros((*size, *shape.state), kind)
        self._returns = np.zeros(size, np.float32)
        self._timesteps = np.zeros(size, np.int64)
        self._keep = np.zeros(size, bool)
        self._actions = np.zeros(size, np.int64)
        if not shape.discrete:
            self._actions = np.zeros((*size, shape.actions), np.float32)
        self._time, self._to_go = np.zeros(rows, np.int64), np.full(rows, self.target or 0.0)
        own = next(self.model.parameters())
        self._device = own.device
        if self.streams:
            self._state = self.model.init_state(rows, device=own.device, dtype=own.dtype)

    def _enter(self, states: np.ndarray) -> None:
        """The present step at the end of every window."""
        for window in (self._states, self._returns, self._timesteps, self._keep, self._actions):
            window[:, :-1] = window[:, 1:]
        self._states[:, -1] = states
        self._returns[:, -1] = self._to_go
        self._timesteps[:, -1] = self._time
        self._keep[:, -1] = True
        # it is not known yet, and nothing that is asked for depends on it
        self._actions[:, -1] = 0

    def _anew(self, rows: np.ndarray) -> np.ndarray:
        """Logits of all rows, those of ``rows`` from their whole windows."""
        windows = (self._states, self._keep, self._returns, self._actions, self._timesteps)
        states, padding_mask, returns, actions, times = (self._tensor(w[rows]) for w in windows)
        options = {"returns": returns, "actions": actions, "timesteps": times}
        out = (
            self.model(states, mask=Mask(padding_mask=padding_mask), **options)
            .logits[:, -1]
            .cpu()
            .double()
        )
        logits = np.zeros((len(rows), out.shape[-1]))
        logits[rows] = out.numpy()
        return logits

    def _go_on(self, rows: np.ndarray) -> np.ndarray:
        """Logits of all rows, those of ``rows`` from their states and the present step."""
        assert isinstance(self.model, DecisionTransformer)
        assert self._state is not None
        windows = (self._states, self._returns, self._timesteps)
        before = self._actions[:, -2 if self.context > 1 else -1]
        now = [window[:, -1] for window in windows]
        step = PresentStep(*map(self._tensor, (*now, before, rows)))
        if self.rolling:
            span = self.model.config.step_tokens * (self.context - 1) - 1
            self._state = _shortened(self._state, span)
        logits, self._state = self.model.act(step, self._state)
        return logits.cpu().double().numpy()

    def _tensor(self, array: np.ndarray) -> Tensor:
        return torch.from_numpy(array).to(self._device)

    def _chosen(self, logits: np.ndarray) -> np.ndarray:
        """Actions from logits (N, C), or from actions (N, numbers), brought between the bounds."""
        if not self.shape.discrete:
            return np.clip(logits, self.shape.low, self.shape.high) if self.shape.low else logits
        if self.temperature == 0:
            return logits.argmax(1)
        scaled = (logits - logits.max(1, keepdims=True)) / self.temperature
        sums = np.exp(scaled).cumsum(1)
        drawn = np.array([random.random() for random in self._generators])
        below = (sums < drawn[:, None] * sums[:, -1:]).sum(1)
        return np.minimum(below, logits.shape[1] - 1)

    def _check_time(self) -> None:
        longest = self.model.config.timesteps
        if int(self._time.max()) >= longest:
            raise ShapeError(
                f"an episode goes on after {longest:,} steps, where the model's table of timesteps "
                "ends: end it there, or train a model with a larger `model.decision.table`"
            )


def _streams(model: DecisionModel) -> bool:
    """True if a stream of steps is exactly the window."""
    if not model.layered or not info(model.config.member).can("streaming"):
        return False
    try:
        model.init_state(1)
    except UnsupportedError:
        return False
    return True


def _check_rolling(model: DecisionModel, streams: bool) -> None:
    config = model.config
    if not streams:
        raise UnsupportedError(
            f"rolling continues states, and {config.member} has no exact ones: leave it out"
        )
    if model.longest is not None or config.decision.variant != "gym":
        raise UnsupportedError(
            f"rolling reads on for ever, and this {config.member} has a table over the places in "
            "a window: leave it out"
        )


def _shortened(carried: Any, count: int) -> Any:
    """A state with the last ``count`` keys and values of each row alone."""
    if isinstance(carried, KeyValueState):
        return carried.last(count)
    if isinstance(carried, Sequence):
        return tuple(_shortened(each, count) for each in carried)
    if not isinstance(carried, State):
        return carried
    inner = {f.name: _shortened(getattr(carried, f.name), count) for f in fields(carried)}  # type: ignore[arg-type]
    return type(carried)(**inner)
