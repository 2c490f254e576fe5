"""Masks of modules of one's own: by which word, and in which form, padding is told."""

import re
from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from sequence_laws.errors import LawsError
from sequence_laws.foreign import FAILURES, cut
from sequence_laws.inputs import seed
from sequence_laws.names import SIDES
from sequence_laws.padding import real
from sequence_laws.signatures import parameters
from sequence_laws.subject import Subject
from sequence_laws.verdict import Inapplicable

FORMS: Mapping[str, Callable[[Tensor], Tensor]] = {
    "{}": lambda real: real,
    "({}).long()": lambda real: real.long(),
    "~({})": lambda real: ~real,
    "torch.where({}, 0.0, -1e9)": lambda real: torch.where(real, 0.0, -1e9),
}
"""of a mask that is True at what is real: as it is, as tokenizers give it, True at padding (as
torch's layers take it), and added to scores; by the Python of each"""
KEEP, NUMBERS, PADDING, ADDED = FORMS
REFUSALS = (ValueError, NotImplementedError, AssertionError)
_OF_MASKS = re.compile("mask|padd|left|right", re.IGNORECASE)
"""what is said of padding that is refused"""


def masking(subject: Subject) -> tuple[str, str] | None:
    """The first of its `mask_words` that a module takes (B, L), and in which form; None: none.

    In it a mask of what is all real gives what no mask gives; and what stands in padding moves
    nothing, if there is such a form.
    """
    for word in (word for word in subject.mask_words if word in parameters(subject.model)):
        if (form := _form(subject, word)) is not None:
            return word, form
    return None


def sides(subject: Subject) -> tuple[tuple[str, ...], str]:
    """Where padding may stand that a module takes, and what it says where it refuses it in words
    of masks; what fails without such words is for the laws to find."""
    taken, refused = list[str](), dict[str, list[str]]()
    for side in SIDES:
        try:
            x = subject.inputs.draw(2, subject.usual())
            subject.exact(x, real(x.shape[1], side))
        except (Inapplicable, *FAILURES) as error:
            says = isinstance(error, REFUSALS) and not isinstance(error, LawsError)
            if says and _OF_MASKS.search(str(error)):
                refused.setdefault(cut(str(error)), []).append(side)
                continue
        taken.append(side)
    words = [f"it refuses padding ({', '.join(some)}): {text}" for text, some in refused.items()]
    return tuple(taken), "; ".join(words)


def _forms(word: str) -> tuple[str, ...]:
    """Those that a name allows: True at padding only where it says padding."""
    if word.endswith("attention_mask"):
        return NUMBERS, KEEP, ADDED
    return (KEEP, NUMBERS, PADDING) if "padding" in word else (KEEP, NUMBERS)


def _form(subject: Subject, word: str) -> str | None:
    try:
        x = subject.inputs.draw(2, subject.usual())
        y, bound = subject.exact(x), subject.bound(x)
    except (Inapplicable, *FAILURES):  # as the laws will say
        return KEEP
    ones = torch.ones(x.shape[:2], dtype=torch.bool)
    part = ones.clone()
    part[1, : min(2, x.shape[1] - 1)] = False
    z = x.clone()
    z[~part] = subject.inputs.other(x)[~part]

    def run(x: Tensor, mask: Tensor) -> Tensor | None:
        with torch.no_grad(), subject.exactly():
            seed(0)
            try:
                result = subject.given(subject.fresh(), subject.widened(x), **{word: mask})
                return subject.outputs(result, x)
            except FAILURES:  # whatever it says of a mask that is not its own
                return None

    def near(one: Tensor | None, other: Tensor | None) -> bool:
        """Whether they are equal at what is real."""
        if one is None or other is None or one.shape != other.shape:
            return False
        off = (one - other)[part] if one.shape[1] == x.shape[1] else one - other
        return bool(off.abs().max() <= bound)

    ran = equal = None
    for form in _forms(word):
        if form == ADDED and equal is None:  # ones that were added would change nothing
            continue
        given = FORMS[form]
        whole = run(x, given(ones))
        if near(whole, y):
            if near(run(x, given(part)), run(z, given(part))):
                return form
            equal = equal or form
        ran = ran or (form if whole is not None else None)
    return equal or ran
