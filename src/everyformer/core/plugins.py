"""Mixers, positions, tasks and kinds of data of the user: ``module:Class`` or ``file.py:Class``.

They are known in this process and, by an environment variable, in those that it starts.
"""

import functools
import hashlib
import importlib
import os
import re
import shlex
import sys
import warnings
from collections.abc import Mapping
from importlib.metadata import EntryPoint, EntryPoints, entry_points
from pathlib import Path
from types import FunctionType
from typing import Any

from everyformer.core.config import Options
from everyformer.core.errors import ConfigError
from everyformer.core.former import FORMER
from sequence_laws.foreign import note_package, source
from sequence_laws.named import importing, named

VARIABLE = "EVERYFORMER_PLUGINS"
"""the specs of all, with ; between them"""
BASES: dict[str, str] = {"data": "everyformer.data.kind:Kind"}
"""kind of part -> the base of all its alternatives, of genes as their registries say"""
TAKEN = ("mixer", "position", "task", "data")
"""kinds that are known by a spec; the others are known by entry points"""
MODELS = "EVERYFORMER_MODELS"
"""whole models that were named by who runs this, with ; between them"""
_registered: dict[str, type[Any]] = {}
"""classes that were registered as they are, by name"""


def add_spec(spec: str) -> type[Any]:
    """Make the class named by ``spec`` known to this process and those that it starts.

    Raises:
        ConfigError: there is no such class, it is none of `TAKEN`, or its name is taken; says why.
        PluginError: it cannot be imported.
    """
    spec = placed(spec)
    if spec in _specs():
        # what it names may be another by now
        _load.cache_clear()
    cls = _load(spec)
    other = own_classes().get(cls.name, cls)
    if other is not cls:
        raise _taken(cls, other)
    specs = _specs()
    if spec not in specs:
        os.environ[VARIABLE] = ";".join([*specs, spec])
    return cls


def add_class(cls: type[Any]) -> None:
    """Make a class known to this process and, where they can import it, those that it starts."""
    _check(cls, repr(cls), kind_of(cls) or "mixer")
    other = _registered.get(cls.name)
    if other is not None and other is not cls and other.__qualname__ != cls.__qualname__:
        raise _taken(cls, other)
    _registered[cls.name] = cls
    spec = f"{cls.__module__}:{cls.__qualname__}"
    if cls.__module__ != "__main__" and "<" not in spec and spec not in _specs():
        os.environ[VARIABLE] = ";".join([*_specs(), spec])


def placed(spec: str) -> str:
    """A spec with the whole path of its file, so that it is the same in any folder."""
    path, colon, name = spec.rpartition(":")
    return f"{Path(path).absolute()}:{name}" if colon and path.endswith(".py") else spec


def allow_model(spec: str) -> None:
    """Let the code of a whole model be run, in this process and those that it starts: who runs it
    has named it. What a saved model names is not run by that alone."""
    spec = placed(spec)
    if spec not in _models():
        os.environ[MODELS] = ";".join([*_models(), spec])


def allowed_model(spec: str) -> str:
    """The spec by which a whole model may be made: ``spec``, or the one of the same name that was
    given, of a file that was moved since.

    Raises:
        ConfigError: a saved model alone names its code.
    """
    if spec.startswith("hf:") or placed(spec) in _models():
        return spec
    path, _, name = spec.rpartition(":")
    moved = [given for given in _models() if given.rpartition(":")[2] == name]
    if len(moved) == 1:
        warnings.warn(f"the model of '{spec}' is made by {moved[0]}, as you say", stacklevel=2)
        return moved[0]
    gone = path.endswith(".py") and not Path(path).exists()
    where = f"PATH/{Path(path).name}:{name}" if gone else shlex.quote(spec)
    raise ConfigError(
        f"this model names the code that makes it, '{spec}', which is run where you name it too: "
        f"--plugin {where}, or everyformer.core.plugins.allow_model in Python"
        + ("; that file is not there any more: give the PATH where it is now" if gone else "")
    )


def digests() -> dict[str, str]:
    """SHA-256 of the files of all plug-ins, by spec."""
    files = {spec: Path(spec.rpartition(":")[0]) for spec in (*_specs(), *_models())}
    there = {spec: file for spec, file in files.items() if file.suffix == ".py" and file.exists()}
    return {spec: hashlib.sha256(file.read_bytes()).hexdigest() for spec, file in there.items()}


def edited(before: Mapping[str, str]) -> list[str]:
    """Specs of plug-ins whose files are not as they were when these `digests` were made; one that
    was moved is known by its name."""
    now = digests()
    found = []
    for spec, digest in before.items():
        name = spec.rpartition(":")[2]
        same = [spec] if spec in now else [s for s in now if s.rpartition(":")[2] == name]
        found += [one for one in same if now[one] != digest]
    return found


def names_gene(spec: str) -> bool:
    """False if a spec names what makes a whole model: a module that is no gene, or a function."""
    value = named(placed(spec), f"the plugin '{spec}'")
    from torch import nn

    whole = isinstance(value, type) and issubclass(value, nn.Module) and kind_of(value) is None
    return not whole and not isinstance(value, FunctionType)


def kind_of(cls: Any) -> str | None:
    """The gene of which a class is an alternative; None: of none."""
    return next((kind for kind, base in BASES.items() if _derives(cls, base)), None)


