"""Ways to call a model: the first adapter that knows a module makes its `Subject`.

An adapter is a function of the module, its name and what is known of it (``causal``, or None where
nobody said; ``build``), that gives a `Subject`, or None for a module that it does not know. Those
of other packages are entry points of the group `GROUP`, named as the package of their models.
"""

import sys
from collections.abc import Callable, Iterator, Sequence
from importlib.metadata import entry_points
from typing import Any

from torch import Tensor, nn

from sequence_laws.adapters.found import plain
from sequence_laws.adapters.torch_layers import encoder, recurrent
from sequence_laws.adapters.transformers import pretrained
from sequence_laws.errors import ConfigError
from sequence_laws.inputs import Inputs
from sequence_laws.names import SIDES
from sequence_laws.subject import Subject

ADAPTERS: tuple[Callable[..., Subject | None], ...] = (
    encoder,
    recurrent,
    pretrained,
)
GROUP = "sequence_laws.adapters"


def adapters() -> Iterator[Callable[..., Subject | None]]:
    """Those of packages that are imported, without which there is no model of theirs; then ours."""
    yield from (e.load() for e in entry_points(group=GROUP) if sys.modules.get(e.name))
    yield from ADAPTERS


def subject_of(
    model: nn.Module | Subject,
    name: str | None = None,
    *,
    causal: bool | None = None,
    vocabulary: int | None = None,
    width: int | None = None,
    inputs: Tensor | None = None,
    masks: Sequence[str] | None = None,
    build: Sequence[str] = (),
    make: Callable[[], nn.Module] | None = None,
) -> Subject:
    """The subject of a module: see `sequence_laws.check` for the arguments.

    A module that no adapter knows is `Plain`; it claims to be causal unless that is denied.

    Raises:
        ConfigError: it is no module, or what it reads is not known, or something else than given.
        ShapeError: it is given as causal, and gives one output a row.
    """
    if sum(one is not None for one in (vocabulary, width, inputs)) > 1:
        raise ConfigError("give one of vocabulary=, width= and inputs=: a model reads one of these")
    given = Inputs(vocabulary, width) if inputs is None else inputs_like(inputs)
    if not isinstance(model, nn.Module | Subject):
        raise ConfigError(f"a {type(model).__name__} is no model: expected a torch.nn.Module")
    if isinstance(model, Subject):
        subject = model.again()
        subject.name = name or model.name
    else:
        name = name or type(model).__name__
        known: dict[str, Any] = {"causal": causal, "build": build, "make": make}
        answers = (adapter(model, name, **known) for adapter in adapters())
        found = next((one for one in answers if one is not None), None)
        subject = found or plain(model, name, None if given == Inputs() else given, **known)
    reads = subject.inputs
    if given not in (Inputs(), Inputs(reads.vocabulary, reads.width)):
        raise ConfigError(f"{subject.name} reads {reads}, not {given}: leave out what it reads")
    if causal is not None:
        subject.causal, subject.assumed = causal, ""
    if masks is not None:
        claim_masks(subject, masks)
    if causal and subject.pools:
        raise subject.shape_error("one output a row, which cannot be causal")
    return subject


def claim_masks(subject: Subject, masks: Sequence[str]) -> None:
    """Let a subject be judged for padding on some sides alone, or, by ("none",), for none.

    Raises:
        ConfigError: there is no such side, or it takes no mask.
    """
    sides = tuple(side for side in SIDES if side in masks)
    if len(sides) != len(set(masks) - {"none"}) or bool(sides) == ("none" in masks):
        raise ConfigError(f"masks are some of {', '.join(SIDES)}, or none alone: not {masks}")
    if missing := [side for side in sides if side not in subject.masks]:
        raise ConfigError(
            f"{subject.name} takes no padding ({', '.join(missing)}): "
            f"{subject.refused or subject.unmasked}"
        )
    subject.masks = sides
    if not sides:
        subject.unmasked, subject.untried = "it claims to take no mask", ""


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
