"""Small wrong changes that the tests see (`make mutations`): each applies, and names its test."""

import ast
from pathlib import Path

import pytest

from mutations.run import CAUGHT, HERE, ROOT, changed, header

PATCHES = sorted(HERE.glob("*.patch"))


def test_there_are_some_in_every_part_of_the_house() -> None:
    parts = {name.split("/")[2] for patch in PATCHES for name in changed(patch)}
    assert len(PATCHES) >= 60
    assert parts >= {"engines", "genes", "models", "data", "training", "generation", "interop"}
    assert parts >= {"sequence_laws", "checks", "lab", "core"}


@pytest.mark.parametrize("patch", PATCHES, ids=lambda patch: patch.stem)
def test_a_mutation_applies_and_names_a_test_that_is_there(patch: Path) -> None:
    words, verdict, what = header(patch)
    assert words[0].isupper()
    assert words.endswith(".")
    changes = changed(patch)
    assert changes
    for name, text in changes.items():
        ast.parse(text)
        assert text != (ROOT / name).read_text(encoding="utf-8")
    if verdict == CAUGHT:
        file, _, test = what.partition("::")
        functions = ast.walk(ast.parse((ROOT / file).read_text(encoding="utf-8")))
        names = {node.name for node in functions if isinstance(node, ast.FunctionDef)}
        assert test.partition("[")[0] in names
    else:
        assert verdict == "survives"
        assert what
