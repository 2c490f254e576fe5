"""Decision Transformer: what a prediction depends on, and what it does not."""

from typing import Any

import pytest
import torch
from torch import Tensor

from everyformer.core.errors import ConfigError, GeneError, ShapeError
from everyformer.core.mask import Mask
from everyformer.models.decision import PresentStep
from helpers import build_model, close, draw, shifted

ROWS, STEPS = 3, 5
NUMBERS: dict[str, Any] = {"state": (3,), "state_mean": (1.0, 0.0, -2.0)}
NUMBERS |= {"state_std": (2.0, 1.0, 0.5), "context": STEPS, "scale": 4.0}
SHAPES: dict[str, dict[str, Any]] = {
    "numbers": {**NUMBERS, "actions": 2, "discrete": False, "low": (-2.0, 0.0), "high": (2.0, 1.0)},
    "unbounded": {**NUMBERS, "actions": 2, "discrete": False},
    "chosen": {**NUMBERS, "actions": 4},
    "whole": {"state": (), "state_values": 7, "actions": 7, "context": STEPS},
    "pictures": {"state": (2, 6, 5), "actions": 3, "context": STEPS},
    "large": {"state": (1, 36, 40), "actions": 3, "context": STEPS},
}
VARIANTS: dict[str, dict[str, Any]] = {
    "gym": {},
    "atari": {"variant": "atari"},
    "no-return": {"return_to_go": False},
    "heads": {"state_weight": 0.5, "return_weight": 2.0},
    "mlp": {"body": "mlp"},
}
CASES = [("numbers", name) for name in VARIANTS] + [("chosen", name) for name in VARIANTS]
CASES += [("unbounded", "gym"), ("whole", "gym"), ("whole", "mlp"), ("pictures", "gym")]
CASES += [("pictures", "mlp"), ("large", "atari")]


def model(shape: str, variant: str = "gym", member: str = "attention", **options: Any) -> Any:
    sizes: dict[str, Any] = {"width": 12, "layers": 2, "heads": 3, "position": None}
    chosen = {"episodes": SHAPES[shape], "decision": VARIANTS[variant], **sizes, **options}
    return shifted(build_model(member, "decision", **chosen))


def window(shape: str, rows: int = ROWS, steps: int = STEPS) -> dict[str, Tensor]:
    """States, returns, actions and timesteps that begin at another step in every row."""
    made = SHAPES[shape]
    states = draw(rows, steps, *made["state"], seed=1) * 3
    if len(made["state"]) != 1:
        states = torch.randint(0, made.get("state_values", 256), states.shape)
    actions = torch.randint(0, made["actions"], (rows, steps))
    if not made.get("discrete", True):
        actions = draw(rows, steps, made["actions"], seed=2).sigmoid()
    timesteps = torch.arange(steps) + torch.arange(0, 7 * rows, 7)[:, None]
    returns = draw(rows, steps, seed=3) * 5
    return {"inputs": states, "returns": returns, "actions": actions, "timesteps": timesteps}


def read(made: Any, given: dict[str, Tensor], **options: Any) -> Any:
    with torch.no_grad():
        return made(**given, **options)


def changed(given: dict[str, Tensor], name: str, step: int) -> dict[str, Tensor]:
    """With another value of one thing at one step."""
    value = given[name].clone()
    if value.is_floating_point():
        value[:, step] = value[:, step] / 2 + 0.1
    else:
        value[:, step] = (value[:, step] + 1) % 3
    return {**given, name: value}


@pytest.mark.parametrize(("shape", "variant"), CASES)
def test_an_action_follows_from_its_return_its_state_and_whole_steps_before(shape, variant):
    made, given, at = model(shape, variant), window(shape), 2
    first = read(made, given).logits
    reads = {"returns": variant not in ("mlp", "no-return"), "inputs": True}
    reads["actions"] = reads["timesteps"] = variant != "mlp"
    for name in given:
        for step in range(STEPS):
            moved = (read(made, changed(given, name, step)).logits - first)[:, at].abs()
            before = step < at or (step == at and name != "actions")
            if name == "timesteps" and variant == "atari":
                before = step == 0
            assert bool((moved.amax(-1) > 0).all()) == (before and reads[name]), (name, step)


