"""Operations that a step of one token takes in a whole model, against those of `attention`.

On a CPU an operation on one token takes longer to begin than to compute. Counted are those that are
no views, those inside of this library's own operators among them.
"""

import pytest
import torch

import everyformer as ef
from everyformer.genes.mixers.linear import elu_features
from sequence_laws.operations import Counter

SIZES = {"width": 64, "heads": 4, "layers": 4, "max_length": 128, "vocabulary": 50}
READ = 40
"""tokens before the step"""
MOST = 1.3
"""times the operations of `attention`, for every member"""
CONSTANT = ("aft-simple", "linear", "performer", "rfa")
"""members whose state is constant and holds no window: no more than `attention`"""
OVER = {
    "aft-conv": (122, "normalises its kernel, and folds the oldest key into its average"),
    "aft-local": (122, "makes a band of biases, and folds the oldest key into its average"),
    "aft-simple": (86, "projects q, k and v one by one, and gates"),
    "gtrxl": (165, "a GRU's gate around every sub-layer"),
    "linear": (86, "maps queries and keys, and divides by the sum of weights"),
    "memorizing": (117, "a layer that searches its store"),
    "performer": (130, "levels of features, on which sums are faded"),
    "rfa": (122, "unit vectors, sines and cosines, and a guarded signed denominator"),
    "routing": (148, "queries choose clusters, each a ring that is written and read"),
}
"""members that take more than their limit: how many operations, and what for"""
LEAVE = {"calm": 110, "depth-adaptive": 160, "universal": 300}
"""members whose tokens leave where their numbers say: at most so many"""
STREAMING = [m.name for m in ef.list_members() if m.can("streaming") and "lm" in m.tasks]


def counted(name, layers=4):
    """Operations and bytes read of one token after `READ` others and one step."""
    torch.manual_seed(0)
    model = ef.create_model(name, **SIZES | {"layers": layers}).eval()
    tokens = torch.randint(0, 50, (1, READ + 2))
    with torch.inference_mode():
        state = model(tokens[:, :READ], state=model.init_state(1)).state.reserve(8)
        state = model(tokens[:, READ : READ + 1], state=state).state
        with Counter() as counter:
            model(tokens[:, READ + 1 :], state=state)
    return counter


@pytest.mark.dear("an engine's operations are those of its members")
@pytest.mark.parametrize("name", [name for name in STREAMING if name not in LEAVE])
def test_a_token_takes_few_operations(name):
    limit = counted("attention").operations * (1 if name in CONSTANT else MOST)
    operations = counted(name).operations
    if name in OVER:
        known, what = OVER[name]
        assert operations == known, f"{name} takes {known} operations: it {what}"
        assert operations > limit, f"mended: {name} {what}"
    else:
        assert operations <= limit


@pytest.mark.parametrize("name", LEAVE)
def test_tokens_that_leave_take_at_most_so_many(name):
    assert counted(name).operations <= LEAVE[name]


@pytest.mark.parametrize("name", ["rope", "alibi", "t5-relative", "longformer", "sinusoidal"])
def test_what_layers_share_is_made_once(name):
    """A layer more takes as many operations as one of attention, or the few of a rotation."""
    more = counted(name, 5).operations - counted(name, 4).operations
    plain = counted("attention", 5).operations - counted("attention", 4).operations
    assert more == plain + {"rope": 3}.get(name, 0)


def test_custom_operators_and_composites_count_as_what_they_run():
    x = torch.randn(1, 2, 8, 4)
    with torch.inference_mode(), Counter() as own:
        elu_features(x)
    assert own.operations == 4
    with torch.inference_mode(), Counter() as composite:
        torch.nn.functional.linear(x, torch.ones(3, 4))
    assert composite.operations == 1 + 1


