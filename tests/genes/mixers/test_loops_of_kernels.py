"""What kernels and Linformer share with their references, against loops over the equations."""

import math

import pytest
import torch
from by_loops import HEADS, WIDTH, attended, both_are, mixer, text


def elu(x):
    """phi of one head's vector, one number at a time."""
    return [z + 1 if z > 0 else math.exp(z) for z in x.tolist()]


def favor(made):
    """exp(w . x - |x|^2 / 2) / sqrt(M) of x / D^(1/4); relu and eps of the generalised kernel."""
    o = made.options
    rows = made.random.projection[0]

    def phi(x):
        x = x / made.head_dim**0.25
        if o.feature_map == "relu":
            return [max(float(w @ x), 0.0) + 1e-3 for w in rows]
        half = float(x @ x) / 2
        return [math.exp(float(w @ x) - half) / math.sqrt(len(rows)) for w in rows]

    return phi


def kernel_average(x, made):
    """sum_s phi(q_t) phi(k_s) v_s / sum_s phi(q_t) phi(k_s); zero where no weight is."""
    q, k, v = (t[0] for t in made.project(x))
    phi = elu if made.name == "linear" else favor(made)
    rows = []
    for t in range(x.shape[1]):
        row = []
        for h in range(HEADS):
            seen = range(t + 1) if made.causal else range(x.shape[1])
            asked, held = phi(q[h, t]), [phi(k[h, s]) for s in seen]
            weights = [sum(a * b for a, b in zip(asked, one, strict=True)) for one in held]
            y = sum(w * v[h, s] for w, s in zip(weights, seen, strict=True))
            row.append(y / (sum(weights) or 1.0))
        rows.append(torch.cat(row))
    return made.out(torch.stack(rows))[None]


KERNELS = [
    ("linear", {}),
    ("performer", {"features": 16}),
    ("performer", {"features": 16, "draw": "iid"}),
    ("performer", {"features": 8, "feature_map": "relu"}),
]


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize(("member", "options"), KERNELS)
def test_kernel_attention_is_its_equation(member, options, causal):
    made, x = mixer(member, causal, **options), text(7)
    with torch.no_grad():
        both_are(made, x, kernel_average(x, made))


def slots_of(tokens, matrix):
    """The slots of a text or segment (S, width), one by one."""
    return [sum(row[n] * t for n, t in enumerate(tokens)) for row in matrix]


def slot_attention(x, made):
    """softmax_k(q . (E X W_K) / sqrt(D)) (F X W_V); with segments, beside the tokens of its own."""
    size, length = WIDTH // HEADS, x.shape[1]
    tokens, maps = list(x[0]), made.length_map
    chunk = made.options.causal_chunk or length
    wq, wk, wv = made.project.weights[0].split(WIDTH)
    outputs = torch.zeros(length, WIDTH, dtype=x.dtype)
    for h in range(HEADS):
        rows = slice(h * size, (h + 1) * size)
        ef = [side[h if len(side) > 1 else 0] for side in (maps[0], maps[-1])]
        for t in range(length):
            first = t // chunk * chunk
            keys, values = [], []
            for n in range(0, first, chunk) if made.causal else (0,):
                part = tokens[n : n + chunk]
                keys += [wk[rows] @ slot for slot in slots_of(part, ef[0])]
                values += [wv[rows] @ slot for slot in slots_of(part, ef[1])]
            if made.causal:
                keys += [wk[rows] @ s for s in tokens[first : t + 1]]
                values += [wv[rows] @ s for s in tokens[first : t + 1]]
            outputs[t, rows] = attended(wq[rows] @ tokens[t], keys, values)
    return made.out(outputs)[None]


COMPRESSIONS = [
    (False, {"k": 5}),
    (False, {"k": 5, "sharing": "none"}),
    (False, {"k": 5, "sharing": "key-value"}),
    (True, {"causal_chunk": 4, "k": 2}),
    (True, {"causal_chunk": 5, "k": 3, "sharing": "none"}),
]


@pytest.mark.parametrize(("causal", "options"), COMPRESSIONS)
def test_linformer_is_its_equation(causal, options):
    made, x = mixer("linformer", causal, **options), text(13)
    with torch.no_grad():
        both_are(made, x, slot_attention(x, made))