@pytest.mark.parametrize(
    ("variant", "member"),
    [("gym", "attention"), ("atari", "linear"), ("no-return", "gmlp"), ("gym", "alibi"),
     ("atari", "learned"), ("gym", "aft-conv"), ("mlp", "attention"), ("no-return", "attention")],
)  # fmt: skip
def test_a_window_that_is_padded_on_the_left_is_the_shorter_one(variant: str, member: str) -> None:
    position = {"learned": "learned", "alibi": "alibi"}.get(member)
    made = model("numbers", variant, member, position=position)
    given = window("numbers")
    for count in (1, 3):
        padding_mask = torch.arange(STEPS).expand(ROWS, -1) >= STEPS - count
        for filler in (0, 50):
            # whatever stands in the padding
            padded = {
                name: t.where(padding_mask.view(ROWS, STEPS, *[1] * (t.dim() - 2)), filler)
                for name, t in given.items()
            }
            long = read(made, padded, mask=Mask(padding_mask=padding_mask)).logits[:, -count:]
            close(long, read(made, {n: t[:, -count:] for n, t in given.items()}).logits)


@pytest.mark.parametrize(
    ("variant", "member"),
    [("gym", "attention"), ("atari", "linear"), ("no-return", "aft-conv"), ("gym", "alibi"),
     ("atari", "learned"), ("no-return", "attention")],
)  # fmt: skip
def test_a_stream_of_steps_is_the_window_of_all_so_far(variant: str, member: str) -> None:
    position = {"learned": "learned", "alibi": "alibi"}.get(member)
    made, given = model("numbers", variant, member, position=position), window("numbers")
    given["timesteps"] = torch.arange(STEPS).expand(ROWS, -1)
    whole = read(made, given).logits
    state, before = made.init_state(ROWS), torch.full((ROWS, 2), 9.0)
    # a row that stands still takes nothing in
    still = torch.tensor([False, True, False])
    for step in range(STEPS):
        now = PresentStep(*(given[name][:, step] for name in ("inputs", "returns", "timesteps")),
                   before.double(), torch.ones(ROWS, dtype=torch.bool))  # fmt: skip
        with torch.no_grad():
            _, other = made.act(now._replace(padding_mask=~still), state)
            acted, state = made.act(now, state)
        close(acted, whole[:, step])
        count = made.config.step_tokens
        assert state.num_tokens.tolist() == [count * step + count - 1] * ROWS
        assert other.num_tokens[1] == (count * step - 1 if step else 0)
        before = given["actions"][:, step]


