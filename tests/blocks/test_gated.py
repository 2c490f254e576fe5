"""The residual `gated`: six ways to join, by their equations, their limits and what they cost."""

import math
import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import everyformer as ef
from everyformer.checks.cases import Case
from everyformer.checks.check import Check
from everyformer.checks.conditions import CARRIED, WHOLE, Layers, Trial
from everyformer.core.errors import ConfigError, GeneError
from everyformer.genes.residuals import RESIDUALS
from everyformer.genes.residuals._gates import GATES
from everyformer.lab.show.pictures import draw_pictures
from helpers import build_model, close, draw, in_pieces, shifted, with_gradients
from sequence_laws.flops import count_flops

WIDTH = 6
NAMES = ("gru", "output", "highway", "sigtanh", "input", "residual")
sigma = torch.sigmoid


def matrices(gate: nn.Module) -> tuple[Tensor, ...]:
    """W of y, U of x, or the other way round, one by one: square ones, as the paper writes them."""
    return tuple(m for p in gate.parameters() if p.dim() == 2 for m in p.split(p.shape[1]))


def of_input(x: Tensor, y: Tensor, b: Tensor, w: Tensor) -> Tensor:
    return sigma(x @ w.T) * x + y


def of_output(x: Tensor, y: Tensor, b: Tensor, w: Tensor) -> Tensor:
    return x + sigma(x @ w.T - b) * y


def of_highway(x: Tensor, y: Tensor, b: Tensor, w: Tensor) -> Tensor:
    s = sigma(x @ w.T + b)
    return s * x + (1 - s) * y


def of_sigtanh(x: Tensor, y: Tensor, b: Tensor, w: Tensor, u: Tensor) -> Tensor:
    return x + sigma(y @ w.T - b) * torch.tanh(y @ u.T)


def of_gru(x: Tensor, y: Tensor, b: Tensor, *maps: Tensor) -> Tensor:
    w_r, w_z, w_g, u_r, u_z, u_g = maps
    r, z = sigma(y @ w_r.T + x @ u_r.T), sigma(y @ w_z.T + x @ u_z.T - b)
    return (1 - z) * x + z * torch.tanh(y @ w_g.T + (r * x) @ u_g.T)


EQUATIONS: dict[str, Callable[..., Tensor]] = {
    "input": of_input, "output": of_output, "highway": of_highway, "sigtanh": of_sigtanh,
    "gru": of_gru,
}  # fmt: skip


def made(name: str, bias: float = 2.0, width: int = WIDTH) -> Any:
    torch.manual_seed(0)
    return shifted(GATES[name](width, bias).double(), vectors=True)


def same_gradients(got: Tensor, expected: Tensor, of: list[Tensor]) -> None:
    close(*(with_gradients(out, of) for out in (got, expected)), 1e-12)


@pytest.mark.parametrize("name", EQUATIONS)
def test_a_gate_is_its_equation_with_all_gradients(name: str) -> None:
    gate = made(name)
    x, y = (draw(2, 5, WIDTH, seed=n).requires_grad_() for n in (1, 2))
    bias = getattr(gate, "bias", torch.zeros(()))
    expected = EQUATIONS[name](x, y, bias, *matrices(gate))
    same_gradients(gate(x, y), expected, [x, y, *gate.parameters()])


def as_rllib(x: Tensor, y: Tensor, p: dict[str, Tensor]) -> Tensor:
    """RLlib's unit in its layout: matrices (in, out), inputs X the sub-layer's, h the stream."""
    h, r = x, torch.tensordot(y, p["w_r"], ([-1], [0])) + torch.tensordot(x, p["u_r"], ([-1], [0]))
    z = torch.tensordot(y, p["w_z"], ([-1], [0])) + torch.tensordot(h, p["u_z"], ([-1], [0]))
    r, z = sigma(r), sigma(z - p["bias_z"])
    new = torch.tensordot(y, p["w_h"], ([-1], [0])) + torch.tensordot(h * r, p["u_h"], ([-1], [0]))
    return (1 - z) * h + z * torch.tanh(new)


def test_the_gru_gate_is_that_of_rllib() -> None:
    gate = made("gru")
    names = ("w_r", "w_z", "w_h", "u_r", "u_z", "u_h")
    theirs = dict(zip(names, (m.T for m in matrices(gate)), strict=True), bias_z=gate.bias)
    x, y = (draw(2, 5, WIDTH, seed=n).requires_grad_() for n in (1, 2))
    same_gradients(gate(x, y), as_rllib(x, y, theirs), [x, y, *gate.parameters()])


@pytest.mark.parametrize("name", EQUATIONS)
def test_only_gates_that_add_leave_the_stream_alone_where_a_sub_layer_gives_nothing(name) -> None:
    gate, x = made(name), draw(1, 3, WIDTH)
    still = torch.equal(gate(x, torch.zeros_like(x)), x)
    assert still == (name in ("output", "sigtanh")) == gate.keeps_stream


