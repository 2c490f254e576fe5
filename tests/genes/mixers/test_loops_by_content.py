"""What attention, Routing and Sinkhorn share with references, against loops over equations."""

import math

import pytest
import torch
from by_loops import CLOSE, HEADS, attended, both_are, mixer, normed, softmaxed, text

import everyformer as ef
from everyformer.core.mask import Mask
from everyformer.engines.softmax.attention import attention


def test_a_bias_and_that_of_a_mask_are_both_added():
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(1, 2, n, 4, generator=generator).double() for n in (5, 7, 7))
    one, other = (torch.randn(2, 5, 7, generator=generator).double() for _ in range(2))
    expected = torch.zeros_like(q)
    for h in range(2):
        for i in range(5):
            scores = [float(q[0, h, i] @ k[0, h, j]) / 2 + float(one[h, i, j] + other[h, i, j])
                      for j in range(7)]  # fmt: skip
            expected[0, h, i] = sum(w * t for w, t in zip(softmaxed(scores), v[0, h], strict=True))
    for got in (
        attention(q, k, v, mask=Mask(bias=one), bias=other),
        attention(q, k, v, bias=one + other),
        attention(q, k, v, mask=Mask(bias=one + other)),
    ):
        torch.testing.assert_close(got, expected, **CLOSE)


def members(scores, among, window):
    """The ``window`` tokens of largest score."""
    return set(sorted(among, key=lambda t: -scores[t])[:window])


def routed(x, made, routing):
    """Roy et al., section 4: the first heads are local, the others routed."""
    o, size, local = made.options, made.head_dim, made.local
    tokens = range(x.shape[1])
    heads = []
    for h in range(HEADS):
        rows = slice(h * size, (h + 1) * size)
        q, v = ([linear.weight[rows] @ t for t in x[0]] for linear in (made.query, made.value))
        if h < local:
            k = [made.key.weight[rows] @ t for t in x[0]]
            seen = {
                t: [s for s in tokens if abs(t - s) < o.window and (s <= t or not made.causal)]
                for t in tokens
            }
            heads.append([attended(q[t], [k[s] for s in seen[t]], [v[s] for s in seen[t]])
                          for t in tokens])  # fmt: skip
            continue
        k = q if made.causal else [made.key.weight[rows] @ t for t in x[0]]
        q, k = ([normed(t) for t in side] for side in (q, k))
        means = made.centroids.means[h - local].double()
        near_q, near_k = ([[float(t @ mu) for mu in means] for t in side] for side in (q, k))
        outputs = []
        for t in tokens:
            lists = []
            for c in range(len(means)):
                if routing == "strict":
                    mine = [s for s in tokens if s <= t and near_q[s][c] == max(near_q[s])]
                    lists.append((set(mine), mine[-o.window :]))
                    continue
                among = [s for s in tokens if s <= t] if routing == "prefix" else tokens
                asks = members([n[c] for n in near_q], among, o.window)
                shows = members([n[c] for n in near_k], among, o.window)
                lists.append((asks, [s for s in shows if s <= t or not made.causal]))
            found = [attended(q[t], [k[s] for s in shows], [v[s] for s in shows])
                     for asks, shows in lists if t in asks and shows]  # fmt: skip
            outputs.append(sum(found) / len(found) if found else torch.zeros(size).double())
        heads.append(outputs)
    y = torch.stack([torch.cat([head[t] for head in heads]) for t in tokens])
    return (y @ made.out.weight.T)[None]


ROUTINGS = [
    (True, {"routing": "strict", "clusters": 3, "window": 3}, "strict"),
    (True, {"routing": "prefix", "clusters": 2, "window": 4, "local_heads": 2}, "prefix"),
    (True, {"routing": "paper", "clusters": 3, "window": 5}, "paper"),
    (False, {"clusters": 3, "window": 5}, None),
    (False, {"clusters": 2, "window": 4, "local_heads": 0}, None),
]


