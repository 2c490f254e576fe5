"""`make demo` installs the library alone, `make test` what development needs too."""

import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")
@pytest.mark.parametrize(("target", "dev"), [("demo", False), ("test", True)])
def test_a_target_installs_what_it_needs(target: str, dev: bool, tmp_path: Path) -> None:
    for name in ("Makefile", "pyproject.toml", "constraints.txt"):
        shutil.copy(ROOT / name, tmp_path)
    plan = subprocess.run(["make", "-n", target], cwd=tmp_path, capture_output=True, text=True)
    assert plan.returncode == 0, plan.stderr
    assert "pip install --quiet -e .\n" in plan.stdout
    assert ("[dev]" in plan.stdout) is dev
