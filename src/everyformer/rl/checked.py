"""`Checked`: an environment of anybody's, each call of which is held to gymnasium's interface.

What a call raises, or gives in place of what is expected, becomes one sentence that names the
environment. Observations come out in the type that their space says. An episode of an environment
that sets no limit of steps itself is cut here.
"""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import gymnasium
import numpy as np

from everyformer.core.errors import ConfigError, EveryformerError, FaultyEnvironmentError
from everyformer.rl.episode import SUCCESS
from everyformer.rl.spaces import readable

PARTS = "an observation, a reward, terminated, truncated and info"
DRIVER = "SDL_VIDEODRIVER"
BRIEF = 60
"""characters of a wrong value that a sentence quotes"""


class Checked(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Raises `FaultyEnvironmentError` for what the environment does wrong.

    Args:
        env: with spaces that `everyformer.rl.spaces.Space` can describe.
        name: of the environment, for its errors.
        limit: steps after which an episode is truncated; None leaves that to others.
        drawn: whether it is to give pictures as arrays.
    """

    def __init__(
        self, env: gymnasium.Env[Any, Any], name: str, limit: int | None, drawn: bool = False
    ) -> None:
        super().__init__(env)
        self._name, self._limit, self._drawn = name, limit, drawn
        self._step = 0

    @property
    def spec(self) -> Any:  # type: ignore[override]
        """That of the environment, which this wrapper is no part of."""
        return self.env.spec

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        self._step = 0
        result = calling(self._name, "reset", lambda: self.env.reset(seed=seed, options=options))
        if not isinstance(result, tuple) or len(result) != 2:
            raise self._wrong("reset", _brief(result), "two values, an observation and info, are")
        return self._observation("reset", result[0]), self._info("reset", result[1])

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self._step += 1
        call = f"step {self._step:,} of an episode"
        result = calling(self._name, call, lambda: self.env.step(action))
        if not isinstance(result, tuple) or len(result) != 5:
            what = f"{len(result)} values" if isinstance(result, tuple) else _brief(result)
            raise self._wrong(call, what, f"five values, {PARTS}, are")
        seen, reward, terminated, truncated, info = result
        observation, paid = self._observation(call, seen), _array(reward)
        if paid is None or paid.shape != () or not readable(paid):
            raise self._wrong(call, f"{_brief(reward)} as its reward", "a finite number is")
        for what, value in (("terminated", terminated), ("truncated", truncated)):
            flag = _array(value)
            if flag is None or flag.shape != () or flag.dtype.kind != "b":
                raise self._wrong(call, f"{_brief(value)} as {what}", "True or False is")
        late = self._limit is not None and self._step >= self._limit
        notes = self._info(call, info)
        return observation, float(paid), bool(terminated), bool(truncated) or late, notes

    def render(self) -> Any:
        with off_screen() if self._drawn else nullcontext():
            frame = calling(self._name, "render", self.env.render)
        picture = isinstance(frame, np.ndarray) and (frame.ndim, frame.dtype) == (3, np.uint8)
        if self._drawn and not picture:
            raise self._wrong("render", _brief(frame), "bytes in the shape (height, width, 3) are")
        return frame

    def close(self) -> None:
        calling(self._name, "close", self.env.close)

    def _observation(self, call: str, observation: Any) -> Any:
        """The observation in the type that its space says."""
        space: Any = self.env.observation_space
        says = "as its observation_space says, is"
        seen = _array(observation)
        if (
            seen is None
            or seen.shape != space.shape
            or not np.can_cast(seen.dtype, space.dtype, "same_kind")
        ):
            expected = f"{space.dtype} in the shape {space.shape}, {says}"
            raise self._wrong(call, f"{_brief(observation)} as its observation", expected)
        if not (fine := readable(seen)).all():
            raise self._wrong(call, f"{seen[~fine][0]} in its observation", "a finite number is")
        if isinstance(space, gymnasium.spaces.Discrete) and not 0 <= seen < space.n:
            expected = f"a whole number from 0 to {space.n - 1}, {says}"
            raise self._wrong(call, f"{seen} as its observation", expected)
        return seen.astype(space.dtype)[()]

    def _info(self, call: str, info: Any) -> dict[str, Any]:
        if not isinstance(info, dict):
            raise self._wrong(call, f"{_brief(info)} as info", "a dictionary is")
        solved = _array(info.get(SUCCESS, False))
        if solved is None or solved.shape != () or not readable(solved):
            what = f"{_brief(info[SUCCESS])} as info['{SUCCESS}']"
            raise self._wrong(call, what, "True or False is")
        return info

    def _wrong(self, call: str, what: str, expected: str) -> FaultyEnvironmentError:
        return FaultyEnvironmentError(
            f"the environment {self._name} is at fault: {call} gave {what}, where {expected} "
            "expected; mend it, or wrap it in one that gives that"
        )


class SuccessAlone(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Leaves everything but ``success`` out of ``info``: a vector of environments stacks what
    stands there, and that may have another form at every step."""

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        observation, info = self.env.reset(seed=seed, options=options)
        return observation, _success(info)

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        observation, reward, terminated, truncated, info = self.env.step(action)
        return observation, reward, terminated, truncated, _success(info)


@contextmanager
def off_screen() -> Iterator[None]:
    """pygame looks for no desktop, which an array needs none of, and whose absence SDL tells of;
    what the user has set stays."""
    if DRIVER in os.environ:
        yield
        return
    os.environ[DRIVER] = "dummy"
    try:
        yield
    finally:
        del os.environ[DRIVER]


def calling(name: str, call: str, function: Callable[[], Any]) -> Any:
    """Call ``function``, which is of the environment ``name``, and give its result.

    Raises:
        ConfigError: it needs a package that is not installed.
        FaultyEnvironmentError: it raised another error that is none of this library's.
    """
    try:
        return function()
    except EveryformerError:
        raise
    except (ImportError, gymnasium.error.DependencyNotInstalled) as error:
        raise missing(f"{call} of {name}", error) from error
    # SystemExit too: else the program would end as if all was done
    except (Exception, SystemExit) as error:
        raise raised(name, call, error) from error


def raised(name: str, call: str, error: BaseException) -> FaultyEnvironmentError:
    """The error of ours for an environment's own."""
    what = f"{type(error).__name__}: {error}".rstrip(": ")
    return FaultyEnvironmentError(
        f"the environment {name} is at fault: {call} raised {what} (--debug shows where); mend it"
    )


def missing(what: str, error: Exception) -> ConfigError:
    """The error for a package that ``what`` needs and that cannot be imported."""
    return ConfigError(f"{what} needs a package that is not installed: {error}")


def _success(info: dict[str, Any]) -> dict[str, Any]:
    return {SUCCESS: info[SUCCESS]} if SUCCESS in info else {}


def _array(value: Any) -> np.ndarray | None:
    """``value`` as an array of numbers or booleans; None where it is none."""
    try:
        array = np.asarray(value)
    except Exception:  # rows of several lengths, an object that refuses
        return None
    return array if array.dtype.kind in "biuf" else None


def _brief(value: Any) -> str:
    if isinstance(value, np.ndarray):
        return f"{value.dtype} in the shape {value.shape}"
    text = repr(value)
    return text if len(text) <= BRIEF else f"{text[:BRIEF]}..."
