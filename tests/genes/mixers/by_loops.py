"""What loops over the papers' equations are made of, one number at a time."""

import math

import torch

import everyformer as ef

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


def both_are(made, x, expected):
    """The mixer and its definition give what loops give."""
    for y in (made(x).y, made.reference(x)):
        torch.testing.assert_close(y, expected, **CLOSE)


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
