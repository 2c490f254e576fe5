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
import sequence_laws

ROOT = Path(__file__).parents[1]


@pytest.mark.full("builds the wheel")
@pytest.mark.parametrize(("name", "top"), [("everyformer", ROOT), ("sequence_laws", ROOT / "laws")])
def test_the_wheel_holds_the_library_alone_with_one_version(
    name: str, top: Path, tmp_path: Path
) -> None:
    command = [sys.executable, "-m", "pip", "wheel", str(top), "--quiet", "--no-deps"]
    subprocess.run([*command, "--no-build-isolation", "-w", str(tmp_path)], check=True)
    [path] = tmp_path.glob("*.whl")
    with zipfile.ZipFile(path) as wheel:
        names = wheel.namelist()
        about = Parser().parsestr(
            wheel.read(next(name for name in names if name.endswith("METADATA"))).decode()
        )
    assert about["Version"] == everyformer.__version__
    assert {name.split("/")[0].partition("-")[0] for name in names} == {name}
    source = {p.relative_to(top / "src").as_posix() for p in (top / "src").rglob("*.py")}
    assert {name for name in names if name.endswith(".py")} == source
    data = {p.relative_to(top / "src").as_posix() for p in (top / "src").rglob("page.*s")}
    assert {*data, f"{name}/py.typed"} <= {*names}
    assert path.stat().st_size < 3 << 20


def test_every_place_says_the_same_version() -> None:
    version = everyformer.__version__
    cited = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert re.search(r"^version: (.*)$", cited, re.MULTILINE)[1] == version
    assert f"## {version}" in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert sequence_laws.__version__ == version
    for file in (ROOT / "pyproject.toml", ROOT / "laws" / "pyproject.toml"):
        assert tomllib.loads(file.read_text(encoding="utf-8"))["project"]["dynamic"] == ["version"]
