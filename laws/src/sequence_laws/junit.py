"""Verdicts as JUnit XML, which continuous integration shows as tests."""

from collections.abc import Sequence
from pathlib import Path
from xml.etree import ElementTree

from sequence_laws.verdict import BROKEN, LawResult, write_whole


def write_junit(results: Sequence[LawResult], path: Path) -> None:
    """Write `junit` to a file."""
    write_whole(path, junit(results) + "\n")


def junit(results: Sequence[LawResult]) -> str:
    """A suite: a broken law is a failure with its program, what was not judged is skipped."""
    failed = sum(one.status in BROKEN for one in results)
    counts = {"tests": str(len(results)), "failures": str(failed)}
    suite = ElementTree.Element("testsuite", {"name": "sequence-laws", **counts})
    for one in results:
        named = {"classname": one.member, "name": one.law, "time": f"{one.seconds:.3f}"}
        case = ElementTree.SubElement(suite, "testcase", named)
        if one.status in BROKEN:
            failure = ElementTree.SubElement(case, "failure", {"message": one.detail})
            failure.text = one.reproduction
        elif one.status != "held":
            ElementTree.SubElement(case, "skipped", {"message": f"{one.status}: {one.detail}"})
        else:
            ElementTree.SubElement(case, "system-out").text = one.detail
    ElementTree.indent(suite)
    return ElementTree.tostring(suite, encoding="unicode")
