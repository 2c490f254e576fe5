"""`constraints.txt`: what `make` installs, in versions that the oldest Python we claim can have.

Where one cannot be had, pip tries every version of everything else for many minutes.
"""

import re
import tomllib
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
PINS = {
    canonicalize_name(name): version
    for line in (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    if not line.startswith("#")
    for name, version in [line.split("==")]
}


def test_every_version_can_be_had_by_the_oldest_python() -> None:
    oldest = re.findall(r"[\d.]+", PROJECT["requires-python"])[0] + ".0"
    checked, refused = 0, []
    for name, version in PINS.items():
        try:
            found = metadata.distribution(name)
        except metadata.PackageNotFoundError:  # of another system or Python
            continue
        if found.version.split("+")[0] == version:
            checked += 1
            needed = found.metadata.get("Requires-Python") or ""
            if not SpecifierSet(needed).contains(oldest):
                refused.append(f"{name}=={version} needs {needed}")
    assert refused == []
    assert checked > len(PINS) // 2


def test_every_requirement_of_make_test_has_a_version() -> None:
    extras, unpinned, wanted = PROJECT["optional-dependencies"], set(), ["dev"]
    asked = list(PROJECT["dependencies"])
    while wanted:
        for line in extras[wanted.pop()]:
            one = Requirement(line)
            if one.name == PROJECT["name"]:
                wanted.extend(one.extras)
            else:
                asked.append(line)
    for line in asked:
        one = Requirement(line)
        version = PINS.get(canonicalize_name(one.name))
        if version is None or not one.specifier.contains(version):
            unpinned.add(line)
    assert unpinned == set()
