"""Steps that mixers and their references share, against loops over the papers' equations."""

import math

import pytest
import torch

import everyformer as ef
from everyformer.core.mask import Mask
from everyformer.mixers._sorting import hardened
from everyformer.mixers.aft_local import aft_local, aft_local_reference
from everyformer.mixers.attention import attention

WIDTH, HEADS = 12, 3
CLOSE = {"rtol": 1e-9, "atol": 1e-10}


def mixer(member, causal=False, **options):
    """One whose parameters are drawn wide enough to matter."""
    # buffers are drawn when it is built
    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(0)
    made = ef.create_mixer(
        member, width=WIDTH, heads=HEADS, causal=causal, max_length=32, **options
    ).double()
    for parameter in made.parameters():
        drawn = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
        parameter.data.copy_(0.4 * drawn)
    return made.eval()


def text(length=11, rows=1, seed=1):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(rows, length, WIDTH, generator=generator, dtype=torch.float64)


def softmaxed(scores):
    weights = [math.exp(s) for s in scores]
    return [w / sum(weights) for w in weights]


def normed(vector):
    """A LayerNorm without gain and bias."""
    mean = sum(vector.tolist()) / len(vector)
    variance = sum((x - mean) ** 2 for x in vector.tolist()) / len(vector)
    return (vector - mean) / math.sqrt(variance + 1e-5)


def attended(query, keys, values):
    """softmax_j(q . k_j / sqrt(D)) v_j."""
    size = len(query)
    scores = [sum((query * key).tolist()) / math.sqrt(size) for key in keys]
    return sum(w * v for w, v in zip(softmaxed(scores), values, strict=True))


# attention


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


# Routing Transformer


def members(scores, among, window):
    """The ``window`` tokens of largest score."""
    return set(sorted(among, key=lambda t: -scores[t])[:window])


def routed(x, made, routing):
    """Roy et al., section 4: the first heads are local, the others routed."""
    o, size, local = made.options, made.size, made.local
    tokens = range(x.shape[1])
    heads = []
    for h in range(HEADS):
        rows = slice(h * size, (h + 1) * size)
        q, v = ([linear.weight[rows] @ t for t in x[0]] for linear in (made.query, made.value))
        if h < local:
            k = [made.key.weight[rows] @ t for t in x[0]]
            wide = made.local_window
            seen = {
                t: [s for s in tokens if abs(t - s) < wide and (s <= t or not made.causal)]
                for t in tokens
            }
            heads.append([attended(q[t], [k[s] for s in seen[t]], [v[s] for s in seen[t]])
                          for t in tokens])  # fmt: skip
            continue
        k = q if made.share else [made.key.weight[rows] @ t for t in x[0]]
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
    (True, {"routing": "strict", "clusters": 3, "window": 3, "local_window": 4}, "strict"),
    (True, {"routing": "prefix", "clusters": 2, "window": 4, "local_heads": 2}, "prefix"),
    (True, {"routing": "paper", "clusters": 3, "window": 5, "share_qk": False}, "paper"),
    (False, {"clusters": 3, "window": 5, "local_window": 2}, None),
    (False, {"clusters": 2, "window": 4, "share_qk": True, "local_heads": 0}, None),
]


@pytest.mark.parametrize(("causal", "options", "routing"), ROUTINGS)
def test_routing_is_its_equation(causal, options, routing):
    """Queries and keys are normed before they are routed and before they are compared."""
    made, x = mixer("routing", causal, **options), text()
    with torch.no_grad():
        expected = routed(x, made, routing)
        torch.testing.assert_close(made(x).y, expected, **CLOSE)
        torch.testing.assert_close(made.reference(x), expected, **CLOSE)


def test_routings_reference_routes_as_the_mode_does():
    """Training chooses members by the whole row, evaluation by what was read."""
    options = {"routing": "paper", "evaluation_routing": "prefix", "clusters": 3, "window": 3}
    made, x = mixer("routing", True, **options), text()
    with torch.no_grad():
        whole, read = routed(x, made, "paper"), routed(x, made, "prefix")
        assert (whole - read).abs().max() > 1e-3
        torch.testing.assert_close(made(x).y, read, **CLOSE)
        torch.testing.assert_close(made.reference(x), read, **CLOSE)
        made.train()
        torch.testing.assert_close(made(x).y, whole, **CLOSE)
        torch.testing.assert_close(made.reference(x), whole, **CLOSE)


