"""Adaptive attention span: the soft mask, trimming, streams, the penalty and what is refused.

Oracles: the equation of the released module, a number at a time (ramp at the distance less one,
vectors by distance, no key but past ones); torch's own attention where spans are whole.
"""

import dataclasses
import math
import re
from typing import Any

import numpy as np
import pytest
import torch
from by_loops import HEADS, WIDTH, mixer, text
from torch import Tensor

import everyformer as ef
from everyformer.core.errors import ConfigError, GeneError, UnsupportedError
from everyformer.core.mask import Mask
from everyformer.data.text import TextDataset
from everyformer.engines.softmax.spans import Reach, soft_windows
from everyformer.interop.export import export_program
from everyformer.training.config import TrainingConfig
from everyformer.training.evaluate import evaluate
from everyformer.training.loop import train
from everyformer.training.optimiser import parameter_groups
from helpers import close, draw, with_gradients
from sequence_laws.flops import count_flops

SIZE = WIDTH // HEADS
FORMS: list[tuple[bool, dict[str, Any], tuple[float, ...]]] = [
    # causal, options, z of the heads in tokens
    (True, {"window": 9, "ramp": 4}, (0.0, 3.3, 9.0)),
    (False, {"window": 7, "ramp": 3}, (0.0, 1.4, 7.0)),
    (True, {"window": 20, "ramp": 3, "dynamic": True}, ()),
    (False, {"window": 20, "ramp": 3, "dynamic": True}, ()),
]


def made(causal: bool, options: dict[str, Any], z: tuple[float, ...] = ()) -> Any:
    """A mixer whose heads look z tokens far, ramp not counted."""
    built: Any = mixer("adaptive-span", causal, **options)
    with torch.no_grad():
        if z:
            built.spans.copy_(torch.tensor(z, dtype=torch.float64) / options["window"])
    return built


def by_loops(m: Any, x: Tensor) -> Tensor:
    """y (L, width) of one text, pair by pair."""
    o, length = m.options, len(x)
    wq, wk, wv = (w.detach() for w in m.project.weights[0].split(WIDTH))
    out = torch.zeros(length, WIDTH, dtype=torch.float64)
    # the table's last row is that of the nearest past key, or of the farthest later one
    nearest = 1 if m.causal else 1 - o.window
    for h in range(HEADS):
        part = slice(h * SIZE, (h + 1) * SIZE)
        for i in range(length):
            q = wq[part] @ x[i]
            if o.dynamic:
                raw = (m.spans_of.weight[h] @ x[i] + m.spans_of.bias[h]).item()
                z = o.window / (1 + math.exp(-raw))
            else:
                z = o.window * m.spans[h].item()
            terms = []
            for j in range(length):
                d = i - j
                distance = abs(d) - int(m.causal)
                if (m.causal and d < 1) or abs(d) > o.window - (not m.causal):
                    continue
                soft = min(max((o.ramp + z - distance) / o.ramp, 0.0), 1.0)
                p = m.table[len(m.table) - 1 - (d - nearest)]
                score = (q @ (wk[part] @ x[j] + p)).item() / math.sqrt(SIZE)
                terms.append((soft * math.exp(score), wv[part] @ x[j]))
            total = sum(weight for weight, _ in terms)
            for weight, value in terms:
                if total:
                    out[i, part] += weight / total * value
    return out @ m.out.weight.T


@pytest.mark.parametrize(("causal", "options", "z"), FORMS)
def test_it_is_the_equation_pair_by_pair(causal, options, z) -> None:
    m, x = made(causal, options, z), text(13)
    with torch.no_grad():
        expected = by_loops(m, x[0])[None]
        close(m(x).y, expected)
        close(m.reference(x), expected)


def inputs(length: int, source: int, reach: Reach) -> list[Tensor]:
    """q, k, v, p and the ends of ramps of three heads, off all kinks."""
    q, k, v = (draw(2, HEADS, n, SIZE, seed=n) for n in (length, source, source + 1))
    ends = torch.tensor([2.3, 5.6, 7.4], dtype=torch.float64).view(1, HEADS, 1)
    table = draw(reach.columns, SIZE, seed=5)
    return [t.requires_grad_() for t in (q, k, v[:, :, 1:].detach(), table, ends.clone())]


