"""Small files, zips and pictures for the tests of `everyformer.data`, and the real corpora."""

import csv
import io
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

Files = Mapping[str, Any]
"""Path -> content, text or bytes."""
Load = Callable[..., Any]
"""`load_dataset` with a cache of the test's own (the fixture of that name)."""
CORPORA = Path(__file__).parents[2] / ".." / "shared" / "data"


def raw(content: str | bytes) -> bytes:
    return content.encode() if isinstance(content, str) else content


def write(root: Path, files: Files) -> Path:
    for name, content in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(raw(content))
    return root


def pack(path: Path, files: Files) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            archive.writestr(name, raw(content))
    return path


def delimited(rows: Any, delimiter: str = ",", end: str = "\n", quoting: int = 0) -> str:
    """Rows as Python's own CSV writer writes them."""
    file = io.StringIO(newline="")
    csv.writer(file, delimiter=delimiter, lineterminator=end, quoting=quoting).writerows(rows)
    return file.getvalue()


def picture(value: int | np.ndarray = 0, size: tuple[int, int] = (4, 4), mode: str = "L") -> bytes:
    """A PNG of one grey value, or of an array; ``size`` is (width, height)."""
    from PIL import Image

    if isinstance(value, np.ndarray):
        made = Image.fromarray(value)
    else:
        made = Image.new("L", size, value).convert(mode)
    file = io.BytesIO()
    made.save(file, "png")
    return file.getvalue()


def corpus(path: str) -> str:
    """A real corpus beside the checkout; the test is skipped where it is absent."""
    result = CORPORA / path
    if not result.exists():
        pytest.skip(f"the corpus {path} is not in shared/data beside the checkout")
    return str(result)
