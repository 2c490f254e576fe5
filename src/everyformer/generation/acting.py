"""`play`, episodes of a trained model; `DecisionPolicy`, one that is asked for a return.

    R_0 = target,   R_{t+1} = R_t - r_t   (unchanged while rewards are delayed)

The model reads the last K steps. As long as an episode is no longer than that, its states are kept
and a step reads three tokens: what was done, what is still wanted, what is seen. Then the window
slides and is read anew at every step, which is what the model was trained on; ``rolling`` goes on
with the states instead. Members without an exact stream read anew from the start. Both are equal as
long as the episode fits the window.

`weights_by_step` tells which earlier steps a policy's layers read at each step that it played.
"""

from collections.abc import Sequence
from dataclasses import fields
from typing import Any

import numpy as np
import torch
from torch import Tensor

from everyformer.core.errors import ConfigError, DataError, ShapeError, UnsupportedError
from everyformer.core.mask import Mask
from everyformer.core.state import StackState, State
from everyformer.core.trace import Trace
from everyformer.data.episodes import as_states, shape_of
from everyformer.engines.softmax.cache import KeyValueState, freed
from everyformer.family import info
from everyformer.generation.config import PlayConfig
from everyformer.genes.memory.base import memories_of
from everyformer.genes.memory.segment import SegmentMemory
from everyformer.genes.mixers.attention import Attention
from everyformer.models.base import evaluating
from everyformer.models.decision import DecisionModel, DecisionTransformer, PresentStep
from everyformer.models.policy import PolicyModel
from everyformer.rl.build import EnvironmentConfig, limit_of, make_environment, spaces_of
from everyformer.rl.collection import collect
from everyformer.rl.policy import Policy, RowGenerators
from everyformer.rl.spaces import Space
from everyformer.rl.trajectories import Trajectories
from everyformer.training.returns import EPISODES, play_policy