REACHES = [Reach(8, False), Reach(6, True)]


@pytest.mark.parametrize("reach", REACHES)
def test_trimmed_is_untrimmed_with_all_gradients(reach: Reach) -> None:
    length, source = (17, 17) if reach.both else (17, 21)
    given = inputs(length, source, reach)
    within = [reach.within(end) for end in given[4].flatten().tolist()]
    trimmed, whole = (
        with_gradients(soft_windows(*given, reach=reach, ramp=3.0, farthest=far), given)
        for far in (within, [reach.farthest] * HEADS)
    )
    assert trimmed[5].abs().min() > 1e-3
    close(trimmed, whole)


@pytest.mark.parametrize("dropout", [0.0, 0.5])
@pytest.mark.parametrize("reach", REACHES)
def test_gradients_are_finite_differences(reach: Reach, dropout: float) -> None:
    given = inputs(4, 4 if reach.both else 7, reach)
    farthest = [reach.within(end) for end in given[4].flatten().tolist()]
    first = None if reach.both else torch.tensor([0, 2])

    def outputs(*t: Tensor) -> Tensor:
        torch.manual_seed(3)
        return soft_windows(
            *t, reach=reach, ramp=3.0, farthest=farthest, first=first, scale=0.5, dropout=dropout
        )  # fmt: skip

    assert torch.autograd.gradcheck(outputs, given, fast_mode=True)


def test_masked_keys_with_all_the_mass_leave_the_others_exact() -> None:
    """A softmax over everything, masked afterwards, would be 0 / 0 here."""
    reach, far = Reach(8, False), 1e4
    q, k, v, table, _ = inputs(9, 9, reach)
    k = k.detach().clone()
    k[:, :, 0] = far * q[:, :, 8]
    ends = torch.full((1, HEADS, 1), 3.0, dtype=torch.float64)
    o = soft_windows(q, k, v, table, ends, reach=reach, ramp=3.0, farthest=[8] * HEADS)
    near = [t[:, :, 3:] for t in (k, v)]
    given = (q[:, :, 8:], *near, table, ends)
    alone = soft_windows(*given, reach=reach, ramp=3.0, farthest=[3] * HEADS)
    close(o[:, :, 8:], alone)


def test_dynamic_spans_keep_the_whole_window_for_later_tokens() -> None:
    m = made(True, {"window": 24, "ramp": 3, "dynamic": True})
    torch.nn.init.zeros_(m.spans_of.weight)
    torch.nn.init.constant_(m.spans_of.bias, -9.0)
    assert m(text(40), state=m.init_state(1)).state.keys.shape[2] == 24


@pytest.mark.parametrize("z", [(0.0, 0.5, 1.0), (2.0, 9.0, 30.0)])
def test_a_stream_holds_what_the_longest_span_reads(z: tuple[float, ...]) -> None:
    m = made(True, {"window": 32, "ramp": 3}, z)
    keys = math.ceil(3 + max(z)) if max(z) < 29 else 32
    _, state, _ = m(text(50, rows=2), state=m.init_state(2))
    assert state.keys.shape == state.values.shape == (2, HEADS, keys, SIZE)
    assert state.nbytes == 2 * 2 * keys * WIDTH * 8 + 2 * 8
    taken = m.append(text(50, rows=2), state=m.init_state(2))
    close(taken.keys, state.keys)


def test_operations_and_bytes_fall_with_the_span() -> None:
    def costs(*shares: float) -> tuple[int, int]:
        m: Any = ef.create_mixer("adaptive-span", width=32, heads=4, causal=True, window=512)
        with torch.no_grad():
            m.spans.copy_(torch.tensor(shares))
        x = torch.randn(1, 1024, 32, requires_grad=True)
        flops = count_flops(lambda: m(x).y.sum().backward())
        rest = count_flops(lambda: m.merge(m.project(x)[0]).sum().backward())
        state = m(x.detach(), state=m.init_state(1)).state
        return flops - rest, state.nbytes

    whole, short, mixed = costs(1, 1, 1, 1), costs(*[0.1] * 4), costs(0.1, 1, 0.1, 0.1)
    # 32 + 51 of 512 keys, and the blocks that they lie in
    assert short[0] < whole[0] / 3
    assert whole[1] > 6 * short[1]
    # three short heads beside a long one cost as three short heads
    assert mixed[0] == 3 * short[0] / 4 + whole[0] / 4


