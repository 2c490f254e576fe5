"""The Memorizing Transformer's memory: what is found, what is not, and what flows where."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor

import everyformer as ef
from everyformer.core.errors import ConfigError, EveryformerError
from everyformer.core.modules import memories_of
from everyformer.genes.memory.memorizing import MemorizingMemory, MemorizingOptions, MemorizingState
from everyformer.genes.memory.segment import SegmentMemory
from helpers import in_pieces

LENGTH = 37
IDS = torch.randint(0, 20, (2, LENGTH), generator=torch.Generator().manual_seed(1))


def mixer(**options: Any) -> Any:
    torch.manual_seed(0)
    own = {"slots": 3, "size": 8, "neighbours": 2, **options}
    made = ef.create_mixer(
        "attention", width=12, heads=2, causal=True, memory="memorizing", memory_options=own
    )
    return made.double().eval()


def test_what_is_looked_up_knows_no_position():
    """Beside rotated queries and keys, those of the store are as they are."""
    torch.manual_seed(0)
    own = {"slots": 3, "size": 64, "neighbours": 4, "keep_position": True}
    made: Any = ef.create_mixer(
        "attention", width=12, heads=3, causal=True, position="rope", memory="memorizing",
        memory_options=own,
    ).double().eval()  # fmt: skip
    for weight in made.parameters():
        torch.nn.init.normal_(weight, std=0.4)
    x = torch.randn(2, 11, 12).double()
    torch.testing.assert_close(made(x).y, made.reference(x), rtol=1e-9, atol=1e-10)


def model(layers: int = 3, **options: Any) -> Any:
    torch.manual_seed(0)
    sizes = {"width": 24, "heads": 3, "layers": layers, "vocabulary": 20}
    options = {"slots": 4, "size": 9, "neighbours": 3, "unit_scale": 4.0, **options}
    made = ef.create_model("memorizing", **sizes, **options)
    for parameter in made.parameters():
        if parameter.dim() >= 2:
            torch.nn.init.normal_(parameter, std=0.25)
    return made.double().eval()


def text(length: int = LENGTH, rows: int = 2) -> Tensor:
    torch.manual_seed(2)
    return torch.randn(rows, length, 12, dtype=torch.double)


def distances(made: Any, x: Tensor, state: Any = None) -> Tensor:
    """How far back what each token found lies: (B, H, L, k)."""
    with ef.trace(made) as seen:
        made(x, state=state)
    return next(iter(seen.find("looked-up").values()))


def test_the_papers_defaults() -> None:
    o = MemorizingOptions()
    assert (o.neighbours, o.size) == (32, 8192)
    assert (o.combine, o.gate, o.normalize, o.unit_scale) == ("gate", 0.0, True, 1.0)
    assert (o.keep_position, o.written) == (False, "segment")
    made = mixer()
    assert made.memory.gate.tolist() == [0.0, 0.0]
    assert made.memory.scale.tolist() == [1.0, 1.0]


@pytest.mark.parametrize(("layers", "store"), [(1, 1), (2, 2), (3, 3), (4, 3), (6, 5), (12, 9)])
def test_one_layer_has_a_store_at_three_quarters_and_the_others_have_its_window(
    layers, store
) -> None:
    made = ef.create_model("memorizing", width=8, heads=1, layers=layers, slots=5)
    kinds = [type(memory) for memory in memories_of(made)]
    expected: list[type] = [SegmentMemory] * layers
    expected[store - 1] = MemorizingMemory
    assert kinds == expected
    assert {memory.windows((None,)) for memory in memories_of(made)} == {(5,)}
    assert all(memory.slots == 5 for memory in memories_of(made.train()))


def test_the_layers_own_positions_are_left_out_beside_the_store_alone() -> None:
    for keep in (False, True):
        made = model(layers=2, keep_position=keep)
        present = [mixer.position is not None for mixer in made.stack.mixers]
        assert present == [True, keep]


@pytest.mark.parametrize("written", ["segment", "leaving"])
def test_what_is_found_is_in_the_store_first_in_first_out(written: str) -> None:
    """With k = M a token finds all that is stored: the last M before its segment or window."""
    n, most = 3, 8
    found = distances(mixer(neighbours=most, written=written), text())
    for i in range(LENGTH):
        end = i // n * n if written == "segment" else max(i - n + 1, 0)
        stored = range(max(end - most, 0), end)
        seen = found[0, 0, i]
        assert sorted(seen[seen >= 0].tolist()) == sorted(i - j for j in stored)


def test_a_document_that_begins_inside_a_segment_sees_neither_store_nor_window_of_the_other() -> (
    None
):
    made, x = mixer(neighbours=8), text(rows=1)
    ids = torch.zeros(1, LENGTH, dtype=torch.long)
    ids[:, 14:] = 1
    alone = made(x[:, 14:]).y
    torch.testing.assert_close(made(x, mask=ef.Mask(documents=ids)).y[:, 14:], alone)
    state = made(x[:, :10], state=made.init_state(1)).state
    out = made(x[:, 10:], mask=ef.Mask(documents=ids[:, 10:]), state=state)
    torch.testing.assert_close(out.y[:, 4:], alone)
    more = text(5, 1)
    both = torch.cat((x[:, 14:], more), 1)
    torch.testing.assert_close(made(more, state=out.state).y, made(both).y[:, -5:])


@pytest.mark.parametrize("size", [1, 4, 7])
def test_segments_of_any_length_give_one_pass_in_several_layers(size: int) -> None:
    made = model()
    torch.testing.assert_close(in_pieces(made, IDS, size)[0], made(IDS).logits)


def test_room_that_is_reserved_changes_nothing_and_the_store_stays_bounded() -> None:
    made, most = model(), 9
    x = IDS.repeat(1, 2)
    with torch.no_grad():
        y, state = in_pieces(made, x, 1, made.init_state(2).reserve(20))
        torch.testing.assert_close(y, made(x).logits)
    (store,) = (one for one in state.layers if isinstance(one, MemorizingState))
    assert most <= store.stored.keys.shape[2] <= 1.25 * (most + 4) + 1


def test_without_anything_stored_yet_there_is_the_window_alone() -> None:
    made, x = mixer(), text()
    nothing = mixer(size=0)
    nothing.load_state_dict(made.state_dict(), strict=False)
    assert "memory.gate" not in nothing.state_dict()
    torch.testing.assert_close(made(x[:, :3]).y, nothing(x[:, :3]).y, rtol=0, atol=0)
    assert (made(x).y - nothing(x).y)[:, 3:].abs().max() > 1e-3


def test_gradients_reach_queries_scale_and_gate_but_nothing_that_is_stored() -> None:
    """A loss of the second segment alone: through the store nothing reaches the first."""
    made, x = mixer(slots=1), text(8).requires_grad_()
    y = made(x).y[:, 7]
    (gradient,) = torch.autograd.grad(y.square().sum(), x, retain_graph=True)
    assert (gradient[:, :7] == 0).all()
    assert gradient[:, 7].abs().max() > 0
    scale, gate = torch.autograd.grad(y.square().sum(), [made.memory.scale, made.memory.gate])
    assert scale.abs().min() > 0
    assert gate.abs().min() > 0


def test_keys_and_queries_have_length_one_and_values_are_as_they_are() -> None:
    made, x = mixer(slots=LENGTH, size=0), text()
    made.memory.scale.data = torch.tensor([1.5, -2.5]).double()
    q, k, v = made.project(x)
    q, k = (t / t.square().sum(-1, keepdim=True).add(1e-6).sqrt() for t in (q, k))
    scores = torch.tensor([1.5, 2.5])[:, None, None] * (q @ k.mT)
    later = torch.ones(LENGTH, LENGTH).triu(1).bool()
    o = scores.masked_fill(later, -math.inf).softmax(-1) @ v
    torch.testing.assert_close(made(x).y, made.out(o.transpose(1, 2).flatten(2)))


def test_the_gate_weighs_what_is_found_against_the_window_by_head() -> None:
    made, x = mixer(slots=2, size=40, neighbours=40), text(6, 1)
    made.memory.gate.data = torch.tensor([1.0, -2.0]).double()
    q, k, v = made.project(x)
    q, k = (torch.nn.functional.normalize(t, dim=-1) for t in (q, k))
    scores = q @ k.mT
    i, j = torch.arange(6)[:, None], torch.arange(6)
    near = (j <= i) & (j > i - 2)
    stored = j < i // 2 * 2
    window = scores.masked_fill(~near, -math.inf).softmax(-1) @ v
    found = scores.masked_fill(~stored, -math.inf).softmax(-1).nan_to_num() @ v
    g = torch.tensor([1 / (1 + math.exp(-1.0)), 1 / (1 + math.exp(2.0))])[:, None, None].double()
    g = g * (i >= 2)
    o = g * found + (1 - g) * window
    torch.testing.assert_close(
        made(x).y, made.out(o.transpose(1, 2).flatten(2)), rtol=1e-5, atol=1e-5
    )


def test_the_nearest_are_those_of_an_index_of_inner_products() -> None:
    faiss = pytest.importorskip("faiss")
    made, x = mixer(slots=1, size=100, neighbours=4), text(30, 1)
    found = distances(made, x)[0]
    q, k, _ = made.project(x)
    for head in range(2):
        q_h, k_h = (torch.nn.functional.normalize(t[0, head], dim=-1).float() for t in (q, k))
        for i in range(10, 30):
            index = faiss.IndexFlatIP(6)
            index.add(k_h[:i].detach().numpy())
            _, rows = index.search(q_h[i : i + 1].detach().numpy(), 4)
            assert sorted((i - found[head, i]).tolist()) == sorted(rows[0].tolist())


def test_a_vanilla_model_becomes_one_that_begins_as_it_was() -> None:
    """Own scale, own positions, a window of all that is read and a gate far below 0."""
    torch.manual_seed(0)
    sizes = {"width": 24, "heads": 3, "layers": 3, "vocabulary": 20, "position": "t5-relative"}
    plain = ef.create_model("attention", **sizes).double().eval()
    own = {"normalize": False, "keep_position": True, "gate": -1e9, "slots": LENGTH}
    made = ef.create_model("memorizing", **sizes, **own).double().eval()
    missing = made.load_state_dict(plain.state_dict(), strict=False)
    assert [name.rpartition(".")[2] for name in missing.missing_keys] == ["gate"]
    state = made(IDS, state=made.init_state(2)).state
    torch.testing.assert_close(made(IDS).logits, plain(IDS).logits)
    # and one whose gate opens reads the store: what comes next is another thing
    later = made(IDS, state=state).logits
    made.stack.blocks[2].mixer.memory.gate.data.zero_()
    assert (made(IDS, state=state).logits - later).abs().max() > 1e-6


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"mixer": "linear"}, ["memorizing", "linear"]),
        ({"position": "sinusoidal"}, ["memorizing", "sinusoidal", "remembered"]),
        ({"window": 5}, ["window"]),
        ({"slots": 0}, ["slots"]),
        ({"neighbours": 0}, ["neighbours"]),
        ({"combine": "joint", "gate": -1.0}, ["gate", "joint"]),
        ({"normalize": False, "unit_scale": 2.0}, ["unit_scale", "normalize"]),
        ({"combine": "add"}, ["combine", "gate", "joint"]),
    ],
)
def test_what_cannot_be_is_refused_with_both_sides(options, words) -> None:
    with pytest.raises(ConfigError) as error:
        ef.create_model("memorizing", width=12, heads=2, layers=2, **options)
    for word in words:
        assert word in str(error.value)


BESIDE = [("alibi", "pre"), ("rope", "post"), ("xl-relative", "reversible"), ("shaw", "pre")]


@pytest.mark.parametrize(("position", "residual"), [*BESIDE, (None, "reversible")])
def test_it_lives_beside_any_position_and_residual(position: str | None, residual: str) -> None:
    own = {"reversible_output": "mean"} if residual == "reversible" else {}
    made = model(layers=2, position=position, residual=residual, keep_position=True, **own)
    torch.testing.assert_close(in_pieces(made, IDS, 5)[0], made(IDS).logits)


def test_pairs_that_a_caller_hides_are_not_known_to_the_store() -> None:
    made, x = mixer(), text(8)
    hidden = torch.ones(8, 8, dtype=torch.bool).tril()
    with pytest.raises(EveryformerError, match="attention_mask"):
        made(x, mask=ef.Mask(attention_mask=hidden))
