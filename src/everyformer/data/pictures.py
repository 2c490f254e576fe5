"""Files of pictures, opened: each upright, its sizes, and its pixels as bytes."""

import io
import re
import struct
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from tqdm import tqdm

from everyformer.core.errors import DataError
from everyformer.data.sources import Entry, Source
from sequence_laws.extras import extra_module

GREY_MODES = {"1", "L", "LA", "I", "I;16", "I;16B"}
DEEP_MODES = {"I", "I;16", "I;16B"}


def pillow(purpose: str) -> Any:
    """The module of pillow that opens and makes pictures; raises where it is not installed."""
    return extra_module("PIL.Image", "images", purpose, "pillow")


def survey(source: Source, entries: Sequence[Entry]) -> tuple[Counter[tuple[int, int]], bool]:
    """Number of pictures of each (height, width), and True where all are grey; headers only."""
    sizes: Counter[tuple[int, int]] = Counter()
    grey = True
    for picture in opened(source, entries, "looking at pictures", decode=False):
        sides = (picture.height, picture.width)
        # of orientations above 4 the rows are columns
        sizes[sides[::-1] if _orientation(picture) > 4 else sides] += 1
        grey = grey and picture.mode in GREY_MODES
    return sizes, grey


def opened(
    source: Source, entries: Sequence[Entry], doing: str, decode: bool = True, quiet: bool = False
) -> Iterator[Any]:
    """Each picture, opened by pillow and, with ``decode``, decoded and set upright.

    ``quiet`` shows no progress.
    """
    image = pillow("reading pictures")
    from PIL import ImageOps

    for entry in tqdm(entries, desc=doing, unit="pictures", disable=quiet or None):
        raw = source.read(entry)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                warnings.simplefilter("error", image.DecompressionBombWarning)
                picture = image.open(io.BytesIO(raw))
                if decode:
                    turned = _orientation(picture) > 1
                    picture.load()
                    if turned:
                        picture = ImageOps.exif_transpose(picture)
        except (image.DecompressionBombError, image.DecompressionBombWarning) as error:
            raise DataError(f"the picture {source.where(entry)} is too large: {error}") from error
        except (OSError, SyntaxError, ValueError, EOFError) as error:
            # pillow names the buffer, of which nobody has heard
            reason = re.sub(r" <_io\.\w+ object at \w+>", "", str(error))
            raise DataError(
                f"the picture {source.where(entry)} is damaged or no picture ({reason}); replace "
                "or remove it"
            ) from error
        if picture.mode == "F":
            raise DataError(
                f"the picture {source.where(entry)} holds fractions, of which nothing says "
                "how large they may be; save it with 8 or 16 bits a value"
            )
        yield picture


def _orientation(picture: Any) -> int:
    """Orientation of a picture that is not decoded yet, as EXIF numbers it; 1: upright."""
    from PIL import Image

    if picture.format == "TIFF":
        return 1  # pillow rotates these itself
    try:
        # not the method of PNGs, which decodes them
        return int(Image.Image.getexif(picture).get(0x0112, 1))
    except (OSError, KeyError, SyntaxError, TypeError, ValueError, struct.error):
        return 1  # what is said about a picture may be damaged while the picture is whole


def pixels_of(picture: Any, size: tuple[int, int], grey: bool) -> np.ndarray:
    """(channels, height, width) uint8 of a decoded picture; ``size`` is (width, height).

    What is transparent is seen on white, and of 16 bits the upper 8 are read.
    """
    from PIL import Image

    if picture.mode in DEEP_MODES:
        picture = Image.fromarray((np.asarray(picture) >> 8).clip(0, 255).astype(np.uint8))
    if picture.mode in ("RGBA", "LA", "PA", "La", "RGBa") or "transparency" in picture.info:
        # a colour that nobody sees may stand where a picture is transparent
        over = picture.convert("RGBA")
        picture = Image.alpha_composite(Image.new("RGBA", over.size, "white"), over)
    mode = "L" if grey else "RGB"
    if picture.mode != mode:
        picture = picture.convert(mode)
    if picture.size != size:
        picture = picture.resize(size, Image.Resampling.BICUBIC)
    array = np.asarray(picture)
    return array[None] if grey else array.transpose(2, 0, 1)
