"""kNN-LM: what is mixed, how much, and that keys and queries are the same thing."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor

import everyformer as ef
from everyformer.core.config import from_dict
from everyformer.core.errors import ConfigError
from everyformer.core.mask import Mask
from everyformer.generation.sampling import generate
from everyformer.genes.retrieval import KnnOptions
from everyformer.models import knn_lm
from everyformer.models.knn_lm import KnnLanguageModel, Neighbours, best_weight, highest_weight, mix

IDS = torch.randint(0, 20, (2, 17), generator=torch.Generator().manual_seed(1))


class Everything:
    """A store in memory, searched by brute force."""

    def __init__(self, keys: Tensor, values: Tensor) -> None:
        self.keys, self.values = keys, values

    def read(self, queries: Tensor, k: int) -> Neighbours:
        squares = (queries[:, None].double() - self.keys[None].double()).square().sum(-1)
        best = squares.sort(-1)
        rows = best.indices[:, :k]
        return Neighbours(best.values[:, :k], self.values[rows])


def model(residual: str = "pre") -> Any:
    torch.manual_seed(0)
    made = ef.create_model(
        "rope", width=16, heads=2, layers=2, vocabulary=20, residual=residual, max_length=64
    )
    return made.double().eval()


def store_of(made: Any, text: Tensor) -> Everything:
    """Keys are where the next token is predicted, values that token."""
    keys = made(text[:, :-1], taps=["ffn-input:-1"]).taps["ffn-input:-1"]
    return Everything(keys.flatten(0, 1).detach(), text[:, 1:].flatten())


def knn(made: Any, reader: Any, **options: Any) -> KnnLanguageModel:
    return KnnLanguageModel(made, reader, KnnOptions(**options)).eval()


def test_the_papers_defaults() -> None:
    o = KnnOptions()
    assert (o.lambda_, o.divisor) == (0.25, 1.0)
    # of a store that has so many keys
    assert [o.resolved(keys).k for keys in (1, 1023, 1024, 99_999)] == [1, 1023, 1024, 1024]
    assert KnnOptions(k=5).resolved(4).k == 5
    assert knn(model(), None).tap == "ffn-input:-1"
    for weight in (-0.1, 1.1, math.nan):
        with pytest.raises(ConfigError, match="weight"):
            from_dict(KnnOptions, {"weight": weight})


@pytest.mark.parametrize("distance", ["squared", "root", "cosine"])
def test_probabilities_of_neighbours_are_the_equation(distance: str) -> None:
    d = torch.tensor([[0.5, 1.0, 4.0], [0.0, 0.0, math.inf]]).double()
    values = torch.tensor([[3, 1, 3], [2, 2, 0]])
    found = knn_lm.neighbour_probabilities(
        Neighbours(d, values), 5, KnnOptions(distance=distance, temperature=2.0)
    )
    of = (lambda x: math.sqrt(x)) if distance == "root" else (lambda x: x)
    e = [math.exp(-of(x) / 2) for x in (0.5, 1.0, 4.0)]
    expected = torch.zeros(2, 5).double()
    expected[0, 3], expected[0, 1] = (e[0] + e[2]) / sum(e), e[1] / sum(e)
    expected[1, 2] = 1.0
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("weight", [0.0, 0.3, 1.0])
def test_the_mixture_is_of_probabilities_and_exact_at_both_ends(weight: float) -> None:
    of_model = torch.randn(3, 7).double().log_softmax(-1)
    of_neighbours = torch.tensor([[0.5, 0.5, 0, 0, 0, 0, 0], [0] * 6 + [1], [0] * 7]).double()
    mixed = mix(of_model, of_neighbours, weight)
    expected = weight * of_neighbours + (1 - weight) * of_model.exp()
    expected[2] = of_model[2].exp()
    torch.testing.assert_close(mixed.exp(), expected)
    assert not mixed.isnan().any()
    if weight == 0:
        assert torch.equal(mixed, of_model)
    torch.testing.assert_close(mixed.exp().sum(-1), torch.ones(3).double())


@pytest.mark.parametrize("residual", ["pre", "post"])
def test_logits_are_the_whole_equation_for_every_token(residual: str) -> None:
    made = model(residual)
    text = torch.randint(0, 20, (3, 30), generator=torch.Generator().manual_seed(2))
    reader = store_of(made, text)
    out = knn(made, reader, k=5, weight=0.4, temperature=3.0)(IDS, targets=IDS)
    queries = made(IDS, taps=["ffn-input:-1"]).taps["ffn-input:-1"]
    of_model = made(IDS).logits.softmax(-1)
    for row in range(2):
        for at in range(17):
            squares = (reader.keys - queries[row, at]).square().sum(-1)
            near = squares.argsort()[:5]
            e = (-squares[near] / 3.0).exp()
            p = torch.zeros(20).double()
            for share, value in zip(e / e.sum(), reader.values[near], strict=True):
                p[value] += share
            expected = 0.4 * p + 0.6 * of_model[row, at]
            torch.testing.assert_close(out.logits[row, at].exp(), expected)
    each = -out.logits.gather(-1, IDS[..., None])
    torch.testing.assert_close(out.loss, each.mean())


def test_streams_padding_and_the_last_token_alone_are_one_pass() -> None:
    made = model()
    # in training, and with no weight, it is the model alone
    for alone in (knn(made, None).train(), knn(made, None, weight=0.0)):
        torch.testing.assert_close(alone(IDS).logits, made(IDS).logits)
    mixed = knn(made, store_of(made, IDS.flip(0, 1)), k=6, temperature=5.0)
    whole = mixed(IDS).logits
    state, parts = mixed.init_state(2), []
    for piece in IDS.split(5, dim=1):
        out = mixed(piece, state=state)
        state = out.state
        parts.append(out.logits)
    torch.testing.assert_close(torch.cat(parts, 1), whole)
    torch.testing.assert_close(mixed(IDS, last=1).logits[:, 0], whole[:, -1])
    padded = torch.cat((torch.zeros(2, 3).long(), IDS), 1)
    padding_mask = (torch.arange(20) >= 3).expand(2, -1)
    torch.testing.assert_close(
        mixed(padded, mask=Mask(padding_mask=padding_mask)).logits[:, 3:], whole
    )
    assert generate(mixed, IDS, tokens=4).shape == (2, 4)


def test_em_finds_the_best_weight_and_is_never_worse_than_five_others() -> None:
    torch.manual_seed(3)
    of_model = (0.2 + 0.6 * torch.rand(500).double()).log()
    of_neighbours = torch.where(torch.rand(500) < 0.4, 0.9, 0.01).double().log()
    found = best_weight(of_model, of_neighbours)

    def loss(weight: float) -> float:
        return -float((weight * of_neighbours.exp() + (1 - weight) * of_model.exp()).log().mean())

    grid = [n / 1000 for n in range(1001)]
    assert loss(found) <= min(map(loss, grid)) + 1e-9
    assert found == pytest.approx(min(grid, key=loss), abs=2e-3)


SURE, NEVER = 0.0, -math.inf


@pytest.mark.parametrize(
    ("of_model", "of_neighbours", "expected"),
    [
        # neighbours alone know: as if one token more were known by the model alone
        ([-2.0] * 5, [SURE] * 5, 5 / 6),
        ([-2.0] * 399, [SURE] * 399, 399 / 400),
        ([-2.0], [SURE], 1 / 2),
        ([-2.0] * 5, [NEVER] * 5, 0.0),
        # of three one each knows alone and one neither: halves, not thirds
        ([SURE, NEVER, NEVER], [NEVER, SURE, NEVER], 1 / 2),
        ([SURE, NEVER, NEVER, NEVER], [NEVER, SURE, SURE, NEVER], 2 / 3),
        ([NEVER], [NEVER], 0.0),
        # a probability that is too small for a number is one nevertheless
        ([-800.0, -900.0], [NEVER, SURE], 1 / 2),
        ([-1.0, -900.0, -900.0], [NEVER, -800.0, -800.0], 2 / 3),
    ],
)
def test_the_weight_is_the_share_of_tokens_that_neighbours_know(of_model, of_neighbours, expected):
    pair = torch.tensor(of_model).double(), torch.tensor(of_neighbours).double()
    assert best_weight(*pair) == pytest.approx(expected, abs=1e-5)


def test_the_highest_weight_keeps_its_two_promises() -> None:
    """Less than a nat on the text that it is found on, log(n + 1) on one more token."""
    for n in (1, 7, 300):
        weight = highest_weight(n)
        known, unknown = torch.zeros(n).double(), torch.full((n,), -3.0).double()
        assert 0 < -float(knn_lm.mixed(unknown, known, weight).sum()) < 1
        [more] = (-3.0 - knn_lm.mixed(unknown[:1], known[:1] + NEVER, weight)).tolist()
        assert more == pytest.approx(math.log(n + 1))
