"""Transformer-XL's memory by its identities."""

import pytest
import torch

import everyformer as ef
from everyformer.core.errors import ConfigError, GeneError, ShapeError
from everyformer.engines.softmax.cache import KeyValueState
from everyformer.genes.memory.segment import SegmentState
from everyformer.genes.mixers.attention import Attention
from helpers import covering, in_pieces

LENGTH = 23
IDS = torch.randint(0, 20, (2, LENGTH), generator=torch.Generator().manual_seed(1))
POSITIONS = ("t5-relative", "rope", "alibi")


def model(position="t5-relative", layers=3, memory="segment", residual="post", **options):
    torch.manual_seed(0)
    sizes = {"width": 24, "heads": 3, "layers": layers, "vocabulary": 20, "residual": residual}
    if memory is not None:
        options = {"same_length": "never", **options}
    made = ef.create_model("attention", position=position, memory=memory, **sizes, **options)
    for parameter in made.parameters():
        if parameter.dim() >= 2:
            torch.nn.init.normal_(parameter, std=0.25)
    return made.double()


@covering(store=["inputs", "keys"], position=POSITIONS, size=[1, 4, 7, 23])
def test_a_memory_of_everything_equals_one_pass(size, position, store):
    made = model(position, slots=LENGTH, store=store)
    torch.testing.assert_close(in_pieces(made, IDS, size)[0], made(IDS).logits)


@covering(store=["inputs", "keys"], position=POSITIONS, size=[1, 4, 7, 23])
def test_with_same_length_the_segments_do_not_matter(size, position, store):
    made = model(position, slots=6, store=store, same_length="always")
    torch.testing.assert_close(in_pieces(made, IDS, size)[0], made(IDS).logits)


def test_without_same_length_they_do():
    made = model(slots=6)
    by_four, by_seven = (in_pieces(made, IDS, size)[0] for size in (4, 7))
    assert (by_four - by_seven).abs().max() > 1e-3


@pytest.mark.parametrize(("size", "held", "slots"), [(4, 3, 6), (4, 6, 6), (1, 6, 6), (5, 2, 9)])
def test_same_length_shows_the_last_keys_and_no_more(size, held, slots):
    """Counts of visible keys: min(slots, held + i + 1), as in the authors' masks."""
    made = model(layers=1, slots=slots, same_length="always", store="inputs")
    _, state = in_pieces(made, IDS[:, :held], held)
    with ef.trace(made) as seen:
        made(IDS[:, held : held + size], state=state)
    weights = next(iter(seen.find("weights").values()))
    counts = (weights[0, 0] > 0).sum(-1).tolist()
    assert counts == [min(slots, held + i + 1) for i in range(size)]


@pytest.mark.parametrize("store", ["inputs", "keys"])
@pytest.mark.parametrize(("same_length", "size"), [("evaluation", 5), ("always", 1)])
def test_no_slots_leave_a_query_its_own_segment_or_its_own_key(same_length, size, store):
    """A window of none would see nothing, and give zeros."""
    none, plain = model(slots=0, same_length=same_length, store=store), model(memory=None)
    plain.load_state_dict(none.state_dict())
    none, plain = none.eval(), plain.eval()
    alone = [plain(IDS[:, a : a + size]).logits for a in range(0, LENGTH, size)]
    torch.testing.assert_close(in_pieces(none, IDS, 5)[0], torch.cat(alone, 1))
    mixer = next(m for m in none.modules() if isinstance(m, Attention))
    assert mixer(torch.randn(1, 5, 24).double()).y.abs().min() > 0


def test_gradients_reach_the_projections_through_the_memory_but_not_the_past():
    made = model(layers=1, slots=9)
    past = made.embedding(IDS[:, :9]).detach().requires_grad_()
    state = made(IDS[:, :9], embeddings=past, state=made.init_state(2)).state
    assert not any(t.requires_grad for t in state.tensors())
    out = made(IDS[:, 9:10], state=state)
    out.logits.sum().backward()
    assert past.grad is None
    alone = model(layers=1, slots=9)
    alone(IDS[:, 9:10]).logits.sum().backward()
    name = "stack.blocks.0.mixer.project.weights.0"
    through, without = (dict(m.named_parameters())[name].grad for m in (made, alone))
    # one token alone gives its query and key no gradient: its weight is 1 whatever they are
    assert without[:48].abs().max() < 1e-12 < through[24:48].abs().max()


def test_keys_that_are_kept_in_training_give_their_projections_no_gradient():
    made = model(layers=1, slots=9, store="keys").train()
    state = made.init_state(2)
    assert isinstance(state.layers[0], KeyValueState)
    state = made(IDS[:, :9], state=state).state.detach()
    made(IDS[:, 9:10], state=state).logits.sum().backward()
    assert torch.isfinite(made.stack.blocks[0].mixer.project.weights[0].grad).all()


def test_what_is_kept_follows_training_and_evaluation():
    made = model(slots=4)
    assert isinstance(made.train().init_state(1).layers[0], SegmentState)
    assert isinstance(made.eval().init_state(1).layers[0], KeyValueState)
    sizes = [made.train().init_state(1).nbytes]
    _, state = in_pieces(made, IDS[:1], 4)
    _, later = in_pieces(made, IDS[:1], 4, state)
    sizes += [state.nbytes, later.nbytes]
    assert sizes[0] < sizes[1] == sizes[2]


@pytest.mark.parametrize("layers", [1, 2, 3])
def test_each_layer_reaches_one_memory_less_one_further(layers):
    """With same_length: N (M - 1) tokens back, and exactly nothing beyond."""
    slots, reach = 4, layers * 3
    made = model(layers=layers, slots=slots, same_length="always")
    vectors = made.embedding(IDS[:1]).detach().requires_grad_()
    made(IDS[:1], embeddings=vectors).logits[0, -1].sum().backward()
    felt = vectors.grad[0].abs().sum(-1) > 0
    assert felt.tolist() == [LENGTH - 1 - i <= reach for i in range(LENGTH)]


def test_contradictions_are_refused():
    with pytest.raises(GeneError, match="window"):
        model(slots=4, window=3)
    with pytest.raises(GeneError, match="embeddings"):
        model("sinusoidal", slots=4)
    with pytest.raises(GeneError, match="every layer's input"):
        model("learned-per-layer", slots=4)
    with pytest.raises(GeneError, match="mixer 'aft-simple'"):
        ef.create_model("aft-simple", position=None, memory="segment")
    with pytest.raises(ConfigError, match="slots` must be at least 0"):
        model(slots=-1)
    made = model(slots=4)
    with pytest.raises(ShapeError, match="the state has 2 rows and x has 1"):
        made(IDS[:1], state=made.init_state(2))
    wider = ef.create_model(
        "attention", position="alibi", memory="segment", width=30, heads=3, layers=3, vocabulary=20
    )
    with pytest.raises(ShapeError, match="30 channels, but this layer's have 24"):
        made.train()(IDS, state=wider.double().init_state(2))
    other = ef.create_model("aft-simple", width=24, heads=3, layers=3, vocabulary=20)
    with pytest.raises(ShapeError, match="attention continues from its own state"):
        made(IDS, state=other.double().init_state(2))
