"""A policy reads what the training would have shown it, kept states or not."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from everyformer.core.errors import ShapeError, UnsupportedError
from everyformer.data.episodes import Space, returns_to_go
from everyformer.generation.acting import DecisionPolicy
from helpers import build_model, close, shifted

CONTEXT, ROWS = 4, 3
SEEDS = range(ROWS)
REALS = Space("box", "float32", (2,), low=(-2.0,), high=(2.0,))
CHOICE = Space("discrete", "int64", count=5)
VARIANTS: dict[str, dict[str, Any]] = {
    "gym": {}, "atari": {"variant": "atari"}, "no-return": {"return_to_go": False},
    "mlp": {"body": "mlp"},
}  # fmt: skip


def model(
    variant: str = "gym", member: str = "attention", acted: Space = REALS, **more: Any
) -> Any:
    shape: dict[str, Any] = {"state": (3,), "actions": acted.size, "context": CONTEXT, "scale": 3.0}
    if not acted.discrete:
        shape |= {"discrete": False, "low": (-2.0,), "high": (2.0,)}
    sizes: dict[str, Any] = {"width": 12, "heads": 2, "layers": 2, "position": None}
    sizes |= {"decision": VARIANTS[variant], **more}
    made = build_model(member, "decision", episodes=shape, **sizes)
    return shifted(made)


class Spy:
    """What a model was given, call by call."""

    def __init__(self, made: Any) -> None:
        self.given: list[dict[str, Tensor]] = []
        made.register_forward_pre_hook(self._keep, with_kwargs=True)

    def _keep(self, _: Any, args: tuple[Tensor], options: dict[str, Any]) -> None:
        self.given.append(
            {"states": args[0], "padding_mask": options["mask"].padding_mask, **options}
        )


def policy(made: Any, target: float | None, streams: bool | None = None) -> DecisionPolicy:
    """One that keeps states where the member has them, or reads all again at every step."""
    result = DecisionPolicy(made, target, seeds=SEEDS)
    result.streams = result.streams if streams is None else streams
    return result


def observed(step: int) -> np.ndarray:
    return np.random.default_rng(step).normal(size=(ROWS, 3)).astype(np.float32)


def rolled(
    policy: DecisionPolicy, steps: int, begins: Callable[[int], list[int]] = lambda step: []
) -> list[np.ndarray]:
    """The actions of so many steps; ``begins`` are rows that start over before a step."""
    acted = []
    policy.reset()
    for step in range(steps):
        if rows := begins(step):
            policy.reset(np.isin(np.arange(ROWS), rows))
        acted.append(policy.act(observed(step)))
        policy.reward(np.array([1.0, -2.0, 0.5]) * step)
    return acted


@pytest.mark.full("16 ways to act; one is in the verbs' tests")
@pytest.mark.parametrize("member", ["attention", "linear", "alibi", "gmlp"])
@pytest.mark.parametrize("variant", ["gym", "atari", "no-return", "mlp"])
def test_kept_states_act_as_windows_read_anew(variant: str, member: str) -> None:
    """As long as the window holds the episode, and behind it, where both read again; rows begin at
    different steps."""
    member, position = ("attention", None) if variant == "mlp" else (member, None)
    position = "alibi" if member == "alibi" else None
    made = model(variant, member, position=position)
    target = 9.0 if variant in ("gym", "atari") else None
    begins = lambda step: {2: [1], 5: [0, 2], 6: [0], 11: [1]}.get(step, [])  # noqa: E731
    both = [rolled(policy(made, target, streams), 13, begins) for streams in (None, False)]
    for kept, again in zip(*both, strict=True):
        close(torch.from_numpy(kept), torch.from_numpy(again), 1e-6)


@pytest.mark.parametrize("training", [False, True])
def test_dropout_plays_no_part_and_the_model_stays_in_its_mode(training: bool) -> None:
    made = model(dropout=0.5).train(training)
    acted = [rolled(DecisionPolicy(made, 9.0, seeds=SEEDS), 3) for _ in range(2)]
    assert np.array_equal(acted[0], acted[1])
    assert {module.training for module in made.modules()} == {training}


def test_what_is_read_is_what_training_would_have_shown() -> None:
    """The return-to-go at t, absolute timesteps, states and actions of the last K steps."""
    made, rewards = model(), np.array([2.0, 0.0, -1.0, 3.0, 1.0, 4.0])
    spy, wanted = Spy(made), returns_to_go(rewards)
    acting = policy(made, float(rewards.sum()), False)
    acted: list[np.ndarray] = []
    for step, reward in enumerate(rewards):
        acted.append(acting.act(observed(step)))
        given = spy.given[step]
        count = min(step + 1, CONTEXT)
        steps = range(step + 1 - count, step + 1)
        real = given["padding_mask"]
        assert real.tolist() == [[False] * (CONTEXT - count) + [True] * count] * ROWS
        for row in range(ROWS):
            at = real[row]
            assert given["timesteps"][row, at].tolist() == [*steps]
            close(given["returns"][row, at], torch.from_numpy(wanted[steps]).float(), 1e-6)
            seen = np.stack([observed(t)[row] for t in steps])
            assert np.array_equal(given["states"][row, at].numpy(), seen)
            done = [acted[t][row] for t in steps[:-1]]
            assert np.allclose(given["actions"][row, at][:-1].numpy(), np.reshape(done, (-1, 2)))
        acting.reward(np.full(ROWS, reward))


@pytest.mark.parametrize("delayed", [False, True])
def test_what_is_asked_for_stays_where_rewards_are_delayed(delayed: bool) -> None:
    made = model()
    spy = Spy(made)
    acting = DecisionPolicy(made, 10.0, seeds=SEEDS, delayed=delayed)
    acting.streams = False
    rolled(acting, 3)
    wanted = [given["returns"][:, -1].tolist() for given in spy.given]
    assert wanted == ([[10.0] * 3] * 3 if delayed else [[10.0] * 3, [10.0] * 3, [9.0, 12.0, 9.5]])


def test_a_step_of_a_stream_reads_three_tokens_and_one_that_is_read_anew_all() -> None:
    for streams in (True, False):
        made, given = model(), []
        made.stack.register_forward_pre_hook(
            lambda _, x, given=given: given.append(tuple(x[0].shape[:2]))
        )
        rolled(policy(made, 9.0, streams), CONTEXT + 3)
        whole = (ROWS, 3 * CONTEXT)
        # the first step has no action before it; behind the window all is read again
        kept = [(ROWS, 2), *[(ROWS, 3)] * (CONTEXT - 1), *[whole] * 3]
        assert given == (kept if streams else [whole] * (CONTEXT + 3))


def test_rows_in_step_are_read_without_a_mask() -> None:
    """A mask is for rows at whose present step others begin, or read again."""
    made, given = model(), []
    made.stack.register_forward_pre_hook(
        lambda _, x, options: given.append((x[0].shape[1], options["mask"] is None)),
        with_kwargs=True,
    )
    policy = DecisionPolicy(made, 9.0, seeds=SEEDS)
    rolled(policy, CONTEXT)
    assert given == [(2, True), *[(3, True)] * (CONTEXT - 1)]
    rolled(policy, 2)
    assert given[CONTEXT:] == [(2, True), (3, True)]
    rolled(policy, 2, lambda step: [1] if step == 1 else [])
    assert given[-2:] == [(2, True), (3, False)]


@pytest.mark.parametrize("member", ["attention", "linear"])
def test_rolling_reads_three_tokens_for_ever_and_is_another_function_behind_the_window(member):
    made = model(member=member)
    rolling = DecisionPolicy(made, 9.0, seeds=SEEDS, rolling=True)
    on, again = rolled(rolling, 9), rolled(DecisionPolicy(made, 9.0, seeds=SEEDS), 9)
    same = [bool(np.allclose(a, b, atol=1e-6)) for a, b in zip(on, again, strict=True)]
    assert same == [True] * CONTEXT + [False] * 5
    assert rolling._state.num_tokens.tolist() == [3 * 9 - 1] * ROWS
    if member == "attention":
        assert {t.shape[2] for t in rolling._state.tensors() if t.dim() == 4} == {3 * CONTEXT - 1}
    # with one layer no state has seen what lies further back
    if member == "attention":
        made = model(layers=1)
        ways = [DecisionPolicy(made, 9.0, seeds=SEEDS, rolling=way) for way in (True, False)]
        assert np.allclose(*(rolled(way, 9) for way in ways), atol=1e-6)
    # actions are brought between the bounds of the data
    made = model(member=member, decision={"tanh": False})
    made.head.bias.data.fill_(50.0)
    assert (rolled(DecisionPolicy(made, 9.0, seeds=SEEDS), 1)[0] == 2.0).all()


def test_actions_that_are_chosen_are_drawn_by_the_logits_from_the_seed_of_the_row() -> None:
    made = model(acted=CHOICE)
    first = [rolled(DecisionPolicy(made, 9.0, seeds=SEEDS), 6) for _ in range(2)]
    assert np.array_equal(*first)
    greedy = rolled(DecisionPolicy(made, 9.0, seeds=SEEDS, temperature=0.0), 1)[0]
    cold = rolled(DecisionPolicy(made, 9.0, seeds=SEEDS, temperature=1e-3), 1)[0]
    assert np.array_equal(greedy, cold)
    assert greedy.dtype == np.int64
    policy = DecisionPolicy(made, 9.0, seeds=range(2100), temperature=2.0)
    logits = np.array([[1.0, 0.0, 2.0, -1.0, 0.5]] * 2100)
    drawn = np.bincount(policy._chosen(logits), minlength=5)
    expected = np.exp(logits[0] / 2) / np.exp(logits[0] / 2).sum()
    assert np.abs(drawn / 2100 - expected).max() < 4 * (0.25 / 2100) ** 0.5


def test_a_row_acts_by_its_own_seed_whatever_is_beside_it() -> None:
    """Alone, or among others that start over at other steps."""
    made = model(acted=CHOICE)
    both = rolled(DecisionPolicy(made, 9.0, seeds=range(3)), 8, lambda t: [0, 2] if t == 3 else [])
    alone = DecisionPolicy(made, 9.0, seeds=[1])
    for step in range(8):
        assert alone.act(observed(step)[1:2]).tolist() == [both[step][1]]
        alone.reward([-2.0 * step])


def test_observations_come_as_environments_give_them() -> None:
    """Pictures with their channels last, whole numbers, numbers in any shape."""
    for shape, seen in (
        ({"state": (3, 8, 9)}, np.arange(216).reshape(1, 8, 9, 3).astype(np.uint8)),
        ({"state": (1, 8, 9)}, np.arange(72).reshape(1, 8, 9).astype(np.uint8)),
        ({"state": (), "state_values": 5}, np.array([4])),
        ({"state": (6,)}, np.arange(6.0).reshape(1, 2, 3)),
    ):
        made: Any = build_model("attention", "decision", episodes={**shape, "actions": 2})
        spy = Spy(made)
        acting = DecisionPolicy(made, 1.0)
        acting.streams = False
        acting.act(seen)
        read = spy.given[0]["states"][0, -1].numpy()
        expected = np.moveaxis(seen[0], -1, 0) if seen.ndim == 4 else seen[0]
        assert np.array_equal(read, expected.reshape(read.shape))


def nodes() -> Any:
    shape = {"state": (), "state_values": 5, "actions": 5}
    return build_model("attention", "decision", episodes=shape)


REFUSED: list[tuple[Any, type[Exception], str]] = [
    (lambda: DecisionPolicy(model(), 1.0).act(np.zeros((1, 2))), ShapeError,
     "observations are float64 in the shape (1, 2), but the model reads 3 numbers in each of 1 "),
    (lambda: DecisionPolicy(model(), 1.0).act(np.zeros((2, 3))), ShapeError,
     "observations are float64 in the shape (2, 3), but the model reads 3 numbers in each of 1 "),
    (lambda: DecisionPolicy(nodes(), 1.0).act(np.array([5])), ShapeError,
     "observations are int64 in the shape (1,), but the model reads whole numbers below 5 in each"),
    (lambda: DecisionPolicy(nodes(), 1.0).act(np.array([1.5])), ShapeError,
     "observations are float64 in the shape (1,), but the model reads whole numbers below 5 in"),
    (lambda: DecisionPolicy(model("mlp"), None, seeds=SEEDS, rolling=True), UnsupportedError,
     "rolling continues states, and attention has no exact ones: leave it out"),
    (lambda: DecisionPolicy(model(position="learned"), 1.0, seeds=SEEDS, rolling=True),
     UnsupportedError, "rolling reads on for ever, and this attention has a table over the"),
    (lambda: DecisionPolicy(model("atari"), 1.0, seeds=SEEDS, rolling=True), UnsupportedError,
     "rolling reads on for ever, and this attention has a table over the places in a window"),
    (lambda: rolled(DecisionPolicy(model(decision={"table": 3}), 1.0, seeds=SEEDS), 4), ShapeError,
     "an episode goes on after 3 steps, where the model's table of timesteps ends: end it"),
]  # fmt: skip


@pytest.mark.parametrize(("make", "kind", "sentence"), REFUSED)
def test_what_cannot_be_played_is_refused(make, kind, sentence):
    with pytest.raises(kind) as caught:
        make()
    assert str(caught.value).startswith(sentence)
