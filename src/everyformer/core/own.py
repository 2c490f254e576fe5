"""Mixers of the user's own: classes that are told by ``module:Class`` or ``file.py:Class``.

They are known in this process and, by an environment variable, in those that it starts.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import os
import shlex
import sys
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

from everyformer.core.errors import ConfigError, nearest

VARIABLE = "EVERYFORMER_PLUGINS"
"""the specs of all, with ; between them"""
HOW = "write module:Class or path/file.py:Class"
_here: dict[str, type[Any]] = {}
"""classes that were registered as they are, by name"""


def add_spec(spec: str) -> type[Any]:
    """Make the class that ``spec`` tells known here and to the processes that this one starts.

    Raises:
        ConfigError: it cannot be imported, or is no mixer; says why.
    """
    path, colon, name = spec.rpartition(":")
    if colon and path.endswith(".py"):
        spec = f"{Path(path).absolute()}:{name}"
    cls = _load(spec)
    specs = _specs()
    if spec not in specs:
        os.environ[VARIABLE] = ";".join([*specs, spec])
    return cls


def add_class(cls: type[Any]) -> None:
    """Make a class known here and, where they can import it, to the processes that this starts."""
    _check(cls, repr(cls))
    other = _here.get(cls.name)
    if other is not None and other is not cls and other.__qualname__ != cls.__qualname__:
        raise ConfigError(f"a mixer '{cls.name}' is registered already: {other!r}")
    _here[cls.name] = cls
    spec = f"{cls.__module__}:{cls.__qualname__}"
    if cls.__module__ != "__main__" and "<" not in spec and spec not in _specs():
        os.environ[VARIABLE] = ";".join([*_specs(), spec])


def own_mixers() -> dict[str, type[Any]]:
    """All of them by name."""
    found = dict(_here)
    for spec in _specs():
        cls = _load(spec)
        found.setdefault(cls.name, cls)
    return found


def loaded(entry: EntryPoint) -> type[Any]:
    """The class that another package offers as a mixer.

    Raises:
        ConfigError: it cannot be imported, is no mixer, or has another name; names the package.
    """
    owner = entry.dist.name if entry.dist else entry.module
    offer = f"'{entry.value}', which the package '{owner}' offers as the mixer '{entry.name}',"
    try:
        cls = entry.load()
    except Exception as error:
        raise ConfigError(f"{offer} cannot be imported: {error}") from error
    _check(cls, offer)
    if cls.name != entry.name:
        raise ConfigError(f"{offer} calls itself '{cls.name}': both names must be the same")
    return cls


def command(words: str) -> str:
    """A command of everyformer that knows the mixers which are known here."""
    plugins = "".join(f" --plugin {shlex.quote(spec)}" for spec in _specs())
    return f"everyformer {words}{plugins}"


def _specs() -> list[str]:
    return [spec for spec in os.environ.get(VARIABLE, "").split(";") if spec]


@functools.cache
def _load(spec: str) -> type[Any]:
    """The class that a spec tells."""
    path, colon, name = spec.rpartition(":")
    if not colon or not path or not name:
        raise ConfigError(f"the plugin '{spec}' names no class: {HOW}")
    try:
        module = _file(Path(path)) if path.endswith(".py") else import_here(path)
    except ConfigError:
        raise
    except ModuleNotFoundError as error:
        hint = "" if error.name != path.partition(".")[0] else f": install it, or {HOW}"
        raise ConfigError(f"the plugin '{spec}' cannot be imported: {error}{hint}") from error
    except Exception as error:
        what = f"{type(error).__name__}: {error}"
        raise ConfigError(f"the plugin '{spec}' fails as it is imported: {what}") from error
    cls = getattr(module, name, None)
    if cls is None:
        known = [known for known, value in vars(module).items() if isinstance(value, type)]
        raise ConfigError(f"the plugin '{spec}' has no '{name}'; {nearest(name, known)}")
    _check(cls, f"the plugin '{spec}'")
    return cls


def import_here(name: str) -> Any:
    """A module by its name, also one in the working directory."""
    here = os.getcwd()
    if here not in sys.path:
        sys.path.append(here)
    return importlib.import_module(name)


def _file(path: Path) -> Any:
    """A module by its file."""
    if not path.is_file():
        raise ConfigError(f"there is no file '{path}'")
    if str(path.parent) not in sys.path:
        sys.path.append(str(path.parent))
    name = f"everyformer_plugin_{path.stem}"
    found = importlib.util.spec_from_file_location(name, path)
    assert found is not None
    assert found.loader is not None
    module = importlib.util.module_from_spec(found)
    sys.modules[name] = module
    found.loader.exec_module(module)
    return module


def _check(cls: Any, what: str) -> None:
    """Refuse what is no concrete mixer with a name."""
    from everyformer.core.mixer import Mixer

    if not (isinstance(cls, type) and issubclass(cls, Mixer)):
        raise ConfigError(f"{what} is no mixer: derive a class from everyformer.Mixer")
    if not isinstance(getattr(cls, "name", None), str):
        raise ConfigError(f'{what} has no name: give the class one, as name = "my-mixer"')
