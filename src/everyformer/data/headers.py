"""Headers of tables: the first row names the columns, which its words show or the rest suggests.

A guess asks of every column whether its first cell could be one of those below. (`csv.Sniffer`
compares types and lengths alone: it takes the first of some sentence pairs for a header.)
"""

import re
from collections import Counter
from collections.abc import Iterable, Sequence

_TEXTS = (
    "text texts sentence sentences review reviews content body document comment message tweet "
    "review_text review_body reviewtext"
)
_LABELS = (
    "label labels class classes category sentiment target stars rating polarity intent topic "
    "emotion"
)
_FILES = (
    "file_name file filename image path name filepath file_path image_path image_name image_file "
    "image_id img img_path picture photo"
)
TEXTS = frozenset(_TEXTS.split())
"""Names of columns that hold the text, without doubt."""
LABELS = frozenset(_LABELS.split())
"""Names of columns that hold the class, without doubt unless there are two of them."""
FILES = frozenset(_FILES.split())
"""Names of columns that hold the names of files."""
DATES = frozenset(("date", "time", "datetime", "timestamp", "ds"))
"""Names of columns that hold times, and are no values themselves."""
FIELDS = ("source", "target")
"""Names of columns and fields of pairs where no languages name them."""
_CODES = (
    "aa ab ae af ak am an ar as av ay az ba be bg bi bm bn bo br bs ca ce ch co cr cs cu cv cy da "
    "de dv dz ee el en eo es et eu fa ff fi fj fo fr fy ga gd gl gn gu gv ha he hi ho hr ht hu hy "
    "hz ia id ie ig ii ik io is it iu ja jv ka kg ki kj kk kl km kn ko kr ks ku kv kw ky la lb lg "
    "li ln lo lt lu lv mg mh mi mk ml mn mr ms mt my na nb nd ne ng nl nn no nr nv ny oc oj om or "
    "os pa pi pl ps pt qu rm rn ro ru rw sa sc sd se sg si sk sl sm sn so sq sr ss st su sv sw ta "
    "te tg th ti tk tl tn to tr ts tt tw ty ug uk ur uz ve vi vo wa wo xh yi yo za zh zu"
)
_WORDS = (
    "arabic chinese czech danish dutch english finnish french german greek hebrew hindi hungarian "
    "italian japanese korean norwegian polish portuguese romanian russian spanish swedish turkish "
    "ukrainian vietnamese"
)
LANGUAGES = frozenset(_CODES.split())
"""ISO 639-1: the endings by which files show by themselves that they are parallel text."""
LANGUAGE_NAMES = frozenset(_WORDS.split())
FEW = 0.5
"""Different values for each row, up to which a column is one of classes."""
_KNOWN = TEXTS | LABELS | LANGUAGES | DATES | set(FIELDS)
_NAME = re.compile(r"[^\W\d][\w.\-]*")
"""a word as columns are called"""
_DECIMAL = re.compile(r"[-+]?\d*([.,])\d+")
_THOUSANDS = re.compile(r"[+-]?[1-9]\d{0,2},\d{3}")


def finds_header(
    first: Sequence[str], below: Sequence[Sequence[str]], chosen: Sequence[str]
) -> tuple[bool, bool]:
    """A pair: True where the first row is a header, and True where that is certain.

    ``chosen``: names of columns in the options, which must then be there.
    """
    names = [cell.strip().lower() for cell in first]
    columns = list(zip(*below, strict=True)) if below else [()] * len(first)
    if chosen or two_languages(names):
        return True, True
    once = [
        name
        for name, cells in zip(names, columns, strict=True)
        if name in _KNOWN and name not in {cell.strip().lower() for cell in cells}
    ]
    if any(name not in LANGUAGES for name in once) or len(set(once)) > 1:
        return True, True
    if not below or not all(names):
        return False, len(names) < 2
    signs = [_sign(cell.strip(), cells) for cell, cells in zip(first, columns, strict=True)]
    strongest = max(map(abs, signs))
    return strongest > 0 and -strongest not in signs, False


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
    """The first of a column's cells whose comma may part thousands, as in 1,008 beside 993.

    None where there is none, or another cell shows that commas are decimal ones: 0,899 or 2,5.
    """
    written = [cell.strip() for cell in cells if "," in cell]
    return written[0] if written and all(map(_THOUSANDS.fullmatch, written)) else None


def either(cell: str) -> str:
    """Both meanings of a `doubtful` cell, and the remedy."""
    return (
        f"may be {cell.replace(',', '')} or {cell.replace(',', '.')}; write the numbers of this "
        "column without marks of thousands, and decimals with a point"
    )


def _sign(first: str, cells: Sequence[str]) -> int:
    """Evidence of the first cell of a column for a header, above 0, or against one, below."""
    filled = [cell.strip() for cell in cells if cell.strip()]
    if not filled:
        return 0
    if all(map(is_number, filled)):
        return -2 if is_number(first) else 2
    counts = Counter(filled)
    if first in counts:
        return -2
    is_name = _NAME.fullmatch(first) is not None
    if len(counts) <= FEW * len(filled):
        return 2 if min(counts.values()) > 1 else int(is_name)
    lengths = sorted(map(len, filled))
    if is_name and len(first) < lengths[0]:
        return 1
    return 0 if is_name and 2 * len(first) < lengths[len(lengths) // 2] else -1
