"""Which tests run: the default tier, a part of the rest that is drawn by the date, or all.

The default tier is all that has no mark. A test that is marked ``full`` says why it is not needed
every time. One that is marked ``dear`` repeats one idea over all members: every time it runs for
the day's representatives, one of each engine or gene, and for the others with the rest.
"""

import ast
import csv
import random
import subprocess
import zlib
from collections import defaultdict
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

import pytest

from everyformer.core.member import Member
from everyformer.core.mixer import Mixer
from everyformer.family import info, list_members
from everyformer.genes.mixers import MIXERS

ROOT = Path(__file__).parents[1]
PARTS = 10
"""into how many parts the rest falls, of which one is drawn; a mark may say another number"""
SOURCES = ("src/", "laws/src/")
VARIED = ("member", "name", "mixer")
"""parameters of a ``dear`` test that say which member it is of"""


@cache
def representatives(draw: str) -> frozenset[str]:
    """A member of each gene, and of each base class of mixers, drawn again each day."""
    alike: dict[tuple[str, str], list[str]] = defaultdict(list)
    for member in list_members():
        base = mixer_of(member).__base__
        alike[member.gene, base.__name__ if member.gene == "mixer" else ""].append(member.name)
    chance = random.Random(draw)
    return frozenset(chance.choice(names) for _, names in sorted(alike.items()))


def mixer_of(member: Member) -> type[Mixer]:
    """Class of the mixer of a member."""
    return MIXERS.get(member.genes["mixer"].name)


def is_default(item: pytest.Item, draw: str) -> bool:
    """True for a test that runs every time."""
    if item.get_closest_marker("full"):
        return False
    if not item.get_closest_marker("dear"):
        return True
    given = getattr(item, "callspec").params  # noqa: B009
    varied = next(given[name] for name in VARIED if name in given)
    drawn = representatives(draw)
    return getattr(varied, "name", varied) in drawn | {mixer_of(info(name)).name for name in drawn}


def is_drawn(item: pytest.Item, draw: str) -> bool:
    """True for a test of the rest that is in the day's part."""
    mark = item.get_closest_marker("full") or item.get_closest_marker("dear")
    parts = mark.kwargs.get("parts", PARTS) if mark else 1
    return zlib.crc32(f"{draw} {item.nodeid}".encode()) % parts == 0


def record(file: Path, reports: Iterable[pytest.TestReport]) -> None:
    """Write the tests and seconds of each file as CSV, of the default tier and of the rest."""
    spent: dict[str, dict[str, list[float]]] = defaultdict(
        lambda: {"default": [0, 0.0], "rest": [0, 0.0]}
    )
    for report in reports:
        tier = spent[report.nodeid.partition("::")[0]][dict(report.user_properties)["tier"]]
        tier[0] += report.when == "call"
        tier[1] += report.duration
    with file.open("w", encoding="utf-8", newline="") as lines:
        table = csv.writer(lines, lineterminator="\n")
        table.writerow(["file", "tests", "seconds", "rest_tests", "rest_seconds"])
        for name, tiers in sorted(spent.items()):
            counts = [cell for n, s in tiers.values() for cell in (int(n), round(s, 1))]
            table.writerow([name, *counts])


def reached(ref: str) -> set[Path]:
    """Test files that import, directly or by others, what differs from the commit ``ref``.

    What is imported by its name in a registry counts as imported by the package, and a test of the
    command line as one of everything. Tests of documents beside ``tests/tiers.py`` always count
    when something else than Python has changed, as does a test that names the file.
    """
    import grimp

    differ = _git("diff", "--name-only", ref) + _git("ls-files", "--others", "--exclude-standard")
    graph = grimp.build_graph("everyformer", "sequence_laws", cache_dir=None)
    for package in [name for name in graph.modules if _reads_by_name(name)]:
        for module in graph.find_descendants(package):
            graph.add_import(importer=package, imported=module)
    modules = {_module(path) for path in differ if path.startswith(SOURCES)} & graph.modules
    touched = modules.union(*(graph.find_downstream_modules(one) for one in modules))
    others = [path for path in differ if not path.endswith(".py")]
    found = set()
    for test in (ROOT / "tests").rglob("test_*.py"):
        read = set(_helpers(test))
        names = {name for file in read for name in _imports(file)}
        whole = any(name == "everyformer" or name.startswith("everyformer.cli") for name in names)
        text = test.read_text(encoding="utf-8")
        if (
            (touched and whole)
            or names & touched
            or {str(file.relative_to(ROOT)) for file in read} & set(differ)
            or (others and test.parent.name == "tests")
            or any(Path(path).name in text for path in others)
        ):
            found.add(test)
    return found


def _git(*words: str) -> list[str]:
    done = subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=True)
    return done.stdout.splitlines()


def _module(path: str) -> str:
    parts = Path(path.removeprefix("laws/")).with_suffix("").parts[1:]
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _reads_by_name(module: str) -> bool:
    """True for a package whose modules are read by names that are no imports."""
    file = ROOT.joinpath("src", *module.split("."), "__init__.py")
    return module == "everyformer.models" or (
        file.exists() and "late_names(" in file.read_text(encoding="utf-8")
    )


def _helpers(test: Path) -> Iterator[Path]:
    """The file itself, the files of its folders that tests share, and those that it imports."""
    beside = {file.stem: file for file in (ROOT / "tests").rglob("*.py")}
    todo, seen = [test, *(folder / "conftest.py" for folder in test.parents)], set()
    while todo:
        file = todo.pop()
        if file in seen or not file.exists() or ROOT / "tests" not in file.parents:
            continue
        seen.add(file)
        yield file
        todo += [
            beside[part] for name in _imports(file) for part in name.split(".") if part in beside
        ]


@cache
def _imports(file: Path) -> frozenset[str]:
    """Modules that a file imports, and names of these that may be modules."""
    found = set()
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found |= {f"{node.module}.{alias.name}" for alias in node.names} | {str(node.module)}
    return frozenset(found)
