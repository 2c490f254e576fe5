"""Bodies of agents: a rollout of many episodes is its episodes one by one."""

import itertools
import random
import zlib
from typing import Any

import pytest
import torch
from torch import Tensor

import everyformer as ef
from everyformer.checks.cases import randomize_
from everyformer.core.errors import ConfigError, ShapeError, UnsupportedError
from everyformer.core.state import StackState
from everyformer.models.body import Body
from helpers import build_model, close, draw

WIDTH, LENGTH, ROWS = 12, 24, 3
MEMBERS = [member.name for member in ef.list_members(abilities=("streaming",))]
SMALL: dict[str, dict[str, Any]] = {
    # what makes members forget, cut and overflow within two dozen tokens
    "transformer-xl": {"slots": 4}, "gtrxl": {"slots": 4},
    "compressive": {"slots": 4, "compressed": 3, "rate": 2},
    "memorizing": {"slots": 4, "size": 6, "neighbours": 2},
    "aft-local": {"window": 4}, "aft-conv": {"kernel": 3}, "longformer": {"window": 6},
    "bigbird": {"block_size": 4}, "linformer-chunked": {"causal_chunk": 4},
    "image-transformer": {"block_size": 4}, "sparse-transformer": {"stride": 4},
    "sinkhorn": {"block_size": 4},
}  # fmt: skip


def body(name: str, layers: int = 2, **options: Any) -> Body:
    torch.manual_seed(0)
    own = {"max_length": 40, "dropout": 0.0, "embedding_dropout": 0.0, **SMALL.get(name, {})}
    made = ef.create_body(name, width=WIDTH, layers=layers, heads=3, **{**own, **options})
    randomize_(made)
    return made.double().eval()


def fed(made: Body, x: Tensor, reset: Tensor | None, cuts: list[int]) -> tuple[Tensor, StackState]:
    """The tokens in segments that begin at ``cuts``."""
    state, parts = None, []
    for a, b in itertools.pairwise([*cuts, x.shape[1]]):
        y, state = made(x[:, a:b], state, None if reset is None else reset[:, a:b])
        parts.append(y)
    assert state is not None
    return torch.cat(parts, 1), state


def episodes(reset: Tensor) -> list[tuple[int, int, int]]:
    """Row, first token and end of every episode."""
    found = []
    for row, flags in enumerate(reset.tolist()):
        starts = [0, *(t for t, flag in enumerate(flags) if flag and t)]
        found += [(row, a, b) for a, b in itertools.pairwise([*starts, len(flags)])]
    return found


def rollout(seed: int) -> tuple[Tensor, Tensor, list[int]]:
    """Tokens, resets of which a row has none and one has two in a row, and where to cut."""
    chance = random.Random(seed)
    reset = draw(ROWS, LENGTH, seed=seed) > 1
    reset[0] = False
    reset[1, 6:8] = True
    return draw(ROWS, LENGTH, WIDTH, seed=seed), reset, [0, *sorted(chance.sample(range(1, 24), 3))]


@pytest.mark.dear("streaming is in the laws of every member")
@pytest.mark.parametrize("name", MEMBERS)
def test_a_rollout_in_segments_is_its_episodes_one_by_one(name: str) -> None:
    layers = 2 + zlib.crc32(name.encode()) % 2
    made, same = body(name, layers), "streaming" not in ef.info(name).exempt
    with torch.no_grad():
        x, reset, cuts = rollout(zlib.crc32(name.encode()))
        got, _ = fed(made, x, reset, cuts)
        for row, a, b in episodes(reset):
            alone = x[row : row + 1, a:b]
            inner = [] if same else [c - a for c in cuts if a < c < b]
            close(got[row, a:b], fed(made, alone, None, [0, *inner])[0][0], 1e-11)


@pytest.mark.parametrize("name", ["compressive", "gmlp", "linear"])
def test_no_gradient_passes_from_an_episode_to_the_one_before(name: str) -> None:
    made, (x, reset, cuts) = body(name).train(), rollout(3)
    x.requires_grad_()
    y, _ = fed(made, x, reset, cuts)
    for row, a, b in episodes(reset):
        (gradient,) = torch.autograd.grad(y[row, a:b].square().sum(), x, retain_graph=True)
        outside = torch.ones(ROWS, LENGTH, dtype=torch.bool)
        outside[row, a:b] = False
        assert not gradient[outside].any()
        assert gradient[row, b - 1].any()


@pytest.mark.parametrize("training", [False, True])
def test_learning_from_segments_is_acting_step_by_step(training: bool) -> None:
    """With GTrXL as it is by default, so that a policy's first ratio is 1."""
    made, (x, reset, cuts) = body("gtrxl", 3).train(training), rollout(2)
    acted, state = fed(made, x, reset, list(range(LENGTH)))
    learned, after = fed(made, x, reset, cuts)
    close(acted, learned, 1e-12)
    more = draw(ROWS, 5, WIDTH, seed=4)
    close(made(more, state)[0], made(more, after)[0], 1e-12)


@pytest.mark.parametrize("at", [0, 3, 9])
def test_what_a_memory_hands_on_holds_no_row_of_an_older_episode(at: int) -> None:
    made = body("gtrxl", slots=32).train()
    reset = torch.zeros(2, 10, dtype=torch.bool)
    reset[0, at] = True
    _, state = fed(made, draw(2, 17, WIDTH)[:, :7], None, [0])
    _, state = made(draw(2, 10, WIDTH, seed=2), state, reset)
    for layer in state.layers:
        padding_mask, _ = layer.rows.slots()
        assert padding_mask.sum(1).tolist() == [10 - at, 17]