def gtrxl(layers: int = 2, dtype: torch.dtype = torch.float64, **options: Any) -> Any:
    sizes = {"width": 12, "heads": 3, "layers": layers, "vocabulary": 11, "max_length": 64}
    return build_model("gtrxl", dtype=dtype, **{**sizes, **options}).stack


@pytest.mark.parametrize("name", EQUATIONS)
def test_a_large_bias_makes_a_whole_stack_the_identity(name: str) -> None:
    bias = {} if name == "input" else {"gate_bias": 50.0}
    stack, x = gtrxl(3, torch.float32, gate=name, **bias), draw(2, 7, 12, dtype=torch.float32)
    moved = (stack(x).y - x).abs().max()
    assert bool(moved <= 1e-6) == (name != "input")
    if bias:
        near, nearer = ((gtrxl(3, gate=name, gate_bias=b)(x.double()).y - x).norm() for b in (2, 4))
        assert bool(nearer < 0.5 * near)


def literal(block: Any, e: Tensor, m: Tensor) -> Tensor:
    """One layer on E (L, d) behind M (P, d), number by number; M holds streams, not normed ones."""
    mixer, (length, width), past = block.mixer, e.shape, len(m)
    heads, size = mixer.heads, width // mixer.heads
    h = block.mixer_norm(torch.cat([m, e]))
    w_q, w_k, w_v = mixer.project.weights[0].split(width)
    q, k, v = (t.unflatten(-1, (heads, size)) for t in (h[past:] @ w_q.T, h @ w_k.T, h @ w_v.T))
    rates = 10000 ** (-torch.arange(0, width, 2, dtype=e.dtype) / width)
    rows = []
    for i in range(length):
        out = []
        for n in range(heads):
            scores = []
            for j in range(i + past + 1):
                d = i + past - j
                r = torch.cat([torch.sin(d * rates), torch.cos(d * rates)])
                far = (mixer.position.encode.weight @ r).view(heads, size)[n]
                u, w = mixer.position.u[n], mixer.position.v[n]
                scores.append(((q[i, n] + u) @ k[j, n] + (q[i, n] + w) @ far) / math.sqrt(size))
            weights = torch.stack(scores).softmax(0)
            out.append(weights @ v[: i + past + 1, n])
        rows.append(torch.cat(out))
    first, second = block.mixer_gate, block.feedforward_gate
    y = of_gru(e, F.relu(mixer.out(torch.stack(rows))), first.bias, *matrices(first))
    up, down = block.feedforward.up, block.feedforward.down
    mlp = down(F.relu(up(block.feedforward_norm(y))))
    return of_gru(y, F.relu(mlp), second.bias, *matrices(second))


@pytest.mark.parametrize("training", [False, True])
def test_layers_are_the_papers_equations_with_a_memory_of_their_inputs(training: bool) -> None:
    slots, sizes = 4, [3, 2, 4]
    stack = shifted(gtrxl(slots=slots, same_length="never")).train(training)
    x = draw(1, sum(sizes), 12)
    memories = [x[0, :0]] * 2
    rows = []
    for e in x[0].split(sizes):
        for n, block in enumerate(stack.blocks):
            memory, memories[n] = memories[n], torch.cat([memories[n], e])[-slots:]
            e = literal(block, e, memory)
        rows.append(e)
    close(in_pieces(stack, x, sizes)[0][0], torch.cat(rows), 1e-11)


@pytest.mark.parametrize("training", [False, True])
def test_steps_are_segments_are_one_pass(training: bool) -> None:
    stack, x = shifted(gtrxl(slots=4)).train(training), draw(2, 11, 12)
    whole = stack(x).y
    for sizes in ([1] * 11, [4, 1, 6], [11]):
        close(in_pieces(stack, x, sizes)[0], whole, 1e-12)


def test_without_gate_relu_and_memory_it_is_a_pre_norm_layer() -> None:
    gated = gtrxl(gate="residual", relu=False, slots=0, same_length="never")
    sizes = {"width": 12, "heads": 3, "layers": 2, "vocabulary": 11}
    plain = build_model("xl-relative", feedforward="relu", **sizes).stack
    plain.norm = torch.nn.Identity()
    plain.load_state_dict(shifted(gated).state_dict())
    x = draw(2, 7, 12)
    close(gated(x).y, plain(x).y, 1e-12)


def test_the_relu_is_in_front_of_the_sum_that_has_no_gate() -> None:
    stack, x = gtrxl(1, gate="residual"), draw(1, 4, 12)
    assert bool((stack(x).y >= x).all())
    assert bool((gtrxl(1, gate="residual", relu=False)(x).y < x).any())


@pytest.mark.parametrize(
    ("name", "squares", "vectors"),
    [("residual", 0, 0), ("input", 1, 0), ("output", 1, 1), ("highway", 1, 1), ("sigtanh", 2, 1),
     ("gru", 6, 1)],
)  # fmt: skip
def test_a_gate_costs_so_many_squares_of_the_width(name: str, squares: int, vectors: int) -> None:
    tokens, layers, d = 2 * 7, 2, 12
    stack, plain = gtrxl(layers, gate=name), gtrxl(layers, gate="residual")
    x = draw(2, 7, d)
    more = count_flops(lambda: stack(x)) - count_flops(lambda: plain(x))
    assert more == 2 * layers * 2 * tokens * squares * d * d
    numbers = [sum(p.numel() for p in one.parameters()) for one in (stack, plain)]
    assert numbers[0] - numbers[1] == 2 * layers * (squares * d * d + vectors * d)


