"""Programs of failures, run as they stand."""

import copy
import re

from torch import nn

from sequence_laws.verdict import LawResult


def printed(found: LawResult, model: nn.Module) -> list[str]:
    """What the program of a failure prints, of a copy of the model that is held."""
    lines: list[str] = []

    def keep(*values: object) -> None:
        lines.extend(map(str, values))

    held = "model = ...  # yours"
    assert found.reproduction.count(held) == 1, found.detail
    program = found.reproduction.replace(held, "model = held")
    exec(program, {"held": copy.deepcopy(model), "print": keep})
    return lines


def shown(found: LawResult, model: nn.Module) -> float:
    """The number that it prints."""
    [line] = printed(found, model)
    number = re.search(r"-?[\d.]+(e[+-]?\d+)?|nan|inf", line)
    assert number, line
    return abs(float(number[0]))
