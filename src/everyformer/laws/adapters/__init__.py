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
    model: nn.Module | Subject,
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
        ConfigError: it is no module, what it reads cannot be guessed, or is something else.
    """
    given = inputs_of(vocabulary=vocabulary, width=width, inputs=inputs)
    if isinstance(model, Subject):
        other = model.anew()
        other.name = name or model.name
        return as_told(other, given, causal)
    if not isinstance(model, nn.Module):
        raise ConfigError(f"a {type(model).__name__} is no model: expected a torch.nn.Module")
    name = name or type(model).__name__
    known: dict[str, Any] = {"causal": causal, "build": build, "make": make}
    for adapter in ADAPTERS:
        subject = adapter(model, name, **known)
        if subject is not None:
            return as_told(subject, given, causal)
    return as_told(plain(model, name, given, **known), given, causal)


def as_told(subject: Subject, given: Inputs | None, causal: bool | None) -> Subject:
    """A subject whose claim is ``causal``, where that is said, and that reads what is ``given``.

    Raises:
        ConfigError: it reads something else. ShapeError: one output a row is never causal.
    """
    known = subject.inputs
    if given and (given.vocabulary, given.width) != (known.vocabulary, known.width):
        raise ConfigError(
            f"{subject.name} reads {known}, not {given}: leave out vocabulary, width and inputs"
        )
    if causal is not None:
        subject.causal, subject.assumed = causal, False
    if causal and subject.pools:
        raise subject.shape_error("one output a row, which cannot be causal")
    return subject


def inputs_of(*, inputs: Tensor | None = None, **named: int | None) -> Inputs | None:
    """What a model is said to read, by one of ``inputs``, ``vocabulary`` and ``width``.

    Raises:
        ConfigError: by more than one.
    """
    said = {word: size for word, size in named.items() if size is not None}
    if len(said) + (inputs is not None) > 1:
        raise ConfigError(
            "a model reads token ids or features: give one of vocabulary=, width= and inputs="
        )
    return inputs_like(inputs) if inputs is not None else Inputs(**said) if said else None


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