def test_each_loss_of_routing_moves_its_own_side():
    """Commitment draws queries to centroids that stand, the codebook's draws centroids to them."""
    options = {"update": "gradient", "commitment": 0.5, "clusters": 3, "window": 4}
    made, x = mixer("routing", True, **options).train(), text()
    losses = made(x).losses
    moved = {
        name: torch.autograd.grad(
            loss, (made.query.weight, made.centroids.means), allow_unused=True, retain_graph=True
        )
        for name, loss in losses.items()
    }
    assert moved["commitment"][1] is None
    assert moved["codebook"][0] is None
    for part in (moved["commitment"][0], moved["codebook"][1]):
        assert part.abs().max() > 1e-4


@pytest.mark.parametrize(("heads", "local"), [(1, 0), (2, 1), (6, 3), (12, 6)])
def test_half_of_the_heads_are_local(heads, local):
    made = ef.create_mixer("routing", width=24, heads=heads, causal=True, max_length=16)
    assert made.local == local
    assert made.centroids.means.shape[0] == heads - local


# Sparse Sinkhorn attention


def sorting_logits(x, q, k, made):
    """R (N, N) of one head ``h``, entry by entry: a function of h."""
    o, size, count = made.options, made.options.block_size, x.shape[1] // made.options.block_size
    blocks = [range(n * size, (n + 1) * size) for n in range(count)]
    read = [range(block[0] + 1) for block in blocks] if made.causal else blocks

    def stands_for(tokens, at, mean):
        total = sum(tokens[t] for t in at)
        return total / len(at) if mean else total

    def of(h):
        if o.sort_net == "bilinear":
            asked = [stands_for(q[h], at, True) for at in read]
            keys = [stands_for(k[h], at, True) for at in blocks]
            return [[float(a @ b) / math.sqrt(made.head_dim) for b in keys] for a in asked]
        rows = [stands_for(x[0], at, o.pool == "mean") for at in read]
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
    logits, heads = sorting_logits(x, q, k, made), []
    for h in range(HEADS):
        p = sinkhorn([[r / o.tau for r in row] for row in logits(h)], iterations, causal)
        if o.hard:
            p = [[float(x == max(row) and x > 0) for x in row] for row in p]
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
    (False, {"sort_net": "bilinear", "iterations": 1}, 1),
    (True, {"sort_net": "bilinear"}, 1),
    (False, {"pool": "mean", "tau": 0.3}, 8),
    (True, {"pool": "mean"}, 1),
    (False, {"hard": True}, 8),
    (True, {"hard": True, "sort_net": "bilinear"}, 1),
]


@pytest.mark.parametrize(("causal", "options", "iterations"), SORTINGS)
def test_sinkhorn_is_its_equation(causal, options, iterations):
    made, x = mixer("sinkhorn", causal, block_size=3, **options), text(12)
    with torch.no_grad():
        expected = sorted_and_own(x, made, iterations)
        torch.testing.assert_close(made(x).y, expected, **CLOSE)
        torch.testing.assert_close(made.reference(x), expected, **CLOSE)


def test_a_row_of_nothing_is_hardened_to_nothing():
    rows = torch.tensor([[[0.0, 0.0, 0.0], [0.2, 0.7, 0.1]]])
    assert hardened(rows).tolist() == [[[0.0, 0.0, 0.0], [0.0, 1.0, 0.0]]]


# gMLP


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
        if o.taps is not None and abs(i - j) >= o.taps:
            return 0.0
        # c_-(n-1) .. c_(n-1), or of causal ones c_0 .. c_(n-1)
        return made.spatial[h, i - j + (0 if made.causal else (o.taps or 32) - 1)]

    rows = []
    for i in range(length):
        parts = []
        for h in range(o.sgu_heads):
            channels = slice(h * group, (h + 1) * group)
            mixed = sum(weight(h, i, j) * second[j][channels] for j in range(length))
            parts.append(mixed + made.bias[h, 0 if o.taps else i])
        gate = torch.cat(parts)
        if o.gate in ("split", "multiplicative"):
            gate = first[i] * gate
        elif o.gate == "additive":
            gate = first[i] + gate
        rows.append(made.out.weight @ gate + made.out.bias)
    return torch.stack(rows)[None]


SPATIAL = [{}, {"spatial": "toeplitz"}, {"spatial": "toeplitz", "taps": 4}, {"sgu_heads": 2}]


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("gate", ["split", "multiplicative", "additive", "linear"])
@pytest.mark.parametrize("spatial", SPATIAL)
def test_gmlp_is_its_equation(causal, gate, spatial):
    made, x = mixer("gmlp", causal, gate=gate, **spatial), text(9)
    with torch.no_grad():
        expected = gated(x, made)
        torch.testing.assert_close(made(x).y, expected, **CLOSE)
        torch.testing.assert_close(made.reference(x), expected, **CLOSE)
        if causal:
            assert (made.matrix(9).triu(1) == 0).all()


