"""Libraries of models: `LIBRARY:all` is all that one has, `FILE.py:all` what a file can make.

Those of other packages are entry points of the group `GROUP`, each a `Library` by its name.
"""

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import torch
from torch import nn

import sequence_laws
from sequence_laws.errors import ConfigError, LawsError, unknown
from sequence_laws.foreign import FAILURES, describe
from sequence_laws.subject import Subject

GROUP = "sequence_laws.libraries"
OWN = {
    "hf": "hugging_face",
    "torch": "torch_layers",
    "x-transformers": "x_transformers",
    "timm": "timm",
    "fla": "fla",
}
"""library -> module of `sequence_laws.adapters` that has its `LIBRARY`"""


@dataclass(frozen=True)
class Library:
    """Models of one library, each by a name."""

    name: str
    groups: Callable[[], Mapping[str, Sequence[str]]]
    """names of its models, by the word for them: all ..."""
    subject: Callable[[str], Subject]
    """of a name, small and with random weights (of a file: see `sequence_laws.targets`)"""
    packages: tuple[str, ...] = ()
    """distributions whose versions tell what was judged"""
    imports: tuple[str, ...] = ()
    """modules that all its models share"""

    @property
    def versions(self) -> dict[str, str]:
        """Of what its models are judged with."""
        known = {"sequence-laws": sequence_laws.__version__, "torch": torch.__version__}
        for name in self.packages:
            try:
                known[name] = metadata.version(name)
            except metadata.PackageNotFoundError:  # one that it can do without
                continue
        return {name: version.partition("+")[0] for name, version in known.items()}


@functools.cache
def libraries() -> dict[str, metadata.EntryPoint]:
    """Where each library is."""
    homes = {name: f"sequence_laws.adapters.{module}:LIBRARY" for name, module in OWN.items()}
    own = [metadata.EntryPoint(name, home, GROUP) for name, home in homes.items()]
    return {one.name: one for one in (*metadata.entry_points(group=GROUP), *own)}


def loaded(name: str) -> Library:
    """The library of a name, or that of a file."""
    if name.endswith(".py"):
        return of_file(name)
    if name not in libraries():
        raise unknown("library", name, libraries())
    library: Library = libraries()[name].load()
    return library


def chosen(target: str) -> tuple[Library, list[str]]:
    """The library and those of its models that a target names, all or one.

    Raises:
        UnknownNameError: there is no such library, or it has no such model.
        ConfigError: it cannot be imported.
    """
    name, _, word = target.rpartition(":")
    if not name:
        raise ConfigError(f"'{target}' names no models: write LIBRARY:all or FILE.py:all")
    try:
        library = loaded(name)
        groups = library.groups()
    except LawsError:
        raise
    except FAILURES as error:
        raise ConfigError(
            f"the library '{name}' cannot be imported ({describe(error)}): install it, or leave "
            f"out {target}"
        ) from error
    if word not in groups and word not in groups["all"]:
        raise unknown(f"model of {name}", word, (*groups, *groups["all"]))
    return library, [*groups.get(word, [word])]


def of_file(path: str) -> Library:
    """What the classes and the functions without arguments of a file make."""
    from sequence_laws.named import module_of
    from sequence_laws.targets import arguments, target

    def groups() -> dict[str, list[str]]:
        module = module_of(path)
        own = {k: v for k, v in vars(module).items() if k[0] != "_" and _is_of(v, module)}
        return {"all": [name for name, value in own.items() if makes(value)]}

    def makes(value: Any) -> bool:
        if inspect.isclass(value):
            return issubclass(value, nn.Module)
        return inspect.isfunction(value) and not any(arguments(value).values())

    packages = getattr(module_of(path), "PACKAGES", ())
    return Library(Path(path).name, groups, lambda name: target(f"{path}:{name}"), packages)


def _is_of(value: Any, module: Any) -> bool:
    return getattr(value, "__module__", None) == module.__name__


def written(name: str, lines: Sequence[str], kind: Any = None, **known: Any) -> Subject:
    """The subject of a model that lines of Python make, the last of them as ``model``.

    Args:
        kind: takes what `subject_of` does (default).
    """
    from sequence_laws.adapters import subject_of

    def make() -> nn.Module:
        scope: dict[str, Any] = {}
        exec("\n".join(lines), scope)
        model: nn.Module = scope["model"]
        return model

    torch.manual_seed(0)
    made: Subject = (kind or subject_of)(make(), name, build=lines, make=make, **known)
    return made
