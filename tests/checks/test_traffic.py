"""The law `traffic`: its count of bytes, and steps after long texts."""

from dataclasses import replace

import pytest
import torch

from everyformer.checks.check import Check
from everyformer.checks.traffic import between, traffic
from everyformer.checks.verify import exemption
from everyformer.engines.content.chosen import chosen_attention
from everyformer.family import info, list_members
from helpers import draw
from sequence_laws.operations import Counter
from sequence_laws.verdict import LawBroken

T = draw(6, 10)
ROW, TAKEN = draw(1, 10), torch.tensor([0, 3, 3])
BYTES = 8
"""of a number in float64, and of an index"""


@pytest.mark.parametrize(
    ("what", "run", "read", "written"),
    [
        ("views are free", lambda: T[2:, 1:].mT.unfold(0, 3, 1).unsqueeze(0), 0, 0),
        ("both operands and the result", lambda: T + T, 120, 60),
        ("a slice counts its elements", lambda: T[:2] + 1, 20, 20),
        ("an expanded row counts once", lambda: T * ROW.expand(6, 10), 70, 60),
        ("overlapping windows count once", lambda: ROW[0].unfold(0, 4, 1).exp(), 10, 28),
        ("a sum", lambda: T.sum(0), 60, 10),
        ("rows that are selected", lambda: T.index_select(0, TAKEN), 33, 30),
        ("rows that are looked up", lambda: T[TAKEN], 33, 30),
        ("an embedding", lambda: torch.nn.functional.embedding(TAKEN, T), 33, 30),
        ("elements that are gathered", lambda: ROW[0].gather(0, TAKEN), 6, 3),
        ("memory without numbers", lambda: T.new_empty(50), 0, 0),
        ("zeros are not made of what they are like", lambda: torch.zeros_like(T), 0, 60),
        ("in place: read and written", lambda: T.clone().mul_(2), 120, 120),
        ("a copy does not read its place", lambda: T.new_empty(6, 10).copy_(ROW), 10, 60),
        ("nor does a result that is given", lambda: torch.exp(ROW, out=T.new_empty(1, 10)), 10, 10),
        ("what is put is written", lambda: T.new_empty(60).index_copy_(0, TAKEN, ROW[0, :3]), 6, 3),
        ("a scatter that copies", lambda: ROW[0].scatter(0, TAKEN, ROW[0]), 23, 10),
    ],
)  # fmt: skip
def test_bytes_of(what, run, read, written):
    with Counter() as counted:
        run()
    assert (counted.read, counted.written) == (BYTES * read, BYTES * written), what


def test_an_operator_of_this_library_counts_by_what_runs_in_it():
    """Chosen values are read, and the room around them is not."""
    q, k, v = draw(2, 1, 4), *(draw(2, 100, 4, seed=n)[:, :90] for n in (1, 2))
    chosen, scores = torch.tensor([[[1, 7, 88]], [[0, 89, 2]]]), draw(2, 1, 3)
    with Counter() as counted:
        expected = chosen_attention(q, k, v, chosen, scores)
    assert 24 * BYTES < counted.read < 180 * BYTES
    weights = scores.softmax(-1)
    for n in range(2):
        torch.testing.assert_close(expected[0][n], weights[n] @ v[n, chosen[n, 0]])


def claiming(name, state):
    """A row with another claim of what is held."""
    row = info(name)
    return replace(row, cost=replace(row.cost, state=state))


@pytest.mark.parametrize(
    ("name", "state", "says"),
    [
        ("attention", "2 d, constant", "of the row 256 bytes"),
        ("attention", "t d", "264 bytes moved for a token, and the row says 128 held"),
        ("linformer-chunked", "t d / 8", "and the row says 16 held"),
    ],
)
def test_claims_that_are_too_small(name, state, says):
    with pytest.raises(LawBroken, match=says):
        traffic(claiming(name, state), Check(), "cpu", torch.float32)


def test_a_row_without_a_formula_claims_nothing():
    check = Check()
    traffic(claiming("attention", "not stated"), check, "cpu", torch.float32)
    assert not check.count


STREAMING = [m.name for m in list_members() if exemption(m, "traffic") is None]
LEFT_OUT = ("gmlp", "amlp", "sparse-transformer", "blockwise")
"""two that hold a matrix of 65,536 by 65,536, two whose masks of such texts take minutes"""


@pytest.mark.full("texts of 65,536 tokens take up to half a minute each")
@pytest.mark.parametrize("name", [name for name in STREAMING if name not in LEFT_OUT])
def test_steps_after_65536_tokens(name):
    between(info(name), Check(), 1024, 65536)
