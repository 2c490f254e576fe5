"""Command lines in a folder of their own."""

from collections.abc import Callable
from pathlib import Path

import pytest

from everyformer.cli import main

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Run:
    """The exit status and both outputs of a command line."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("EVERYFORMER_CACHE", str(tmp_path / "cache"))

    def run(*words: str) -> tuple[int, str, str]:
        capsys.readouterr()
        code = main(words)
        return code, *capsys.readouterr()

    return run