@pytest.mark.parametrize(
    ("shape", "variant"),
    [("numbers", "gym"), ("numbers", "heads"), ("unbounded", "mlp"), ("unbounded", "heads"),
     ("chosen", "gym"), ("chosen", "heads")],
)  # fmt: skip
def test_the_loss_is_a_mean_over_real_steps(shape: str, variant: str) -> None:
    made, given = model(shape, variant), window(shape)
    padding_mask = torch.arange(STEPS).expand(ROWS, -1) >= torch.tensor([[0], [2], [4]])
    targets = given["actions"].clone()
    targets[~padding_mask] = -100 if shape == "chosen" else 77
    out = read(made, given, targets=targets, mask=Mask(padding_mask=padding_mask))
    real, goals = out.logits[padding_mask], given["actions"][padding_mask]
    if shape == "chosen":
        expected = torch.nn.functional.cross_entropy(real, goals)
    else:
        half = torch.tensor([2.0, 0.5] if shape == "numbers" else [1.0, 1.0])
        each = ((real - goals) / half).square().mean(-1)
        expected = each.mean()
        close(out.each[padding_mask], each)
        assert out.each[~padding_mask].tolist() == [0] * 6
    close(out.losses["task"], expected)
    close(out.loss, sum(out.losses.values()))
    if variant != "heads":
        return
    y = made._read(*given.values(), padding_mask)[0][:, :-1, -1].detach()
    pairs = padding_mask[:, 1:] & padding_mask[:, :-1]
    mean, std = (torch.tensor(NUMBERS[f"state_{name}"]) for name in ("mean", "std"))
    goals = ((given["inputs"] - mean) / std)[:, 1:][pairs]
    close(out.losses["state"], 0.5 * (made.next_state(y)[pairs] - goals).square().mean())
    goals = (given["returns"] / 4.0)[:, 1:][pairs]
    close(out.losses["return"], 2.0 * (made.next_return(y)[..., 0][pairs] - goals).square().mean())
    counts = made.term_counts(given["inputs"], targets, Mask(padding_mask=padding_mask))
    assert counts["state"] == counts["return"] == int(pairs.sum())


@pytest.mark.parametrize("variant", ["gym", "atari"])
def test_returns_times_c_over_a_scale_times_c_are_the_same(variant: str) -> None:
    given = window("numbers")
    plain = read(model("numbers", variant), given)
    wide = {**SHAPES["numbers"], "scale": 40.0}
    tenfold = {**given, "returns": given["returns"] * 10}
    close(plain.logits, read(model("numbers", variant, episodes=wide), tenfold).logits)


@pytest.mark.parametrize(("variant", "read_rows"), [("gym", {7, 8, 9}), ("atari", {7})])
def test_step_t_of_the_episode_reads_row_t_of_the_table(variant: str, read_rows: set[int]) -> None:
    """In the variant atari the whole window that of its first real step."""
    made, given = model("numbers", variant), window("numbers", rows=1)
    given["timesteps"] = torch.tensor([[0, 0, 7, 8, 9]])
    mask = Mask(padding_mask=given["timesteps"] > 0)
    first = read(made, given, mask=mask).logits[:, -1]
    for row in range(12):
        kept = made.time.weight.detach().clone()
        made.time.weight.data[row] += draw(12, seed=row)
        moved = bool((read(made, given, mask=mask).logits[:, -1] != first).any())
        made.time.weight.data.copy_(kept)
        assert moved == (row in read_rows), row


def test_actions_lie_between_their_bounds_where_all_are_bounded() -> None:
    given = window("numbers")
    for shape, tanh, within in (
        ("numbers", None, True), ("numbers", False, False), ("unbounded", None, False),
    ):  # fmt: skip
        made = model(shape, decision={"tanh": tanh})
        made.head.bias.data += torch.tensor([50.0, -50.0])
        actions = read(made, given).logits
        ends = torch.tensor([2.0, 0.0]).expand_as(actions)
        assert bool((actions - ends).abs().max() < 1e-6) == within, (shape, tanh)


def test_behaviour_cloning_reads_the_last_states_of_the_window_side_by_side() -> None:
    made, given = model("numbers", "mlp"), window("numbers")
    mean, std = (torch.tensor(NUMBERS[f"state_{name}"]) for name in ("mean", "std"))
    states = (given["inputs"] - mean) / std
    for step in range(STEPS):
        x = torch.zeros(ROWS, STEPS, 3, dtype=torch.float64)
        x[:, STEPS - 1 - step :] = states[:, : step + 1]
        h = x.flatten(1)
        for linear in made.hidden:
            h = linear(h).relu()
        middle, half = torch.tensor([0.0, 0.5]), torch.tensor([2.0, 0.5])
        close(read(made, given).logits[:, step], middle + half * made.head(h).tanh().detach())


