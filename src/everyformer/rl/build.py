"""`make`: the one way to an environment, from its name and options, checked in one sentence each.

`EnvironmentConfig` is an environment in words, as data sets and runs keep it; `make_vector` several
side by side. Environments of ours and those of installed packages are named as gymnasium names
them; `PACKAGE:NAME` imports a package that registers its own first.
"""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from everyformer.core.bounds import Whole
from everyformer.core.config import Options, to_dict
from everyformer.core.errors import ConfigError, EveryformerError, UnknownNameError, nearest
from everyformer.core.plugins import import_named
from everyformer.core.wording import few, listed
from everyformer.rl.environments import NAMESPACE, register
from everyformer.rl.spaces import Space
from everyformer.system.extras import extra_module

if TYPE_CHECKING:
    import gymnasium

STEPS = "max_episode_steps"
"""an option of every environment: after how many steps an episode is truncated"""
LIMIT = 10_000
"""steps after which it is where the environment sets no limit and this option is not given"""
_SET_APART = ("render_mode", "self")


@dataclass(frozen=True)
class EnvironmentConfig(Options):
    """An environment: its name, what is hidden of its observations, and its own options."""

    name: str
    """as registered with gymnasium: CartPole-v1, everyformer/TMaze-v0"""
    mask: tuple[Whole, ...] = ()
    """entries of an observation that are hidden, counted from 0"""
    options: dict[str, Any] = field(default_factory=dict)
    """of the environment, by name; its defaults for the rest"""

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "mask", tuple(sorted(set(self.mask))))
        object.__setattr__(self, "options", to_dict(self.options))

    def __str__(self) -> str:
        """Words of the command line: 'CartPole-v1 --env.mask 1 3'."""
        words = [self.name, *([f"--env.mask {' '.join(map(str, self.mask))}"] if self.mask else [])]
        flags = (f"{_flag(key)} {value}" for key, value in self.options.items())
        return " ".join([*words, *flags])


def make(
    name: str,
    *,
    mask: Sequence[int] = (),
    render_mode: str | None = None,
    **options: Any,
) -> gymnasium.Env[Any, Any]:
    """An environment by name, whose spaces the policies of this library can deal with.

    Args:
        mask: entries of an observation that are hidden, counted from 0.
        render_mode: one that the environment has; ``"rgb_array"`` gives pictures as arrays.
        options: of the environment's constructor, and ``max_episode_steps`` (default: that of the
            environment, or 10,000 where it has none).

    Raises:
        MissingExtraError: gymnasium is not installed.
        UnknownNameError: nothing is registered under this name; offers the nearest.
        ConfigError: an option or a render mode that the environment does not have, a value that it
            refuses, a mask that does not fit, a package missing that it needs itself.
        FaultyEnvironmentError: its constructor fails; and, of what is given back, every call that
            fails or gives what gymnasium's interface does not allow.
        UnsupportedError: observations or actions of a kind that no policy here deals with.
    """
    return make_environment(EnvironmentConfig(name, tuple(mask), options), render_mode)


def make_environment(
    config: EnvironmentConfig, render_mode: str | None = None
) -> gymnasium.Env[Any, Any]:
    """`make` for an environment in words."""
    spec = _registered(config.name)
    creator = _creator(spec)
    _check_options(config, creator)
    modes = getattr(creator, "metadata", {}).get("render_modes")
    if render_mode is not None and modes is not None and render_mode not in modes:
        has = f"has {listed(modes)}" if modes else "cannot be drawn"
        raise ConfigError(f"{config.name} has no render mode '{render_mode}'; it {has}")
    return _built(config, render_mode)


def make_vector(config: EnvironmentConfig, count: int) -> gymnasium.vector.VectorEnv[Any, Any, Any]:
    """``count`` environments side by side; of their ``info`` ``success`` alone is kept.

    The caller resets rows whose episode is over: ``reset(seed=[...], options={"reset_mask":
    finished})``.

    Raises:
        As `make`.
    """
    vector = extra_module("gymnasium.vector", "rl", "an environment")
    builders = [partial(_for_vector, config)] * count
    return vector.SyncVectorEnv(builders, autoreset_mode=vector.AutoresetMode.DISABLED)


def spaces_of(environment: gymnasium.Env[Any, Any], name: str) -> tuple[Space, Space]:
    """The records of its observations and its actions.

    Raises:
        UnsupportedError: one of them is of another kind than policies here deal with.
    """
    observed, acted = (
        getattr(environment, f"{each}_space", None) for each in ("observation", "action")
    )
    return (
        Space.of(observed, f"the observations of {name}", action=False),
        Space.of(acted, f"the actions of {name}", action=True),
    )


def is_registered(name: str) -> bool:
    """True where an environment of this name is registered in this process."""
    gymnasium = extra_module("gymnasium", "rl", "an environment")
    register()
    return name in gymnasium.registry


def options_of(name: str) -> dict[str, Any]:
    """The options of an environment by name, each with its default; `inspect.Parameter.empty` where
    it must be given.

    Raises:
        UnknownNameError: nothing is registered under this name.
        ConfigError: a package is missing that the environment needs.
    """
    spec = _registered(name)
    defaults = {
        option: parameter.default
        for option, parameter in inspect.signature(_creator(spec)).parameters.items()
        if option not in _SET_APART and parameter.kind is not inspect.Parameter.VAR_KEYWORD
    }
    return {STEPS: spec.max_episode_steps, **defaults, **spec.kwargs}


