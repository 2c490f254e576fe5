"""Loading the object that ``module:name`` or ``file.py:name`` names."""

import functools
import hashlib
import importlib
import importlib.util
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import Any

from sequence_laws.errors import ConfigError, PluginError, nearest
from sequence_laws.foreign import FAILURES, describe, note_package

HOW = "write module:Class or path/file.py:Class"


def named(spec: str, what: str) -> Any:
    """The thing that ``module:name`` or ``file.py:name`` names; ``what`` begins errors.

    Raises:
        ConfigError: there is no such thing. PluginError: it cannot be imported.
    """
    path, colon, name = spec.rpartition(":")
    if not colon or not path or not name:
        raise ConfigError(f"{what} names no class: {HOW}")
    module = module_of(path, what)
    value = getattr(module, name, None)
    if value is None:
        known = [known for known, value in vars(module).items() if callable(value)]
        raise ConfigError(f"{what} has no '{name}'; {nearest(name, known)}")
    return value


def module_of(path: str, what: str | None = None) -> Any:
    """The module of a file or of a name."""
    with importing(what or f"the file '{path}'"):
        return _file(Path(path)) if path.endswith(".py") else import_named(path)


@contextmanager
def importing(what: str) -> Iterator[None]:
    """Failures to import in the block become an error that begins with ``what``; prints go to
    stderr."""
    try:
        with redirect_stdout(sys.stderr):
            yield
    except ConfigError:
        raise
    except FAILURES as error:
        raise PluginError(f"{what} fails as it is imported: {describe(error)}") from error


def import_named(name: str) -> Any:
    """A module by its name, also one in the working directory."""
    if not all(part.isidentifier() for part in name.split(".")):
        raise ConfigError(f"'{name}' is neither a module nor a .py file: {HOW}")
    folder = os.getcwd()
    if folder not in sys.path:
        sys.path.append(folder)
    note_package(name)
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise
        raise ConfigError(f"there is no module '{error.name}': install it, or {HOW}") from error


def _file(path: Path) -> Any:
    """A module by its file, which is executed once as long as it stays as it is."""
    if not path.is_file():
        raise ConfigError(f"there is no file '{path}'")
    written = path.stat()
    return _executed(path.absolute(), written.st_mtime_ns, written.st_size)


@functools.cache
def _executed(path: Path, *written: int) -> Any:
    """A module by its file, as it was ``written``: when, and how many bytes."""
    if str(path.parent) not in sys.path:
        sys.path.append(str(path.parent))
    # one name a path: the compiler finds what a class reads by the name of its module
    name = f"plugin_{path.stem}_{hashlib.sha256(bytes(path)).hexdigest()[:8]}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module
