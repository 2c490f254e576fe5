"""What a module of one's own reads and gives: found by trying."""

import contextlib
import inspect
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from sequence_laws.adapters.beside import needs
from sequence_laws.adapters.plain import Plain
from sequence_laws.errors import ConfigError, ShapeError
from sequence_laws.foreign import describe
from sequence_laws.inputs import Inputs, first, place
from sequence_laws.subject import Subject
from sequence_laws.verdict import ShortError

_WIDTHS = ("d_model", "embed_dim", "hidden_size", "n_embd", "dim", "width", "input_size", "d")
_LENGTHS = (12, 16, 32, 64, 8, 128, 256)


class UnreadError(ConfigError):
    """A model takes nothing that was tried; ``first`` is what it raised at first, if any was."""

    def __init__(self, sentence: str, first: Exception | None) -> None:
        super().__init__(sentence)
        self.first = first


def plain(
    model: nn.Module,
    name: str,
    given: Inputs | None = None,
    *,
    causal: bool | None = None,
    build: Sequence[str] = (),
    make: Callable[[], nn.Module] | None = None,
    kind: type[Plain] = Plain,
) -> Subject:
    """The subject of a module: what it reads is ``given``, or found by trying.

    Raises:
        UnreadError: it takes nothing that was tried.
        ShapeError: it gives an output neither at each position nor a row.
    """
    tried: list[tuple[Tensor, Exception]] = []
    every = [given] if given is not None else [*guesses(model)]
    widths = [inputs.width for inputs in (*every, *guesses(model)) if inputs.width]
    for inputs in every:
        subject = kind(model, name, inputs, causal=causal is not False, build=build, make=make)
        denied = "; if it is to read both ways, say causal=False (--causal False)"
        subject.assumed = denied if causal is None else ""
        for more in needs(model, inputs, list(dict.fromkeys(widths))):
            one = subject.furnished(more)
            for length in _LENGTHS:
                if given is None and length == inputs.width:  # (B, d, L) would be taken for it
                    continue
                x = inputs.draw(2, length)
                try:
                    return read(one, x)
                except (ConfigError, ShapeError):
                    raise
                except Exception as error:  # whatever a model says of inputs that are not its own
                    tried.append((x, error))
    ways = "`vocabulary=N` for token ids, `width=D` for features, or `inputs` of its own"
    hint = " It has no embedding and no width that is named."
    for x, says in tried[:1]:
        hint = f" Tried {_words(x)}: {describe(says)}."
    sentence = f"what {name} reads cannot be guessed: give {ways}.{hint}"
    raise UnreadError(sentence, tried[0][1] if tried else None)


def read(subject: Plain, x: Tensor) -> Plain:
    """A subject that gives outputs for some inputs, and knows where they are.

    Raises:
        ShapeError: it gives an output neither at each position nor a row. Any error: its own.
    """
    with torch.no_grad():
        result = subject.call(subject.copy(torch.float32), x)
    subject = with_targets(subject, result, x)
    try:
        subject.run(subject.copy(torch.float32), x)
    except ShortError as error:
        less = error.outputs
        if less < 2 or not (subject.takes(less - 1) and subject.takes(less)):
            raise  # or it cuts texts off, as the law of lengths says
    return subject


def with_targets(subject: Plain, result: Any, x: Tensor) -> Plain:
    """The same at its `place`, given targets where it gives the last output alone without."""
    subject.place, word = place(result), subject.label_word
    if word is None or x.is_floating_point() or first(result).shape[:2] == x.shape[:2]:
        return subject
    more = subject.beside._replace(fixed={**subject.beside.fixed, word: None})
    given = subject.furnished(more)
    with contextlib.suppress(Exception), torch.no_grad():  # of a classifier's labels
        result = given.call(given.copy(torch.float32), x)
        if first(result).dim() == 3 and first(result).shape[:2] == x.shape[:2]:
            given.place = place(result)
            return given
    return subject


def guesses(model: nn.Module) -> Iterator[Inputs]:
    """Tokens of the first embedding, then features of widths that modules name, or that the
    constructor does by a default."""
    for module in model.modules():
        if isinstance(module, nn.Embedding):
            yield Inputs(vocabulary=module.num_embeddings)
            break
    widths: list[Any] = []
    for module in model.modules():
        widths += [getattr(module, name, None) for name in _WIDTHS]
        if isinstance(module, nn.Linear):
            widths.append(module.in_features)
        if isinstance(module, nn.LayerNorm):
            widths.append(module.normalized_shape[-1])
        if isinstance(module, nn.Conv1d):
            widths.append(module.in_channels)
    made = inspect.signature(type(model).__init__).parameters
    widths += [made[name].default for name in _WIDTHS if name in made]
    known = (width for width in widths if type(width) is int and width > 0)
    yield from (Inputs(width=width) for width in dict.fromkeys(known))


def _words(x: Tensor) -> str:
    kind = "features" if x.is_floating_point() else "token ids"
    return f"{kind} {tuple(x.shape)}"
