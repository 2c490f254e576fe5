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
PROJECT, LAWS = (
    tomllib.loads((ROOT / folder / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    for folder in ("", "laws")
)


def pins(file: str) -> dict[str, str]:
    lines = (ROOT / file).read_text(encoding="utf-8").splitlines()
    pairs = (line.split("==") for line in lines if not line.startswith("#"))
    return {canonicalize_name(name): version for name, version in pairs}


PINS = pins("constraints.txt")


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
    asked = [line for line in PROJECT["dependencies"] if line != LAWS["name"]]
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


def test_the_laws_take_what_the_family_takes() -> None:
    extras = PROJECT["optional-dependencies"]
    of_family = {*PROJECT["dependencies"], *extras["hf"], *extras["export"]}
    assert [Requirement(line).name for line in LAWS["dependencies"]] == ["torch"]
    asked = (*LAWS["dependencies"], *(x for e in LAWS["optional-dependencies"].values() for x in e))
    assert {*asked} <= of_family


def test_ceilings_are_just_above_the_newest_versions_that_are_tried() -> None:
    groups = (PROJECT["dependencies"], *PROJECT["optional-dependencies"].values())
    every = [Requirement(line) for lines in groups for line in lines]
    ranges = {canonicalize_name(one.name): one.specifier for one in every}
    newest = {name: version for name, version in pins("newest.txt").items() if name in ranges}
    assert newest.keys() == pins("newest.txt").keys() - {"timm", "torchvision"}
    for name, version in newest.items():
        major, minor = map(int, version.split(".")[:2])
        assert ranges[name].contains(version), name
        assert ranges[name].contains(f"{major}.{minor}.99"), name
        assert not ranges[name].contains(f"{major}.{minor + 1}.0"), name
