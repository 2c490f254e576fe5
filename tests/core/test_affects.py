"""Options say what another value of them would change."""

from dataclasses import dataclass
from typing import Annotated

import pytest
from test_bounds import OPTIONS

from everyformer.core.bounds import Affects, Count, Dropout
from everyformer.core.config import Options, affects, field_types
from everyformer.genes.mixers import MIXERS

KNOWN = {
    "backend": "speed", "feedforward_chunk": "speed", "loss_chunk": "speed",
    "rounds": "results", "evaluation_rounds": "results",
    "dropout": "nothing", "attention_dropout": "nothing", "feedforward_dropout": "nothing",
    "drop_path": "nothing", "wave_dropout": "nothing", "redraw": "nothing", "std": "nothing",
    "width": "weights", "window": "weights", "heads": "weights", "seed": "weights",
}  # fmt: skip
MODELS = ("blocks", "genes", "models")


@dataclass(frozen=True)
class Kinds(Options):
    window: Count = 3
    chunk: Annotated[Count | None, Affects("speed")] = None
    dropout: Dropout | None = None


@pytest.mark.parametrize(
    ("option", "what"), [("window", "weights"), ("chunk", "speed"), ("dropout", "nothing")]
)
def test_a_mark_is_found_wherever_it_stands_in_a_type(option: str, what: str) -> None:
    assert affects(Kinds, option) == what


@pytest.mark.parametrize(
    "options",
    [o for o in OPTIONS if o.__module__.split(".")[1] in MODELS],
    ids=lambda o: o.__name__,
)
def test_one_word_affects_the_same_everywhere(options: type) -> None:
    for name in KNOWN.keys() & field_types(options).keys():
        assert affects(options, name) == KNOWN[name], name


def test_what_a_reformer_hashes_by_changes_its_results() -> None:
    assert affects(MIXERS.get("reformer").Options, "decode") == "results"
