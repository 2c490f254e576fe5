"""Libraries of models: `LIBRARY:all` is all that one has, `FILE.py:all` what a file can make.

Those of other packages are entry points of the group `GROUP`, each a `Library` by its name.
"""

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from typing import Any

import torch
from torch import nn

import sequence_laws
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


def written(name: str, lines: Sequence[str], kind: Callable[..., Subject], **known: Any) -> Subject:
    """The subject, of a kind, of a model that lines of Python make, the last of them as ``model``;
    ``known`` is what the kind takes."""

    def make() -> nn.Module:
        scope: dict[str, Any] = {}
        exec("\n".join(lines), scope)
        model: nn.Module = scope["model"]
        return model

    torch.manual_seed(0)
    return kind(make(), name, build=lines, make=make, **known)
