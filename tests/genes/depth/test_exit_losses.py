"""What trains early exits: every layer's loss, oracles, and who decides.

Oracles: sums over places written out in NumPy; layers' losses of a pass by hand.
"""

import copy
import itertools
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from test_exits import LAYERS, LENGTH, VOCABULARY, by_hand, model, text
from torch import Tensor

import everyformer as ef
from everyformer.core.mask import Mask
from everyformer.engines.drawing import uniform_rows
from everyformer.genes.depth.exit_targets import (
    balanced,
    first_agreeing,
    geometric,
    oracle,
    smoothed,
)
from everyformer.training.optimiser import parameter_groups
from everyformer.training.warmstart import warm_start
from helpers import build_model, close, draw, shifted


def by_layer(made: Any, tokens: Tensor) -> list[Tensor]:
    """Logits of every layer in a pass through all; separate norms and heads are of the first."""
    x, found = made.embed(made.embedding, tokens), []
    x = made.add_positions(x, None, None)
    parts = (made.exits.norms, made.exits.heads) if made.exits.separate else ((), ())
    own = zip(*parts, strict=True)
    for block in made.stack.blocks:
        x = block(x).y
        norm, head = next(own, (made.stack.norm, made.head))
        found.append(head(norm(x)))
    return found


def targets(rows: int = 3) -> Tensor:
    goals = text(rows, seed=9)
    goals[0, :4] = -100
    return goals


def losses(made: Any, tokens: Tensor, goals: Tensor) -> Tensor:
    return torch.stack(
        [F.cross_entropy(one.flatten(0, 1), goals.flatten()) for one in by_layer(made, tokens)]
    )


@pytest.mark.parametrize(
    ("depth", "weighting", "omega"),
    [
        ("calm", None, [1, 2, 3, 4, 5]),
        ("depth-adaptive", None, [1, 1, 1, 1, 1]),
        ("depth-adaptive", "root", [1, 2**0.5, 3**0.5, 2, 5**0.5]),
        ("depth-adaptive", "inverse", [1, 1 / 2, 1 / 3, 1 / 4, 1 / 5]),
    ],
)
@pytest.mark.parametrize("heads", ["tied", "separate"])
def test_every_layer_predicts_every_token(depth, weighting, omega, heads) -> None:
    given = {} if weighting is None else {"weighting": weighting}
    made, tokens, goals = model(depth, heads=heads, **given).train(), text(), targets()
    weights = torch.tensor(omega, dtype=torch.float64)
    expected = (weights * losses(made, tokens, goals)).sum() / weights.sum()
    out = made(tokens, targets=goals)
    close(out.losses["task"], expected)
    close(out.loss, sum(out.losses.values()))
    close(out.logits, by_layer(made, tokens)[-1])


def test_scaled_gradients_of_a_layer_are_a_mean_of_those_above_it() -> None:
    tokens, goals = text(), targets()
    scaled = model(scale_gradients=True).train()
    out = scaled(tokens, targets=goals)
    plain = model().train()
    close(out.loss, plain(tokens, targets=goals).loss)
    own = [block.feedforward.down.weight for block in scaled.stack.blocks]
    got = torch.autograd.grad(out.loss, own)
    omega = torch.arange(1.0, 6.0, dtype=torch.float64)
    each = losses(plain, tokens, goals)
    for n in range(LAYERS):
        # of each loss by itself what comes to this layer, through those between as they are scaled
        weight = plain.stack.blocks[n].feedforward.down.weight
        terms = [
            torch.autograd.grad(each[m], weight, retain_graph=True)[0] for m in range(n, LAYERS)
        ]
        shares = omega[n:] / omega[n:].sum()
        close(got[n], sum(s * g for s, g in zip(shares, terms, strict=True)))


def test_mixed_training_is_the_mean_over_drawn_exits_with_copies() -> None:
    made = model("depth-adaptive", training="mixed", exits="threshold", samples=3).train()
    tokens, goals = text(), targets()
    torch.manual_seed(5)
    got = made(tokens, targets=goals)
    torch.manual_seed(5)
    drawn = [1 + (LAYERS * uniform_rows(goals.shape, goals.device)).long() for _ in range(3)]
    assert set(torch.stack(drawn).flatten().tolist()) == {1, 2, 3, 4, 5}
    each = [by_hand(made, tokens, at).flatten(0, 1) for at in drawn]
    close(got.loss, sum(F.cross_entropy(one, goals.flatten()) for one in each) / 3)
    assert set(got.losses) == {"task"}


def test_chances_are_products_and_sum_to_1() -> None:
    odds = draw(4, 7, LAYERS - 1)
    logs = geometric(odds)
    chi = odds.sigmoid().numpy()
    for n in range(LAYERS):
        product = np.prod(1 - chi[..., :n], -1) * (chi[..., n] if n < LAYERS - 1 else 1)
        close(logs[..., n].exp(), torch.from_numpy(product))
    close(logs.exp().sum(-1), torch.ones(4, 7).double())
    # far from 0, where products would be nothing
    assert bool(geometric(torch.full((3, 4), -800.0)).isfinite()[:, -1].all())


