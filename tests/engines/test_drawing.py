"""What rows draw is the same, however many of them are computed together."""

from functools import partial

import pytest
import torch

from everyformer.engines.content.balance import gumbel
from everyformer.engines.drawing import draw, draw_seed, piece_of_rows, uniform_rows
from everyformer.engines.dropout import P, dropout
from everyformer.engines.softmax.attention import softmax_attention
from everyformer.engines.softmax.visibility import Visibility
from helpers import with_gradients

CUTS = [(0, 1), (1, 4), (4, 6)]
"""six rows in three pieces"""


def attention(x):
    return softmax_attention(x, x, x, Visibility(causal=True), dropout=0.4)


ROWS = {
    "dropout": (lambda x: dropout(x, 0.3), (6, 5, 7)),
    "dropout of many": (lambda x: dropout(x, 0.3), (6, 2, P // 5)),
    "dropout of rows that are parts": (lambda x: dropout(x, 0.3), (6, P)),
    "dropout of flat rows": (lambda x: dropout(x.flatten(0, 1), 0.3).view_as(x), (6, 5, 7)),
    "attention": (attention, (6, 2, 9, 4)),
    "attention in tiles": (attention, (6, 3, 300, 4)),
    "uniform": (lambda x: uniform_rows(x.shape, x.device), (6, 3)),
    "gumbel": (gumbel, (6, 2, 3)),
}


@pytest.mark.parametrize("name", ROWS)
def test_pieces_draw_what_the_whole_draws(name):
    make, shape = ROWS[name]
    x = torch.rand(*shape, dtype=torch.float64) + 1
    torch.manual_seed(3)
    whole, state = make(x), torch.get_rng_state()
    parts = []
    for start, stop in CUTS:
        torch.manual_seed(3)
        with piece_of_rows(start, stop - start):
            parts.append(make(x[start:stop]))
        # whatever comes next is the same too
        assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(torch.cat(parts), whole)
    assert not torch.equal(whole[0], whole[1])


def test_seeds_of_pieces_differ():
    found = []
    for piece in CUTS:
        torch.manual_seed(3)
        with piece_of_rows(*piece):
            found.append(int(draw_seed()))
    assert len(set(found)) == len(CUTS)
    torch.manual_seed(3)
    assert int(draw_seed()) == found[0]


def test_a_block_ends_where_an_error_leaves_it():
    with pytest.raises(ZeroDivisionError), piece_of_rows(3, 2):
        1 / 0  # noqa: B018
    assert draw(5)[1:].tolist() == [0, 1]


@pytest.mark.full("the compiler works for seconds")
@pytest.mark.parametrize(
    ("name", "make"),
    [
        ("dropout", lambda x: dropout(x, 0.3)),
        ("attention", attention),
        ("uniform", lambda x: x * uniform_rows((x.shape[0], 1, 1, 1), x.device)),
        ("seed", lambda x: x * draw_seed()),
    ],
)
def test_one_graph_serves_every_piece(name, make):
    torch._dynamo.reset()
    graph = torch.compile(make, backend="aot_eager", fullgraph=True, dynamic=True)
    x = torch.rand(6, 2, 9, 4, dtype=torch.float64)
    for start, stop in ((1, 3), (4, 6)):
        found = []
        for run in (make, graph):
            torch.manual_seed(5)
            with piece_of_rows(start, stop - start):
                part = x[start:stop].clone().requires_grad_()
                found.append(with_gradients(run(part), [part], retain=False))
        torch.testing.assert_close(*found, rtol=1e-12, atol=0)


def test_elsewhere_rows_draw_where_they_are(monkeypatch):
    asked, real = [], torch.rand
    monkeypatch.setattr(torch, "rand", lambda *n, **how: asked.append(how) or real(*n, **how))
    assert uniform_rows((3, 2), torch.device("meta")).is_meta
    assert asked == [{"device": torch.device("meta")}]


def test_numbers_are_even_from_0_to_1():
    torch.manual_seed(0)
    drawn = partial(uniform_rows, (200, 50), torch.device("cpu"))
    first, second = drawn(), drawn()
    assert not torch.equal(first, second)
    counts = torch.histc(torch.cat((first, second)), bins=10, min=0, max=1)
    assert float((counts / 2_000 - 1).abs().amax()) < 0.1
