"""Random features: unbiased kernels, the variance of the paper's lemma, draws and redraws."""

import itertools
import math

import pytest
import torch
from torch.utils.checkpoint import checkpoint

import everyformer as ef
from everyformer import functional, reference
from everyformer.core.errors import ConfigError, ResourceError, ShapeError, UnsupportedError
from everyformer.engines.kernel.features import (
    DRAWS,
    Projection,
    draw_projection,
    fourier_features,
    positive_features,
    rectified_features,
    stable_exponentials,
    trigonometric_level,
)
from helpers import close, covering, draw, with_gradients

SIZE = 8


@pytest.mark.parametrize("make", [positive_features, fourier_features, rectified_features])
def test_features_that_do_not_fit_are_refused_before_they_are_made(make):
    # a projection of one number, seen as a thousand million rows
    rows = torch.zeros(1, 1).expand(10**9, SIZE)
    with pytest.raises(
        ResourceError,
        match=r"of 5,000 tokens .* to 1,000,000,000 random features needs at least .* TiB",
    ):
        make(torch.zeros(5000, SIZE), rows)


def pair(norm):
    """x and y of one norm, 60 degrees apart."""
    x, y = torch.zeros(2, SIZE, dtype=torch.float64)
    x[0], y[0], y[1] = norm, norm / 2, norm * math.sqrt(3) / 2
    return x, y


def hyperbolic(x, w):
    features, level = stable_exponentials(x, w, hyperbolic=True)
    return features * level.exp()[..., None]


def trigonometric(x, w):
    return fourier_features(x, w) * trigonometric_level(x).exp()[..., None]


def estimates(phi, norm, rows, draw, count=4000):
    """``count`` estimates of the kernel, from draws of ``rows`` rows each."""
    torch.manual_seed(0)
    w = draw_projection(count, rows, SIZE, draw).double()
    x, y = pair(norm)
    fx, fy = (phi(t.expand(count, 1, -1), w) for t in (x, y))
    return (fx * fy).sum(-1).flatten()


def arc_cosine(x, y):
    a = torch.acos(x @ y / (x.norm() * y.norm()))
    return x.norm() * y.norm() * (a.sin() + (math.pi - a) * a.cos()) / (2 * math.pi)


KERNELS = {
    "positive": (positive_features, lambda x, y: torch.exp(x @ y)),
    "hyperbolic": (hyperbolic, lambda x, y: torch.exp(x @ y)),
    "trigonometric": (trigonometric, lambda x, y: torch.exp(x @ y)),
    "fourier": (fourier_features, lambda x, y: torch.exp(-(x - y).square().sum() / 2)),
    "rectified": (rectified_features, arc_cosine),
}


@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.parametrize("draw", ["iid", "orthogonal"])
def test_products_of_features_are_kernels_on_average(name, draw):
    phi, kernel = KERNELS[name]
    for norm in (0.5, 1.0):
        found = estimates(phi, norm, 12, draw)
        error = found.std() / math.sqrt(len(found))
        assert abs(found.mean() - kernel(*pair(norm))) < 4 * error


@pytest.mark.parametrize("norm", [0.25, 0.5])
def test_variances_of_independent_rows_are_those_of_lemma_2(norm):
    """Choromanski et al. 2021; for larger norms the tails are too heavy to see it."""
    x, y = pair(norm)
    z, d = (x + y).square().sum(), (x - y).square().sum()
    kernel, rows = torch.exp(x @ y), 12
    positive = z.exp() * kernel**2 * (1 - torch.exp(-z)) / rows
    wanted = {
        "positive": positive,
        "trigonometric": z.exp() / kernel**2 * (1 - torch.exp(-d)) ** 2 / (2 * rows),
        "hyperbolic": (1 - torch.exp(-z)) * positive / 2,
    }
    for name, variance in wanted.items():
        found = (estimates(KERNELS[name][0], norm, rows, "iid", 20000) - kernel).square().mean()
        assert found / variance == pytest.approx(1, abs=0.1), name


