"""Files of arrays: which of an .npz are inputs, targets and lengths, and which are held out."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from everyformer.core.errors import DataError
from everyformer.data.config import DataConfig
from everyformer.data.sources import Source, reading

INPUTS = ("x", "inputs", "input", "data", "images", "image", "series", "tokens", "features")
TARGETS = ("y", "targets", "target", "labels", "label", "classes")
HELD_OUT = ("test", "val", "validation", "valid")
"""endings of the arrays that are held out"""


@dataclass(frozen=True)
class ArrayParts:
    """The arrays of a source, training rows first."""

    inputs: np.ndarray
    targets: np.ndarray | None
    lengths: np.ndarray | None
    held_out: int
    """rows at the end that the source holds out itself"""
    note: str


def read_parts(source: Source, config: DataConfig, least: int = 2) -> ArrayParts:
    """The arrays by what they are for, of ``least`` rows at least."""
    [entry] = source.entries
    where = source.where(entry)
    try:
        with reading(where):
            loaded = np.load(io.BytesIO(source.read(entry)), allow_pickle=False)
            arrays = {"x": loaded} if isinstance(loaded, np.ndarray) else {**loaded}
    except (ValueError, zipfile.BadZipFile) as error:
        raise DataError(
            f"{where} is no file of plain arrays ({error}): write it with numpy.save or "
            "numpy.savez, from arrays of numbers or strings (nothing is unpickled)"
        ) from error
    by_name = {name.lower(): name for name in arrays}
    x = _named(by_name, INPUTS)
    if x is None:
        raise DataError(
            f"{where} has the arrays {', '.join(arrays)}, none of which is called {INPUTS[0]}, "
            f"{', '.join(INPUTS[1:-1])} or {INPUTS[-1]}: name the inputs so"
        )
    names = TARGETS if config.label_column is None else (config.label_column.lower(),)
    y = _named(by_name, names)
    if y is None and config.label_column is not None:
        raise DataError(
            f"{where} has no array '{config.label_column}'; it has {', '.join(arrays)}: choose "
            "with --data.label-column"
        )
    columns = [_column(arrays, by_name, name) for name in (x, y, "lengths")]
    inputs, targets, lengths = columns
    assert inputs is not None
    for name, other in (("targets", targets), ("lengths", lengths)):
        if other is not None and sum(map(len, other)) != sum(map(len, inputs)):
            raise DataError(
                f"{where} has {sum(map(len, inputs)):,} rows of inputs but "
                f"{sum(map(len, other)):,} {name}: there must be one a row"
            )
    joined = [None if part is None else np.concatenate(part) for part in columns]
    assert joined[0] is not None
    held_out = len(inputs[1]) if len(inputs) > 1 else 0
    note = "the source's own held-out arrays" if held_out else ""
    if len(joined[0]) < least:
        few = "fewer than two rows; training and validation need both" if least > 1 else "no rows"
        raise DataError(f"{where} has {few}")
    return ArrayParts(joined[0], joined[1], joined[2], held_out, note)


def _named(by_name: dict[str, str], names: Sequence[str]) -> str | None:
    """The first of ``names`` that is there, by itself or in parts."""
    for name in names:
        if name in by_name or f"{name}_train" in by_name:
            return name
    return None


def _column(
    arrays: dict[str, np.ndarray], by_name: dict[str, str], name: str | None
) -> list[np.ndarray] | None:
    """An array, or its training part and the one that is held out."""
    if name is None:
        return None
    if name in by_name:
        return [arrays[by_name[name]]]
    if f"{name}_train" not in by_name:
        return None
    rest = next((f"{name}_{e}" for e in HELD_OUT if f"{name}_{e}" in by_name), None)
    parts = [f"{name}_train", *([rest] if rest else [])]
    return [arrays[by_name[part]] for part in parts]
