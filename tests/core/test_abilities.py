"""What few mixers can do, and that it is worth it."""

import pytest
import torch

from everyformer.core.mixer import Mixer
from everyformer.core.state import named_tensors
from helpers import build_mixer, close, draw
from sequence_laws.flops import count_flops


@pytest.mark.parametrize(("name", "options"), [("attention", {}), ("reformer", {"buckets": 2})])
def test_a_state_is_extended_as_by_a_call_with_less_work(name, options):
    mixer: Mixer = build_mixer(name, width=8, heads=2, causal=True, **options)
    x, state = draw(2, 9, 8), mixer.init_state(2)
    called, extended = mixer(x, state=state).state, mixer.append(x, state=state)
    assert called is not None
    close(named_tensors(extended), named_tensors(called))
    with torch.no_grad():
        work = [count_flops(f) for f in (lambda: mixer.append(x, state=state), lambda: mixer(x))]
    assert work[0] < work[1] / 2
