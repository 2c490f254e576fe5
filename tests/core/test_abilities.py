"""What few mixers can do: who can, and that it is worth it."""

from typing import Any

import pytest
import torch

from everyformer.core.abilities import FitsPictures, Leads, Narrows, TakesIn
from everyformer.core.mixer import Mixer
from everyformer.core.state import named_tensors
from everyformer.engines.flops import count_flops
from everyformer.genes.mixers import MIXERS
from helpers import build_mixer, close, draw

HAVE: dict[Any, set[str]] = {
    FitsPictures: {"by-head", "image-transformer", "sparse-transformer"},
    Narrows: {"longformer"},
    TakesIn: {"adaptive-span", "attention", "by-head", "reformer"},
}


@pytest.mark.parametrize("ability", HAVE)
def test_these_mixers_have_it_and_no_others(ability):
    assert {name for name in MIXERS.names() if isinstance(MIXERS.get(name), ability)} == HAVE[
        ability
    ]


def test_bigbird_with_tokens_in_front_leads():
    form = {"form": "etc", "extra_tokens": 3}
    mixer = build_mixer("bigbird", width=8, heads=2, max_length=128, **form)
    assert isinstance(mixer, Leads)
    assert mixer.lead == 3


@pytest.mark.parametrize(("name", "options"), [("attention", {}), ("reformer", {"buckets": 2})])
def test_a_state_is_extended_as_by_a_call_with_less_work(name, options):
    mixer: Mixer = build_mixer(name, width=8, heads=2, causal=True, **options)
    x, state = draw(2, 9, 8), mixer.init_state(2)
    called, extended = mixer(x, state=state).state, mixer.extend(x, state=state)
    assert called is not None
    close(named_tensors(extended), named_tensors(called))
    with torch.no_grad():
        work = [count_flops(f) for f in (lambda: mixer.extend(x, state=state), lambda: mixer(x))]
    assert work[0] < work[1] / 2
