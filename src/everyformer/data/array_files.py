"""Files of arrays: which of an .npz are inputs, targets and lengths, and which are held out."""

import io
import zipfile
from collections.abc import Mapping, Sequence
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
    groups: np.ndarray | None = None
    """(rows,) the group of each, where rows are split by groups"""


def read_parts(source: Source, config: DataConfig, least: int = 2) -> ArrayParts:
    """The arrays by what they are for, of ``least`` rows at least."""
    [entry] = source.entries
    where = source.where(entry)
    try:
        with reading(where):
            loaded = np.load(io.BytesIO(source.read(entry)), allow_pickle=False)
            arrays = {"x": loaded} if isinstance(loaded, np.ndarray) else {**loaded}
            arrays = {name: _text(array) for name, array in arrays.items() if array.ndim}
    except (ValueError, zipfile.BadZipFile) as error:
        raise DataError(
            f"{where} is no file of plain arrays ({error}): write it with numpy.save or "
            "numpy.savez, from arrays of numbers or strings (nothing is unpickled)"
        ) from error
    if not arrays:
        raise DataError(f"{where} holds no array of rows, but single numbers: give rows")
    inputs = _parts(arrays, INPUTS)
    if inputs is None:
        raise DataError(
            f"{where} has the arrays {', '.join(arrays)}, none of which is called {INPUTS[0]}, "
            f"{', '.join(INPUTS[1:-1])} or {INPUTS[-1]}: name the inputs so"
        )
    names = TARGETS if config.label_column is None else (config.label_column.lower(),)
    targets, lengths = _parts(arrays, names), _parts(arrays, ("lengths",))
    if targets is None and config.label_column is not None:
        raise DataError(
            f"{where} has no array '{config.label_column}'; it has {', '.join(arrays)}: choose "
            "with `data.label_column`"
        )
    groups = None
    if config.group_column is not None:
        groups = _parts(arrays, (config.group_column.lower(),))
        if groups is None or any(part.ndim != 1 for part in groups):
            raise DataError(
                f"{where} has no array '{config.group_column}' (N,), a group for each row; it has "
                f"{', '.join(arrays)}: choose with `data.split=group`"
            )
    for name, other in (("targets", targets), ("lengths", lengths), ("groups", groups)):
        if other is not None and sum(map(len, other)) != sum(map(len, inputs)):
            raise DataError(
                f"{where} has {sum(map(len, inputs)):,} rows of inputs but "
                f"{sum(map(len, other)):,} {name}: there must be one a row"
            )
    joined = np.concatenate(inputs)
    held_out = len(inputs[1]) if len(inputs) > 1 else 0
    note = "the source's own held-out arrays" if held_out else ""
    if len(joined) < least:
        few = "fewer than two rows; training and validation need both" if least > 1 else "no rows"
        raise DataError(f"{where} has {few}")
    y, real, group = (
        None if part is None else np.concatenate(part) for part in (targets, lengths, groups)
    )
    return ArrayParts(joined, y, real, held_out, note, group)


def _text(array: np.ndarray) -> np.ndarray:
    """Strings in place of their bytes, which older files have."""
    return np.char.decode(array, "utf-8") if array.dtype.kind == "S" else array


def _parts(arrays: Mapping[str, np.ndarray], names: Sequence[str]) -> list[np.ndarray] | None:
    """The first of ``names`` that is there: an array, or its training part and that held out."""
    by_name = {name.lower(): array for name, array in arrays.items()}
    for name in names:
        if name in by_name:
            return [by_name[name]]
        if f"{name}_train" in by_name:
            ends = [end for end in HELD_OUT if f"{name}_{end}" in by_name]
            return [by_name[f"{name}_{end}"] for end in ("train", *ends[:1])]
    return None