@pytest.mark.full("a rate over many draws")
@pytest.mark.parametrize("name", ["positive", "hyperbolic", "trigonometric", "fourier"])
@pytest.mark.parametrize("norm", [0.25, 0.5])
def test_orthogonal_rows_err_less_where_norms_are_small(name, norm):
    phi, kernel = KERNELS[name]
    exact = kernel(*pair(norm))
    error = {
        draw: (estimates(phi, norm, SIZE, draw, 20000) - exact).square().mean()
        for draw in ("iid", "orthogonal")
    }
    assert error["orthogonal"] < error["iid"]


@pytest.mark.parametrize("rows", [3, 8, 20])
def test_blocks_of_rows_are_orthogonal_and_uniform(rows):
    torch.manual_seed(0)
    w = draw_projection(2000, rows, SIZE, "orthogonal").double()
    for first in range(0, rows, SIZE):
        block = w[:, first : first + SIZE]
        products = block @ block.mT
        off = products - torch.diag_embed(products.diagonal(dim1=1, dim2=2))
        assert off.abs().max() < 1e-5
    square = w.square().sum(-1)
    assert square.mean() == pytest.approx(SIZE, rel=0.03)
    assert square.var() == pytest.approx(2 * SIZE, rel=0.15), "chi norms, as of Gaussian rows"
    # without the signs of R the first entry of Q's first column would always be negative
    assert abs(w[:, 0, 0].sign().mean()) < 0.1
    regular = draw_projection(2, rows, SIZE, "regularised")
    torch.testing.assert_close(regular.norm(dim=-1), torch.full((2, rows), math.sqrt(SIZE)))


@pytest.mark.filterwarnings("ignore")
def test_performer_pytorch_computes_the_same_features():
    theirs = pytest.importorskip("performer_pytorch.performer_pytorch")
    torch.manual_seed(0)
    x = torch.randn(2, 3, 7, SIZE, dtype=torch.float64)
    w = theirs.gaussian_orthogonal_random_matrix(20, SIZE).double()
    found = theirs.softmax_kernel(x, projection_matrix=w, is_query=True, eps=0.0)
    scaled = x * SIZE**-0.25
    top = (scaled @ w.T).amax(-1, keepdim=True)
    torch.testing.assert_close(positive_features(scaled, w), found * top.exp())
    norm = w.norm(dim=1)
    directions = w[:8] / norm[:8, None]
    torch.testing.assert_close(directions @ directions.T, torch.eye(8).double(), rtol=0, atol=1e-6)


@pytest.mark.parametrize("name", ["positive_features", "fourier_features"])
def test_fast_features_are_the_reference(name):
    x = torch.randn(2, 3, SIZE, dtype=torch.float64, requires_grad=True)
    w = torch.randn(5, SIZE, dtype=torch.float64)
    pairs = [getattr(place, name)(x, w) for place in (functional, reference)]
    torch.testing.assert_close(*(with_gradients(y, [x]) for y in pairs))
    with pytest.raises(ShapeError, match=r"8 channels.*7"):
        getattr(functional, name)(x, w[:, :7])


@pytest.mark.parametrize("eps", [0.0, 1e-3])
def test_stable_features_are_the_features_in_two_parts(eps):
    x = torch.randn(2, 3, SIZE, dtype=torch.float64, requires_grad=True)
    w = torch.randn(5, SIZE, dtype=torch.float64)
    features, level = stable_exponentials(x, w, eps=eps)
    assert features.amax(-1).sub((1 + eps) * 5**-0.5).abs().max() < 1e-12
    plain = positive_features(x, w)
    plain = plain + eps * plain.amax(-1, keepdim=True)
    joined = features * level.exp()[..., None]
    torch.testing.assert_close(*(with_gradients(t, [x]) for t in (joined, plain)))


def drawn(calls, *, redraw=3, pool=0, resume=None):
    torch.manual_seed(0)
    projection = Projection(2, 4, SIZE, "orthogonal", redraw, pool)
    kept = []
    for call in range(calls):
        if call == resume:
            again = Projection(2, 4, SIZE, "orthogonal", redraw, pool)
            again.load_state_dict(projection.state_dict())
            projection = again
        torch.manual_seed(call)
        kept.append(projection(carried=False).clone())
    return projection, kept