@pytest.mark.parametrize("causal", [True, False])
def test_a_window_longer_than_the_text_costs_no_more_than_the_text(causal: bool) -> None:
    x, found = text(13), []
    for window in (13, 400):
        m = made(causal, {"window": window, "ramp": 2}, (float(window),) * 3)
        found.append(count_flops(lambda m=m: m(x).y.sum().backward()))
    assert found[1] <= 1.1 * found[0]


def model(**options: Any) -> Any:
    torch.manual_seed(0)
    sizes = {"width": 16, "layers": 2, "heads": 2, "vocabulary": 256, "max_length": 32}
    return ef.create_model("adaptive-span", **{**sizes, "window": 16, "ramp": 4, **options})


TOKENS = torch.randint(0, 256, (2, 12), generator=torch.Generator().manual_seed(0))


def test_the_penalty_is_lambda_times_the_mean_span_of_every_layer() -> None:
    made = model(penalty=0.5)
    first, second = (block.mixer.spans for block in made.stack.blocks)
    with torch.no_grad():
        first.copy_(torch.tensor([0.25, 0.5]))
        second.copy_(torch.tensor([1.0, 0.0]))
    out = made(TOKENS, targets=TOKENS)
    # lambda S mean z^, summed
    close(out.losses["span"].item(), 0.5 * (4 + 8) / 2 + 0.5 * (16 + 0) / 2, 1e-6)
    close(out.loss.item(), (out.losses["task"] + out.losses["span"]).item(), 1e-6)
    assert "span" not in model(penalty=0.0)(TOKENS, targets=TOKENS).losses


def test_the_penalty_of_dynamic_spans_is_a_mean_over_real_tokens() -> None:
    m = made(True, {"window": 8, "ramp": 2, "dynamic": True, "penalty": 3.0})
    x, padding_mask = text(6, rows=2), torch.ones(2, 6, dtype=torch.bool)
    padding_mask[0, :2] = padding_mask[1, 3] = False
    z = [
        8 / (1 + math.exp(-(w @ t + b).item()))
        for row, real in zip(x, padding_mask, strict=True)
        for t in row[real]
        for w, b in zip(m.spans_of.weight, m.spans_of.bias, strict=True)
    ]
    close(m(x, mask=Mask(padding_mask=padding_mask)).losses["span"].item(), 3 * sum(z) / len(z))


ROW = np.random.default_rng(0).integers(0, 11, 601).astype(np.uint8)
TEXT = TextDataset(
    name="text", task="lm", kind="text", vocabulary=11, length=8, split="", fingerprint="",
    train=ROW, validation=ROW[:65],
)  # fmt: skip


@pytest.mark.parametrize("ema", [None, 0.5])
def test_spans_are_set_back_into_their_bounds_after_every_step(ema: float | None) -> None:
    steps: list[float] = []

    made = model(vocabulary=11, penalty=10.0)
    made.end_step, settle = lambda: (settle(), steps.append(lowest(made))), made.end_step
    config = TrainingConfig(steps=4, batch=2, lr=0.05, warmup=1, ema=ema, device="cpu")
    train(made, TEXT, config, show=False)
    assert steps == [0.0] * 4
    assert lowest(made) >= 0


def lowest(made: Any) -> float:
    return min(float(block.mixer.spans.detach().min()) for block in made.stack.blocks)


def test_a_loop_that_tells_nothing_projects_too() -> None:
    made = model(penalty=10.0, start=0.03).train()
    optimiser = torch.optim.SGD(made.parameters(), lr=1.0)
    made(TOKENS, targets=TOKENS).loss.backward()
    optimiser.step()
    assert lowest(made) < 0
    made(TOKENS, targets=TOKENS)
    assert lowest(made) == 0


