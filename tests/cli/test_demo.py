"""`make demo` installs the library alone, `make test` what development needs too."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")
@pytest.mark.parametrize(("target", "dev"), [("demo", False), ("test", True)])
def test_a_target_installs_what_it_needs(target: str, dev: bool, tmp_path: Path) -> None:
    (tmp_path / "laws").mkdir()
    for name in ("Makefile", "pyproject.toml", "laws/pyproject.toml", "constraints.txt"):
        shutil.copy(ROOT / name, tmp_path / name)
    plan = subprocess.run(["make", "-n", target], cwd=tmp_path, capture_output=True, text=True)
    assert plan.returncode == 0, plan.stderr
    assert "pip install --quiet -e ./laws -e .\n" in plan.stdout
    assert ("[dev]" in plan.stdout) is dev


def test_the_demo_gives_every_member_the_same_steps() -> None:
    """With the installation it takes less than four minutes on a quiet machine, which README says;
    a budget in seconds would turn other work into other numbers of steps."""
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8").replace("\\\n", " ")
    [words] = re.findall(r"everyformer compare (.*) --out", makefile)
    members, _ = words.split(" --", 1)
    seeds, steps = (re.findall(rf"--{n} (\d+)", words)[0] for n in ("seeds", "steps"))
    assert len(members.split()) * int(seeds) * int(steps) == 1800
    assert "budget" not in words
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert "three members over three seeds, in less than four minutes together" in readme
    # the same with plain pip
    same = re.sub(r" --lengths [\d ]+$", "", " ".join(words.split()))
    assert f"everyformer compare {same}\n" in readme
