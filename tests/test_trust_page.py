"""What docs/trust.md names is there: every law, every test, every member."""

import ast
import re
from pathlib import Path

from everyformer.checks.verify import LAWS
from everyformer.family import list_members

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "trust.md").read_text(encoding="utf-8")


def named_in(file: str) -> set[str]:
    tree = ast.parse((ROOT / file).read_text(encoding="utf-8"))
    return {part.name for part in tree.body if isinstance(part, ast.FunctionDef)}


def test_every_test_that_it_names_exists() -> None:
    named = re.findall(r"`(tests/[\w/]+\.py)(?:::(\w+))?`", PAGE)
    assert len(named) > 80
    assert not [
        f"{file}::{name}" for file, name in named if not name and not (ROOT / file).exists()
    ]
    assert not [f"{file}::{name}" for file, name in named if name and name not in named_in(file)]


def test_its_laws_are_the_laws() -> None:
    table = PAGE.split("## ")[1]
    assert re.findall(r"^\| (\w+) \|", table, re.MULTILINE)[1:] == [*LAWS]


def test_every_member_is_held_against_something() -> None:
    section = PAGE.split("## ")[2].replace(
        "aft-full, -local, -simple", "aft-full aft-local aft-simple"
    )
    assert not [m.name for m in list_members() if not re.search(rf"\b{m.name}\b", section)]