@pytest.mark.parametrize("pool", [0, 6])
def test_rows_are_drawn_anew_every_so_many_training_calls(pool):
    projection, kept = drawn(8, pool=pool)
    same = [torch.equal(a, b) for a, b in itertools.pairwise(kept)]
    assert same == [True, False, True, True, False, True, True]
    for a, b in zip(kept, drawn(8, pool=pool, resume=4)[1], strict=True):
        assert torch.equal(a, b), "a resumed run draws the same"
    projection.eval()
    frozen = [projection(carried=True).clone() for _ in range(5)]
    assert all(torch.equal(w, frozen[0]) for w in frozen)
    first = projection.projection[:2]
    assert torch.equal(frozen[0], first if pool else kept[-1])


@covering(redraw=[1, 2, 100], pool=[0, 5], reentrant=[False, True])
def test_checkpoints_repeat_the_draw_of_their_call(redraw, pool, reentrant):
    def run(checkpointed):
        torch.manual_seed(1)
        projection, found = Projection(2, 3, SIZE, "iid", redraw, pool).train(), []
        x = [torch.ones(SIZE, requires_grad=True) for _ in range(4)]

        def call(t):
            return projection(carried=False).matmul(t).pow(2).sum()

        if not pool:  # whose first draw can be had again
            projection(carried=False)
        for t in x:  # of several calls, all before the first gradient
            found.append(checkpoint(call, t, use_reentrant=reentrant) if checkpointed else call(t))
        torch.stack(found).sum().backward()
        state = projection.state_dict()
        return [t.grad for t in x], [state["calls"], state["projection"], state["chosen"]]

    (plain, after), (again, then) = run(False), run(True)
    torch.testing.assert_close(again, plain)
    torch.testing.assert_close(then, after)
    assert (len({float(t.sum()) for t in plain}) > 1) == (redraw < 100)


@pytest.mark.parametrize(("redraw", "kept", "later"), [(1, False, 0), (2, True, 1)])
def test_a_draw_that_is_not_known_any_more_is_refused(redraw, kept, later):
    x = torch.ones(SIZE, requires_grad=True)
    projection = Projection(1, 3, SIZE, "iid", redraw).train()
    y = checkpoint(
        lambda t: projection(carried=False).matmul(t).sum(), x,
        use_reentrant=False, preserve_rng_state=kept,
    )  # fmt: skip
    for _ in range(later):
        projection(carried=False)
    with pytest.raises(UnsupportedError, match="preserve_rng_state=True"):
        y.backward()


def test_what_would_break_a_state_is_refused():
    projection = Projection(1, 4, SIZE, "iid", 1000)
    with pytest.raises(UnsupportedError, match=r"call eval\(\).*redraw=None"):
        projection(carried=True)
    Projection(1, 4, SIZE, "iid", None)(carried=True)
    with pytest.raises(ConfigError, match="pool=3"):
        Projection(4, 4, SIZE, "iid", 1, pool=3)
    with pytest.raises(ConfigError, match="redraw=0"):
        Projection(4, 4, SIZE, "iid", 0)
    with pytest.raises(ConfigError, match=", ".join(DRAWS)):
        Projection(4, 4, SIZE, "gaussian", 1)


def test_graphs_hold_redrawing():
    torch.manual_seed(0)
    projection = Projection(1, 4, SIZE, "iid", 2)
    compiled = torch.compile(projection, backend="aot_eager", fullgraph=True)
    kept = [compiled(carried=False).clone() for _ in range(4)]
    assert [torch.equal(a, b) for a, b in itertools.pairwise(kept)] == [False, True, False]
    assert int(projection.calls) == 4


def test_compilers_see_the_same_features():
    """Where a compiler traces, operators are written out for it."""
    x, w = draw(2, 3, 5, 4), draw(3, 6, 4, seed=1)
    seen = torch.compile(fourier_features, backend="eager", fullgraph=True)
    close(seen(x, w), fourier_features(x, w), 1e-12)
    mixer = ef.create_mixer("linear", width=8, heads=2).double()
    seen = torch.compile(mixer.query_features, backend="eager", fullgraph=True)
    close(seen(x, None), mixer.query_features(x, None), 1e-12)