REFUSED: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"decision": {"table": 8}}, ConfigError,
     "the data have episodes of up to 9 steps, but the table of timesteps has 8: raise "
     "`model.decision.table`"),
    ({"decision": {"tanh": True}}, GeneError,
     "`decision.tanh` is for actions that are numbers, and these are chosen from 4: leave it out"),
    ({"decision": {"body": "mlp", "return_to_go": False}}, ConfigError,
     "`return_to_go=False` is read with body='layers' alone, and body is 'mlp': leave "
     "`return_to_go` out"),
    ({"memory": "segment"}, GeneError, "memory 'segment' carries a text from segment to segment"),
    ({"loss_chunk": 4}, GeneError, "`loss_chunk=4` cuts a text into pieces, but task 'decision'"),
    ({"causal": False}, GeneError, "task 'decision' predicts what comes next, so `causal=False`"),
]  # fmt: skip


@pytest.mark.parametrize(("options", "kind", "sentence"), REFUSED)
def test_what_a_model_that_acts_cannot_be_is_refused(options, kind, sentence):
    with pytest.raises(kind) as caught:
        model("chosen", episodes={**SHAPES["chosen"], "longest": 9}, **options)
    assert str(caught.value).startswith(sentence)


def test_tensors_that_do_not_go_together_and_timesteps_beyond_the_table_are_refused() -> None:
    made, given = model("chosen", decision={"table": 40}), window("chosen")
    late = {**given, "timesteps": given["timesteps"] + 22}
    assert int(late["timesteps"].max()) == 40
    for wrong, sentence in (
        (late, "timestep 40 is beyond the model's table of 40: train one with a larger "
               "`model.decision.table`"),
        ({**given, "returns": given["returns"][:, 1:]},
         "returns are (3, 4), but timesteps are (3, 5): give all for the same rows and steps"),
        ({**given, "inputs": given["inputs"][..., 1:]},
         "states must be (batch, steps, 3), not (3, 5, 2)"),
        ({"inputs": given["inputs"]},
         "a model that acts reads returns, actions and timesteps: give all"),
    ):  # fmt: skip
        with pytest.raises(ShapeError) as caught:
            read(made, wrong)
        assert str(caught.value) == sentence


@pytest.mark.parametrize("shape", ["numbers", "chosen"])
def test_the_gradient_to_the_present_action_and_to_all_that_is_later_is_zero(shape: str) -> None:
    made, given, at = model(shape), window(shape), 2
    embedded: list[Tensor] = []
    kept = lambda *found: embedded.append(found[2]) or found[2].retain_grad()  # noqa: E731
    handle = made.action.register_forward_hook(kept)
    given = {**given, "inputs": given["inputs"].requires_grad_()}
    given["returns"] = given["returns"].requires_grad_()
    made(**given).logits[:, at].sum().backward()
    handle.remove()
    for gradient, last in (
        (given["inputs"].grad, at), (given["returns"].grad, at), (embedded[0].grad, at - 1),
    ):  # fmt: skip
        reached = gradient.view(ROWS, STEPS, -1).abs().sum((0, 2))
        assert (reached > 0).tolist() == [step <= last for step in range(STEPS)]


@pytest.mark.parametrize("variant", ["gym", "atari", "no-return"])
def test_the_token_of_return_state_or_action_m_of_step_k_is_token_3k_plus_m(variant: str) -> None:
    made, given = model("chosen", variant), window("chosen")
    seen: list[Tensor] = []
    handle = made.stack.register_forward_pre_hook(lambda _, args: seen.append(args[0]))
    read(made, given)
    for name, m in (("returns", 0), ("inputs", 1), ("actions", 2)):
        read(made, changed(given, name, 3))
        moved = (seen[-1] - seen[0]).abs().amax((0, 2)) > 0
        count, first = (2, 3) if variant == "no-return" else (3, 0)
        place = [] if m < first and m == 0 else [3 * count + m - (count == 2)]
        assert moved.nonzero()[:, 0].tolist() == place
    handle.remove()
