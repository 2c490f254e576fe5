"""How a call is computed is reported: log, trace, `doctor`, and a warning for all pairs."""

import json
import logging
from typing import Any

import pytest
import torch

from everyformer.cli import main
from everyformer.core import dispatch as module
from everyformer.core.dispatch import AllPairsWarning, dispatch, take, watched
from everyformer.core.mask import Mask
from everyformer.core.trace import trace
from everyformer.engines.softmax.scored import Scores
from everyformer.engines.sparse.attention import choose
from everyformer.engines.sparse.patterns import Near
from everyformer.engines.sparse.plan import SparsePlan
from helpers import build_mixer, draw

LENGTH = 300
SIZES: dict[str, Any] = {"width": 8, "heads": 2, "dtype": torch.float32}


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_logged", set())
    torch.compiler.reset()


def test_the_first_way_that_nothing_speaks_against_is_taken():
    asked = []

    def against(name: str, reason: str | None) -> Any:
        return name, lambda: asked.append(name) or reason

    ways = (against("a", "too wide"), against("b", None), against("c", None))
    with watched() as taken:
        assert dispatch("engine", ways, last="d") == "b"
    assert asked == ["a", "b"]
    assert taken == [("engine", "b", "not a: too wide")]


def test_all_pairs_for_want_of_a_way_are_a_warning_with_the_reasons():
    ways = (("a", lambda: "too wide"), ("d", lambda: "few are visible"))
    with pytest.warns(AllPairsWarning, match=r"engine computes all pairs.*not a: too wide\)"):
        assert dispatch("engine", ways, last="d") == "d"


def test_every_way_is_one_line_of_the_log(caplog, monkeypatch):
    # what reads import contracts puts loggers of others out of use
    monkeypatch.setattr(logging.getLogger("everyformer.dispatch"), "disabled", False)
    with caplog.at_level(logging.INFO, "everyformer.dispatch"):
        for _ in range(3):
            take("engine", "fused")
        take("engine", "matrix", "of a sink")
    assert caplog.messages == ["engine: fused", "engine: matrix (of a sink)"]


@pytest.mark.parametrize("before", [3, 299])
def test_short_texts_and_full_plans_are_dense_without_a_warning(before):
    q = draw(1, 2, LENGTH, 8, dtype=torch.float32)
    expected = "dense" if before == 299 else "blocked"
    plan = SparsePlan.of(Near(before=before))
    assert choose(plan, q, Scores(), "auto") == expected
    assert choose(plan, q[:, :, :256], Scores(), "auto") == "dense"


GLOBALS = Mask(global_tokens=torch.arange(LENGTH)[None] % 50 == 0)
FALLBACKS: dict[str, tuple[str, dict[str, Any], bool, Mask | None]] = {
    "longformer, flags": ("longformer", {"window": 8}, False, GLOBALS),
    "bigbird, any number of blocks": ("bigbird", {"block_size": 8}, False, None),
    "etc, flags": ("etc", {"radius": 4}, False, GLOBALS),
    "longformer, xl-relative": ("longformer", {"window": 8, "position": "xl-relative"}, True, None),
}


@pytest.mark.full("the compiler works for seconds")
@pytest.mark.parametrize("case", FALLBACKS)
def test_all_pairs_of_a_compiled_sparse_mixer_are_told_once_it_is_compiled(case):
    name, options, causal, mask = FALLBACKS[case]
    if name == "etc":
        options = {**options, "hard_g2l": False}
    mixer = build_mixer(name, causal=causal, max_length=LENGTH, **SIZES, **options)
    x = draw(1, LENGTH, 8, dtype=torch.float32)
    mixer(x, mask=mask)  # eagerly nothing is to be said
    compiled = torch.compile(mixer, backend="eager", fullgraph=True)
    with watched() as ways:
        with pytest.warns(AllPairsWarning):
            compiled(x, mask=mask)
        compiled(x, mask=mask)
    assert [way.name for way in ways].count("dense") == 1


@pytest.mark.full("the compiler works for seconds")
def test_compiled_plans_that_units_can_do_say_nothing():
    mixer = build_mixer("longformer", causal=True, window=8, **SIZES)
    x = draw(1, LENGTH, 8, dtype=torch.float32)
    with trace(mixer) as opened:
        torch.compile(mixer, backend="eager", fullgraph=True)(x)
    assert opened.ways[0][:2] == ("sparse attention", "blocked")


def test_hidden_cells_of_a_picture_are_told():
    mixer = build_mixer(
        "image-transformer", causal=False, dims=2, tile=(6, 6), flange=(2, 2), **SIZES
    )
    x, padding_mask = (
        draw(1, 18 * 18, 8, dtype=torch.float32),
        torch.ones(1, 18 * 18, dtype=torch.bool),
    )
    padding_mask[0, 7] = False
    with pytest.warns(AllPairsWarning, match="hidden cells"):
        mixer(x, mask=Mask(padding_mask=padding_mask, grid=(18, 18)))


@pytest.mark.parametrize("member", ["longformer", "linear"])
def test_doctor_shows_the_ways_of_a_member(member, capsys):
    assert main(["doctor", member, "--length", "300", "--json"]) == 0
    calls = json.loads(capsys.readouterr().out)
    assert {"evaluated", "compiled"} <= calls.keys()
    expected = {"longformer": "sparse attention", "linear": "mixer"}
    assert calls["evaluated"][0]["engine"] == expected[member]
    assert ("with dropout" in calls) == (member != "linear")
