"""A text that is continued later is the text that never stopped."""

import re
from itertools import islice
from pathlib import Path

import pytest
import torch

import everyformer as ef
from everyformer.core.errors import CheckpointError
from everyformer.core.mask import Mask
from everyformer.core.state import named_tensors
from everyformer.family import list_members
from everyformer.generation.config import Sampling
from everyformer.generation.sampling import stream
from everyformer.generation.state_file import load_state, save_state
from everyformer.training.storage import write_tensors

SIZES = {"width": 16, "heads": 2, "layers": 2, "vocabulary": 11, "max_length": 64}
SHORT = {
    "transformer-xl": {"slots": 5}, "compressive": {"slots": 4, "compressed": 3, "rate": 2},
    "aft-local": {"window": 3}, "routing": {"clusters": 2, "window": 4}, "reformer": {"chunk": 4},
    "sinkhorn": {"block_size": 4}, "longformer": {"window": 4}, "bigbird": {"block_size": 2},
    "linformer-chunked": {"causal_chunk": 4}, "image-transformer": {"block_size": 4},
}  # fmt: skip
"""parts small enough for a text of 17 tokens to fill some"""
GREEDY = Sampling(temperature=0)


def model(name):
    torch.manual_seed(0)
    made = ef.create_model(name, **SIZES, **SHORT.get(name, {}))
    for parameter in made.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    return made.eval()


@pytest.mark.dear("states are written as what they are made of")
@pytest.mark.parametrize("name", [each.name for each in list_members(task="lm")])
def test_every_member_with_a_state_goes_on_from_its_file(name, tmp_path):
    made = model(name)
    drawn = stream(made, [1, 2, 3], tokens=17, sampling=GREEDY)
    last = list(drawn)[-1]
    state, token = load_state(save_state(tmp_path / "s", drawn.state, last), made)
    further = torch.tensor([[3, 1, 4]])
    with torch.no_grad():
        here, there = (made(further, state=held).logits for held in (drawn.state, state))
    assert torch.equal(here, there)
    assert torch.equal(token, last)


def test_a_state_of_an_earlier_version_has_other_names(tmp_path):
    made, mask = model("attention"), Mask(torch.tensor([[False, True, True, True]]))
    with torch.no_grad():
        state = made(torch.tensor([[0, 1, 2, 3]]), mask=mask, state=made.init_state(1)).state
    named, last = named_tensors(state), torch.tensor([3])
    former = {"padding_mask": "keep", "num_tokens": "seen"}
    earlier = {
        re.sub("padding_mask|num_tokens", lambda m: former[m[0]], n): named[n] for n in named
    }
    assert {"seen", "layers.0.keep", "layers.1.seen"} < set(earlier)
    write_tensors(tmp_path / "s", {**earlier, "next": last}, sealed=True)
    again, _ = load_state(tmp_path / "s", made)
    assert all(torch.equal(value, named[name]) for name, value in named_tensors(again).items())


@pytest.mark.parametrize("name", ["attention", "aft-simple", "transformer-xl"])
@pytest.mark.parametrize("prompt", [[1, 2, 3], [[1, 2, 3], [4, 5]]])
def test_what_is_drawn_behind_a_kept_state_is_what_one_stream_draws(name, prompt):
    made = model(name)
    whole = torch.stack(list(stream(made, prompt, tokens=20)), 1)
    first = stream(made, prompt, tokens=8)
    begun = torch.stack(list(first), 1)
    behind = list(stream(made, begun[:, -1:], tokens=12, state=first.state))
    assert torch.equal(torch.cat((begun, torch.stack(behind, 1)), 1), whole)
    # the model is as it was between two tokens
    drawn = stream(made.train(), [1])
    next(drawn)
    assert made.training
    assert torch.is_grad_enabled()
    assert not torch.equal(begun, whole[:, 8:16])


@pytest.mark.parametrize("name", ["transformer-xl", "compressive", "aft-simple"])
def test_an_endless_stream_stays_as_large_as_it_is(name):
    drawn = stream(model(name), [1], sampling=GREEDY)
    sizes = []
    for _ in range(4):
        list(islice(drawn, 24))
        sizes.append(drawn.state.nbytes)
    assert sizes[1] == sizes[2] == sizes[3]


def test_states_of_others_are_refused(tmp_path: Path):
    made = model("transformer-xl")
    drawn = stream(made, [1], tokens=5)
    token = list(drawn)[-1]
    file = save_state(tmp_path / "state.safetensors", drawn.state, token)
    with pytest.raises(CheckpointError, match="another model"):
        load_state(file, model("aft-simple"))
    with pytest.raises(CheckpointError, match=r"another model: .*float32"):
        load_state(file, model("transformer-xl").double())
    wider = ef.create_model("transformer-xl", **{**SIZES, "width": 24}, slots=5).eval()
    with pytest.raises(CheckpointError, match="another model"):
        load_state(file, wider)
    ef.save(made, tmp_path / "model")
    with pytest.raises(CheckpointError, match="no state of a text"):
        load_state(tmp_path / "model" / "model.safetensors", made)


def test_any_flipped_bit_of_a_state_is_noticed(tmp_path: Path):
    made = model("aft-simple")
    drawn = stream(made, [1], tokens=5)
    last = list(drawn)[-1]
    file = save_state(tmp_path / "state.safetensors", drawn.state, last)
    whole = file.read_bytes()
    for place in range(0, len(whole), 3):
        damaged = bytearray(whole)
        damaged[place] ^= 1 << place % 8
        file.write_bytes(damaged)
        with pytest.raises(CheckpointError):
            load_state(file, made)
