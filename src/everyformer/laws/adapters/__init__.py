"""Ways to call a model: the first adapter that knows a module makes its `Subject`.

An adapter is a function of the module, its name and what is known of it (``causal``, or None where
nobody said; ``build``), that gives a `Subject`, or None for a module that it does not know.
"""

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor, nn

from everyformer.core.errors import ConfigError
from everyformer.laws.adapters.members import member, whole
from everyformer.laws.adapters.plain import plain
from everyformer.laws.adapters.torch_layers import encoder, recurrent
from everyformer.laws.adapters.transformers import pretrained
from everyformer.laws.inputs import Inputs
from everyformer.laws.subject import Subject

ADAPTERS: tuple[Callable[..., Subject | None], ...] = (
    member,
    whole,
    encoder,
    recurrent,
    pretrained,
)


def subject_of(
    model: nn.Module,
    name: str | None = None,
    *,
    causal: bool | None = None,
    vocabulary: int | None = None,
    width: int | None = None,
    inputs: Tensor | None = None,
    build: Sequence[str] = (),
    make: Callable[[], nn.Module] | None = None,
) -> Subject:
    """The subject of a module: see `everyformer.laws.check` for the arguments.

    A module that no adapter knows is `Plain`; it claims to be causal unless that is denied.

    Raises:
        ConfigError: it is no module, or what it reads cannot be guessed.
    """
    if not isinstance(model, nn.Module):
        raise ConfigError(f"a {type(model).__name__} is no model: expected a torch.nn.Module")
    name = name or type(model).__name__
    known: dict[str, Any] = {"causal": causal, "build": build, "make": make}
    for adapter in ADAPTERS:
        subject = adapter(model, name, **known)
        if subject is not None:
            return subject
    given = None
    if inputs is not None:
        given = inputs_like(inputs)
    elif vocabulary is not None or width is not None:
        given = Inputs(vocabulary=vocabulary, width=width)
    known["causal"] = causal is not False
    return plain(model, name, given, **known)


def inputs_like(batch: Tensor) -> Inputs:
    """Inputs as those of a batch: token ids (B, L), or features (B, L, d)."""
    if batch.is_floating_point() and batch.dim() == 3:
        return Inputs(width=batch.shape[-1])
    if not batch.is_floating_point() and batch.dim() == 2:
        return Inputs(vocabulary=int(batch.max()) + 1)
    raise ConfigError(
        f"inputs of {tuple(batch.shape)} {batch.dtype} are not known: expected token ids "
        "(rows, positions) or features (rows, positions, channels)"
    )
