"""Gradients of the queries, keys and values of every chunk."""

import triton.language as tl

from everyformer.engines.fused.compiled import kernel
from everyformer.engines.fused.kernel.levels import fade_before, fade_pairs
from everyformer.engines.fused.kernel.states import product


@kernel
def read_above(
    y, totals, g, highest, tops, down, scale, last, g_batch, g_head, g_step,
    length, heads, features, values, start, chunks, padded, eps,
    KIND: tl.constexpr, CHUNK: tl.constexpr, VALUES: tl.constexpr,
):  # fmt: skip
    """The gradient of every sum of weights, and the factors of g and it for the state before."""
    at = tl.program_id(0).to(tl.int64)
    x, n = at // chunks, at % chunks
    t = (start + n) * CHUNK + tl.arange(0, CHUNK)
    inside = t < length
    row = (x // heads * length + t) * heads + x % heads
    from_g = g + x // heads * g_batch + x % heads * g_head
    along = tl.zeros([CHUNK], tl.float32)
    for j in range(0, values, VALUES):
        d = j + tl.arange(0, VALUES)
        here = inside[:, None] & (d < values)[None, :]
        above = tl.load(from_g + t[:, None] * g_step + d[None, :], here, 0.0).to(tl.float32)
        below = tl.load(y + row[:, None] * values + d[None, :], here, 0.0).to(tl.float32)
        along += tl.sum(above * below, 1)
    total = tl.load(totals + row, inside, 1.0)
    moved = -along / total
    if KIND == "signed":
        moved = tl.where(tl.abs(total) <= eps, 0.0, moved)
    _, before = fade_before(tl.load(highest + x * padded + t), tl.load(tops + at))
    tl.store(down + x * padded + t, moved)
    tl.store(scale + x * padded + t, before / total)
    tl.store(last + x * padded + t, before * moved)


@kernel
def differentiate_features(
    q, k, v, g, weights, highest, own, tops, totals, down, states, dstates, dq, dk, moved,
    q_batch, q_head, q_step, k_batch, k_head, k_step, v_batch, v_head, v_step,
    g_batch, g_head, g_step, length, heads, features, values, start, chunks, padded,
    CHUNK: tl.constexpr, FEATURES: tl.constexpr, VALUES: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Gradients of q and k, and k dk of every token, which is that of its level."""
    at = tl.program_id(0).to(tl.int64)
    x, n = at // chunks, at % chunks
    t = (start + n) * CHUNK + tl.arange(0, CHUNK)
    inside = t < length
    w = tl.load(weights + x * padded + t)
    shown = w > float("-inf")
    reached, before = fade_before(tl.load(highest + x * padded + t), tl.load(tops + at))
    total = tl.load(totals + (x // heads * length + t) * heads + x % heads, inside, 1.0)
    drop, mine = tl.load(down + x * padded + t), tl.load(own + x * padded + t)
    from_q = q + x // heads * q_batch + x % heads * q_head
    from_k = k + x // heads * k_batch + x % heads * k_head
    from_v = v + x // heads * v_batch + x % heads * v_head
    from_g = g + x // heads * g_batch + x % heads * g_head
    pairs = tl.zeros([CHUNK, CHUNK], tl.float32)
    for j in range(0, values, VALUES):
        d = j + tl.arange(0, VALUES)
        here = inside[:, None] & (d < values)[None, :]
        above = tl.load(from_g + t[:, None] * g_step + d[None, :], here, 0.0)
        here = (d < values)[:, None] & shown[None, :]
        tokens = tl.load(from_v + t[None, :] * v_step + d[:, None], here, 0.0)
        pairs += product(above, tokens, PRECISION)
    pairs = (pairs / total[:, None] + drop[:, None]) * fade_pairs(w, reached, CHUNK)
    along = tl.zeros([CHUNK], tl.float32)
    for i in range(0, features, FEATURES):
        m = i + tl.arange(0, FEATURES)
        entry = at * features * (values + 1) + m * (values + 1)
        of_query = tl.zeros([CHUNK, FEATURES], tl.float32)
        of_key = tl.zeros([CHUNK, FEATURES], tl.float32)
        for j in range(0, values, VALUES):
            d = j + tl.arange(0, VALUES)
            here = (d < values)[:, None] & (m < features)[None, :]
            sums = tl.load(states + entry[None, :] + d[:, None], here, 0.0)
            dsums = tl.load(dstates + entry[None, :] + d[:, None], here, 0.0)
            here = inside[:, None] & (d < values)[None, :]
            above = tl.load(from_g + t[:, None] * g_step + d[None, :], here, 0.0)
            of_query += product(above, sums, PRECISION)
            here = shown[:, None] & (d < values)[None, :]
            tokens = tl.load(from_v + t[:, None] * v_step + d[None, :], here, 0.0)
            of_key += product(tokens, dsums, PRECISION)
        norms = tl.load(states + entry + values, m < features, 0.0)
        dnorms = tl.load(dstates + entry + values, m < features, 0.0)
        of_query = of_query / total[:, None] + drop[:, None] * norms[None, :]
        of_key = (of_key + dnorms[None, :]) * mine[:, None]
        here = inside[:, None] & (m < features)[None, :]
        queries = tl.load(from_q + t[:, None] * q_step + m[None, :], here, 0.0)
        known = shown[:, None] & (m < features)[None, :]
        keys = tl.load(from_k + t[:, None] * k_step + m[None, :], known, 0.0)
        of_query = of_query * before[:, None] + product(pairs, keys, PRECISION)
        of_key += product(tl.trans(pairs), queries, PRECISION)
        along += tl.sum(of_key * keys.to(tl.float32), 1)
        into = (x * length + t[:, None]) * features + m[None, :]
        tl.store(dq + into, of_query, here)
        tl.store(dk + into, of_key, here)
    tl.store(moved + x * length + t, along, inside)


@kernel
def differentiate_values(
    q, k, g, weights, highest, own, tops, totals, dstates, dv,
    q_batch, q_head, q_step, k_batch, k_head, k_step, g_batch, g_head, g_step,
    length, heads, features, values, start, chunks, padded,
    CHUNK: tl.constexpr, FEATURES: tl.constexpr, VALUES: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Gradients of v."""
    at = tl.program_id(0).to(tl.int64)
    x, n = at // chunks, at % chunks
    t = (start + n) * CHUNK + tl.arange(0, CHUNK)
    inside = t < length
    w = tl.load(weights + x * padded + t)
    shown = w > float("-inf")
    reached, _ = fade_before(tl.load(highest + x * padded + t), tl.load(tops + at))
    total = tl.load(totals + (x // heads * length + t) * heads + x % heads, inside, 1.0)
    mine = tl.load(own + x * padded + t)
    from_q = q + x // heads * q_batch + x % heads * q_head
    from_k = k + x // heads * k_batch + x % heads * k_head
    from_g = g + x // heads * g_batch + x % heads * g_head
    pairs = tl.zeros([CHUNK, CHUNK], tl.float32)
    for i in range(0, features, FEATURES):
        m = i + tl.arange(0, FEATURES)
        here = shown[:, None] & (m < features)[None, :]
        keys = tl.load(from_k + t[:, None] * k_step + m[None, :], here, 0.0)
        here = (m < features)[:, None] & inside[None, :]
        queries = tl.load(from_q + t[None, :] * q_step + m[:, None], here, 0.0)
        pairs += product(keys, queries, PRECISION)
    pairs *= tl.trans(fade_pairs(w, reached, CHUNK) / total[:, None])
    for j in range(0, values, VALUES):
        d = j + tl.arange(0, VALUES)
        of_value = tl.zeros([CHUNK, VALUES], tl.float32)
        for i in range(0, features, FEATURES):
            m = i + tl.arange(0, FEATURES)
            here = shown[:, None] & (m < features)[None, :]
            keys = tl.load(from_k + t[:, None] * k_step + m[None, :], here, 0.0)
            here = (m < features)[:, None] & (d < values)[None, :]
            entry = (at * features + m[:, None]) * (values + 1) + d[None, :]
            of_value += product(keys, tl.load(dstates + entry, here, 0.0), PRECISION)
        here = inside[:, None] & (d < values)[None, :]
        above = tl.load(from_g + t[:, None] * g_step + d[None, :], here, 0.0)
        of_value = of_value * mine[:, None] + product(pairs, above, PRECISION)
        tl.store(dv + (x * length + t[:, None]) * values + d[None, :], of_value, here)
