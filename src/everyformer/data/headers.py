"""Names that tell what a column holds, and numbers as cells have them."""

import re
from collections.abc import Iterable


def _names(words: str) -> frozenset[str]:
    return frozenset(words.split())


TEXTS = _names(
    "text texts sentence sentences review reviews content body document comment message tweet "
    "review_text review_body reviewtext"
)
"""Names of columns that hold the text, without doubt."""
LABELS = _names(
    "label labels class classes category sentiment target stars rating polarity intent topic "
    "emotion"
)
"""Names of columns that hold the class, without doubt unless there are two of them."""
FILES = _names(
    "file_name file filename image path name filepath file_path image_path image_name image_file "
    "image_id img img_path picture photo"
)
"""Names of columns that hold the names of files."""
FIELDS = ("source", "target")
"""Names of columns and fields of pairs where no languages name them."""
LANGUAGES = _names(
    "aa ab ae af ak am an ar as av ay az ba be bg bi bm bn bo br bs ca ce ch co cr cs cu cv cy da "
    "de dv dz ee el en eo es et eu fa ff fi fj fo fr fy ga gd gl gn gu gv ha he hi ho hr ht hu hy "
    "hz ia id ie ig ii ik io is it iu ja jv ka kg ki kj kk kl km kn ko kr ks ku kv kw ky la lb lg "
    "li ln lo lt lu lv mg mh mi mk ml mn mr ms mt my na nb nd ne ng nl nn no nr nv ny oc oj om or "
    "os pa pi pl ps pt qu rm rn ro ru rw sa sc sd se sg si sk sl sm sn so sq sr ss st su sv sw ta "
    "te tg th ti tk tl tn to tr ts tt tw ty ug uk ur uz ve vi vo wa wo xh yi yo za zh zu"
)
"""ISO 639-1: the endings by which files show by themselves that they are parallel text."""
LANGUAGE_NAMES = _names(
    "arabic chinese czech danish dutch english finnish french german greek hebrew hindi hungarian "
    "italian japanese korean norwegian polish portuguese romanian russian spanish swedish turkish "
    "ukrainian vietnamese"
)
FEW = 0.5
"""Different values for each row, up to which a column is one of classes."""
KNOWN = TEXTS | LABELS | FILES | LANGUAGES | set(FIELDS)
_DECIMAL = re.compile(r"[-+]?\d*([.,])\d+")
_THOUSANDS = re.compile(r"[+-]?[1-9]\d{0,2},\d{3}")


def two_languages(names: list[str]) -> bool:
    """True where ``names``, in lower case, are two different languages, by their codes or words."""
    return len(names) == len(set(names)) == 2 and (
        LANGUAGES.issuperset(names) or LANGUAGE_NAMES.issuperset(names)
    )


def is_number(cell: str) -> bool:
    """True where a cell is a number, with a comma or a point."""
    try:
        number(cell)
    except ValueError:
        return False
    return True


def are_numbers(cells: Iterable[str]) -> bool:
    """True where all cells are numbers, but for empty ones."""
    return all(map(is_number, filter(str.strip, cells)))


def number(cell: str) -> float:
    """A cell that is a number, with a comma or a point; else a `ValueError`."""
    # Python's own form of a number, which a table holds as a name
    if "_" in cell:
        raise ValueError(cell)
    return float(cell.strip().replace(",", ".", 1))


def decimal_commas(cells: Iterable[str]) -> bool:
    """True where some cells are numbers with a comma before their decimals, none with a point."""
    marks = {match[1] for cell in cells if (match := _DECIMAL.fullmatch(cell.strip()))}
    return marks == {","}


def doubtful(cells: Iterable[str]) -> str | None:
    """The first of a column's cells whose comma may part thousands, as in 1,008 with 993.

    None where there is none, or another cell shows that commas are decimal ones: 0,899 or 2,5.
    """
    written = [cell.strip() for cell in cells if "," in cell]
    return written[0] if written and all(map(_THOUSANDS.fullmatch, written)) else None
