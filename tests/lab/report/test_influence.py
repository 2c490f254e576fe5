"""Pictures of who reads whom: nothing of the future, and what each pattern lets through."""

import pytest

import everyformer as ef
from everyformer.lab.report.influence import LENGTH, SEGMENT, draw_influence, influence


@pytest.mark.dear("causality is in the laws of every member")
@pytest.mark.parametrize("member", ef.list_members(), ids=lambda member: member.name)
def test_no_change_reaches_back_and_every_past_one_is_reachable(member):
    seen = influence(member)
    assert seen.shape == (LENGTH, LENGTH)
    assert (seen.diagonal() == 0).all()
    if member.strictly_causal is True:
        # convolutions by Fourier transforms round by what comes later
        assert seen.triu(1).max() < 1e-5 * seen.max()
    assert (seen.tril(-1).amax(1)[1:] > 0).all()


def test_a_memory_carries_a_change_into_later_segments_and_a_bare_model_would_not():
    seen = influence(ef.info("transformer-xl"))
    assert (seen[SEGMENT : 2 * SEGMENT, :SEGMENT].amax(1) > 0).all()
    # who reads both ways shows it, and the label says what is drawn
    assert (influence(ef.info("linformer")).triu(1).amax(1)[:-1] > 0).all()
    assert "in segments of 16" in draw_influence(ef.info("gtrxl")).get_label()
    assert "segments" not in draw_influence(ef.info("aft-conv")).get_label()
