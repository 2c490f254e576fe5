"""The wheel: what is shipped, under which version, and what it needs."""

import re
import subprocess
import sys
import tomllib
import zipfile
from email.parser import Parser
from pathlib import Path

import pytest

import everyformer

ROOT = Path(__file__).parents[1]


@pytest.mark.full("builds the wheel")
def test_the_wheel_holds_the_library_alone_with_one_version(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "pip", "wheel", str(ROOT), "--quiet", "--no-deps"]
    subprocess.run([*command, "--no-build-isolation", "-w", str(tmp_path)], check=True)
    [path] = tmp_path.glob("*.whl")
    with zipfile.ZipFile(path) as wheel:
        names = wheel.namelist()
        about = Parser().parsestr(
            wheel.read(next(name for name in names if name.endswith("METADATA"))).decode()
        )
    assert about["Version"] == everyformer.__version__
    assert {name.split("/")[0].partition("-")[0] for name in names} == {"everyformer"}
    source = {p.relative_to(ROOT / "src").as_posix() for p in (ROOT / "src").rglob("*.py")}
    assert {name for name in names if name.endswith(".py")} == source
    assert {f"everyformer/report/page.{end}" for end in ("css", "html")} <= {*names}
    assert path.stat().st_size < 3 << 20


def test_every_place_says_the_same_version() -> None:
    version = everyformer.__version__
    cited = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert re.search(r"^version: (.*)$", cited, re.MULTILINE)[1] == version
    assert f"## {version}" in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert project["dynamic"] == ["version"]
