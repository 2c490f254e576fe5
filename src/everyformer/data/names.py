"""Names by which columns of tables and endings of files show what they hold."""

from __future__ import annotations

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


def two_languages(names: list[str]) -> bool:
    """True where ``names``, in lower case, are two different languages, by their codes or words."""
    return len(names) == len(set(names)) == 2 and (
        LANGUAGES.issuperset(names) or LANGUAGE_NAMES.issuperset(names)
    )