# Attention-Free Transformers


GATES = {
    "sigmoid": lambda z: 1 / (1 + math.exp(-z)),
    "relu": lambda z: max(z, 0.0),
    "identity": lambda z: z,
}
KINDS = [
    ("aft-full", {"rank": None, "per_head": True}),
    ("aft-full", {"rank": 2}),
    ("aft-local", {"window": 3, "rank": None, "per_head": True}),
    ("aft-local", {"window": 3, "rank": 2}),
    ("aft-simple", {}),
    ("aft-conv", {"kernel": 5, "reparameterise": False}),
    ("aft-conv", {"kernel": 5, "tied": False}),
]


def bias_between(made, h):
    """w_{t,t'} of the channels of head h, pair by pair: a function of t and t'."""
    o = made.options
    if made.name == "aft-simple":
        return lambda t, s: 0.0
    if made.name == "aft-conv":
        taps = made.kernel[h]
        if o.reparameterise:
            raw = taps.tolist()
            mean = sum(raw) / len(raw)
            deviation = math.sqrt(sum((r - mean) ** 2 for r in raw) / len(raw) + 1e-5)
            taps = [made.gamma[h] * (r - mean) / deviation + made.beta[h] for r in raw]
        # the key that stands s - t after the query; causal kernels end at the query itself
        first = -(o.kernel - 1) if made.causal else -(o.kernel // 2)
        return lambda t, s: taps[s - t - first] if 0 <= s - t - first < o.kernel else 0.0
    w, h = made.position.w, h if o.per_head else 0
    near = o.window if made.name == "aft-local" else math.inf
    if o.rank is not None:
        return lambda t, s: w[0][h, t] @ w[1][h, s] if abs(t - s) < near else 0.0
    if made.name == "aft-full":
        return lambda t, s: w[h, t, s]
    # the band alone is stored, from the farthest past on
    return lambda t, s: w[h, t, s - t + o.window - 1] if abs(t - s) < near else 0.0


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


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("gate", GATES)
@pytest.mark.parametrize(("member", "options"), KINDS)
def test_attention_free_transformers_are_their_equation(member, options, gate, causal):
    made, x = mixer(member, causal, gate=gate, **options), text(6)
    with torch.no_grad():
        expected = attention_free(x, made)
        torch.testing.assert_close(made(x).y, expected, **CLOSE)
        torch.testing.assert_close(made.reference(x), expected, **CLOSE)


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


# Linear attention and Performer


def features(map_of, weights):
    """phi of one head's vector, one number at a time."""

    def learned(x, part):
        return (part.weight @ x + part.bias).tolist()

    def phi(x):
        if map_of == "product":
            pairs = zip(learned(x, weights.first), learned(x, weights.second), strict=True)
            return [a * b for a, b in pairs]
        x = x.tolist() if weights is None else learned(x, weights.first)
        if map_of == "elu":
            return [z + 1 if z > 0 else math.exp(z) for z in x]
        if map_of == "exp":
            return [math.exp(z) for z in x]
        if map_of in ("relu", "t2r"):
            return [max(z, 0.0) for z in x]
        if map_of == "softmax":
            return softmaxed(x)
        if map_of == "hedgehog":
            return softmaxed([2 * z for z in x] + [-2 * z for z in x])
        return x

    return phi


def favor(made, h):
    """exp(w . x - |x|^2 / 2) / sqrt(M) of x / D^(1/4); relu and eps of the generalised kernel."""
    o = made.options
    rows = made.random.projection[h if o.per_head else 0]

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
    rms = made.name == "linear" and made.options.normalise == "rms"
    rows = []
    for t in range(x.shape[1]):
        row = []
        for h in range(HEADS):
            if made.name == "linear":
                of = made.options.feature_map
                asks, shows = features(of, made.query_map), features(of, made.key_map)
            else:
                asks = shows = favor(made, h)
            seen = range(t + 1) if made.causal else range(x.shape[1])
            asked, held = asks(q[h, t]), [shows(k[h, s]) for s in seen]
            weights = [sum(a * b for a, b in zip(asked, one, strict=True)) for one in held]
            y = sum(w * v[h, s] for w, s in zip(weights, seen, strict=True))
            if rms:
                size = math.sqrt(float(y @ y) / len(y) + 1e-6)
                row.append(made.norm.weight * y / size)
            else:
                row.append(y / (sum(weights) or 1.0))
        rows.append(torch.cat(row))
    return made.out(torch.stack(rows))[None]


KERNELS = [
    *(("linear", {"feature_map": name}) for name in ("elu", "relu", "exp", "softmax", "t2r")),
    ("linear", {"feature_map": "hedgehog"}),
    ("linear", {"feature_map": "product", "normalise": "rms"}),
    ("linear", {"feature_map": "identity", "normalise": "rms"}),
    ("linear", {"feature_map": "identity"}),
    ("performer", {"features": 16}),
    ("performer", {"features": 16, "per_head": True, "draw": "iid"}),
    ("performer", {"features": 8, "feature_map": "relu"}),
]


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize(("member", "options"), KERNELS)
def test_kernel_attention_is_its_equation(member, options, causal):
    made, x = mixer(member, causal, **options), text(7)
    with torch.no_grad():
        expected = kernel_average(x, made)
        torch.testing.assert_close(made(x).y, expected, **CLOSE)
        torch.testing.assert_close(made.reference(x), expected, **CLOSE)


# Linformer


def slots_of(tokens, made, matrix):
    """The slots of a text or segment (S, width), one by one."""
    o, reach = made.options, made.reach
    if o.projection == "linear":
        return [sum(row[n] * t for n, t in enumerate(tokens)) for row in matrix]
    # windows of ceil(n / k) tokens
    wide = math.ceil(reach / o.k)
    slots = []
    for first in range(0, len(tokens), wide):
        part = tokens[first : first + wide]
        if o.projection == "conv":
            slots.append(sum(matrix[n] * t for n, t in enumerate(part)))
        elif o.projection == "mean":
            slots.append(sum(part) / len(part))
        else:
            slots.append(torch.stack([max(c) for c in zip(*part, strict=True)]))
    return slots


def slot_attention(x, made):
    """softmax_k(q . (E X W_K) / sqrt(D)) (F X W_V); with segments, beside the tokens of its own."""
    size, length = WIDTH // HEADS, x.shape[1]
    tokens, maps = list(x[0]), made.length_map
    chunk = made.options.causal_chunk or length
    wq, wk, wv = made.project.weights[0].split(WIDTH)
    outputs = torch.zeros(length, WIDTH, dtype=x.dtype)
    for h in range(HEADS):
        rows = slice(h * size, (h + 1) * size)
        ef = [None, None]
        if maps is not None:
            ef = [side[h if len(side) > 1 else 0] for side in (maps[0], maps[-1])]
        for t in range(length):
            first = t // chunk * chunk
            keys, values = [], []
            for n in range(0, first, chunk) if made.causal else (0,):
                part = tokens[n : n + chunk]
                keys += [wk[rows] @ slot for slot in slots_of(part, made, ef[0])]
                values += [wv[rows] @ slot for slot in slots_of(part, made, ef[1])]
            if made.causal:
                keys += [wk[rows] @ s for s in tokens[first : t + 1]]
                values += [wv[rows] @ s for s in tokens[first : t + 1]]
            outputs[t, rows] = attended(wq[rows] @ tokens[t], keys, values)
    return made.out(outputs)[None]


COMPRESSIONS = [
    (False, {"k": 5}),
    (False, {"k": 5, "sharing": "none"}),
    (False, {"k": 5, "sharing": "key-value"}),
    # 32 tokens in windows of ceil(32 / 9) = 4
    (False, {"k": 9, "projection": "mean"}),
    (False, {"k": 9, "projection": "max"}),
    (False, {"k": 9, "projection": "conv"}),
    (False, {"k": 9, "projection": "conv", "sharing": "none"}),
    (True, {"causal_chunk": 4, "k": 2}),
    (True, {"causal_chunk": 5, "k": 3, "projection": "max"}),
    (True, {"causal_chunk": 5, "k": 3, "projection": "mean"}),
    (True, {"causal_chunk": 4, "k": 3, "projection": "conv"}),
]


@pytest.mark.parametrize(("causal", "options"), COMPRESSIONS)
def test_linformer_is_its_equation(causal, options):
    made, x = mixer("linformer", causal, **options), text(13)
    with torch.no_grad():
        expected = slot_attention(x, made)
        torch.testing.assert_close(made(x).y, expected, **CLOSE)
        torch.testing.assert_close(made.reference(x), expected, **CLOSE)