def test_layers_of_a_decoder_have_a_gate_a_sub_layer_and_all_learn() -> None:
    sizes = {"width": 12, "heads": 3, "layers": 2, "vocabulary": 11, "max_length": 16}
    model = build_model("attention", "seq2seq", residual="gated", **sizes).train()
    tokens = torch.randint(0, 11, (2, 6))
    model(tokens, targets=tokens).loss.backward()
    biases = {n: p for n, p in model.named_parameters() if n.endswith("_gate.bias")}
    assert len(biases) == 2 * (3 + 2)
    assert all(bool(p.grad.abs().max() > 0) for p in biases.values())
    for block in model.stack.blocks:
        own = [id(p) for part in block.parts for p in block.weights_of(part).values()]
        assert sorted(own) == sorted(id(p) for p in block.parameters())


@pytest.mark.parametrize("n", range(len(RESIDUALS.get("gated").trials.variants)))
def test_every_gate_keeps_the_laws_of_layers(n: int) -> None:
    """Padding, packing, pieces, resets, several layers and long texts, two by two."""
    options = dict(RESIDUALS.get("gated").trials.variants[n])
    chance, check = random.Random(n), Check()
    case = Case(ef.info("xl-relative"), {"position": "xl-relative"})
    for carried, known in ((False, WHOLE), (True, CARRIED)):
        pair = ("layers", known[n % 5])
        wired = {"residual": "gated", "residual_options": options}
        Trial(Layers(case, 3, wired).double().eval(), case, pair, carried).run(chance, check)
    assert {v["gate"] for v in RESIDUALS.get("gated").trials.variants} == set(NAMES)


@pytest.mark.parametrize("name", EQUATIONS)
def test_a_trace_shows_how_far_each_gate_is_open(name: str) -> None:
    """1 where W is 0 and b_g far below it, 1/2 at 0; an input gate has no b_g."""
    model = build_model("gtrxl", width=12, heads=3, layers=2, vocabulary=11, gate=name)
    tokens = torch.arange(6)[None]
    for bias, expected in ((0.0, 0.5), (-50.0, 1.0)):
        for key, p in model.named_parameters():
            if "_gate." in key:
                nn.init.constant_(p, bias if key.endswith("bias") else 0.0)
        with ef.trace(model) as seen:
            model(tokens)
        found = seen.find("gates")
        assert [path.rpartition(".")[2] for path in found] == ["mixer_gate", "feedforward_gate"] * 2
        for gate in found.values():
            close(gate, torch.full((1, 6, 12), 0.5 if name == "input" else expected).double())
    figure = draw_pictures(model, tokens, "gates")["gates"]
    assert [axes.get_title() for axes in figure.axes[:4]] == [
        f"layer {n}, {part}" for n in (1, 2) for part in ("mixer", "feedforward")
    ]
    percent = "50%" if name == "input" else "100%"
    assert figure.get_label().endswith(f"{', '.join([percent] * 4)}.")


REFUSED: list[tuple[type[Exception], dict[str, Any], str]] = [
    (ConfigError, {"gate": "grru"}, "`gated.gate` must be one of 'gru', .*; did you mean 'gru'"),
    (ConfigError, {"gate_bias": math.nan}, "`gated.gate_bias` must be finite, not nan"),
    (ConfigError, {"gate_bias": "x"}, "`gated.gate_bias` must be float, not 'x'"),
    (ConfigError, {"gate": "input", "gate_bias": 3.0}, "`gate_bias=3.0` .* gate is 'input'"),
    (ConfigError, {"gates": "gru"}, "unknown option `gated.gates`; did you mean 'gate'"),
    (GeneError, {"drop_path": 0.1}, "`drop_path=0.1` .* gate 'gru' of residual 'gated'"),
    (GeneError, {"mixer": "linear"}, "memory 'segment' .* mixer 'linear'"),
    (GeneError, {"position": "sinusoidal"}, "position 'sinusoidal' .* memory 'segment'"),
]


@pytest.mark.parametrize(("kind", "options", "message"), REFUSED)
def test_what_does_not_go_together_is_refused(kind, options, message) -> None:
    own = {"position_options": {}} if options.get("position") else {}
    blocks = ("drop_path", "mixer", "position")
    wired = {k: v for k, v in options.items() if k not in blocks}
    others = {k: v for k, v in options.items() if k in blocks}
    with pytest.raises(kind, match=message):
        gtrxl(residual_options=wired, **others, **own)


def test_sub_layers_may_be_left_out_where_gates_add() -> None:
    for gate in ("output", "sigtanh", "residual"):
        assert gtrxl(gate=gate, drop_path=0.2).blocks[1].drop_path == 0.2
