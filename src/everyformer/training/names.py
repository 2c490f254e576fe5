"""Short names of options, the same for flags, config files and Python.

`steps` is `training.steps`, and `data` is `data.source`.
"""

from collections.abc import Mapping
from typing import Any

from everyformer.core.config import field_types, part_marked
from everyformer.core.errors import ConfigError
from everyformer.core.former import renamed
from everyformer.data.config import DataConfig, TextSource
from everyformer.genes.config import Architecture
from everyformer.training.config import TrainingConfig

HOMES: dict[type, str] = {
    DataConfig: "data",
    TextSource: "data",
    TrainingConfig: "training",
    Architecture: "model",
}
_SHORTENED: dict[type, tuple[str, ...]] = {
    DataConfig: ("tokenizer", "length", "context"),
    TrainingConfig: (
        *("steps", "batch", "lr", "seed", "device", "threads", "precision", "compile", "parallel"),
        *("budget_seconds", "budget_tokens", "budget_flops", "class_weights"),
    ),
    Architecture: ("width", "layers", "heads"),
}
_SHORTER = {
    (DataConfig, "source"): "data",
    (TextSource, "source"): "data",
    (TrainingConfig, "evaluate_sequences"): "sequences",
}
ALIASES: dict[tuple[type, str], str] = {
    key: f"--{short.replace('_', '-')}"
    for key, short in (
        *_SHORTER.items(),
        *(((cls, name), name) for cls, names in _SHORTENED.items() for name in names),
    )
}
"""(class, field) -> the short name beside --home.field"""
OTHER_NAMES = {"from_run": "from", "class_name": "class"}
"""field of a verb's own options -> its name there and in config files: words of Python itself"""


def in_full(kind: type, values: Mapping[str, Any]) -> dict[str, Any]:
    """``values`` of the options ``kind`` under the names of their fields, each in its table.

    Raises:
        ConfigError: an option is given twice, by both of its names.
    """
    fields = field_types(kind)
    others = {name: field for field, name in OTHER_NAMES.items()}
    short = {
        alias[2:].replace("-", "_"): (HOMES[cls], name)
        for (cls, name), alias in ALIASES.items()
        if cls in (home := fields.get(HOMES[cls]), part_marked(home))
    }
    named: dict[str, Any] = {}
    tables: list[tuple[str, str, Any]] = []
    for key, value in renamed(values).items():
        home, inner = short.get(key, (key, ""))
        if others.get(key) in fields:
            named[others[key]] = value
        elif key not in short or (home == key and not isinstance(value, str)):
            named[key] = dict(value) if isinstance(value, Mapping) else value
        else:
            tables.append((home, inner, value))
    for home, inner, value in tables:
        table = named.setdefault(home, {})
        if not isinstance(table, dict) or inner in table:
            raise ConfigError(
                f"`{home}.{inner}` is given twice, by its short name too: leave one of them out"
            )
        table[inner] = value
    return named
