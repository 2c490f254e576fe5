"""One small registry for all genes: a name, the class behind it, and the file it lives in.

A name equals its file or folder: ``aft-local`` is registered in ``aft_local.py`` of its package,
``sinkhorn`` in ``sinkhorn/``. They are imported when their name is first looked up, so that listing
costs nothing; other packages may add names through the entry-point group of the kind
(``everyformer.mixers``, ``everyformer.memories`` ...), and users mixers and positions of theirs
(`everyformer.core.plugins`).
"""

import importlib
import importlib.util
import pkgutil
from collections.abc import Callable, Collection
from importlib.metadata import EntryPoint
from typing import Any, Generic, TypeVar

from everyformer.core.errors import ConfigError, unknown
from everyformer.core.plugins import BASES, TAKEN, loaded, offer_of, offered, own_classes

T = TypeVar("T")


class Registry(Generic[T]):
    """Names of one ``kind`` of gene (``mixer``, ``position`` ...) in the package ``package``.

    ``base`` is the class that all alternatives derive from, as module:Class.
    ``files`` maps names whose file is not called after them ('amlp' lives in ``gmlp.py``).
    ``helpers`` are files of the package that hold no alternative, as ``base`` and all whose names
    begin with an underscore.
    """

    def __init__(
        self,
        kind: str,
        package: str,
        base: str,
        files: dict[str, str] | None = None,
        helpers: Collection[str] = (),
    ) -> None:
        self.kind = kind
        self._package, self._base = package, base
        BASES[kind] = base
        self._files = files or {}
        self._helpers = {"base", *helpers}
        self._entries: dict[str, T] = {}

    def register(self, name: str) -> Callable[[type], type]:
        """Class decorator that files the class under ``name``; a second claim is an error, unless
        the class is the first one, edited and executed again."""

        def claim(cls: type) -> type:
            first: Any = self._entries.get(name, cls)
            if (first.__module__, first.__qualname__) != (cls.__module__, cls.__qualname__):
                raise ConfigError(f"{self.kind} '{name}' is registered twice: second by {cls!r}")
            self._entries[name] = cls  # type: ignore[assignment]
            return cls

        return claim

    def get(self, name: str) -> T:
        """The class registered under ``name``; its file is imported if needed."""
        if name not in self._entries:
            self._import(name)
        if name not in self._entries:
            error = unknown(self.kind, name, self.names())
            hint = "; one of your own is known by --plugin or ef.register"
            raise type(error)(f"{error}{hint if self.kind in TAKEN else ''}")
        return self._entries[name]

    def forget(self, name: str) -> None:
        """Look a name up again, since a user has given its class again."""
        self._entries.pop(name, None)

    def names(self) -> list[str]:
        """All names: of files and folders, of what was registered, and of entry points."""
        others = {*self._others(), *self._entries, *self.offers()}
        return sorted(others.union(self.own_names()))

    def own_names(self) -> list[str]:
        """Names of this library's alternatives: of files and folders."""
        package = importlib.util.find_spec(self._package)
        assert package is not None
        files = {
            file.name.replace("_", "-")
            for file in pkgutil.iter_modules(package.submodule_search_locations)
            if file.name not in self._helpers and not file.name.startswith("_")
        }
        return sorted(files | set(self._files))

    def offers(self) -> dict[str, EntryPoint]:
        """Entry points of other packages for this kind, by name.

        Raises:
            ConfigError: it has the name of something of this library; names the package.
        """
        found = {entry.name: entry for entry in offered(self.kind)}
        for name, entry in found.items():
            if self.is_own(name):
                offer = offer_of(entry, self.kind)
                raise ConfigError(f"{offer} is there already: it must choose another name")
        return found

    def is_own(self, name: str) -> bool:
        """True if a file of this library has that name, so that nothing else can have it."""
        file = self._file(name)
        known = file.isidentifier() and file.isascii()
        return known and importlib.util.find_spec(f"{self._package}.{file}") is not None

    def _file(self, name: str) -> str:
        return self._files.get(name, name).replace("-", "_")

    def _import(self, name: str) -> None:
        offers = self.offers()
        if self.is_own(name):
            importlib.import_module(f"{self._package}.{self._file(name)}")
        elif name in offers:
            # whether it registers itself or not
            self._entries.setdefault(name, loaded(offers[name], self.kind, self._base))
        elif name in (others := self._others()):
            self._entries.setdefault(name, others[name])

    def _others(self) -> dict[str, T]:
        """Alternatives of the user, whose files are read first: they may register more."""
        others: dict[str, Any] = own_classes(self.kind)
        return others
