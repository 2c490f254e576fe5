"""`Rollouts`: a policy plays, and what it did becomes the rows of the next steps.

One turn: N environments are played for ``horizon`` steps by the weights as they are. Every stretch
of ``segment`` steps of an environment is a row, which begins with the state that the layers had
there. All rows are learned from ``epochs`` times, in minibatches of rows that begin at the same
step; then the next turn. A turn follows from the weights, the run's seed and its number, so a
run that was stopped anywhere goes on as if it had not been.

States where rows begin stay as they were when they were played, so in later minibatches they are
those of older weights; ``recompute_memory`` computes them anew before every further epoch.
"""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from everyformer.core.devices import widest
from everyformer.core.errors import CheckpointError, ConfigError, UnsupportedError
from everyformer.core.state import StackState, filled, named_tensors
from everyformer.data.batch import WHOLE, Batch, Portion
from everyformer.data.dataset import Dataset
from everyformer.data.environments import EnvironmentDataset
from everyformer.data.episodes import as_states
from everyformer.data.text import TextDataset
from everyformer.genes.memory.base import memories_of
from everyformer.genes.model_options import PolicyOptions
from everyformer.models import ppo
from everyformer.models.base import evaluating
from everyformer.models.policy import PolicyModel
from everyformer.rl.endless import EndlessRows
from everyformer.training.config import TrainingConfig
from everyformer.training.parallel.world import World
from everyformer.training.step import Carry, TextCarry

ACTING, ORDER = 2, 3
"""beside a run's seed, so that actions, orders and episodes are drawn from different numbers"""
SAME = 1e-3
"""to which values of a segment are those of its steps"""


@dataclass
class Turn:
    """A turn of play: (N, T, ...) each."""

    inputs: Tensor
    targets: Tensor
    reset: Tensor
    advantages: Tensor
    before: Tensor
    values: Tensor
    returns: Tensor
    states: list[StackState] = field(default_factory=list)
    """where each segment begins"""


TENSORS = ("inputs", "targets", "reset", "advantages", "before", "values", "returns")
PLAYED = ("inputs", "targets", "reset", "outputs", "values", "rewards", "following", "over")


def minibatches(options: PolicyOptions, number: int, size: int) -> int:
    """Steps of a turn of ``number`` environments, of ``size`` rows each."""
    return number // size * (options.horizon // options.segment) * options.epochs


