"""Imports point down the list in pyproject.toml, in no circle, to no helper of another package."""

import ast
import importlib
from functools import cache
from pathlib import Path

import pytest
from importlinter.cli import EXIT_STATUS_SUCCESS, lint_imports

ROOT = Path(__file__).parents[1]
CONTRACTS, SOURCE = ROOT / "pyproject.toml", ROOT / "src"
LAWS = ROOT / "laws" / "src"
LATE = [
    f"everyformer.{file.parent.name}"
    for file in sorted((SOURCE / "everyformer").glob("*/__init__.py"))
    if "late_names(" in file.read_text()
]
"""packages that read their modules when a name of these is asked for"""


def test_imports_keep_the_contracts(capsys):
    """Those inside of functions and those for types count too."""
    status = lint_imports(config_filename=str(CONTRACTS), no_cache=True, no_logo=True)
    assert status == EXIT_STATUS_SUCCESS, capsys.readouterr().out


def modules_read(tree):
    """Dotted names that a file imports; of ``from a import b`` both a and a.b."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


@cache
def helper_of(name):
    """The package of the first module in a dotted name that begins with an underscore, if any."""
    parts = name.split(".")
    for n, part in enumerate(parts if parts[0] in ("everyformer", "sequence_laws") else ()):
        path = SOURCE.joinpath(*parts[: n + 1])
        if part.startswith("_") and (path.is_dir() or path.with_suffix(".py").exists()):
            return ".".join(parts[:n])
    return None


def test_no_module_with_an_underscore_is_read_from_another_package():
    wrong, within = [], 0
    for file in (*SOURCE.rglob("*.py"), *LAWS.rglob("*.py")):
        top = SOURCE if file.is_relative_to(SOURCE) else LAWS
        module = ".".join(file.relative_to(top).with_suffix("").parts)
        for name in modules_read(ast.parse(file.read_text())):
            package = helper_of(name)
            if package is None:
                continue
            within += 1
            if not module.startswith(f"{package}."):
                wrong.append(f"{module} imports {name}")
    assert wrong == []
    assert within > 20


@pytest.mark.parametrize("package", ["everyformer", "sequence_laws", *LATE])
def test_every_name_that_a_package_shows_is_there(package):
    module = importlib.import_module(package)
    assert module.__all__
    for name in module.__all__:
        assert getattr(module, name) is not None


def test_the_former_home_of_the_converters_warns() -> None:
    with pytest.warns(FutureWarning, match="everyformer.lab.convert"):
        from everyformer.interop.convert import import_checkpoint
    from everyformer.lab import convert

    assert import_checkpoint is convert.import_checkpoint