def test_evaluation_reports_no_penalty_and_the_mean_span() -> None:
    made = model(vocabulary=11, penalty=1.0)
    with torch.no_grad():
        for block, shares in zip(made.stack.blocks, ([0.25, 0.5], [1.0, 0.0]), strict=True):
            block.mixer.spans.copy_(torch.tensor(shares))
    found: Any = evaluate(made, TEXT)
    # z + R, never beyond S: 8, 12, 16 and 4 tokens
    assert found["mean_span"] == 10
    assert "mean_depth" not in found
    for block in made.stack.blocks:
        block.mixer.options = dataclasses.replace(block.mixer.options, penalty=0.0)
    free: Any = evaluate(made, TEXT)
    assert found["loss"] == free["loss"]


@pytest.mark.parametrize("dynamic", [False, True])
def test_what_makes_spans_learns_at_its_own_rate_without_decay(dynamic: bool) -> None:
    made = model(span_lr=3.0, dynamic=dynamic)
    names = {id(p): name.split(".", 4)[-1] for name, p in made.named_parameters()}
    groups = parameter_groups(made, 0.1)
    [apart] = [group for group in groups if group["lr_scale"] == 3.0]
    kinds = {"spans_of.weight", "spans_of.bias"} if dynamic else {"spans"}
    assert {names[id(p)] for p in apart["params"]} == kinds
    assert apart["weight_decay"] == 0
    [decayed] = [group for group in groups if group["weight_decay"]]
    assert not any("table" in names[id(p)] for p in decayed["params"])


def test_all_layers_share_one_table() -> None:
    made = model()
    first, second = (block.mixer for block in made.stack.blocks)
    assert first.table is second.table
    assert first.spans is not second.spans
    assert len([n for n, _ in made.named_parameters() if n.endswith("table")]) == 1


SIZES = {"width": 12, "heads": 3, "max_length": 32}
REFUSED: list[Any] = [
    (lambda: ef.create_mixer("adaptive-span", **SIZES, causal=True, window=16, ramp=17), GeneError,
     "`ramp=17` is wider than `window=16`"),
    (lambda: ef.create_model("attention", ramp=4), ConfigError, "unknown option `ramp`"),
    (lambda: ef.create_model("adaptive-span", position="alibi"), GeneError,
     "but mixer 'adaptive-span' has a table of distances of its own: use position 'sinusoidal'"),
    (lambda: ef.create_model("adaptive-span", layers=2, window=ef.by_layer(8, 16), ramp=4),
     GeneError, "one table of distances for all layers, but their windows differ, 8 and 16"),
    (lambda: export_program(model(dynamic=True), "model.pt2"), UnsupportedError,
     "dynamic spans of 'adaptive-span' cannot be export"),
]  # fmt: skip


@pytest.mark.parametrize(("build", "kind", "said"), REFUSED)
def test_what_cannot_be_is_refused(build, kind, said) -> None:
    with pytest.raises(kind, match=re.escape(said)):
        build()


@pytest.mark.parametrize("reserved", [False, True])
def test_steps_follow_spans_that_change_and_leave_older_states_as_they_are(reserved):
    """Spans change behind autograd."""
    m = made(True, {"window": 9, "ramp": 4}, (0.0, 3.3, 9.0)).eval()
    x, states = draw(2, 60, WIDTH), []
    with torch.no_grad():
        for z in ((0.0, 3.3, 9.0), (5.5, 1.0, 0.0)):
            m.spans.data.copy_(torch.tensor(z, dtype=torch.float64) / 9)
            with torch.enable_grad():  # in which nothing is remembered
                whole = m(x).y.detach()
            state = m.init_state(2)
            state = state.reserve(3) if reserved else state
            for n in range(60):
                states.append((n, state, whole))
                out = m(x[:, n : n + 1], state=state)
                close(out.y, whole[:, n : n + 1])
                state = out.state
        for n, state, whole in [*states[:59:-7], *states[60:]]:
            close(m(x[:, n : n + 1], state=state).y, whole[:, n : n + 1])
