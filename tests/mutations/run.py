"""Whether the tests see small wrong changes: `make mutations`, or this with names of patches.

A patch says first what it makes wrong, and by which test that is caught, or why it survives.
"""

import argparse
import os
import re
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from shutil import copytree, ignore_patterns

HERE = Path(__file__).absolute().parent
ROOT, CAUGHT = HERE.parents[1], "caught by"
APART = ignore_patterns(".*", "runs", "build", "dist", "_build")


def header(patch: Path) -> tuple[str, str, str]:
    """What is wrong, `CAUGHT` or 'survives', and the test or the reason."""
    words, verdict, *_ = patch.read_text(encoding="utf-8").splitlines()
    return words, *verdict.split(": ", 1)


def changed(patch: Path) -> dict[str, str]:
    """The files that a patch changes, as it leaves them; lines tell where, not their numbers."""
    files, name = dict[str, str](), ""
    parts = re.split("^(?=diff |@@ )", patch.read_text(encoding="utf-8"), flags=re.M)
    for first, *lines in (part.splitlines(keepends=True) for part in parts[1:]):
        if first.startswith("diff "):
            name = first.split(" b/")[1].strip()
            files[name] = (ROOT / name).read_text(encoding="utf-8")
            continue
        old, new = ("".join(line[1:] for line in lines if line[0] in each) for each in (" -", " +"))
        if files[name].count(old) != 1:
            raise SystemExit(f"{patch.name} does not apply to {name}: make it again")
        files[name] = files[name].replace(old, new)
    return files


def as_said(patch: Path, survivors: bool) -> bool:
    """Run what should fail, or of survivors, if asked for, all of the default tier; tell of it."""
    words, verdict, what = header(patch)
    now = known = verdict == CAUGHT
    if known or survivors:
        with tempfile.TemporaryDirectory() as folder:
            copytree(ROOT, folder, ignore=APART, dirs_exist_ok=True)
            for name, text in changed(patch).items():
                Path(folder, name).write_text(text, encoding="utf-8")
            command = [sys.executable, "-B", "-m", "pytest", "-p", "no:cacheprovider", "-x", "-rf"]
            command += ["-m", "not full", what if known else "tests"]
            with_copy = {
                "env": os.environ | {"PYTHONPATH": f"{folder}/src:{folder}/laws/src"},
                "cwd": folder,
            }
            done = subprocess.run(command, capture_output=True, text=True, **with_copy)
        now = done.returncode == 1 and "\nFAILED " in done.stdout
    print(f"{patch.stem}: {CAUGHT if now else 'survives'} {what}. {words}", flush=True)
    return now is known


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="of patches (default: all)")
    parser.add_argument("--jobs", type=int, default=2, help="at a time")
    parser.add_argument("--survivors", action="store_true", help="try these with all tests too")
    given = parser.parse_args()
    patches = [HERE / f"{name}.patch" for name in given.names] or sorted(HERE.glob("*.patch"))
    with ThreadPoolExecutor(given.jobs) as pool:
        wrong = [*pool.map(as_said, patches, [given.survivors] * len(patches))].count(False)
    sys.exit(f"{wrong} are not as they say" if wrong else 0)