def own_classes(kind: str | None = None) -> dict[str, type[Any]]:
    """All of the user by name, or those of one kind."""
    classes = dict(_registered)
    for spec in _specs():
        cls = _load(spec)
        classes.setdefault(cls.name, cls)
    return {n: cls for n, cls in classes.items() if kind is None or _derives(cls, BASES[kind])}


def offered(kind: str) -> list[EntryPoint]:
    """Entry points of other packages for alternatives of a gene, kinds of data, tasks or members,
    by name."""
    many = f"{kind.removesuffix('y')}ies" if kind.endswith("y") else f"{kind}s"
    groups = [
        "data" if kind == "data" else many,
        *(f"{f}s" for f, now in FORMER.items() if now == kind),
    ]
    folders = [Path(path) for path in sys.path]
    changed = tuple((str(f), f.stat().st_mtime_ns) for f in folders if f.exists())
    found = [entry for group in groups for entry in _installed(f"everyformer.{group}", changed)]
    return sorted(found, key=lambda entry: entry.name)


def loaded(entry: EntryPoint, kind: str, base: str | None = None) -> Any:
    """Object that another package offers as an alternative of a gene, or as a member.

    Args:
        base: class of all alternatives, as module:Class.

    Raises:
        PluginError: it cannot be imported. ConfigError: it is no such class, or has another name;
            both name the package.
    """
    offer = offer_of(entry, kind)
    note_package(entry.module)
    if entry.group.removeprefix("everyformer.").removesuffix("s") in FORMER:
        message = f"{offer} is offered in the group {entry.group}, which is everyformer.{kind}s now"
        warnings.warn(message, FutureWarning, stacklevel=2)
    with importing(offer):
        value = entry.load()
    if base is not None:
        _check(value, offer, kind, base)
        if value.name != entry.name:
            raise ConfigError(f"{offer} calls itself '{value.name}': both names must be the same")
    return value


def offer_of(entry: EntryPoint, kind: str) -> str:
    """Name of a thing that another package offers."""
    owner = entry.dist.name if entry.dist else entry.module
    return f"the {kind} '{entry.name}' of the package '{owner}' ({entry.value})"


def command(words: str) -> str:
    """Command line of everyformer with the plug-ins of this process."""
    specs = [*_specs(), *(spec for spec in _models() if not spec.startswith("hf:"))]
    plugins = "".join(f" --plugin {shlex.quote(spec)}" for spec in specs)
    return f"everyformer {words}{plugins}"


@functools.lru_cache(maxsize=32)
def _installed(group: str, folders: tuple[tuple[str, int], ...]) -> EntryPoints:
    """Entry points of a group in these folders: found again where one changed since, as it takes
    milliseconds, and every look-up of a name asks."""
    return entry_points(group=group)


def _specs() -> list[str]:
    return [spec for spec in os.environ.get(VARIABLE, "").split(";") if spec]


def _models() -> list[str]:
    return [spec for spec in os.environ.get(MODELS, "").split(";") if spec]


@functools.cache
def _load(spec: str) -> type[Any]:
    """The class that a spec tells."""
    cls: type[Any] = named(spec, what := f"the plugin '{spec}'")
    _check(cls, what, kind_of(cls) or "mixer")
    return cls


def _taken(cls: type[Any], other: type[Any]) -> ConfigError:
    return ConfigError(
        f"two classes are called '{cls.name}': {cls.__qualname__} ({source(cls)}) and "
        f"{other.__qualname__} ({source(other)}): give one of them another name"
    )


def _derives(cls: Any, base: str) -> bool:
    home, _, root = base.partition(":")
    return isinstance(cls, type) and issubclass(cls, getattr(importlib.import_module(home), root))


def _check(cls: Any, what: str, kind: str, base: str | None = None) -> None:
    """Refuse what is no concrete class of a ``kind``, which derives from ``base``, with a name;
    without one, what is known by entry points alone."""
    root = (base or BASES[kind]).replace(":", ".")
    if not _derives(cls, base or BASES[kind]):
        raise ConfigError(f"{what} is no {kind}: derive a class from {root}")
    if base is None and kind not in TAKEN:
        raise ConfigError(
            f"{what} is a {kind}, and known so are mixers, positions, tasks and kinds of data "
            "alone: offer it by an entry point, as docs/adding-a-member.md shows"
        )
    what, name = f"{what} ({source(cls)})", getattr(cls, "name", None)
    if not isinstance(name, str):
        raise ConfigError(f'{what} has no name: give the class one, as name = "my-{kind}"')
    if not re.fullmatch(r"\w[\w.-]*", name):
        raise ConfigError(f"{what} is called '{name}': give it a name of letters, digits, - and _")
    for method in dir(cls):
        if getattr(getattr(cls, method, None), "__isabstractmethod__", False):
            raise ConfigError(f"{what} has no method '{method}': see docs/adding-a-member.md")
    options = getattr(cls, "Options", None)
    # a task has no options of its own: what its head must know comes with the data
    if kind != "task" and not (isinstance(options, type) and issubclass(options, Options)):
        raise ConfigError(
            f"{what} has {options!r} as its Options: give a frozen dataclass that derives from "
            "everyformer.core.config.Options, or NoOptions of the same module"
        )