GROWING = ["attention", "gpt", "rope", "image-transformer", "sinkhorn", "longformer", "amlp"]


@pytest.mark.parametrize("name", [*GROWING, "gtrxl", "aft-full", "bigbird"])
def test_a_state_needs_room_for_the_longest_episode_and_not_for_all(name: str) -> None:
    made, sizes = body(name, 1), []
    with torch.no_grad():
        state = None
        for step in range(96):
            reset = torch.tensor([[step % 5 == 0], [step % 7 == 0]])
            _, state = made(draw(2, 1, WIDTH, seed=step), state, reset)
            sizes.append(state.nbytes)
    assert max(sizes[48:]) <= 1.2 * max(sizes[:48])


@pytest.mark.parametrize("name", ["learned", "learned-per-layer", "gtrxl"])
def test_a_body_is_what_lies_between_embeddings_and_head(name: str) -> None:
    """With the positions, wherever they act."""
    made, sizes = body(name), {"width": WIDTH, "layers": 2, "heads": 3, "max_length": 40}
    options = {"vocabulary": 11, "tie": False, **SMALL.get(name, {})}
    model = build_model(name, **sizes, **options)
    assert not model.load_state_dict(made.model.state_dict(), strict=False).unexpected_keys
    x, nothing = draw(2, 7, WIDTH), torch.zeros(2, 7, dtype=torch.long)
    close(model.head(made(x)[0]), model(nothing, embeddings=x).logits, 1e-12)


@pytest.mark.full("a compiler works", parts=3)
def test_a_body_compiles_as_one_graph() -> None:
    made, (x, reset, _) = body("gtrxl"), rollout(6)
    compiled: Any = torch.compile(made, backend="eager", fullgraph=True)
    with torch.no_grad():
        _, state = made(x)
        close(compiled(x, state, reset)[0], made(x, state, reset)[0], 1e-12)


def test_a_body_has_no_embeddings_and_no_head_and_says_how_wide_it_is() -> None:
    made = body("gtrxl")
    names = {name.split(".")[1] for name in dict(made.named_parameters())}
    assert names == {"stack"}
    assert (made.width, made.out_width) == (WIDTH, WIDTH)
    wide = body("attention", residual="reversible")
    assert wide(draw(2, 3, WIDTH))[0].shape == (2, 3, wide.out_width) == (2, 3, 2 * WIDTH)


@pytest.mark.parametrize("init", ["bert", "gpt2"])
def test_a_body_starts_as_its_init_says(init: str) -> None:
    torch.manual_seed(0)
    made = ef.create_body("attention", width=64, layers=2, heads=4, init=init)
    std = made.model.stack.blocks[0].feedforward.up.weight.std()
    assert float(std.detach()) == pytest.approx(0.02, rel=0.05)


WRONG: list[tuple[type[Exception], Any, str]] = [
    (ShapeError, lambda b, x, r: b(x[..., :5]), r"x must be \(batch, length, 12\) floats, not"),
    (ShapeError, lambda b, x, r: b(x[0]), r"x must be \(batch, length, 12\) floats, not \(4, 12\)"),
    (ShapeError, lambda b, x, r: b(x.long()), "floats, not .* int64"),
    (ShapeError, lambda b, x, r: b(x, None, r[:, :2]), r"reset is \(2, 2\) bool, .* are \(2, 4\)"),
    (ShapeError, lambda b, x, r: b(x, None, r[:, 0]), r"reset is \(2\,\) bool"),
    (ShapeError, lambda b, x, r: b(x, None, r.float()), r"reset is \(2, 4\) float32, .* one bool"),
    (ShapeError, lambda b, x, r: b(x, b.init_state(3), r), "state's? .*3 rows"),
    (UnsupportedError, lambda b, x, r: ef.create_body("bert", width=8, layers=1, heads=2),
     "member 'bert' cannot be an agent's body.*an encoder reads the whole text.*: attention"),
    (UnsupportedError, lambda b, x, r: ef.create_body("reformer", width=8, layers=1, heads=2),
     "member 'reformer' cannot be an agent's body.*not exactly"),
    (UnsupportedError, lambda b, x, r: body("routing", routing="paper"),
     "routing has no exact streaming form"),
    (UnsupportedError, lambda b, x, r: body("attention", mixer=ef.by_layer("attention", "reformer"),
                                            position=None),
     "mixer 'reformer' cannot be in an agent's body.*later tokens move the borders"),
    (ConfigError, lambda b, x, r: ef.create_body("gtrx", width=8, layers=1, heads=2), "'gtrxl'"),
    (ConfigError, lambda b, x, r: ef.create_body("gtrxl", width=9, layers=1, heads=2), "width=9"),
    (ShapeError, lambda b, x, r: body("aft-full", max_length=3)(x), "max_length=3"),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "call", "message"), WRONG)
def test_what_a_body_cannot_read_is_refused(kind: Any, call: Any, message: str) -> None:
    x, reset = draw(2, 4, WIDTH), torch.tensor([[True, False, True, False]] * 2)
    with pytest.raises(kind, match=message):
        call(body("gtrxl"), x, reset)