class Rollouts(Carry):
    """Rows of a policy's own play, turn by turn.

    Args:
        size: rows of a minibatch.

    Raises:
        ConfigError: the environments are no multiple of it.
    """

    def __init__(self, model: PolicyModel, dataset: EnvironmentDataset, size: int) -> None:
        if dataset.number % size:
            raise ConfigError(
                f"--batch {size} are the environments that a step learns from, but --env.number "
                f"{dataset.number} is no multiple of it: change one of them"
            )
        self._model, self._data = model, dataset
        self._options = model.config.policy
        self._rows = EndlessRows(dataset.environment, dataset.number)
        self._device = next(model.parameters()).device
        self._state: StackState | None = None
        self._turn: Turn | None = None
        self._size = size
        self._minibatches = minibatches(self._options, dataset.number, size)
        """of a turn"""
        self._groups = self._minibatches // self._options.epochs
        """of an epoch"""
        self._step = -1
        self._chosen: StackState | None = None
        self._checked = False

    def batch(
        self, dataset: Dataset, step: int, size: int, seed: int, portion: Portion = WHOLE
    ) -> Batch:
        """The rows of a step, the first of a turn after playing it."""
        options, number = self._options, self._data.number
        turn, place = divmod(step, self._minibatches)
        epoch, place = divmod(place, self._groups)
        if self._turn is None or (epoch == 0 and place == 0):
            self._turn = self._play(seed, turn)
        elif place == 0 and options.recompute_memory:
            self._recompute(self._turn)
        self._step = step
        random = np.random.default_rng((seed, ORDER, turn, epoch))
        rows = random.permutation(number).reshape(-1, size)
        segment, group = divmod(int(random.permutation(self._groups)[place]), len(rows))
        chosen = torch.from_numpy(np.sort(rows[group])).to(self._device)
        self._chosen = self._turn.states[segment]
        if len(rows) > 1:
            self._chosen = self._chosen.reorder(chosen)
        return self._segment(self._turn, segment, chosen)

    def of(self, start: int, stop: int) -> StackState:
        assert self._chosen is not None
        if stop - start == len(self._chosen.seen):
            return self._chosen
        return self._chosen.reorder(torch.arange(start, stop, device=self._device))

    def take(self, start: int, stop: int, state: StackState | None) -> None:
        """Nothing: every row has the state that it was played with."""

    def counted(self, positions: int) -> int:
        """Steps of environments: those of a turn, spread over its minibatches."""
        played = self._data.number * self._options.horizon
        place = self._step % self._minibatches
        shares = (played * (place + n) // self._minibatches for n in (1, 0))
        return next(shares) - next(shares)

    def report(self) -> dict[str, float]:
        """The mean return of the last episodes, and how many there were."""
        recent = self._rows.recent
        summary = {"return": float(np.mean(recent))} if recent else {}
        return summary | {"episodes": self._rows.finished}

    def close(self) -> None:
        self._rows.close()

    def tensors(self) -> dict[str, Tensor]:
        """Tensors of where all rows stand, and of what is still to be learned of the turn."""
        if self._state is None:
            return {}
        result = {f"rows.{k}": torch.from_numpy(v) for k, v in self._rows.arrays().items()}
        result["size"] = torch.tensor(self._size)
        result |= {f"state.{k}": v for k, v in named_tensors(self._state).items()}
        if self._turn is not None and (self._step + 1) % self._minibatches:
            result |= {f"turn.{name}": getattr(self._turn, name) for name in TENSORS}
            result |= {f"turn.states.{k}": v for k, v in named_tensors(self._turn.states).items()}
        return result

    def fill(self, tensors: dict[str, Tensor]) -> None:
        if not tensors:
            return
        rows = {k: v.numpy() for k, v in _below(tensors, "rows").items()}
        self._rows.restore(rows)
        if (size := int(tensors["size"])) != self._size:
            raise CheckpointError(
                f"the run was begun with --batch {size}, not {self._size}, by which what was "
                "played is cut: resume with the same"
            )
        initial = self._initial_state()
        # read as they were: memory that is laid out otherwise would round otherwise
        tensors = {name: tensor.clone() for name, tensor in tensors.items()}
        self._state = filled(initial, _below(tensors, "state")).to(self._device)
        turn = _below(tensors, "turn")
        if turn:
            count = self._options.horizon // self._options.segment
            states = filled([initial] * count, _below(turn, "states"))
            states = [state.to(self._device) for state in states]
            self._turn = Turn(**{name: turn[name] for name in TENSORS}, states=states)

    def _initial_state(self) -> StackState:
        weight = next(self._model.parameters())
        return self._model.init_state(self._data.number, device=weight.device, dtype=weight.dtype)

    def _play(self, seed: int, number: int) -> Turn:
        """Play a turn, with the layers as they are in evaluation, which is faster."""
        with torch.inference_mode(), evaluating(self._model):
            turn = self._played(seed, number)
        # from here on they may be part of a graph
        known = {name: getattr(turn, name).clone() for name in TENSORS}
        turn = Turn(**known, states=[_alike(state) for state in turn.states])
        self._check(turn)
        self._model.scale_values(turn.returns)
        return turn

    def _played(self, seed: int, number: int) -> Turn:
        options, rows, model = self._options, self._rows, self._model
        if self._state is None:
            rows.begin(seed)
            self._state = self._initial_state()
        self._state = _alike(self._state)
        random = np.random.default_rng((seed, ACTING, number))
        noise = self._noise(random).to(self._device, widest(self._device))
        steps: dict[str, list[Tensor]] = {name: [] for name in PLAYED}
        states = []
        for t in range(options.horizon):
            if t % options.segment == 0:
                states.append(self._state)
            seen, first = self._seen(rows.now), torch.from_numpy(rows.first)
            outputs, values, self._state = model.act(
                seen.to(self._device), self._state, first.to(self._device)
            )
            actions = model.chosen(outputs, noise[t])
            step = rows.step(self._acted(actions))
            following = torch.zeros_like(values)
            if step.truncated.any():
                after = self._seen(step.after).to(self._device)
                none = torch.zeros(len(after), dtype=torch.bool, device=self._device)
                cut = torch.from_numpy(step.truncated).to(self._device)
                following = torch.where(cut, model.act(after, self._state, none)[1], following)
            over = torch.from_numpy(step.terminated | step.truncated)
            rewards = torch.from_numpy(step.rewards).to(values)
            made = (seen, actions, first, outputs, values, rewards, following, over)
            for name, each in zip(PLAYED, made, strict=True):
                steps[name].append(each.to(self._device))
        first = torch.from_numpy(rows.first).to(self._device)
        last = model.act(self._seen(rows.now).to(self._device), self._state, first)[1]
        done = {name: torch.stack(parts) for name, parts in steps.items()}
        values, over = done["values"], done.pop("over")
        after = torch.cat((values[1:], last[None])).where(~over, done.pop("following"))
        worth = ppo.advantages(
            done.pop("rewards"), values, after, over, options.gamma, options.gae_lambda
        )
        before = ppo.log_probability(done.pop("outputs"), done["targets"], model.log_std)
        done |= {"before": before, "advantages": ppo.normalised(worth), "returns": worth + values}
        played = {name: done[name].transpose(0, 1).contiguous() for name in TENSORS}
        return Turn(**played, states=states)

    def _seen(self, observations: np.ndarray) -> Tensor:
        return torch.from_numpy(as_states(self._data.observation_space, observations))

    def _noise(self, random: np.random.Generator) -> Tensor:
        """Noise by which the actions of a turn are drawn, (T, N) or (T, N, numbers)."""
        size, acted = (self._options.horizon, self._data.number), self._data.action_space
        if acted.discrete:
            return torch.from_numpy(random.random(size))
        return torch.from_numpy(random.standard_normal((*size, acted.size)))

    def _acted(self, actions: Tensor) -> np.ndarray:
        """Actions as the environments take them, brought between their bounds."""
        space, done = self._data.action_space, actions.cpu().numpy()
        if not space.discrete:
            done = np.clip(done, *space.bounds())
        return done.astype(space.dtype)

    def _segment(self, turn: Turn, segment: int, rows: Tensor) -> Batch:
        length = self._options.segment
        steps = slice(segment * length, (segment + 1) * length)
        picked: Any = {name: getattr(turn, name)[rows, steps] for name in TENSORS}
        return Batch(**picked)

    @torch.no_grad()
    def _recompute(self, turn: Turn) -> None:
        """The states where segments begin, with the weights of now."""
        every = torch.arange(self._data.number, device=self._device)
        for segment in range(1, len(turn.states)):
            part = self._segment(turn, segment - 1, every)
            state = turn.states[segment - 1]
            after = self._model(part.inputs, state=state, reset=part.reset).state
            assert after is not None
            turn.states[segment] = _alike(after)

    @torch.no_grad()
    def _check(self, turn: Turn) -> None:
        """Refuse layers that give other values for a segment than for its steps: then what is
        learned from is not what was done.

        Raises:
            UnsupportedError: they do.
        """
        if self._checked:
            return
        self._checked = True
        last = len(turn.states) - 1
        part = self._segment(turn, last, torch.arange(self._data.number, device=self._device))
        assert part.values is not None
        _, values, _ = self._model.read(part.inputs, turn.states[last], part.reset)
        gap = float((values - part.values).abs().max())
        if gap > SAME * (1 + float(part.values.abs().max())):
            raise UnsupportedError(
                f"the layers of {self._model.config.member} give other values for "
                f"{self._options.segment} steps at once than step by step (by {gap:.2g}), so a "
                "policy cannot learn from what it did; a memory of segments needs "
                "--memory.same-length always"
            )


def _alike(state: StackState) -> StackState:
    """A state in memory as one that was read from a file lies there: sums are rounded alike."""
    return state.map(lambda t, _: t.clone(memory_format=torch.contiguous_format))


def _below(tensors: dict[str, Tensor], name: str) -> dict[str, Tensor]:
    """Tensors whose names begin so, without that."""
    prefix = f"{name}."
    return {k.removeprefix(prefix): v for k, v in tensors.items() if k.startswith(prefix)}


def carry_of(
    model: nn.Module, dataset: Dataset, config: TrainingConfig, world: World
) -> Carry | None:
    """The `Carry` of a model that learns from this data; None where nothing is carried.

    Raises:
        ConfigError: several processes, or options, that a policy cannot be trained with.
    """
    if isinstance(dataset, EnvironmentDataset):
        if world.size > 1:
            raise ConfigError(
                f"a policy is trained by one process, not {world.size}: start it without torchrun"
            )
        if config.precision == "bfloat16":
            raise ConfigError(
                "a policy learns in float32, as it acts, not in bfloat16: leave out --precision"
            )
        assert isinstance(model, PolicyModel)
        return Rollouts(model, dataset, config.batch)
    if not memories_of(model) or not isinstance(dataset, TextDataset):
        return None
    return TextCarry(model, world)
