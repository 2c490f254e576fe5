"""Which steps a policy reads is what its layers computed as it played."""

from typing import Any

import numpy as np
import pytest
import torch

from everyformer.core.errors import UnsupportedError
from everyformer.core.trace import trace
from everyformer.generation.acting import weights_by_step
from everyformer.rl import EnvironmentConfig
from everyformer.training.returns import play_policy
from helpers import build_model, close, shifted

TRACK = EnvironmentConfig("everyformer/MemoryTrack-v0", (), {"steps": 9})
SHAPE = {"state": (3,), "actions": 2}


def policy(member: str, **more: Any) -> Any:
    sizes = {"width": 8, "heads": 2, "layers": 2, "max_length": 16}
    return shifted(build_model(member, "policy", episodes=SHAPE, **sizes, **more))


@pytest.mark.parametrize(
    ("member", "more"),
    [
        ("gtrxl", {"memory_options": {"slots": 16, "same_length": "always"}}),
        ("gtrxl", {"memory_options": {"slots": 4, "same_length": "always"}}),
        ("attention", {"position": "alibi"}),
        ("attention", {"mixer_options": {"window": 3}, "position": "rope"}),
    ],
)
def test_steps_that_are_read_as_a_policy_plays_are_those_of_its_episodes_read_at_once(
    member: str, more: dict[str, Any]
) -> None:
    """An episode's rows are the weights of a pass over it, and no step reads another episode."""
    made = policy(member, **more).eval()
    with trace(made) as traced:
        played = play_policy(made, TRACK, 3, parallel=1)
    found = weights_by_step(made, traced, 100)
    steps = int(played.lengths.sum())
    assert {weights.shape for weights in found.values()} == {(2, steps, steps)}
    assert len(found) == 2
    begin = 0
    for episode in played.episodes:
        own = slice(begin, begin + len(episode))
        with trace(made) as whole, torch.no_grad():
            made(torch.from_numpy(episode.observations[None, :-1]))
        for path, weights in whole.find("weights").items():
            mine = torch.from_numpy(np.nan_to_num(found[path][:, own, own]))
            close(mine, weights[0], 1e-6)
            others = np.delete(found[path][:, own], np.r_[own], -1)
            assert not np.nan_to_num(others).any()
        begin += len(episode)
    first = weights_by_step(made, traced, 5)
    for path, weights in found.items():
        np.testing.assert_array_equal(first[path], weights[:, :5, :5])


@pytest.mark.parametrize(
    ("member", "more", "sentence"),
    [
        ("linear", {}, "linear reads no earlier steps by the weights of attention"),
        ("attention", {"memory": "compressive", "position": "alibi"},
         "what attention remembers are not its last steps one by one"),
    ],
)  # fmt: skip
def test_what_reads_no_steps_one_by_one_is_refused(
    member: str, more: dict[str, Any], sentence: str
) -> None:
    made = policy(member, **more)
    with trace(made) as traced:
        play_policy(made, TRACK, 1, parallel=1)
    with pytest.raises(UnsupportedError) as caught:
        weights_by_step(made, traced, 100)
    assert str(caught.value).startswith(sentence)