class DecisionPolicy(Policy):
    """A model of the task `decision` that plays.

    Args:
        observation_space, action_space: of the environment that it plays in.
        target: the return that is asked for; None where the model reads none.
        delayed: whether rewards come with the last step, so that what is asked for stays.
        temperature: divides the logits of actions that are chosen; 0 takes the likeliest.
        rolling: see above.

    Raises:
        DataError: states or actions are of another form than those the model learned from.
        UnsupportedError: ``rolling`` of a model that has no such stream.
    """

    def __init__(
        self,
        model: DecisionModel,
        observation_space: Space,
        action_space: Space,
        target: float | None,
        *,
        delayed: bool = False,
        temperature: float = 1.0,
        rolling: bool = False,
    ) -> None:
        known = model.config.episodes
        if fault := known.misfit(shape_of(observation_space, action_space)):
            raise DataError(f"{fault}: it is of another environment")
        self.model, self.space, self.action_space = model, observation_space, action_space
        self.target, self.delayed, self.temperature = target, delayed, temperature
        self.context = known.context
        self.streams = _streams(model)
        self.rolling = rolling and self.context > 1
        if rolling:
            _check_rolling(model, self.streams)
        request = "" if target is None else f", asked for a return of {target:g}"
        self.recipe = f"a trained {model.config.member}{request}"
        self._generators = RowGenerators()
        self._rows = 0
        self._state: StackState | None = None

    def reset(self, where: np.ndarray, episodes: np.ndarray, seeds: np.ndarray) -> None:
        self._generators.reset(where, seeds)
        if where.all():
            self._begin(len(where))
        self._time[where] = 0
        self._to_go[where] = 0.0 if self.target is None else self.target
        self._keep[where] = False
        if self._state is not None and not where.all():
            self._state = freed(self._state.reset(torch.from_numpy(where).to(self._device)))

    def act(self, observations: np.ndarray) -> np.ndarray:
        self._check_time()
        self._enter(as_states(self.space, np.asarray(observations)))
        stream = self.streams & (self.rolling | (self._time < self.context))
        with torch.inference_mode(), evaluating(self.model):
            logits = self._anew(~stream) if not stream.all() else None
            if stream.any():
                outputs = self._go_on(stream)
                logits = outputs if logits is None else np.where(stream[:, None], outputs, logits)
        assert logits is not None
        chosen = self._chosen(logits)
        self._actions[:, -1] = chosen
        return chosen.astype(self.action_space.dtype)

    def reward(self, rewards: np.ndarray) -> None:
        if not self.delayed:
            self._to_go -= rewards
        self._time += 1

    def facts(self, episode: int) -> dict[str, float]:
        return {} if self.target is None else {"target": float(self.target)}

    def _begin(self, rows: int) -> None:
        """Empty windows and states of so many rows, the present step last."""
        shape, size = self.model.config.episodes, (rows, self.context)
        kind: type = np.uint8 if len(shape.state) == 3 else np.float32
        kind = np.int64 if shape.state_values is not None else kind
        self._rows = rows
        self._states: np.ndarray = np.zeros((*size, *shape.state), kind)
        self._returns = np.zeros(size, np.float32)
        self._timesteps = np.zeros(size, np.int64)
        self._keep = np.zeros(size, bool)
        self._actions = np.zeros(size, np.int64)
        if not shape.discrete:
            self._actions = np.zeros((*size, shape.actions), np.float32)
        self._time, self._to_go = np.zeros(rows, np.int64), np.zeros(rows)
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
        states, keep, returns, actions, times = (self._tensor(w[rows]) for w in windows)
        options = {"returns": returns, "actions": actions, "timesteps": times}
        out = self.model(states, mask=Mask(keep=keep), **options).logits[:, -1].cpu().double()
        logits = np.zeros((self._rows, out.shape[-1]))
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
        if not self.action_space.discrete:
            return np.clip(logits, *self.action_space.bounds())
        if self.temperature == 0:
            return logits.argmax(1)
        scaled = (logits - logits.max(1, keepdims=True)) / self.temperature
        sums = np.exp(scaled).cumsum(1)
        drawn = np.array([random.random() for random in self._generators.rows])
        below = (sums < drawn[:, None] * sums[:, -1:]).sum(1)
        return np.minimum(below, logits.shape[1] - 1)

    def _check_time(self) -> None:
        longest = self.model.config.timesteps
        if int(self._time.max()) >= longest:
            raise ShapeError(
                f"an episode goes on after {longest:,} steps, where the model's table of timesteps "
                "ends: give the environment --env.max-episode-steps, or train a model with a "
                "larger --model.decision.table"
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
            f"--rolling goes on with states, and {config.member} has no exact ones: leave it out"
        )
    if model.longest is not None or config.decision.variant != "gym":
        raise UnsupportedError(
            f"--rolling reads on for ever, and this {config.member} has a table over the places in "
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


def play(
    model: DecisionModel | PolicyModel,
    environment: EnvironmentConfig,
    target: float | None,
    options: PlayConfig,
    *,
    delayed: bool = False,
) -> Trajectories:
    """Episodes of ``model``, asked for a return of ``target`` where it reads one.

    Raises:
        ConfigError: the environment's episodes may be longer than the model's table of timesteps.
        DataError: it is of another kind than the model's.
        Those of `everyformer.rl.make`.
    """
    count = options.episodes or EPISODES
    if isinstance(model, PolicyModel):
        return play_policy(
            model, environment, count, options.seed, temperature=options.temperature,
            parallel=options.parallel,
        )  # fmt: skip
    trial = make_environment(environment)
    spaces = spaces_of(trial, environment.name)
    trial.close()
    limit = limit_of(environment)
    if limit is not None and limit > model.config.timesteps:
        raise ConfigError(
            f"episodes of {environment.name} have up to {limit:,} steps, but the model knows "
            f"{model.config.timesteps:,} timesteps: give --env.max-episode-steps "
            f"{model.config.timesteps}, or train one with a larger --model.decision.table"
        )
    policy = DecisionPolicy(
        model, *spaces, target, delayed=delayed, temperature=options.temperature,
        rolling=options.rolling,
    )  # fmt: skip
    return collect(environment, policy, count, options.seed, parallel=options.parallel)


def weights_by_step(model: PolicyModel, traced: Trace, most: int) -> dict[str, np.ndarray]:
    """Weights (heads, T, T) by module path: a row the step that acts, a column the one it reads.

    The slots of keys that a layer reads for one row are those of the last steps, whichever episode
    these were of; what a layer no longer has is NaN.

    Args:
        traced: of one environment, step by step, one episode after the other.
        most: T, at most; later steps are left out.

    Raises:
        UnsupportedError: the slots that layers read are not the last steps, or they read none.
    """
    member = model.config.member
    if not all(isinstance(memory, SegmentMemory) for memory in memories_of(model)):
        raise UnsupportedError(
            f"what {member} remembers are not its last steps one by one, so those that it reads "
            "cannot be drawn; a memory of segments or none can"
        )
    readers = {path for path, part in model.named_modules() if isinstance(part, Attention)}
    recorded = {
        path: result["weights"] for path, result in traced.records.items() if path in readers
    }
    if not recorded:
        raise UnsupportedError(
            f"{member} reads no earlier steps by the weights of attention, so there are none to "
            "draw; gtrxl, transformer-xl and attention do"
        )
    result = {}
    for path, calls in recorded.items():
        steps = min(len(calls), most)
        result[path] = np.full((calls[0].shape[1], steps, steps), np.nan)
        for step, weights in enumerate(calls[:steps]):
            first = step + 1 - weights.shape[-1]
            result[path][:, step, first : step + 1] = weights[0, :, 0].float().cpu()
    return result
