"""Early exits: who leaves where, what is copied, streams, and what they cost.

Oracles: all layers over all tokens with the copies put in by hand; confidences in NumPy.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import everyformer as ef
from everyformer.core.errors import ConfigError, GeneError
from everyformer.core.mask import Mask
from everyformer.core.tally import tallied
from everyformer.genes.depth._leaving import HELD
from everyformer.genes.depth.early_exits import reading_prompt, set_threshold
from helpers import build_model, close, covering, in_pieces, shifted
from sequence_laws.flops import count_flops

VOCABULARY, LENGTH, LAYERS = 23, 17, 5
RULES: list[tuple[str, dict[str, Any]]] = [
    ("calm", {"threshold": 0.05}),
    ("calm", {"threshold": 0.4, "confidence": "softmax-maximum", "decay": 4.0, "longest": 16}),
    ("calm", {"threshold": 0.95, "confidence": "saturation"}),
    ("calm", {"threshold": 0.5, "confidence": "classifier", "heads": "separate"}),
    ("calm", {"threshold": 0.05, "every": 2, "first_exit": 2}),
    ("depth-adaptive", {}),
    ("depth-adaptive", {"thresholds": (0.9, 0.4, 0.5, 0.2)}),
    ("depth-adaptive", {"exits": "multinomial", "heads": "separate"}),
    ("depth-adaptive", {"exits": "threshold", "threshold": 0.4}),
    ("depth-adaptive", {"exits": "random"}),
    ("depth-adaptive", {"exits": "fixed", "layer": 3}),
]


def model(depth: str = "calm", member: str = "rope", **given: Any) -> Any:
    """A language model in float64 whose weights are far from where they start."""
    keys = ("position", "residual", "block", "window", "layers", "tie", "norm", "kv_heads")
    sizes = {key: given.pop(key) for key in keys if key in given}
    return shifted(build_model(
        member, seed=3, vocabulary=VOCABULARY, width=16, heads=2, max_length=200, depth=depth,
        depth_options=given, **{"layers": LAYERS, **sizes},
    ))  # fmt: skip


def text(rows: int = 3, length: int = LENGTH, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, VOCABULARY, (rows, length), generator=generator)


def left(made: Any, tokens: Tensor, **given: Any) -> Tensor:
    """The layers at which tokens leave."""
    with ef.trace(made) as seen:
        made(tokens, **given)
    [found] = seen.find("exits").values()
    return found


@torch.inference_mode()
@pytest.mark.parametrize(("depth", "options"), RULES, ids=str)
def test_a_stream_leaves_where_the_whole_text_does(depth: str, options: dict[str, Any]) -> None:
    made, tokens = model(depth, **options), text()
    whole = made(tokens).logits
    for sizes in ((1,) * LENGTH, (9, 8), (1, 5, 1, 1, 9)):
        close(in_pieces(made, tokens, sizes)[0], whole)
    if options.get("exits") != "fixed":
        assert len(left(made, tokens).unique()) > 1


def by_hand(made: Any, tokens: Tensor, at: Tensor, mask: Mask | None = None) -> Tensor:
    """Logits of tokens that leave ``at`` layers: all layers over all tokens, copies put in."""
    x = made.add_positions(made.embed(made.embedding, tokens), mask, None)
    for n, block in enumerate(made.stack.blocks, 1):
        x = torch.where((at >= n)[..., None], block(x, mask=mask).y, x)
    return made.head(made.stack.norm(x))


@torch.inference_mode()
@covering(position=["rope", "alibi", "t5-relative", "learned", None], residual=["pre", "post"])
def test_what_left_is_copied_to_deeper_layers(position: Any, residual: str) -> None:
    made = model("depth-adaptive", exits="random", position=position, residual=residual)
    tokens = text()
    at = left(made, tokens)
    assert set(at.flatten().tolist()) == {1, 2, 3, 4, 5}
    close(made(tokens).logits, by_hand(made, tokens, at))


@torch.inference_mode()
@pytest.mark.parametrize(("depth", "options"), RULES, ids=str)
def test_padding_and_documents_change_nothing(depth: str, options: dict[str, Any]) -> None:
    made, tokens = model(depth, **options), text(2)
    alone = made(tokens[:1, :12]).logits
    padded = torch.cat((text(1, 5, seed=4), tokens[:1, :12]), 1)
    padding_mask = torch.arange(LENGTH)[None] >= torch.tensor([[5], [0]])
    rows = torch.cat((padded, tokens[1:]))
    both = made(rows, mask=Mask(padding_mask=padding_mask)).logits
    close(both[:1, 5:], alone)
    close(both[1:], made(tokens[1:]).logits)
    first = made(rows[:, :7], mask=Mask(padding_mask=padding_mask[:, :7]), state=made.init_state(2))
    close(made(rows[:, 7:], state=first.state).logits, both[:, 7:])
    if "decay" not in options and options.get("exits") != "random":
        packed = torch.cat((tokens[:1, :12], tokens[1:, :5]), 1)
        documents = torch.tensor([[0] * 12 + [1] * 5])
        found = made(packed, mask=Mask(documents=documents)).logits
        close(found[:, :12], alone)
        close(found[:, 12:], made(tokens[1:, :5]).logits)


@torch.inference_mode()
@pytest.mark.parametrize(("depth", "options"), [RULES[0], RULES[5], RULES[7]], ids=str)
def test_rows_reset_and_change_places(depth: str, options: dict[str, Any]) -> None:
    made, tokens = model(depth, **options), text()
    state = made(tokens, state=made.init_state(3)).state
    new = text(3, 6, seed=5)
    whole = made(torch.cat((tokens, new), 1)).logits[:, LENGTH:]
    order = torch.tensor([2, 0, 0])
    close(made(new[order], state=state.reorder(order)).logits, whole[order])
    fresh = made(new, state=state.reset(torch.tensor([False, True, False]))).logits
    close(fresh[1], made(new[1:2]).logits[0])
    close(fresh[[0, 2]], whole[[0, 2]])


@torch.inference_mode()
def test_exits_at_the_last_layer_are_the_plain_model() -> None:
    plain = ef.create_model(
        "rope", vocabulary=VOCABULARY, width=16, heads=2, layers=LAYERS, max_length=200
    ).double()
    tokens = text()
    for depth, options in (("calm", {"threshold": 1.0}), ("depth-adaptive", {"threshold": 1.0})):
        made = model(depth, **options)
        plain.load_state_dict(made.state_dict(), strict=False)
        assert torch.equal(made(tokens).logits, plain.eval()(tokens).logits)
        assert left(made, tokens).unique().tolist() == [LAYERS]
        close(in_pieces(made, tokens, 1)[0], plain(tokens).logits)


@torch.inference_mode()
def test_keys_of_deeper_layers_are_projections_of_what_left() -> None:
    made, tokens = model("depth-adaptive", exits="fixed", layer=2), text(1, 3)
    before = made(tokens, state=made.init_state(1)).state
    assert [int(layer.num_tokens) for layer in before.layers] == [3, 3, 0, 0, 0]
    x = made.embed(made.embedding, tokens)
    for block in made.stack.blocks[:2]:
        x = block(x).y
    object.__setattr__(made.stack.depth.options, "layer", 5)
    after = made(text(1, 1, seed=8), state=before).state
    for layer, block in enumerate(made.stack.blocks[2:], 2):
        mixer = block.mixer
        k = mixer.rotate(mixer.project.one(block.mixer_norm(x), "key"), torch.arange(3)[None])
        close(after.layers[layer].keys[:, :, :3], k)


def confidences(made: Any, kind: str, tokens: Tensor) -> np.ndarray:
    """(N - 1, B, L) of a pass through all layers, in NumPy."""
    taps = [f"block-output:{n}" for n in range(LAYERS)]
    set_threshold(made, None)
    streams = [made(tokens, taps=taps).taps[tap].numpy() for tap in taps]
    norm, weight = made.stack.norm, made.embedding.weight.numpy()
    found = []
    for n in range(1, LAYERS):
        h, before = streams[n], streams[n - 1]
        mean, var = h.mean(-1, keepdims=True), h.var(-1, keepdims=True)
        y = (h - mean) / np.sqrt(var + norm.eps) * norm.weight.numpy() + norm.bias.numpy()
        p = np.exp(y @ weight.T)
        p = np.sort(p / p.sum(-1, keepdims=True), -1)
        lengths = np.linalg.norm(h, axis=-1) * np.linalg.norm(before, axis=-1)
        if kind == "classifier":
            found.append(1 / (1 + np.exp(-(y @ made.stack.depth.weight.numpy() + 0.25))))
        elif kind == "saturation":
            found.append((h * before).sum(-1) / lengths if n > 1 else np.zeros(p.shape[:2]))
        else:
            found.append(p[..., -1] - (p[..., -2] if kind == "softmax-difference" else 0))
    return np.stack(found)


KINDS = ["softmax-difference", "softmax-maximum", "saturation", "classifier"]


@torch.inference_mode()
@pytest.mark.parametrize("kind", KINDS)
def test_the_first_layer_that_is_sure_is_the_exit(kind: str) -> None:
    made, tokens = model(confidence=kind), text(1, 1, seed=2)
    if kind == "classifier":
        made.stack.depth.bias.fill_(0.25)
    # of one token nothing is copied, so that a pass through all layers says how sure each is
    for seed in range(8):
        tokens = text(1, 1, seed=seed)
        sure = confidences(made, kind, tokens)[:, 0, 0]
        for threshold in (0.02, 0.2, 0.6, 0.9):
            set_threshold(made, threshold)
            expected = next((n for n, c in enumerate(sure, 1) if c >= threshold), LAYERS)
            assert int(left(made, tokens)) == expected


@torch.inference_mode()
@pytest.mark.parametrize("kind", KINDS)
def test_0_lets_all_leave_at_once_and_1_none(kind: str) -> None:
    made, tokens = model(confidence=kind, decay=4.0), text()
    for threshold, expected in ((0.0, 1), (1.0, LAYERS)):
        set_threshold(made, threshold)
        assert left(made, tokens).unique().tolist() == [expected]


@torch.inference_mode()
def test_thresholds_that_fall() -> None:
    depth = model(threshold=0.5, decay=4.0, longest=8).stack.depth
    for age, threshold in ((0, 0.55), (2, 0.45 + 0.1 * np.exp(-1))):
        asked: Any = type("Asked", (), {"age": torch.tensor([[age]])})
        for sure, leaves in ((threshold - 1e-6, False), (threshold + 1e-6, True)):
            assert bool(depth.leaves(asked, torch.tensor([[sure]]).double())) == leaves


ASKED = [
    (1, 1, [1, 2, 3, 4, 5, 6, 7, 8]),
    (4, 1, [4, 5, 6, 7, 8]),
    (2, 2, [2, 4, 6, 8]),
    (3, 2, [3, 5, 7]),
    (2, 3, [2, 5, 8]),
    (4, 3, [4, 7]),
    (3, 4, [3, 7]),
    (5, 4, [5]),
]
"""first_exit, every and the layers of nine that are asked; behind the last one all leave"""


@torch.inference_mode()
@pytest.mark.parametrize(("first_exit", "every", "expected"), ASKED)
def test_first_exit_and_every_say_which_layers_are_asked(
    first_exit, every, expected, monkeypatch
) -> None:
    made = model(threshold=0.5, first_exit=first_exit, every=every, layers=9)
    asked: list[int] = []

    def unsure(one: Any) -> Tensor:
        asked.append(one.n)
        return torch.zeros(one.stream.shape[:2])

    monkeypatch.setattr(made.stack.depth, "confidence", unsure)
    assert left(made, text()).unique().tolist() == [9]
    assert asked == expected
    monkeypatch.undo()
    set_threshold(made, 0.0)
    assert left(made, text()).unique().tolist() == expected[:1]


@torch.inference_mode()
def test_rows_do_not_meet() -> None:
    made, tokens = model(threshold=0.05), text(6)
    assert torch.equal(left(made, tokens)[2:3], left(made, tokens[2:3]))


@torch.inference_mode()
def test_a_prompt_goes_through_all_layers() -> None:
    made, tokens = model(threshold=0.0), text(2)
    with reading_prompt(made, 10), tallied() as told:
        out = made(tokens[:, :10], state=made.init_state(2))
    assert told.means() == {}
    assert all(int(layer.num_tokens[0]) == 10 for layer in out.state.layers)
    assert int(out.state.pending.early[0]) == 0
    set_threshold(made, None)
    close(out.logits, made(tokens[:, :10]).logits)
    set_threshold(made, 0.0)
    with tallied() as told:
        after = made(tokens[:, 10:], state=out.state).state
    assert told.means() == {"mean_depth": 1.0}
    assert after.pending.early.tolist() == [7, 7]
    at = torch.tensor([[LAYERS] * 10 + [1] * 7] * 2)
    close(made(tokens[:, 10:], state=out.state).logits, by_hand(made, tokens, at)[:, 10:])
    with reading_prompt(made, 10), tallied() as told:
        close(made(tokens).logits, by_hand(made, tokens, at))
    assert told.means() == {"mean_depth": 1.0}


@torch.inference_mode()
def test_what_waits_is_bounded() -> None:
    made, tokens = model("depth-adaptive", exits="fixed", layer=1), text(2, 150)
    state = made.init_state(2).reserve(64)
    waiting = []
    for t in range(150):
        state = made(tokens[:, t : t + 1], state=state).state
        waiting.append(state.pending.stream.shape[1])
    assert max(waiting) == HELD
    assert min(waiting[HELD:]) == 0
    object.__setattr__(made.stack.depth.options, "layer", 4)
    deep = made(text(2, 3, seed=6), state=state).logits
    at = torch.tensor([[1] * 150 + [4] * 3] * 2)
    close(deep, by_hand(made, torch.cat((tokens, text(2, 3, seed=6)), 1), at)[:, 150:])


@torch.inference_mode()
def test_what_a_token_costs_that_leaves_at_layer_n() -> None:
    wide = ef.create_model(
        "rope", vocabulary=64, width=64, heads=4, layers=6, max_length=64, depth="depth-adaptive",
        depth_options={"exits": "fixed"},
    ).eval()  # fmt: skip
    token, layer = torch.zeros(1, 1, dtype=torch.long), 2 * 64 * 64 * (4 + 8) + 4 * 64
    for n in (1, 3, 6):
        object.__setattr__(wide.stack.depth.options, "layer", n)
        state = wide.init_state(1)
        cost = count_flops(lambda: wide(token, state=state))  # noqa: B023
        assert cost == n * layer + 2 * 64 * 64


@torch.inference_mode()
def test_rows_that_left_cost_their_keys_alone() -> None:
    made = ef.create_model(
        "rope", vocabulary=64, width=64, heads=4, layers=2, max_length=64, depth="calm",
        depth_options={"threshold": 0.5, "confidence": "classifier"},
    ).eval()  # fmt: skip
    depth = made.stack.depth
    read: Callable[..., Tensor] = depth._odds
    rows = torch.tensor([[9.0], [-9.0], [9.0], [9.0]])
    depth._odds = lambda state: rows if len(state) == 4 else read(state)
    tokens, state = torch.zeros(4, 1, dtype=torch.long), made.init_state(4)
    layer, keys = 2 * 64 * 64 * (4 + 8) + 4 * 64, 2 * 64 * 64 * 2
    cost = count_flops(lambda: made(tokens, state=state))
    assert cost == 4 * layer + layer + 3 * keys + 4 * 2 * 64 * 64


@pytest.mark.parametrize(
    ("member", "task", "options", "told"),
    [
        ("performer", "lm", {}, "mixer 'performer' computes both or neither"),
        ("rope", "mlm", {}, "task 'mlm' does not ask for that"),
        ("transformer-xl", "lm", {}, "memory 'segment' keeps what layers make of all tokens"),
        ("rope", "lm", {"residual": "reversible"}, "residual 'reversible'"),
        ("attention", "lm", {"position": "learned-per-layer"}, "before each layer"),
        ("rope", "lm", {"depth_options": {"exits": "sequence"}}, "task 'lm' has none"),
    ],
)
def test_what_exits_contradict(member: str, task: str, options: dict[str, Any], told: str) -> None:
    sizes = {"vocabulary": 9, "width": 16, "heads": 2, "layers": 2, "max_length": 20}
    with pytest.raises(GeneError, match=told):
        ef.create_model(member, task, **{"depth": "depth-adaptive", **sizes, **options})


BOUNDS: list[tuple[str, dict[str, Any], str]] = [
    ("calm", {"threshold": 1.2}, "at least 0 and at most 1"),
    ("calm", {"threshold": -0.1}, "at least 0 and at most 1"),
    ("calm", {"decay": -1.0}, "at least 0"),
    ("calm", {"learns": "classifier"}, "confidence"),
    ("depth-adaptive", {"thresholds": (0.5, 0.5)}, "5 layers have 4 but the last"),
    ("depth-adaptive", {"exits": "fixed", "threshold": 0.5}, "exits"),
]


def test_thresholds_are_within_bounds_and_of_models_that_have_some() -> None:
    for depth, options, told in BOUNDS:
        with pytest.raises(ConfigError, match=told):
            model(depth, **options)
    plain = ef.create_model("rope", vocabulary=9, width=16, heads=2, layers=2, max_length=20)
    with pytest.raises(ConfigError, match="no early exits"):
        set_threshold(plain, 0.5)
    with pytest.raises(ConfigError, match="no threshold"):
        set_threshold(model("depth-adaptive", exits="multinomial"), 0.5)
