"""The Universal Transformer: signals, halting, what comes out, what it costs and what is refused.

Oracles: torch's encoder layer in a loop; Graves' recurrence in NumPy, which shares the layer with
the code but nothing else.
"""

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import everyformer as ef
from everyformer.blocks.passing import StackRun
from everyformer.core.errors import ConfigError, GeneError
from everyformer.core.mask import Mask
from everyformer.core.subset import TokenSubset
from everyformer.data.text import TextDataset
from everyformer.genes.depth.universal import Account, Universal, UniversalOptions
from everyformer.genes.positions.sinusoidal import sinusoid
from everyformer.genes.residuals.pre import PreNorm
from everyformer.lab.show.pictures import draw_pictures
from everyformer.models.build import configure_layers
from everyformer.models.layers import build_stack
from everyformer.training.evaluate import evaluate
from everyformer.training.optimiser import parameter_groups
from helpers import close, covering, draw

WIDTH, LENGTH = 12, 11
TEXT = draw(2, LENGTH, WIDTH)


def stack(causal: bool = True, layers: int = 1, wide: float = 3.0, **options: Any) -> Any:
    """Layers whose tokens halt at different steps: w is ``wide`` times as long as at the start."""
    own = {name: options.pop(name) for name in (*options,) if hasattr(UniversalOptions, name)}
    sizes = {"width": WIDTH, "heads": 3, "layers": layers, "dropout": 0.0, "length": 32}
    torch.manual_seed(0)
    config = configure_layers("universal", causal, depth_options=own, **sizes, **options)
    made = build_stack(config).double().eval()
    for parameter in made.blocks.parameters():
        if parameter.dim() > 1:
            nn.init.normal_(parameter, std=0.3)
    if hasattr(made.depth, "weight"):
        made.depth.weight.data *= wide
    return made


def traced(made: Any, x: Tensor, **given: Any) -> tuple[Tensor, Tensor]:
    """N and N + R of every token, (B, L) each."""
    with ef.trace(made) as seen:
        made(x, **given)
    [steps], [rest] = (seen.find(name).values() for name in ("halting", "remainder"))
    return steps, steps + rest


