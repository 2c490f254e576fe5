"""JSON has no infinity and no NaN: they are written as tables, and read back as they were."""

import ast
import json
import math
from pathlib import Path
from typing import Any

import pytest

import everyformer
from everyformer.system.plain import from_json, to_json

SOURCE = Path(everyformer.__file__).parent
ONE_PLACE = "system/plain.py"
VALUES: dict[str, Any] = {
    "inf": math.inf, "-inf": -math.inf, "nan": math.nan, "0": -0.0, "tiny": 5e-324, "third": 1 / 3,
    "inside": [1, (math.inf, {"deep": [-math.inf]})], "none": None, "class names": ["nan", "inf"],
    "$numberDouble": "Infinity",
}  # fmt: skip


def strictly(text: str) -> Any:
    """Read by a reader that knows the constants of JSON alone."""

    def refuse(word: str) -> None:
        raise AssertionError(word)

    return json.loads(text, parse_constant=refuse)


def require_same(found: dict[str, Any]) -> None:
    assert found["inf"] == math.inf
    assert found["-inf"] == -math.inf
    assert math.isnan(found["nan"])
    assert math.copysign(1, found["0"]) == -1
    assert (found["tiny"], found["third"]) == (5e-324, 1 / 3)
    assert found["inside"] == [1, [math.inf, {"deep": [-math.inf]}]]
    assert (found["none"], found["class names"]) == (None, ["nan", "inf"])
    assert found["$numberDouble"] == "Infinity"


def test_every_number_is_read_as_it_was_written() -> None:
    text = to_json(VALUES)
    assert strictly(text)["inf"] == {"$numberDouble": "Infinity"}
    assert strictly(text)["-inf"] == {"$numberDouble": "-Infinity"}
    assert strictly(text)["nan"] == {"$numberDouble": "NaN"}
    require_same(from_json(text))


@pytest.mark.parametrize("value", [{"$numberDouble": "1"}, {"$numberDouble": []}, ["Infinity"]])
def test_what_only_looks_like_a_number_stays(value: Any) -> None:
    assert from_json(json.dumps(value)) == value


def test_a_name_that_stands_twice_may_be_refused() -> None:
    text = '{"a": {"b": 1, "c": {"$numberDouble": "NaN"}, "b": 2}}'
    assert from_json(text)["a"]["b"] == 2
    with pytest.raises(ValueError, match="'b' stands twice in a table"):
        from_json(text, unique=True)
    assert math.isnan(from_json(text.replace(', "b": 2', ""), unique=True)["a"]["c"])


def test_nobody_else_writes_or_reads_json() -> None:
    """So that what holds of `to_json` and `from_json` holds of every file and of every output."""
    calls = ("dump", "dumps", "load", "loads")
    found = {
        path.relative_to(SOURCE).as_posix()
        for path in SOURCE.rglob("*.py")
        if "json" in (text := path.read_text(encoding="utf-8"))
        for node in ast.walk(ast.parse(text))
        if (
            isinstance(node, ast.Attribute)
            and node.attr in calls
            and ast.unparse(node.value) == "json"
        )
        or (isinstance(node, ast.ImportFrom) and node.module == "json")
    }
    assert found == {ONE_PLACE}
