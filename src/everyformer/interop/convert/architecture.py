"""What a foreign system is: how its config reads as ours, ours as its, and which tensors match."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from everyformer.core.bounds import Count
from everyformer.core.config import converted
from everyformer.core.errors import CheckpointError, ConfigError, UnsupportedError, nearest
from everyformer.interop.convert.rules import Rule
from everyformer.models.config import ModelConfig

ALL_BIASES = ("query", "key", "value", "output")
ACTIVATIONS = {
    "gelu": "gelu",
    "gelu_new": "gelu-tanh",
    "gelu_pytorch_tanh": "gelu-tanh",
    "quick_gelu": "gelu-sigmoid",
    "relu": "relu",
    "silu": "silu",
    "swish": "silu",
}
COMMON: dict[str, Any] = {
    "architectures": tuple[str, ...] | None,
    "tie_word_embeddings": bool | None,
    "id2label": dict[str, str] | None,
    "num_labels": Count | None,
}
"""what every system's config may say"""


@dataclass(frozen=True)
class HubArchitecture:
    """One system of Hugging Face's `transformers`."""

    model_type: str
    prefix: str
    """what their names begin with, and leave out in checkpoints without a head"""
    classes: dict[str, str]
    """our task -> their class, the usual one first"""
    options: Callable[[dict[str, Any], str], dict[str, Any]]
    """their config and our task -> member and options for `configure`"""
    describe: Callable[[ModelConfig], dict[str, Any]]
    """our config -> theirs"""
    rules: Callable[[ModelConfig], list[Rule]]
    """which tensors correspond"""
    fields: dict[str, Any]
    """what their config says, with its types; what may be None may also be left out"""
    ignored: str = ""
    """pattern of buffers that hold nothing learned, and of further names of tied tensors"""

    def check(self, config: dict[str, Any]) -> None:
        """Hold a config.json to `fields`.

        Raises:
            CheckpointError: something is missing, or cannot be.
        """
        for name, kind in {**COMMON, **self.fields}.items():
            try:
                converted(kind, config.get(name), name)
            except ConfigError as error:
                fault = f"says what cannot be: {error}" if name in config else f"lacks '{name}'"
                raise CheckpointError(
                    f"the config.json of this {self.model_type} checkpoint {fault}"
                ) from error

    def task(self, config: dict[str, Any]) -> str:
        """The task of a checkpoint, by the class that its config names."""
        named = (config.get("architectures") or [None])[0]
        for task, name in self.classes.items():
            if named == name:
                return task
        if named is None or named.endswith("Model"):
            return next(iter(self.classes))
        raise UnsupportedError(
            f"a {self.model_type} checkpoint of the class {named} has no counterpart here; those "
            f"that have: {', '.join(self.classes.values())}"
        )


def activation(name: str) -> str:
    """Our name of a feed-forward's activation."""
    if name not in ACTIVATIONS:
        raise UnsupportedError(
            f"the activation '{name}' has no counterpart here; {nearest(name, ACTIVATIONS)}"
        )
    return ACTIVATIONS[name]


def their_activation(ours: str) -> str:
    """Their name of ours."""
    named = {"gelu": "gelu", "gelu-tanh": "gelu_new", "gelu-sigmoid": "quick_gelu", "relu": "relu"}
    return named.get(ours, "silu")


def refuse(config: dict[str, Any], **wanted: Any) -> None:
    """Raise if an option of their config has a value that nothing here corresponds to."""
    for name, value in wanted.items():
        if config.get(name, value) != value:
            raise UnsupportedError(
                f"the checkpoint has {name}={config[name]!r}, which has no counterpart here (only "
                f"{value!r} has)"
            )
