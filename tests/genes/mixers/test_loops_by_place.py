"""What gMLP and AFT share with their references, against loops over the equations."""

import math

import pytest
import torch
from by_loops import CLOSE, HEADS, WIDTH, both_are, mixer, normed, softmaxed, text

from everyformer.genes.mixers.aft_local import aft_local, aft_local_reference
from helpers import covering


def gated(x, made):
    """Z = gelu(X U), the gate by one weight a pair of tokens, Y = (... V)."""
    o, length = made.options, x.shape[1]
    z = [made.up.weight @ t + made.up.bias for t in x[0]]
    z = [t * 0.5 * (1 + torch.erf(t / math.sqrt(2))) for t in z]
    half = len(z[0]) // 2
    first, second = ([t[:half] for t in z], [t[half:] for t in z]) if o.gate == "split" else (z, z)
    second = [made.norm.weight * normed(t) + made.norm.bias for t in second]
    group = len(second[0]) // o.sgu_heads

    def weight(h, i, j):
        if made.causal and j > i:
            return 0.0
        if o.spatial == "dense":
            return made.spatial[h, i, j]
        # c_-(n-1) .. c_(n-1), or of causal ones c_0 .. c_(n-1)
        return made.spatial[h, i - j + (0 if made.causal else 31)]

    rows = []
    for i in range(length):
        parts = []
        for h in range(o.sgu_heads):
            channels = slice(h * group, (h + 1) * group)
            mixed = sum(weight(h, i, j) * second[j][channels] for j in range(length))
            parts.append(mixed + made.bias[h, i])
        gate = torch.cat(parts)
        if o.gate in ("split", "multiplicative"):
            gate = first[i] * gate
        elif o.gate == "additive":
            gate = first[i] + gate
        rows.append(made.out.weight @ gate + made.out.bias)
    return torch.stack(rows)[None]


SPATIAL = [{}, {"spatial": "toeplitz"}, {"sgu_heads": 2}]


@covering(
    causal=[True, False], gate=["split", "multiplicative", "additive", "linear"], spatial=SPATIAL
)
def test_gmlp_is_its_equation(causal, gate, spatial):
    made, x = mixer("gmlp", causal, gate=gate, **spatial), text(9)
    with torch.no_grad():
        both_are(made, x, gated(x, made))
        if causal:
            assert (made.matrix(9).triu(1) == 0).all()


GATES = {
    "sigmoid": lambda z: 1 / (1 + math.exp(-z)),
    "relu": lambda z: max(z, 0.0),
    "identity": lambda z: z,
}
KINDS = [
    ("aft-full", {"rank": None}),
    ("aft-full", {"rank": 2}),
    ("aft-local", {"window": 3, "rank": None}),
    ("aft-local", {"window": 3, "rank": 2}),
    ("aft-simple", {}),
    ("aft-conv", {"kernel": 5}),
]


def bias_between(made, h):
    """w_{t,t'} of the channels of head h, pair by pair: a function of t and t'."""
    o = made.options
    if made.name == "aft-simple":
        return lambda t, s: 0.0
    if made.name == "aft-conv":
        raw = made.kernel[h].tolist()
        mean = sum(raw) / len(raw)
        deviation = math.sqrt(sum((r - mean) ** 2 for r in raw) / len(raw) + 1e-5)
        taps = [made.gamma[h] * (r - mean) / deviation + made.beta[h] for r in raw]
        # the key that stands s - t after the query; causal kernels end at the query itself
        first = -(o.kernel - 1) if made.causal else -(o.kernel // 2)
        return lambda t, s: taps[s - t - first] if 0 <= s - t - first < o.kernel else 0.0
    w = made.position.w
    near = o.window if made.name == "aft-local" else math.inf
    if o.rank is not None:
        return lambda t, s: w[0][0, t] @ w[1][0, s] if abs(t - s) < near else 0.0
    if made.name == "aft-full":
        return lambda t, s: w[0, t, s]
    # the band alone is stored, from the farthest past on
    return lambda t, s: w[0, t, s - t + o.window - 1] if abs(t - s) < near else 0.0


def attention_free(x, made):
    """gate(Q_t) sum exp(K_t' + w_{t,t'}) V_t' / sum exp(K_t' + w_{t,t'}), channel by channel."""
    q, k, v = (
        [linear.weight @ t + linear.bias for t in x[0]]
        for linear in (made.query, made.key, made.value)
    )
    rows = []
    for t in range(x.shape[1]):
        row = []
        for c in range(WIDTH):
            h = c * HEADS // WIDTH
            # one key a head, or one a channel
            key = c * len(k[0]) // WIDTH
            w = bias_between(made, h)
            seen = range(t + 1) if made.causal else range(x.shape[1])
            weights = softmaxed([float(k[s][key] + w(t, s)) for s in seen])
            average = sum(a * float(v[s][c]) for a, s in zip(weights, seen, strict=True))
            row.append(GATES[made.options.gate](float(q[t][c])) * average)
        rows.append(made.out.weight @ torch.tensor(row, dtype=torch.float64) + made.out.bias)
    return torch.stack(rows)[None]


@covering(kind=KINDS, gate=GATES, causal=[True, False])
def test_attention_free_transformers_are_their_equation(kind, gate, causal):
    made, x = mixer(kind[0], causal, gate=gate, **kind[1]), text(6)
    with torch.no_grad():
        both_are(made, x, attention_free(x, made))


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize(("member", "options"), KINDS)
def test_the_bias_that_is_shown_is_that_of_the_pairs(member, options, causal):
    """Also of texts shorter than the table."""
    made = mixer(member, causal, **options).requires_grad_(False)
    shown = made.dense_bias(6).detach()
    for h, table in enumerate(shown):
        w = bias_between(made, h)
        for t in range(6):
            for s in range(t + 1 if causal else 6):
                assert float(table[t, s]) == pytest.approx(float(w(t, s)), abs=1e-12)


@pytest.mark.parametrize("form", [aft_local, aft_local_reference])
def test_a_table_larger_than_the_text_is_read_from_its_first_corner(form):
    q, k, v = (text(5, seed=n) for n in range(3))
    w = torch.randn(9, 9, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    got, expected = (form(q, k, v, table, window=3) for table in (w, w[:5, :5]))
    torch.testing.assert_close(got, expected, **CLOSE)
    assert (form(q, k, v, w[4:, 4:], window=3) - got).abs().max() > 1e-3
