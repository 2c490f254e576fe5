"""Layout of a source: the split and the classes that folders and file names show."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from everyformer.core.errors import DataError, nearest
from everyformer.data.sources import Entry, Source

NOTES = {"readme", "license", "licence", "copying", "authors", "changelog"}
SPLITS = {
    "train": "train",
    "training": "train",
    "valid": "validation",
    "validation": "validation",
    "val": "validation",
    "dev": "validation",
    "test": "test",
    "testing": "test",
}


@dataclass(frozen=True)
class SourceLayout:
    """The split of a source as its folders show it."""

    train: tuple[Entry, ...]
    """The training entries; all entries when the source has no split."""
    validation: tuple[Entry, ...] | None
    """The held-out entries, or None when the source has no split."""
    note: str
    """Half a sentence on where the split is from; empty without one."""

    @property
    def entries(self) -> tuple[Entry, ...]:
        """All entries, those for training first."""
        return (*self.train, *(self.validation or ()))


def find_layout(entries: Sequence[Entry], part: str | None = None) -> SourceLayout:
    """The split into train, valid and test by folder (or, with files only, by file name).

    A folder common to all is set aside first, so `parts` start at the split's inside or, without a
    split, at the class. With both valid and test, test stays unread; ``part`` chooses another part
    to hold out, by its word (test), by a folder or by a file's name without its ending.
    """
    core = without_notes(entries)
    level = core
    while True:
        if groups := _groups(level):
            return _split(groups, part)
        if len({e.parts[0] for e in level}) > 1 or min(len(e.parts) for e in level) < 2:
            break
        level = [replace(e, parts=e.parts[1:]) for e in level]
    while min(len(e.parts) for e in core) > 2 and len({e.parts[0] for e in core}) == 1:
        core = [replace(e, parts=e.parts[1:]) for e in core]
    if part is None:
        return SourceLayout(tuple(core), None, "")
    validation = _named(part, core)
    rest = tuple(entry for entry in core if entry not in validation)
    if not rest:
        raise DataError(
            f"there is nothing but '{part}' in the source, so nothing is left to train on; to hold "
            "out everything give `data.validation=1`"
        )
    return SourceLayout(rest, validation, f"'{part}' is held out")


def without_notes(entries: Sequence[Entry]) -> list[Entry]:
    """All but the likes of README; everything where there is nothing else."""
    return [e for e in entries if Path(e.parts[-1]).stem.lower() not in NOTES] or list(entries)


Groups = dict[str, tuple[str, list[Entry]]]
"""train, validation, test -> (the source's word, entries)."""


def _groups(entries: Sequence[Entry]) -> Groups | None:
    """Entries by what their folders or else their names say, if all say something and some are for
    training."""
    inside = [entry for entry in entries if len(entry.parts) > 1]
    folders = [(entry.parts[0], replace(entry, parts=entry.parts[1:])) for entry in inside]
    words = [() if len(entry.parts) > 1 else (*_words(entry.parts[0]),) for entry in entries]
    names = [(w[0] if len(w) == 1 else "", entry) for w, entry in zip(words, entries, strict=True)]
    for form, named in (("{}/", folders), ("{} files", names)):
        groups: Groups = {}
        for word, entry in named:
            part = SPLITS.get(word.lower(), "")
            groups.setdefault(part, (form.format(word), []))[1].append(entry)
        if "" not in groups and "train" in groups and len(groups) > 1:
            return groups
    return None


def _split(groups: Groups, part: str | None) -> SourceLayout:
    train = groups["train"]
    if part is not None:
        every = [entry for _, entries in groups.values() for entry in entries]
        held_out = groups[part][1] if part in groups else _named(part, every)
        return SourceLayout(
            tuple(train[1]), tuple(held_out), f"the source's own {train[0]} and '{part}'"
        )
    validation = groups.get("validation") or groups["test"]
    note = f"the source's own {train[0]} and {validation[0]}"
    if "validation" in groups and "test" in groups:
        note += f" ({groups['test'][0]} left unread)"
    return SourceLayout(tuple(train[1]), tuple(validation[1]), note)


def _named(part: str, entries: Sequence[Entry]) -> tuple[Entry, ...]:
    """The entries that lie in a folder ``part``, are called so, or have the word in their name."""
    named = tuple(e for e in entries if part.lower() in _names(e) | _words(e.name))
    if not named:
        known = sorted({name for entry in entries for name in _names(entry)})
        raise DataError(f"the source has no part '{part}'; {nearest(part, known)}")
    return named


def _names(entry: Entry) -> set[str]:
    *folders, last = entry.name.lower().split("/")
    return {*folders, Path(last).stem}


def _words(name: str) -> set[str]:
    """Words for a split in a file's name; a number may follow (test2016)."""
    return {w for w in re.split(r"[._\-\d]+", Path(name).name.lower()) if w in SPLITS}


def class_entries(source: Source, layout: SourceLayout) -> tuple[SourceLayout, int]:
    """The entries that lie in a class's folder, and how many lie elsewhere.

    ``parts[0]`` of each entry is its class.
    """
    train, held_out = (
        None if part is None else tuple(e for e in part if len(e.parts) > 1)
        for part in (layout.train, layout.validation)
    )
    if not train or held_out == ():
        raise DataError(
            f"'{source.spec}' has no folders for classes; put the files of each class into a "
            "folder of its own, or take a task without classes"
        )
    loose = len(layout.entries) - len(train) - len(held_out or ())
    return replace(layout, train=train, validation=held_out), loose


def class_names(labels: Iterable[str], validation: Iterable[str], where: str) -> tuple[str, ...]:
    """The classes in order, by value when all are whole numbers."""
    names = set(labels)
    missing = sorted(set(validation) - names)
    if missing:
        raise DataError(
            f"the held-out part of '{where}' has the class '{missing[0]}', which the training part "
            "lacks; give both parts the same classes"
        )
    if len(names) < 2:
        raise DataError(
            f"'{where}' has only one class, '{next(iter(names), '')}'; a classifier needs two"
        )
    if all(re.fullmatch(r"-?\d+", label) for label in names):
        return tuple(sorted(names, key=lambda label: (int(label), label)))
    return tuple(sorted(names))