@pytest.mark.parametrize(("causal", "options", "routing"), ROUTINGS)
def test_routing_is_its_equation(causal, options, routing):
    """Queries and keys are normed before they are routed and before they are compared."""
    made, x = mixer("routing", causal, **options), text()
    with torch.no_grad():
        both_are(made, x, routed(x, made, routing))


@pytest.mark.parametrize(("heads", "local"), [(1, 0), (2, 1), (6, 3), (12, 6)])
def test_half_of_the_heads_are_local(heads, local):
    made = ef.create_mixer("routing", width=24, heads=heads, causal=True, max_length=16)
    assert made.local == local
    assert made.centroids.means.shape[0] == heads - local


def sorting_logits(x, made):
    """R (N, N) of one head ``h``, entry by entry: a function of h."""
    o, size, count = made.options, made.options.block_size, x.shape[1] // made.options.block_size
    blocks = [range(n * size, (n + 1) * size) for n in range(count)]
    read = [range(block[0] + 1) for block in blocks] if made.causal else blocks

    def of(h):
        rows = [sum(x[0, t] for t in at) for at in read]
        weights, biases = made.sorter.weights, made.sorter.biases
        if o.sort_net == "mlp":
            rows = [(row @ weights[0][h] + biases[0][h, 0]).clamp(min=0) for row in rows]
            rows = [(row @ weights[1][h] + biases[1][h, 0]).clamp(min=0) for row in rows]
        else:
            rows = [row @ weights[0][h] for row in rows]
        return [row[:count].tolist() for row in rows]

    return of


def sinkhorn(logits, iterations, causal):
    """Rows and columns in turn; of causal ones the columns sum over the rows so far."""
    count = len(logits)
    p = [[math.exp(r) if j < i or not causal else 0.0 for j, r in enumerate(row)]
         for i, row in enumerate(logits)]  # fmt: skip

    def rows(p):
        return [[x / (sum(row) or 1) for x in row] for row in p]

    for _ in range(iterations):
        p = rows(p)
        before = [[sum(p[n][j] for n in (range(i + 1) if causal else range(count)))
                   for j in range(count)] for i in range(count)]  # fmt: skip
        p = [[p[i][j] / (before[i][j] or 1) for j in range(count)] for i in range(count)]
    return rows(p) if causal else p


def sorted_and_own(x, made, iterations):
    """Each token reads the sorted block and its own by one softmax."""
    o, size, causal = made.options, made.options.block_size, made.causal
    q, k, v = (t[0].detach() for t in made.project(x))
    logits, heads = sorting_logits(x, made), []
    for h in range(HEADS):
        p = sinkhorn([[r / o.tau for r in row] for row in logits(h)], iterations, causal)
        outputs = []
        for t in range(x.shape[1]):
            i = t // size
            keys, values = [], []
            for r in range(size):
                if causal and i == 0:
                    keys.append(made.null[0, h, 0])
                    values.append(made.null[1, h, 0])
                    continue
                keys.append(sum(w * k[h, j * size + r] for j, w in enumerate(p[i])))
                values.append(sum(w * v[h, j * size + r] for j, w in enumerate(p[i])))
            own = range(i * size, t + 1 if causal else (i + 1) * size)
            keys, values = keys + [k[h, s] for s in own], values + [v[h, s] for s in own]
            outputs.append(attended(q[h, t], keys, values))
        heads.append(outputs)
    y = torch.stack([torch.cat([head[t] for head in heads]) for t in range(x.shape[1])])
    return made.out(y)[None]


SORTINGS = [
    # causal, options, iterations (the defaults are 8 and, causal, 1)
    (False, {}, 8),
    (True, {}, 1),
    (False, {"sort_net": "mlp", "iterations": 2}, 2),
    (True, {"sort_net": "mlp", "iterations": 3}, 3),
    (False, {"tau": 0.3}, 8),
]


@pytest.mark.parametrize(("causal", "options", "iterations"), SORTINGS)
def test_sinkhorn_is_its_equation(causal, options, iterations):
    made, x = mixer("sinkhorn", causal, block_size=3, **options), text(12)
    with torch.no_grad():
        both_are(made, x, sorted_and_own(x, made, iterations))