@pytest.mark.parametrize("sigma", [0.0, 0.5, 3.0, None])
@pytest.mark.parametrize("penalty", [0.0, 0.1, 100.0])
def test_the_oracle_written_out(sigma: float | None, penalty: float) -> None:
    scores = draw(4, 2, 9).round(decimals=1)
    scored = torch.ones(2, 9, dtype=torch.bool)
    scored[0, :3] = False
    runs = torch.tensor([[0] * 9, [0] * 4 + [1] * 5])
    got = oracle(smoothed(scores, scored, runs, sigma), penalty)
    for b, t in itertools.product(range(2), range(9)):
        if not scored[b, t]:
            continue
        worth = []
        for n in range(4):
            total = count = 0.0
            for other in range(9):
                if not scored[b, other] or runs[b, t] != runs[b, other]:
                    continue
                near = float(t == other) if sigma == 0 else 1.0
                if sigma:
                    near = np.exp(-((t - other) ** 2) / sigma)
                total += near * float(scores[n, b, other])
                count += near
            worth.append(total / count - penalty * (n + 1))
        assert int(got[b, t]) == int(np.argmax(worth)) + 1
    if penalty == 100.0:
        assert bool((got[scored] == 1).all())


def test_ties_go_to_the_smallest_layer() -> None:
    assert int(oracle(torch.tensor([0.0, 1.0, 1.0, 0.5]), 0.0)) == 2
    assert oracle(torch.ones(3, 2, 2), 0.0).tolist() == [[1, 1], [1, 1]]
    best = torch.tensor([[4, 7], [2, 7], [4, 1], [4, 7]])
    assert first_agreeing(best).tolist() == [1, 1]
    assert first_agreeing(best[1:]).tolist() == [2, 1]


@pytest.mark.parametrize("exits", ["geometric", "multinomial"])
@pytest.mark.parametrize("kind", ["correctness", "likelihood"])
def test_who_decides_learns_the_oracle(exits: str, kind: str) -> None:
    made = model("depth-adaptive", exits=exits, oracle=kind, sigma=2.0, alpha=0.3, penalty=0.02)
    tokens, goals = text(), targets()
    scored, logits = goals != -100, torch.stack(by_layer(made, tokens))
    own = logits.log_softmax(-1).gather(-1, goals.clamp(min=0).expand(LAYERS, -1, -1)[..., None])
    scores = own[..., 0] if kind == "likelihood" else (logits.argmax(-1) == goals).double()
    at = oracle(smoothed(scores.detach(), scored, None, 2.0), 0.02) - 1
    x, states = made.embed(made.embedding, tokens), []
    for block in made.stack.blocks:
        x = block(x).y
        states.append(made.stack.norm(x))
    weight, bias = made.stack.depth.weight, made.stack.depth.bias
    if exits == "geometric":
        odds = [s @ w + b for s, w, b in zip(states, weight, bias, strict=False)]
        logs = geometric(torch.stack(odds, -1))
    else:
        logs = (states[0] @ weight.T + bias).log_softmax(-1)
    expected = -0.3 * logs.gather(-1, at[..., None])[..., 0][scored].mean()
    loss = made.train()(tokens, targets=goals).losses["exits"]
    close(loss, expected)
    # the layers do not notice
    assert moved_by(loss, made) == DECIDES


def moved_by(loss: Tensor, made: Any) -> set[str]:
    """What of the model a loss alone teaches."""
    loss.backward()
    return {name for name, p in made.named_parameters() if p.grad is not None and p.grad.any()}


DECIDES = {"stack.depth.weight", "stack.depth.bias"}


def test_both_answers_count_as_much() -> None:
    odds = torch.tensor([0.3, -1.0, 2.0, 0.5], dtype=torch.float64)
    right = torch.tensor([True, False, False, False])
    yes, no = np.log1p(np.exp(-0.3)), np.log1p(np.exp([-1.0, 2.0, 0.5])).mean()
    close(balanced(odds, right), torch.tensor((yes + no) / 2))
    close(balanced(odds[:1], right[:1]), torch.tensor(yes))


@pytest.mark.parametrize("kind", ["balanced", "first"])
def test_the_classifier_is_learned_with_all_else_as_it_is(kind: str) -> None:
    made = model(confidence="classifier", learns="classifier", classifier_loss=kind).train()
    before = copy.deepcopy(made.state_dict())
    optimiser = torch.optim.AdamW(parameter_groups(made, 0.1), lr=0.1)
    out = made(text(), targets=targets())
    assert set(out.losses) == {"task", "exits"}
    out.loss.backward()
    optimiser.step()
    changed = {n for n, value in made.state_dict().items() if not torch.equal(value, before[n])}
    assert changed == DECIDES
    with torch.no_grad():
        logits = torch.stack(by_layer(model(confidence="classifier"), text())).argmax(-1)
    scored = targets() != -100
    first = model(confidence="classifier", learns="classifier", classifier_loss=kind).train()
    with torch.no_grad():
        first.stack.depth.weight.zero_()
        first.stack.depth.bias.zero_()
    found = first(text(), targets=targets()).loss
    if kind == "balanced":
        close(found, torch.tensor(np.log(2)))
    else:
        at = first_agreeing(logits)[scored].double()
        close(found, (at.clamp(max=LAYERS - 1) * np.log(2)).mean())