def signal(length: int, t: int) -> np.ndarray:
    """P^t (L, width), a number at a time."""
    table = np.zeros((length, WIDTH))
    for i in range(length):
        for j in range(WIDTH // 2):
            w = 10000 ** (-2 * j / WIDTH)
            table[i, 2 * j] = math.sin(i * w) + math.sin(t * w)
            table[i, 2 * j + 1] = math.cos(i * w) + math.cos(t * w)
    return table


def oracle(made: Any, x: Tensor) -> tuple[np.ndarray, np.ndarray, float]:
    """y (B, L, width) before the last norm, N and the mean of N + R, token by token."""
    o, [layer] = made.depth.options, made.blocks
    w, b = made.depth.weight.detach().numpy(), float(made.depth.bias.detach())
    h, (rows, length, _) = x.detach().numpy().copy(), x.shape
    y, steps, rest = np.zeros_like(h), np.zeros((rows, length), int), np.zeros((rows, length))
    spent, runs = np.zeros((rows, length)), np.ones((rows, length), bool)
    for t in range(1, o.steps + 1):
        moved = h + signal(length, t)
        new = layer(torch.from_numpy(moved)).y.detach().numpy()
        for r in range(rows):
            for i in range(length):
                if not runs[r, i]:
                    continue
                h[r, i] = new[r, i]
                p = 1 / (1 + math.exp(-(moved[r, i] @ w + b)))
                steps[r, i] = t
                stops = spent[r, i] + p > 1 - o.epsilon or t == o.steps
                weight = 1 - spent[r, i] if stops else p
                if stops:
                    rest[r, i], runs[r, i] = weight, False
                else:
                    spent[r, i] += p
                if o.combine == "accumulated":
                    y[r, i] += weight * new[r, i]
                else:
                    y[r, i] = weight * new[r, i] + (1 - weight) * y[r, i]
    return y, steps, float((steps + rest).mean())


@pytest.mark.parametrize("residual", ["post", "pre"])
def test_without_signals_and_halting_it_is_the_layers_repeated(residual: str) -> None:
    none = {"steps": 3, "halting": "none", "signal": "none"}
    made = stack(layers=2, residual=residual, position="alibi", **none)
    sizes = {"width": WIDTH, "heads": 3, "layers": 2, "residual": residual, "position": "alibi"}
    config = configure_layers("universal", True, 32, depth="repeat", times=3, **sizes)
    repeated = build_stack(config).double().eval()
    repeated.load_state_dict(made.state_dict())
    close(made(TEXT).y, repeated(TEXT).y)


@pytest.mark.parametrize("first", [False, True], ids=["post", "pre"])
def test_fixed_steps_are_torchs_layer_in_a_loop(first: bool) -> None:
    made = stack(False, steps=4, halting="none", residual="pre" if first else "post")
    [block] = made.blocks
    theirs = nn.TransformerEncoderLayer(
        WIDTH, 3, 4 * WIDTH, dropout=0.0, activation="relu", layer_norm_eps=1e-6, batch_first=True,
        norm_first=first, dtype=torch.float64,
    ).eval()  # fmt: skip
    feed, attention = block.feedforward, theirs.self_attn
    with torch.no_grad():
        for bias in (attention.in_proj_bias, attention.out_proj.bias):
            bias.zero_()
        attention.in_proj_weight.copy_(block.mixer.project.weights[0])
        attention.out_proj.weight.copy_(block.mixer.out.weight)
        norms = (theirs.norm1, block.mixer_norm), (theirs.norm2, block.feedforward_norm)
        for a, b in ((theirs.linear1, feed.up), (theirs.linear2, feed.down), *norms):
            a.weight.copy_(b.weight)
            a.bias.copy_(b.bias)
    h = TEXT
    for t in range(1, 5):
        h = theirs(h + torch.from_numpy(signal(LENGTH, t)))
    close(made(TEXT).y, made.norm(h))


@covering(
    combine=["accumulated", "interpolate"], causal=[True, False], feedforward=["relu", "sepconv"]
)
def test_halting_is_graves_recurrence(combine: str, causal: bool, feedforward: str) -> None:
    own = {"combine": combine, "halting_bias": -0.5}
    made = stack(causal, steps=5, epsilon=0.05, tau=0.5, feedforward=feedforward, **own)
    y, steps, ponder = oracle(made, TEXT)
    assert set(steps.flatten()) == {1, 2, 3, 4, 5}
    out = made(TEXT)
    close(out.y, made.norm(torch.from_numpy(y)))
    close(float(out.losses["ponder"].detach()), 0.5 * ponder)
    assert traced(made, TEXT)[0].tolist() == steps.tolist()


class Counted(StackRun):
    """A pass whose step t gives every token the unit vector of channel t + 1."""

    taken = 0

    def step(self, n: int, layer: int, stream: Tensor, chosen: TokenSubset | None = None) -> Tensor:
        self.taken += 1
        return torch.zeros_like(stream).index_fill(-1, torch.tensor(layer + 1), 1.0)


def counted(steps: int) -> Counted:
    return Counted([], PreNorm(), [(0,)] * steps)


def weights(p: list[float], **options: Any) -> tuple[list[float], float, int]:
    """How much of each step comes out where the chances to halt are ``p``; N + R; steps run."""
    own = UniversalOptions(steps=len(p), signal="learned", tau=1.0, **options)
    depth = Universal(own, width=100).double()
    given = counted(len(p))
    with torch.no_grad():
        depth.weight.zero_()[0] = 1.0
        depth.bias.zero_()
        depth.signals.zero_()
        # a certain p of 1 has no finite logarithm of its odds
        odds = [math.log(one / (1 - one)) if one < 1 else 50.0 for one in p]
        depth.signals[:, 0] = torch.tensor(odds, dtype=torch.float64) / 10
        x = torch.zeros(1, 1, 100, dtype=torch.float64)
        y = given.forward(x, depth.schedule(given, x))
    return y[0, 0, 1 : len(p) + 1].tolist(), float(given.losses["ponder"].detach()), given.taken


@pytest.mark.parametrize(
    ("p", "options", "expected", "ponder"),
    [
        ([0.3, 0.4, 0.9], {}, [0.3, 0.4, 0.3], 3.3),
        ([0.3, 0.4, 0.3], {"combine": "interpolate"}, [0.126, 0.28, 0.3], 3.3),
        ([0.05] * 6, {}, [0.05] * 5 + [0.75], 6.75),
        ([1.0] * 4, {}, [1, 0, 0, 0], 2.0),
        ([0.99, 0.5], {}, [0.99, 0.01], 2.01),
        ([0.985, 0.5], {"epsilon": 0.02}, [1, 0], 2.0),
    ],
)
def test_weights_of_the_steps(p, options, expected, ponder) -> None:
    found, cost, _ = weights(p, **options)
    assert found == pytest.approx(expected, abs=1e-12)
    assert cost == pytest.approx(ponder, abs=1e-12)


@pytest.mark.parametrize("k", [2, 3, 4, 7, 20, 64])
def test_equal_chances_of_1_in_k_halt_after_k_steps(k: int) -> None:
    found, cost, taken = weights([1 / k] * (k + 3))
    assert taken == k
    assert sum(found) == pytest.approx(1, abs=1e-12)
    assert cost == pytest.approx(k + 1 / k, abs=1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_weights_add_up_to_1_whatever_the_dtype(dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(0)
    account = Account(torch.ones(64, 64, dtype=torch.bool), 0.01, torch.float32)
    total = torch.zeros(64, 64)
    for t in range(9):
        p = torch.rand(64, 64, generator=generator).to(dtype) / 2
        total = total + account.spend(p.float(), t == 8)
    close(total, torch.ones(64, 64), 1e-6)
    assert not bool(account.running.any())
    made = stack(steps=5, halting_bias=-0.5).to(dtype)
    assert made(TEXT.to(dtype)).losses["ponder"].dtype == torch.float32


def test_without_order_texts_are_bags() -> None:
    made, by = stack(False, steps=5, order="none", halting_bias=-0.5), torch.randperm(LENGTH)
    close(made(TEXT[:, by]).y, made(TEXT).y[:, by])
    assert torch.equal(traced(made, TEXT[:, by])[0], traced(made, TEXT)[0][:, by])
    ordered = stack(False, steps=5, halting_bias=-0.5)
    assert not torch.allclose(ordered(TEXT[:, by]).y, ordered(TEXT).y[:, by])


@covering(side=["left", "right", "packed"], causal=[True, False], feedforward=["relu", "sepconv"])
def test_padding_takes_no_steps_and_costs_nothing(side, causal, feedforward) -> None:
    made = stack(causal, steps=5, halting_bias=-0.5, tau=1.0, feedforward=feedforward)
    short, long = TEXT[:1, :4], TEXT[1:, :7]
    junk = torch.full((1, 3, WIDTH), 1e3, dtype=torch.float64)
    row = torch.cat((junk, short) if side == "left" else (short, junk), 1)
    padding_mask = torch.ones(2, 7, dtype=torch.bool)
    padding_mask[0, slice(0, 3) if side == "left" else slice(4, 7)] = False
    x, mask = torch.cat((row, long)), Mask(padding_mask=padding_mask)
    if side == "packed":
        x, ids = torch.cat((short, long), 1), torch.tensor([[3] * 4 + [5] * 7])
        mask = Mask(documents=ids)
    out, (steps, _) = made(x, mask=mask), traced(made, x, mask=mask)
    alone = [made(short), made(long)]
    total = 4 * alone[0].losses["ponder"] + 7 * alone[1].losses["ponder"]
    close(out.losses["ponder"], total / 11)
    if side != "packed":
        assert not bool(steps[~padding_mask].any())
        close(out.y[padding_mask], torch.cat([one.y[0] for one in alone]))
        steps = steps[padding_mask]
    assert steps.flatten().tolist() == [n for t in (short, long) for n in traced(made, t)[0][0]]


def test_learned_tokens_in_front_have_no_place_and_are_not_counted() -> None:
    own = {"form": "etc", "extra_tokens": 2, "block_size": 2}
    made = stack(False, mixer="bigbird", steps=4, halting_bias=-0.5, tau=1.0, **own)
    out, (steps, cost) = made(TEXT), traced(made, TEXT)
    assert out.y.shape == TEXT.shape
    assert steps.shape == TEXT.shape[:2]
    close(out.losses["ponder"], cost.mean())
    # by hand: the learned tokens are part of the text, whose places begin behind them
    lead, made.lead = made.lead, None
    x = torch.cat((lead.expand(2, -1, -1), TEXT), 1)
    made.depth.adds_positions, plain = False, made.depth.signals_of

    def signals(positions: Tensor, like: Tensor) -> Any:
        places = torch.zeros(1, LENGTH + 2, WIDTH, dtype=torch.float64)
        places[:, 2:] = sinusoid(torch.arange(LENGTH)[None], WIDTH, dtype=like.dtype)
        return plain(positions, like)._replace(places=places)

    made.depth.signals_of = signals
    close(made(x).y[:, 2:], out.y)


def test_chances_are_computed_in_full_precision() -> None:
    made = stack(steps=5, halting_bias=-0.5).float()
    plain = made.depth.chances(TEXT.float())
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(made.depth.chances(TEXT.float()), plain)


def test_the_cost_of_a_step_has_a_slope_of_minus_1_for_each_chance_before_the_last() -> None:
    made = stack(steps=5, halting_bias=-0.5, tau=1.0)
    bias, small = made.depth.bias, 1e-6
    (slope,) = torch.autograd.grad(made(TEXT).losses["ponder"], bias)
    ends = []
    steps = traced(made, TEXT)[0]
    for sign in (1, -1):
        bias.data += sign * small
        ends.append(float(made(TEXT).losses["ponder"].detach()))
        assert torch.equal(traced(made, TEXT)[0], steps)
        bias.data -= sign * small
    assert float(slope) == pytest.approx((ends[0] - ends[1]) / (2 * small), rel=1e-6)


def test_the_halting_head_does_not_decay() -> None:
    made = ef.create_model("universal", width=8, heads=2, signal="learned")
    depth = made.stack.depth
    groups = parameter_groups(made, 0.1)
    decays = {id(p): group["weight_decay"] for group in groups for p in group["params"]}
    assert [decays[id(p)] for p in (depth.weight, depth.bias, depth.signals)] == [0, 0, 0]


def test_encoder_and_decoder_halt_by_themselves_and_padding_ponders_nowhere() -> None:
    torch.manual_seed(0)
    own = {"tau": 1.0, "halting_bias": -0.5}
    sizes = {"width": 12, "heads": 3, "vocabulary": 9, "max_length": 12}
    made = ef.create_model("universal", "seq2seq", depth_options=own, **sizes).double().eval()
    assert made.encoder.depth.weight is not made.stack.depth.weight
    for part in (made.encoder, made.stack):
        part.depth.weight.data *= 3
    source, target = torch.randint(1, 9, (2, 7)), torch.randint(1, 9, (2, 6))
    padding_mask = torch.ones(2, 7, dtype=torch.bool)
    padding_mask[0, 5:], target[0, 3:] = False, -100
    both = made(source, targets=target, mask=Mask(padding_mask=padding_mask)).losses
    one = made(source[:1, :5], targets=target[:1, :3]).losses
    two = made(source[1:], targets=target[1:]).losses
    close(both["ponder"], (5 * one["ponder"] + 7 * two["ponder"]) / 12)
    close(both["ponder-target"], (3 * one["ponder-target"] + 6 * two["ponder-target"]) / 9)
    counts = made.term_counts(source, target, Mask(padding_mask=padding_mask))
    assert (counts["ponder"], counts["ponder-target"]) == (12, 9)


def test_a_text_is_coloured_by_the_steps_of_its_tokens() -> None:
    torch.manual_seed(0)
    made = ef.create_model("universal", width=12, heads=3, vocabulary=9, max_length=40).eval()
    made.stack.depth.weight.data *= 4
    tokens = torch.randint(9, (1, 37))
    [figure] = draw_pictures(made, tokens, "halting", labels=list("abcd" * 9 + "e")).values()
    with ef.trace(made) as seen:
        made(tokens)
    [steps] = seen.find("halting").values()
    axes = figure.axes[0]
    cells = axes.images[0].get_array()
    assert cells.shape == (2, 32)
    assert cells.flatten()[:37].tolist() == steps[0].tolist()
    assert len(steps.unique()) > 1
    assert "".join(text.get_text() for text in axes.texts) == "abcd" * 9 + "e"
    assert [text.get_position() for text in axes.texts[31:33]] == [(31, 0), (0, 1)]


def test_an_evaluation_says_how_many_steps_a_token_takes() -> None:
    row = np.random.default_rng(0).integers(0, 11, 301).astype(np.uint8)
    text = TextDataset(
        name="text", task="lm", kind="text", vocabulary=11, length=8, split="", fingerprint="",
        train=row, validation=row[:45],
    )  # fmt: skip
    sizes = {"width": 12, "heads": 3, "vocabulary": 11}
    torch.manual_seed(0)
    made = ef.create_model("universal", **sizes, depth_options={"halting_bias": -0.5}).eval()
    made.stack.depth.weight.data *= 4
    found: Any = evaluate(made, text, batch=3)
    taken = []
    for batch in text.validation_batches(3):
        with ef.trace(made) as seen:
            made(batch.inputs, mask=Mask(padding_mask=batch.padding_mask))
        taken += [n for n in seen.find("halting")["stack.depth"].flatten().tolist() if n]
    assert len(set(taken)) > 1
    assert found["mean_depth"] == pytest.approx(sum(taken) / len(taken), abs=1e-12)
    fixed: Any = evaluate(ef.create_model("universal", **sizes, halting="none", steps=3), text)
    assert fixed["mean_depth"] == 3
    assert "mean_depth" not in (evaluate(ef.create_model("attention", **sizes), text) or {})


REFUSED: list[tuple[Any, type[Exception], str]] = [
    (lambda: UniversalOptions(steps=0), ConfigError, "`steps` must be at least 1"),
    (lambda: UniversalOptions(epsilon=0.0), ConfigError, "`epsilon` must be above 0 and below 1"),
    (lambda: UniversalOptions(tau=-1.0), ConfigError, "`tau` must be at least 0"),
    (lambda: ef.create_model("universal", residual="reversible"), GeneError,
     "residual 'reversible'"),
    (lambda: ef.create_model("universal", position="learned", order="sinusoid"), GeneError,
     "position 'learned' adds them too"),
    (lambda: ef.create_model("transformer-xl", depth="universal", order="sinusoid"), GeneError,
     "memory 'segment' would remember them too"),
    (lambda: ef.create_model("etc", "mlm", depth="universal"), GeneError,
     "at no place that depth 'universal' could add at each step"),
]  # fmt: skip


@pytest.mark.parametrize(("make", "error", "said"), REFUSED)
def test_what_contradicts_it_is_refused(make, error, said) -> None:
    with pytest.raises(error, match=said):
        make()
