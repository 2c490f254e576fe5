"""SPALM's gate: its equation, its limits, what it leaves out, and where gradients go."""

import math
import re
from typing import Any

import pytest
import torch
from torch import Tensor

import everyformer as ef
from everyformer.core.errors import ConfigError, GeneError, ShapeError, UnsupportedError
from everyformer.genes.retrieval.spalm import SpalmGate

WIDTH, TOKENS = 8, 13
DOUBLE = torch.float64


def given(seed: int = 0, k: int = 4) -> tuple[Tensor, Tensor, Tensor]:
    """States (2, 5, d), neighbours (2, 5, k), and the output layer (V, d)."""
    torch.manual_seed(seed)
    h, table = torch.randn(2, 5, WIDTH, dtype=DOUBLE), torch.randn(TOKENS, WIDTH, dtype=DOUBLE)
    return h, torch.randint(0, TOKENS, (2, 5, k)), table


def gate(bias: float | None = None) -> SpalmGate:
    made = SpalmGate(WIDTH, bias).double()
    torch.nn.init.normal_(made.weight)
    return made


def by_loops(made: SpalmGate, h: Tensor, neighbours: Tensor, table: Tensor) -> Tensor:
    """The equation, token by token."""
    z = torch.empty_like(h)
    for b in range(h.shape[0]):
        for t in range(h.shape[1]):
            state = h[b, t]
            vectors = [table[int(v)] for v in neighbours[b, t] if v >= 0]
            if not vectors:
                z[b, t] = state
                continue
            raised = [math.exp(float(y @ state)) for y in vectors]
            m = sum(e / sum(raised) * y for e, y in zip(raised, vectors, strict=True))
            inside = float(made.weight @ state) + (0.0 if made.bias is None else float(made.bias))
            g = 1 / (1 + math.exp(-inside))
            z[b, t] = (1 - g) * m + g * state
    return z


@pytest.mark.parametrize("bias", [None, 0.7])
@pytest.mark.parametrize("missing", [0, 1, 3, 4])
def test_the_gate_is_its_equation(bias: float | None, missing: int) -> None:
    made, (h, neighbours, table) = gate(bias), given()
    if bias is None and not missing:
        start = SpalmGate(WIDTH, None).double()(h, neighbours[..., :1], table)
        torch.testing.assert_close(start, (h + table[neighbours[..., 0]]) / 2)
    neighbours[0, :, 4 - missing :] = -1
    with torch.no_grad():
        got, expected = made(h, neighbours, table), by_loops(made, h, neighbours, table)
    torch.testing.assert_close(got, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("bias", [None, 0.3])
def test_gradients_of_the_gate(bias: float | None) -> None:
    made, (h, neighbours, table) = gate(bias), given()
    neighbours[0, 1, 2:], neighbours[1, 3] = -1, -1
    for tensor in (h, table):
        tensor.requires_grad_()
    weights = list(made.parameters())
    assert torch.autograd.gradcheck(
        lambda h, w, *_: made(h, neighbours, w), (h, table, *weights), fast_mode=True
    )


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_scores_are_taken_in_single_precision(dtype: torch.dtype) -> None:
    made, (h, neighbours, table) = gate(), given()
    exact = made(h, neighbours, table)
    low = SpalmGate(WIDTH, None)
    low.load_state_dict(made.state_dict())
    got = low.to(dtype)(h.to(dtype), neighbours, table.to(dtype))
    assert got.dtype == dtype
    torch.testing.assert_close(got.double(), exact, rtol=0.05, atol=0.05)


def model(member: str = "spalm", **options: Any) -> Any:
    torch.manual_seed(0)
    sizes = {"width": WIDTH, "heads": 2, "layers": 2, "vocabulary": TOKENS}
    slots = {} if member == "attention" else {"slots": 4}
    return ef.create_model(member, **{**sizes, **slots, **options}).double().eval()


def inputs() -> tuple[Tensor, Tensor]:
    torch.manual_seed(1)
    return torch.randint(0, TOKENS, (2, 7)), torch.randint(0, TOKENS, (2, 7, 3))


def test_a_shut_gate_is_transformer_xl() -> None:
    """With g = 1, and without neighbours, logits are those of Transformer-XL with its weights."""
    shut, plain = model(gate_bias=800.0), model("transformer-xl")
    plain.load_state_dict(shut.state_dict(), strict=False)
    tokens, neighbours = inputs()
    expected = plain(tokens).logits
    torch.testing.assert_close(shut(tokens, neighbours=neighbours).logits, expected)
    torch.testing.assert_close(shut(tokens).logits, expected)


def test_logits_are_the_output_layer_of_the_gated_state() -> None:
    made, (tokens, neighbours) = model(), inputs()
    torch.nn.init.normal_(made.gating.weight)
    h = made.stack(made.add_positions(made.embed(made.embedding, tokens), None, None)).y
    with torch.no_grad():
        z = by_loops(made.gating, h, neighbours, made.head.weight)
        got, last = (made(tokens, neighbours=neighbours, last=n).logits for n in (None, 3))
    torch.testing.assert_close(got, z @ made.head.weight.T)
    torch.testing.assert_close(last, got[:, -3:])


def test_neighbours_of_one_token_are_read_by_no_other() -> None:
    made, (tokens, neighbours) = model(), inputs()
    other = neighbours.clone()
    other[:, 3] = (other[:, 3] + 1) % TOKENS
    one, two = (made(tokens, neighbours=each).logits for each in (neighbours, other))
    changed = (one != two).any(-1)
    assert changed[:, 3].all()
    assert not changed[:, [0, 1, 2, 4, 5, 6]].any()


def knn(**options: Any) -> dict[str, Any]:
    return {"retrieval": "knn", "retrieval_options": options}


BAD = [
    ({"task": "mlm", "retrieval": "knn"}, GeneError, "retrieval 'knn' looks up which token comes"),
    ({"retrieval": "knn", "memory": "segment", "position": "rope"}, GeneError,
     "retrieval 'knn' has keys of single windows, but memory 'segment' passes"),
    ({"retrieval": "knm"}, ConfigError, "unknown retrieval 'knm'; did you mean 'knn'?"),
    (knn(weight=1.5), ConfigError, "must be at least 0 and at most 1, not 1.5"),
    (knn(k=0), ConfigError, "must be at least 1, not 0"),
    (knn(temperature=0.0), ConfigError, "must be above 0, not 0.0"),
    (knn(distance="best"), ConfigError, "`knn.distance` must be one of 'squared', 'root'"),
]  # fmt: skip


@pytest.mark.parametrize(("options", "kind", "said"), BAD)
def test_what_contradicts_itself_is_refused(options, kind, said) -> None:
    sizes = {"width": 8, "heads": 2, "layers": 1, "vocabulary": 9}
    with pytest.raises(kind, match=re.escape(said)):
        ef.create_model("attention", **{"task": "lm", **sizes, **options})


def test_neighbours_are_refused_where_nothing_reads_them() -> None:
    tokens, neighbours = inputs()
    with pytest.raises(UnsupportedError, match="neighbours are given, but attention reads none"):
        model("attention")(tokens, neighbours=neighbours)
    with pytest.raises(ShapeError, match=r"neighbours are \(2, 6, 3\), but the tokens \(2, 7\)"):
        model()(tokens, neighbours=neighbours[:, 1:])