def test_layers_do_not_notice_a_classifier_that_learns_beside_them() -> None:
    tokens, goals = text(), targets()
    beside = model(confidence="classifier").train()
    out = beside(tokens, targets=goals)
    alone = model().train()
    alone.load_state_dict(beside.state_dict(), strict=False)
    close(out.losses["task"], alone(tokens, targets=goals).loss)
    assert moved_by(out.losses["exits"], beside) == DECIDES


def translator(**options: Any) -> Any:
    return shifted(build_model(
        "depth-adaptive", "seq2seq", seed=3, vocabulary=VOCABULARY, width=16, heads=2,
        layers=LAYERS, max_length=40, end_token=1, start_token=0, depth_options=options,
    ))  # fmt: skip


@torch.inference_mode()
@pytest.mark.parametrize("exits", ["geometric", "sequence", "random", "multinomial"])
def test_a_decoder_that_writes_token_by_token_leaves_as_in_training(exits: str) -> None:
    made, source, goals = translator(exits=exits), text(3, 9), text(3, 12, seed=2)
    padding_mask = torch.arange(9)[None] < torch.tensor([[9], [5], [7]])
    mask, prefix = Mask(padding_mask=padding_mask), made.shifted(goals)
    whole = made(source, targets=goals, mask=mask).logits
    context, state = made.encode(source, mask).context, made.init_state(3)
    for t in range(12):
        out = made.decode(prefix[:, t : t + 1], context, state=state)
        close(out.logits, whole[:, t : t + 1])
        state = out.state
    # beams: two rows a sentence read one context
    beams = prefix.repeat_interleave(2, 0)
    out = made.decode(beams, context, state=made.init_state(6))
    close(out.logits[::2], whole)
    close(out.logits[1::2], whole)
    other = source.clone()
    other[~padding_mask] = 3
    close(made(other, targets=goals, mask=mask).logits, whole)


@torch.inference_mode()
def test_a_sequence_leaves_at_one_layer_that_the_source_decides() -> None:
    made, source, goals = translator(exits="sequence"), text(6, 9), text(6, 12, seed=2)
    padding_mask = torch.arange(9)[None] < torch.tensor([[9], [5], [7], [3], [9], [8]])
    hidden = made.embed(made.source_embedding, source)
    encoded = made.encoder(made.add_positions(hidden, None, None, made.source_position),
                           mask=Mask(padding_mask=padding_mask)).y  # fmt: skip
    means = torch.stack([encoded[row][padding_mask[row]].mean(0) for row in range(6)])
    # what rows have in common decides nothing
    weight = 20 * draw(LAYERS, 16)
    made.stack.depth.weight.copy_(weight)
    made.stack.depth.bias.copy_(-weight @ means.mean(0))
    with ef.trace(made) as seen:
        made(source, targets=goals, mask=Mask(padding_mask=padding_mask))
    [at] = seen.find("exits").values()
    assert bool((at == at[:, :1]).all())
    assert len(at.unique()) > 1
    for row, mean in enumerate(means):
        odds = made.stack.depth.weight @ mean + made.stack.depth.bias
        assert int(at[row, 0]) == int(odds.argmax()) + 1


def test_a_sequence_learns_one_exit_a_row() -> None:
    made, source, goals = translator(exits="sequence", alpha=0.3), text(3, 9), text(3, 12, seed=2)
    goals[1, 7:] = -100
    made.train()
    for part in made.modules():
        part.training = True
        if isinstance(getattr(part, "dropout", None), float):
            part.dropout = 0.0
    out = made(source, targets=goals)
    context = made.encode(source).context
    prefix, scored = made.shifted(goals), goals != -100
    x = made.add_positions(made.embed(made.embedding, prefix), None, None)
    right = []
    for n, block in enumerate(made.stack.blocks):
        x = block(x, context=context[n]).y
        right.append((made.head(made.stack.norm(x)).argmax(-1) == goals).double())
    worth = torch.stack([(r * scored).sum(1) / scored.sum(1) for r in right])
    at = oracle(worth, 0.01) - 1
    logs = context[-1].odds.log_softmax(-1).gather(1, at[:, None])
    close(out.losses["exits"], -0.3 * logs.sum() / scored.sum())


@pytest.mark.parametrize("depth", ["calm", "depth-adaptive"])
def test_a_plain_run_becomes_one_with_exits(depth: str, tmp_path: Any) -> None:
    sizes = {"vocabulary": 9, "width": 16, "heads": 2, "layers": 3, "max_length": LENGTH}
    plain = ef.create_model("rope", **sizes)
    ef.save(plain, tmp_path / "plain")
    made = ef.create_model("rope", depth=depth, **sizes)
    report = warm_start(made, tmp_path / "plain")
    assert set(report.fresh) <= DECIDES
    assert torch.equal(made.embedding.weight, plain.embedding.weight)
