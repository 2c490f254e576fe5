"""The forecaster: quantiles that never cross, twice their loss, one state for all horizons."""

import math

import pytest
import torch
from scipy.stats import norm
from sklearn.metrics import mean_pinball_loss

import everyformer as ef
from everyformer.core.errors import GeneError, ShapeError, UnsupportedError
from everyformer.core.mask import Mask
from everyformer.family import list_members
from everyformer.models.forecast import quantile_losses
from everyformer.verification.cases import small_model, stir
from helpers import build_model, close, draw

SIZES = {"width": 8, "layers": 2, "heads": 2, "max_length": 16, "series": 3, "horizon": 4}
MEMBERS = [member.name for member in list_members(task="forecast")]


def forecaster(name="attention", **options):
    made = build_model(name, "forecast", **SIZES, **options)
    stir(made)
    return made


def test_every_streaming_member_forecasts_but_those_bound_to_tokens():
    bound = {"knn-lm", "spalm", "depth-adaptive", "calm", "decision-transformer", "transformer"}
    streaming = {m.name for m in list_members() if m.can("streaming") and m.can("causal")}
    assert set(MEMBERS) == streaming - bound


@pytest.mark.parametrize("name", MEMBERS)
def test_a_series_read_in_pieces_gives_the_forecasts_of_one_pass(name):
    member = ef.info(name)
    if "chunks" in member.exempt:
        pytest.skip(member.exempt["chunks"])
    made, series, _ = small_model(member, "forecast")
    made = made.double().eval()
    stir(made)
    x = series.double()
    whole = made(x).logits
    state, parts = made.init_state(2, dtype=torch.float64), []
    for piece in x.split([5, 1, 4, 2], dim=1):
        out = made(piece, state=state)
        parts.append(out.logits)
        state = out.state
    close(torch.cat(parts, 1), whole, 1e-9)


def test_the_loss_is_twice_the_mean_quantile_loss_of_what_is_known():
    made = forecaster()
    x, y = draw(2, 7, 3), draw(2, 7, 4, seed=2)
    y[0, 2, 1:] = y[1, 6] = math.nan
    out = made(x, targets=y)
    known = ~y.isnan()
    each = [
        mean_pinball_loss(y[known].numpy(), out.logits[..., n][known].detach().numpy(), alpha=q)
        for n, q in enumerate(made.config.quantiles)
    ]
    close(out.losses["task"].item(), 2 * sum(each) / len(each))


def test_the_loss_of_the_median_is_the_absolute_error():
    y, z = draw(5), draw(5, 1, seed=2)
    close(quantile_losses(z, y, (0.5,))[..., 0], (y - z[:, 0]).abs())


def test_quantiles_ascend_whatever_the_weights():
    assert (forecaster()(draw(3, 9, 3)).logits.diff(dim=-1) >= 0).all()


def test_at_the_start_quantiles_are_those_of_a_normal_distribution_whose_mean_size_is_1():
    made = build_model("attention", "forecast", **SIZES)
    levels = torch.tensor(made.config.quantiles, dtype=torch.float64)
    expected = torch.tensor(norm.ppf(levels) * math.sqrt(math.pi / 2))
    close(made(draw(1, 3, 3)).logits, expected.expand(1, 3, 4, -1), 1e-6)


@pytest.mark.parametrize("last", [1, 3])
def test_forecasts_from_the_last_real_steps_are_those_of_one_pass(last):
    made, x = forecaster(), draw(2, 6, 3)
    keep = torch.ones(2, 6, dtype=torch.bool)
    keep[1, :2] = False
    whole = made(x, mask=Mask(keep=keep)).logits
    y = draw(2, 6, 4, seed=3)
    ended = made(x, mask=Mask(keep=keep), targets=y, last=last)
    close(ended.logits, whole[:, -last:])
    each = quantile_losses(whole[:, -last:], y[:, -last:], made.config.quantiles)
    close(ended.losses["task"], each.mean())


def test_what_is_not_known_is_read_as_its_mean():
    made = forecaster(series_mean=(1.0, -2.0, 0.5), series_std=(2.0, 3.0, 1.0))
    x = draw(1, 5, 3)
    other = x.clone()
    x[0, 1, 1], other[0, 1, 1] = math.nan, -2.0
    close(made(x).logits, made(other).logits)


@pytest.mark.parametrize(
    "levels", [(0.1, 0.9), (0.9, 0.5, 0.1), (0.0, 0.5), (0.5, 1.0), (0.5, 0.5), ()], ids=str
)
def test_levels_ascend_between_0_and_1_with_the_median(levels):
    with pytest.raises(GeneError, match="must ascend"):
        build_model("attention", "forecast", **SIZES, quantiles=levels)


def test_other_shapes_are_refused():
    made = forecaster()
    with pytest.raises(ShapeError, match=r"series must be \(batch, length, 3\)"):
        made(draw(1, 4, 2))
    with pytest.raises(ShapeError, match="targets must be"):
        made(draw(1, 4, 3), targets=draw(1, 4, 3))


def test_an_encoder_is_no_forecaster():
    with pytest.raises(UnsupportedError, match="no task 'forecast'"):
        ef.create_model("bert", "forecast", **SIZES)