def limit_of(config: EnvironmentConfig) -> int | None:
    """Steps after which episodes are truncated by what is said of the environment or registered
    with it; None where neither says."""
    said = config.options.get(STEPS)
    limit = _registered(config.name).max_episode_steps if said is None else said
    return None if limit == -1 else limit


def without_defaults(config: EnvironmentConfig) -> EnvironmentConfig:
    """Description without the options that are as the constructor has them anyway, so
    that two descriptions of one environment are equal."""
    defaults = options_of(config.name)
    changed = {
        key: value
        for key, value in config.options.items()
        if key not in defaults or defaults[key] != value
    }
    return EnvironmentConfig(config.name, config.mask, changed)


def _registered(name: str) -> Any:
    """The spec that is registered under a name."""
    gymnasium = extra_module("gymnasium", "rl", "an environment")
    register()
    package, colon, own = name.rpartition(":")
    if colon:
        try:
            import_named(package)
        except (ImportError, ConfigError) as error:
            raise ConfigError(
                f"{name} names the package '{package}', which cannot be imported: {error}"
            ) from error
        except (Exception, SystemExit) as error:
            raise _unimportable(name, error) from error
    registry: dict[str, Any] = gymnasium.registry
    if own in registry:
        return registry[own]
    common = [known for known in registry if known.startswith(NAMESPACE)]
    common += [known for known in registry if "/" not in known]
    bare = {_bare(known): known for known in (*registry, *common)}
    if close := difflib.get_close_matches(_bare(own), bare, n=3, cutoff=0.5):
        offered = f"did you mean {listed([repr(bare[key]) for key in close], 'or')}?"
    else:
        offered = (
            f"known: {few(common)}; PACKAGE:NAME first imports a package that registers its own"
        )
    raise UnknownNameError(f"unknown environment '{name}'; {offered}")


def _bare(name: str) -> str:
    """Part of a name that people remember: no package, no version, one case, no hyphens."""
    stem = name.rpartition("/")[2].rpartition("-v")[0] or name.rpartition("/")[2]
    return stem.lower().replace("-", "").replace("_", "")


def _creator(spec: Any) -> Callable[..., Any]:
    """The class or function that builds the environment."""
    from gymnasium.envs.registration import load_env_creator
    from gymnasium.error import Error

    from everyformer.rl.checked import missing

    if callable(spec.entry_point):
        return spec.entry_point
    try:
        return load_env_creator(spec.entry_point)
    except (ImportError, Error) as error:
        raise missing(spec.id, error) from error
    except (Exception, SystemExit) as error:
        raise _unimportable(spec.id, error) from error


def _unimportable(name: str, error: BaseException) -> ConfigError:
    what = f"{type(error).__name__}: {error}"
    return ConfigError(f"the module of {name} fails as it is imported ({what}): mend it")


def _for_vector(config: EnvironmentConfig) -> gymnasium.Env[Any, Any]:
    from everyformer.rl.checked import SuccessAlone

    return SuccessAlone(make_environment(config))


def _check_options(config: EnvironmentConfig, creator: Callable[..., Any]) -> None:
    parameters = inspect.signature(creator).parameters.values()
    if any(each.kind is inspect.Parameter.VAR_KEYWORD for each in parameters):
        return
    known = options_of(config.name)
    for option in config.options:
        if option not in known:
            raise ConfigError(
                f"{config.name} has no option '{_flag(option)}'; "
                f"{nearest(_flag(option), map(_flag, known))}"
            )


def _flag(option: str) -> str:
    return f"--env.{option.replace('_', '-')}"


def _built(config: EnvironmentConfig, render_mode: str | None) -> gymnasium.Env[Any, Any]:
    import gymnasium

    from everyformer.rl.checked import missing, raised

    # not every constructor takes a render mode
    mode: dict[str, Any] = {} if render_mode is None else {"render_mode": render_mode}
    try:
        environment = gymnasium.make(
            config.name, disable_env_checker=True, **mode, **config.options
        )
    except (ImportError, gymnasium.error.DependencyNotInstalled) as error:
        raise missing(config.name, error) from error
    except EveryformerError:
        raise
    except (TypeError, ValueError, LookupError, AssertionError, gymnasium.error.Error) as error:
        raise ConfigError(
            f"{config} cannot be made ({type(error).__name__}: {error}): change its options"
        ) from error
    except (Exception, SystemExit) as error:
        raise raised(config.name, "its constructor", error) from error
    spaces_of(environment, config.name)
    environment = _checked(environment, config, drawn=render_mode == "rgb_array")
    if config.mask:
        from everyformer.rl.hidden import HiddenEntries

        environment = HiddenEntries(environment, config.mask)
    return environment


def _checked(
    environment: gymnasium.Env[Any, Any], config: EnvironmentConfig, drawn: bool
) -> gymnasium.Env[Any, Any]:
    """The environment with `Checked` below what gymnasium has put around it, which takes apart what
    a step gives."""
    from gymnasium.wrappers import OrderEnforcing, TimeLimit

    from everyformer.rl.checked import Checked

    limit = LIMIT if limit_of(config) is None else None
    around, outer = (TimeLimit, OrderEnforcing), environment
    while isinstance(outer, around) and isinstance(outer.env, around):
        outer = outer.env
    if not isinstance(outer, around):
        return Checked(environment, config.name, limit, drawn)
    outer.env = Checked(outer.env, config.name, limit, drawn)
    return environment