def test_views_count_nothing_and_lookups_read_what_they_give():
    table, x = torch.randn(100, 4), torch.randn(6)
    with Counter() as counter:
        x.view(2, 3).t()[0]
    assert (counter.operations, counter.read) == (0, 0)
    with Counter() as counter:
        torch.nn.functional.embedding(torch.tensor([3, 1]), table)
    assert counter.read == 2 * 8 + 2 * 4 * 4
    with Counter() as counter:
        x.expand(5, 6) + 1
        x.mul_(2)
    assert (counter.operations, counter.read) == (2, 2 * 6 * 4)
    with Counter() as counter:
        torch.randn(12)[::2].expand(5, 6) + 1
    assert counter.read == 6 * 4
    with Counter() as counter:
        x.sort()
    assert (counter.operations, counter.read, counter.written) == (1, 6 * 4, 6 * 4 + 6 * 8)


SHORT: list[tuple[str, dict[str, object]]] = [
    ("adaptive-span", {"window": 7, "ramp": 3}),
    ("adaptive-span", {"window": 7, "ramp": 3, "dynamic": True}),
    ("bigbird", {"block_size": 2}),
    ("blockwise", {"blocks": 8}),
    ("gtrxl", {"slots": 5}),
    ("image-transformer", {"block_size": 4}),
    ("linformer-chunked", {"causal_chunk": 4, "k": 2}),
    ("longformer", {"window": 4, "global_tokens": 2}),
    ("longformer", {"window": 4}),
    ("routing", {"clusters": 2, "window": 3}),
    ("routing", {"clusters": 2, "window": 3, "local_heads": 0}),
    ("sinkhorn", {"block_size": 4}),
    ("sinkhorn", {"block_size": 4, "combine": "sum-scores", "mixture": True}),
    ("sparse-transformer", {"stride": 4}),
    ("sparse-transformer", {"stride": 4, "pattern": "fixed", "columns": 1, "mode": "heads"}),
]
"""members whose steps know where their rows stand, with parts that a short text fills"""
CALLS = [1] * 13 + [5, 1, 1, 7] + [1] * 24
"""tokens of each call"""
BEGIN = {0: (True, True), 29: (False, True), 41: (True, True)}
"""rows that begin a new text where so many tokens were read"""


@pytest.mark.full("many cases", parts=3)
@pytest.mark.parametrize("reserved", [False, True])
@pytest.mark.parametrize(("name", "options"), SHORT, ids=str)
def test_steps_that_know_where_rows_stand_are_those_that_do_not(name, options, reserved):
    """Calls of one token and of many take turns, with and without inference mode; rows start over,
    beside others too, and then stand at different places; and every state may be gone on from
    twice, by the same tokens and by others."""
    torch.manual_seed(0)
    sizes = SIZES | {"width": 16, "layers": 2, "max_length": 64}
    model = ef.create_model(name, **sizes, **options).double().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.1)
    tokens = torch.randint(0, 50, (2, sum(CALLS)))

    def step(begin, tokens, state):
        with torch.inference_mode() if begin % 12 > 4 else torch.no_grad():
            return model(tokens, state=state)

    expected = torch.empty(*tokens.shape, 50, dtype=torch.float64)
    with torch.no_grad():
        for begin, rows in BEGIN.items():
            for row in range(2):
                if rows[row]:
                    whole = model(tokens[row : row + 1, begin:], state=model.init_state(1))
                    expected[row, begin:] = whole.logits[0]
    state, begin, held = model.init_state(2), 0, []
    state = state.reserve(4) if reserved else state
    for size in CALLS:
        if begin in BEGIN and begin:
            state = state.reset(torch.tensor(BEGIN[begin]))
        if begin in (34, 42):
            state = state.reorder(torch.tensor([0, 1]))
        if begin == 42 and reserved:
            state = state.reserve(2)
        held.append((begin, size, state))
        others = (tokens[:, begin : begin + 1] + 1) % 50
        aside = step(begin, others, state).state
        first = step(begin, others, aside).logits
        state = step(begin, tokens[:, begin : begin + size], state).state
        again = step(begin, others, aside).logits
        torch.testing.assert_close(again, first, rtol=0, atol=1e-9)
        begin += size
    for begin, size, state in [*held[::-2], *held]:
        got = step(begin, tokens[:, begin : begin + size], state).logits
        torch.testing.assert_close(got, expected[:, begin : begin + size], rtol=0, atol=1e-9)
