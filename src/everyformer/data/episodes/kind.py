"""Episodes as the data of the task `decision`: windows of K steps, padded on the left.

    train_batch    a step of the training part, all alike, begins a window: an episode with a
                   probability that grows with its length, then a start within it
    validation     the held-out episodes, cut into windows from their starts on

Returns-to-go are those of whole episodes, before any window is cut. What a window lacks at its end
is padding in front: zeros that are masked, and -100 for actions that are chosen.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from everyformer.core.config import to_dict
from everyformer.core.errors import DataError
from everyformer.core.tasks import tasks_that
from everyformer.data.batch import IGNORED, WHOLE, Batch, Portion
from everyformer.data.cache import digest
from everyformer.data.config import EPISODES, DataConfig
from everyformer.data.counting import counted_loss
from everyformer.data.dataset import Dataset, Spread
from everyformer.data.episodes.episode import returns_to_go
from everyformer.data.episodes.folder import holds_trajectories, read_trajectories
from everyformer.data.episodes.minari_sets import MINARI
from everyformer.data.episodes.spaces import Space
from everyformer.data.episodes.trajectories import Statistics, Trajectories
from everyformer.data.kind import Kind, Request
from everyformer.data.selection import held_out_draw, spread
from everyformer.genes.model_options import EpisodeShape
from everyformer.system.files import expanded

if TYPE_CHECKING:
    from everyformer.genes.config import ModelConfig

CONTEXT = 20
"""steps that are read at once, where nothing is said"""
TINY = 1e-6
"""added to standard deviations of states"""
FEW = 4
"""channels of a picture at most, where they are the last axis"""


@dataclass(frozen=True, kw_only=True, eq=False)
class EpisodeDataset(Dataset):
    """Windows of episodes."""

    shape: EpisodeShape
    """what a model must know of states and actions"""
    environment: str | None
    """its name; None where it is not known"""
    recipe: str
    returns: Statistics
    """of all episodes, held out or not"""
    delayed: bool
    """whether all of an episode's rewards come with its last step"""
    states: np.ndarray
    """(steps, ...) of all episodes, one after the other"""
    actions: np.ndarray
    """(steps,) int64 or (steps, N) float32"""
    returns_to_go: np.ndarray
    """(steps,) float, of whole episodes"""
    starts: np.ndarray
    """(episodes,), where each begins"""
    lengths: np.ndarray
    """(episodes,)"""
    train: np.ndarray
    """episodes that are trained on"""
    held_out: np.ndarray
    """episodes that are not"""

    def require_like(self, config: ModelConfig, facts: Mapping[str, Any], what: str) -> None:
        """Refuse episodes of another environment than the run's, and longer than its table."""
        if fault := config.episodes.misfit(self.shape):
            raise DataError(f"{self.name} is of another environment than {what}: {fault}")
        recorded = facts.get("environment")
        # earlier versions kept its options beside the name
        mine = recorded["name"] if isinstance(recorded, dict) else recorded
        if mine is not None and self.environment not in (None, mine):
            raise DataError(
                f"{self.name} is of {self.environment}, but {what} was trained on {mine}: give "
                "data of that one"
            )
        if self.shape.longest > config.timesteps:
            raise DataError(
                f"{self.name} has episodes of up to {self.shape.longest:,} steps, but {what} "
                f"knows {config.timesteps:,} timesteps: train one with a larger "
                "`model.decision.table`"
            )

    def train_batch(self, step: int, size: int, seed: int, portion: Portion = WHOLE) -> Batch:
        ends = self.lengths[self.train].cumsum()
        self.training_rows(len(ends))
        drawn = np.random.default_rng((seed, step)).integers(ends[-1], size=size)
        drawn = drawn[slice(*portion.of(size))]
        row = np.searchsorted(ends, drawn, side="right")
        episodes = self.train[row]
        return self.windows(episodes, drawn - (ends[row] - self.lengths[episodes]))

    def validation_batches(self, size: int, limit: int | None = None) -> Iterator[Batch]:
        counts = -(-self.lengths[self.held_out] // self.shape.context)
        episodes = np.repeat(self.held_out, counts)
        begins = np.arange(len(episodes)) - np.repeat(counts.cumsum() - counts, counts)
        chosen = spread(len(episodes), limit)
        for first in range(0, len(chosen), size):
            rows = chosen[first : first + size]
            yield self.windows(episodes[rows], begins[rows] * self.shape.context)

    def windows(self, episodes: np.ndarray, begins: np.ndarray) -> Batch:
        """The windows of these episodes that begin at these of their steps, (B,) each."""
        context = self.shape.context
        count = np.minimum(context, self.lengths[episodes] - begins)
        step = np.arange(context) + (begins + count - context)[:, None]
        padding_mask = step >= begins[:, None]
        step = np.where(padding_mask, step, 0)
        rows = step + self.starts[episodes, None]
        return Batch(
            inputs=_padded(self.states[rows], padding_mask),
            targets=_padded(
                self.actions[rows], padding_mask, IGNORED if self.shape.discrete else 0
            ),
            padding_mask=torch.from_numpy(padding_mask),
            returns=_padded(self.returns_to_go[rows].astype(np.float32), padding_mask),
            actions=_padded(self.actions[rows], padding_mask),
            timesteps=torch.from_numpy(step),
        )

    @cached_property
    def counting(self) -> float | None:
        """Of the training part's commonest actions, or the squared distance from their mean."""
        if not len(self.train):
            return None
        train, held_out = (
            np.concatenate([self.actions[a : a + n] for a, n in self._spans(part)])
            for part in (self.train, self.held_out)
        )
        if self.shape.discrete:
            return counted_loss([train], [held_out], self.shape.actions, grams=1)
        reach = (np.array(self.shape.high or 1.0) - np.array(self.shape.low or -1.0)) / 2
        return float(np.square((held_out - train.mean(0)) / reach).mean())

    def _spans(self, episodes: np.ndarray) -> Iterator[tuple[int, int]]:
        return zip(self.starts[episodes].tolist(), self.lengths[episodes].tolist(), strict=True)

    @property
    def shape_options(self) -> dict[str, Any]:
        return {"episodes": to_dict(self.shape)}

    def summary(self) -> dict[str, Any]:
        facts = {
            "environment": self.environment,
            "recipe": self.recipe,
            "returns": dataclasses.asdict(self.returns),
            "delayed": self.delayed,
        }
        return super().summary() | facts


def _padded(values: np.ndarray, padding_mask: np.ndarray, padding: int = 0) -> torch.Tensor:
    real = padding_mask.reshape(*padding_mask.shape, *[1] * (values.ndim - 2))
    return torch.from_numpy(np.where(real, values, np.array(padding, values.dtype)))


def episode_dataset(
    recorded: Trajectories, config: DataConfig, task: str, name: str
) -> EpisodeDataset:
    """Trajectories as the data of ``task``.

    Raises:
        DataError: there is one episode alone, so that none can be held out.
        UnsupportedError: states or actions of a kind that no model reads.
    """
    recorded = recorded.delayed() if config.delayed else recorded
    held_out, how = _held_out(recorded, config)
    training = np.flatnonzero(~held_out)
    best = training
    if config.best is not None and len(training):
        part = _of(recorded, training)
        budget = {id(episode) for episode in part.best(config.best).episodes}
        best = np.array([n for n in training.tolist() if id(recorded.episodes[n]) in budget])
        how += f"; of the training part the best {config.best:.0%} of the steps by return"
    known = training if len(training) else np.flatnonzero(held_out)
    shape = _shape(_of(recorded, known), config)
    shape = dataclasses.replace(shape, longest=int(recorded.lengths.max()))
    states, actions = arrays(recorded)
    to_go = np.concatenate([returns_to_go(each.rewards) for each in recorded.episodes])
    steps = [int(recorded.lengths[part].sum()) for part in (best, held_out)]
    return EpisodeDataset(
        name=name,
        task=task,
        kind="episodes",
        vocabulary=256,
        length=3 * (config.context or CONTEXT),
        split=f"{how}: {len(best):,} episodes of {steps[0]:,} steps to train on, "
        f"{int(held_out.sum()):,} of {steps[1]:,} held out",
        # not of what part is trained on: losses on the held-out part can be compared
        fingerprint=digest(
            states.tobytes(), actions.tobytes(), to_go.tobytes(), recorded.lengths.tolist(),
            held_out.tobytes(), config.context or CONTEXT,
        ),
        shape=shape,
        environment=recorded.environment,
        recipe=recorded.recipe,
        returns=recorded.statistics,
        delayed=config.delayed,
        states=states,
        actions=actions,
        returns_to_go=to_go,
        starts=recorded.lengths.cumsum() - recorded.lengths,
        lengths=recorded.lengths,
        train=best,
        held_out=np.flatnonzero(held_out),
    )  # fmt: skip


def arrays(recorded: Trajectories) -> tuple[np.ndarray, np.ndarray]:
    """The states (steps, ...) and actions of all episodes as models read them."""
    seen = np.concatenate([each.observations[:-1] for each in recorded.episodes])
    done = np.concatenate([each.actions for each in recorded.episodes])
    dtype = np.int64 if recorded.action_space.discrete else np.float32
    return as_states(seen, state_shape(recorded.observation_space)), done.astype(dtype)


def state_shape(space: Space) -> tuple[int, ...]:
    """The shape of an observation as models read it: see `as_states`."""
    if space.discrete:
        return ()
    if np.dtype(space.dtype) != np.uint8 or len(space.shape) not in (2, 3):
        return (space.size,)
    if len(space.shape) == 2:
        return (1, *space.shape)
    return (space.shape[2], *space.shape[:2]) if _channels_last(space.shape) else space.shape


def as_states(rows: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """Observations (N, ...) as states of a `state_shape`: whole numbers, pictures in bytes
    (N, C, H, W), or else numbers (N, n), whatever their shape was."""
    if not shape:
        return rows.astype(np.int64)
    if len(shape) == 1:
        return rows.reshape(len(rows), -1).astype(np.float32)
    if rows.ndim == 4 and _channels_last(rows.shape[1:]):
        rows = np.moveaxis(rows, -1, 1)
    return np.ascontiguousarray(rows).reshape(len(rows), *shape)


def _channels_last(shape: tuple[int, ...]) -> bool:
    return shape[-1] <= FEW < shape[0]


def _shape(training: Trajectories, config: DataConfig) -> EpisodeShape:
    """Shapes and bounds of the spaces, with the statistics of the training part."""
    observed, acted = training.observation_space, training.action_space
    ends: tuple[tuple[float, ...], ...] = ((), ())
    if not acted.discrete and np.isfinite(bounds := np.array(acted.bounds())).all():
        ends = tuple(tuple(end.tolist()) for end in bounds)
    shape, known = state_shape(observed), Spread((), ())
    if len(shape) == 1:
        known = Spread.of(arrays(training)[0])
    scale = config.scale
    if scale is None:
        most = max(float(np.abs(returns_to_go(e.rewards)).max()) for e in training.episodes)
        scale = most or 1.0
    return EpisodeShape(
        state=shape,
        state_values=observed.size if observed.discrete else None,
        actions=acted.size,
        discrete=acted.discrete,
        low=ends[0],
        high=ends[1],
        state_mean=known.mean,
        state_std=tuple(each + TINY for each in known.std),
        scale=scale,
        context=config.context or CONTEXT,
    )


def _of(recorded: Trajectories, chosen: np.ndarray) -> Trajectories:
    return dataclasses.replace(
        recorded, episodes=[recorded.episodes[number] for number in chosen.tolist()]
    )


def _held_out(recorded: Trajectories, config: DataConfig) -> tuple[np.ndarray, str]:
    """Flags of the episodes that are held out, and how they were chosen."""
    if len(recorded) == 1 and config.validation < 1:
        raise DataError(
            f"'{config.source}' holds one episode alone, so that none can be held out: give two or "
            "more, or only evaluate with `data.validation=1`"
        )
    flags = held_out_draw(np.zeros(len(recorded)), config.validation, config.seed)
    return flags, f"a draw of {config.validation:.0%} of the episodes (seed {config.seed})"


class Episodes(Kind):
    """Episodes that were recorded: a folder or file of trajectories, or a set of Minari's."""

    name = "episodes"
    reads = EPISODES
    alone = ", which are read `data.context` steps at a time"

    @classmethod
    def recognises(cls, request: Request) -> bool:
        recorded = all(task.acts for task in request.tasks)
        source = request.config.source
        return recorded or source.startswith(MINARI) or holds_trajectories(expanded(source))

    def check(self) -> None:
        if not any(task.acts for task in self.request.tasks):
            raise DataError(
                f"'{self.config.source}' holds episodes, which the task {self.request.word} cannot "
                f"use; they are for {', '.join(tasks_that('acts'))}"
            )
        super().check()

    @cached_property
    def task(self) -> str:
        return next(task.name for task in self.request.tasks if task.acts)

    def load(self) -> EpisodeDataset:
        source = self.config.source
        name = source.removeprefix(MINARI)
        if name == source:
            name = Path(os.path.abspath(expanded(source))).stem
        return episode_dataset(read_trajectories(source), self.config, self.task, name)
