"""Imports point down the list in pyproject.toml, and no package has a circle in it."""

from pathlib import Path

from importlinter.cli import EXIT_STATUS_SUCCESS, lint_imports

CONTRACTS = Path(__file__).parents[1] / "pyproject.toml"


def test_imports_keep_the_contracts(capsys):
    """Those inside of functions and those for types count too."""
    status = lint_imports(config_filename=str(CONTRACTS), no_cache=True, no_logo=True)
    assert status == EXIT_STATUS_SUCCESS, capsys.readouterr().out
