"""Windows of series: what is read never holds what is foretold, and the cut is one time for all."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from everyformer.core.errors import DataError
from everyformer.data import DataConfig
from everyformer.data.batch import Batch
from everyformer.data.dated.sales import sales
from everyformer.data.dated.series import DatedSeries
from everyformer.data.dated.times import DAY, Step
from everyformer.data.dated.windows import ForecastDataset, forecast_dataset
from helpers import draw

CONTEXT, HORIZON, SEASON = 6, 3, 4


def series_of(*lengths: int, begins: tuple[int, ...] | None = None, ahead: int = 0) -> DatedSeries:
    """Series whose step t of number n has the value 1000 n + t^1.5, and t as both covariates."""
    begins = begins or (0,) * len(lengths)
    parts = [np.arange(length + ahead, dtype=float) for length in lengths]
    values = [1000 * n + t**1.5 for n, t in enumerate(parts)]
    for each, length in zip(values, lengths, strict=True):
        each[length:] = np.nan
    bounds = np.cumsum([0, *map(len, parts)])
    steps = np.concatenate(parts)[:, None]
    return DatedSeries(
        names=tuple("abcdefgh"[: len(lengths)]),
        bounds=bounds,
        ends=bounds[1:] - ahead,
        times=np.concatenate([DAY * (t + b) for t, b in zip(parts, begins, strict=True)]),
        values=np.concatenate(values),
        known=steps * 1.0,
        past=steps * 2.0,
        covariates=("plan", "rain"),
        step=Step("second", float(DAY)),
    )


def data(series: DatedSeries, **options) -> ForecastDataset:
    sizes = {"context": CONTEXT, "horizon": HORIZON, "season": SEASON, **options}
    return forecast_dataset(series, DataConfig(source="made", **sizes), "made")


def truth(made: ForecastDataset, origin: int) -> np.ndarray:
    """The H values after a step, in units of the series, less the seasonal naive forecast."""
    values, end = made.series.values, made.series.ends[made.owner(np.array(origin))]
    steps = origin + np.arange(1, HORIZON + 1)
    start = made.series.bounds[made.owner(np.array(origin))]
    naive = [v if (v := s - SEASON) >= start else origin for s in steps]
    known = np.where(steps < end, values[np.minimum(steps, len(values) - 1)], np.nan)
    return (known - values[naive]) / made.units(np.array(origin))


def test_the_last_step_of_a_held_out_row_is_its_origin_and_its_targets_come_after():
    made = data(series_of(40, 25, ahead=HORIZON))
    [batch] = made.validation_batches(1000)
    assert batch.origins is not None
    for row, origin in enumerate(batch.origins.tolist()):
        start = made.series.bounds[made.owner(np.array(origin))]
        np.testing.assert_allclose(batch.targets[row, -1], truth(made, origin), rtol=1e-5)
        assert batch.targets[row, :-1].isnan().all()
        real = CONTEXT if batch.keep is None else int(batch.keep[row].sum())
        assert real == min(CONTEXT, origin - start + 1)
    assert batch.scored == len(batch.targets) * HORIZON


def test_scales_are_those_of_the_training_part_alone():
    series = series_of(40, 25)
    made = data(series)
    later = np.concatenate([np.arange(n) + b for n, b in zip((40, 25), (0, 40), strict=True)])
    held_out = later >= made.train_ends[[0] * 40 + [1] * 25]
    other = DatedSeries(**{**vars(series), "values": np.where(held_out, 1e6, series.values)})
    changed = data(other).scales
    for name, expected in vars(made.scales).items():
        np.testing.assert_array_equal(getattr(changed, name), expected)


@pytest.mark.parametrize(("begins", "validation"), [((0, 54), 0.2), ((0, 59), 0.2), ((0, 0), 1)])
def test_a_series_with_little_to_train_on_is_checked_after_what_it_is_scaled_by(begins, validation):
    """Its second begins near or in the held-out part: what comes after an origin moves nothing."""
    series = series_of(60, 16, begins=begins)
    made = data(series, validation=validation)
    for number, start in enumerate(made.series.bounds[:-1]):
        mine = made.origins[made.owner(made.origins) == number]
        assert len(mine)
        assert mine[0] + 1 >= start + min(SEASON + 2, 16 - HORIZON)
        later = (np.arange(76) > mine[0]) & (np.arange(76) < series.ends[number])
        values = np.where(later, series.values**2, series.values)
        other = data(DatedSeries(**{**vars(series), "values": values}), validation=validation)
        torch.testing.assert_close(other.before(mine[:1]).inputs, made.before(mine[:1]).inputs)
        assert other.units(mine[:1]) == made.units(mine[:1])


def test_a_first_step_is_real_and_what_is_known_ahead_is_its_own_series_s():
    made = data(series_of(12, 12), validation=1)
    batch = made.before(np.array([12 + CONTEXT - 1, 11]))
    assert batch.keep is None
    assert batch.inputs[0, 0, -HORIZON] == 1
    # the last step of a series knows nothing of what comes, though another one follows
    assert batch.inputs[1, -1, -HORIZON:].isnan().all()
    short = made.before(np.array([12]))
    assert short.keep.tolist() == [[False] * (CONTEXT - 1) + [True]]


@pytest.mark.parametrize("how", ["train_batch", "segment", "validation"])
def test_nothing_that_is_read_depends_on_values_that_come_later(how):
    series = series_of(40, 25, ahead=HORIZON)
    cut = 20
    later = np.concatenate([np.arange(40 + HORIZON) > cut, np.arange(25 + HORIZON) > cut])
    other = DatedSeries(
        **{**vars(series), "values": np.where(later, -series.values, series.values)}
    )
    scales = data(series).scales

    def read(series: DatedSeries) -> Batch:
        made = ForecastDataset(**{**vars_of(data(series)), "scales": scales})
        if how == "validation":
            return made.before(np.array([3, 9, 20, 43 + 20]))
        return made.segment(1, 3) if how == "segment" else made.train_batch(0, 8, 0)

    one, two = read(series), read(other)
    steps = one.inputs[..., -HORIZON]  # the first covariate known ahead: the next step's number
    early = steps <= cut + 1
    assert bool(early.any())
    torch.testing.assert_close(two.inputs[early], one.inputs[early])
    if how != "validation":
        assert not torch.equal(two.inputs, one.inputs)


def vars_of(made: ForecastDataset) -> dict:
    return {name: getattr(made, name) for name in made.__dataclass_fields__}


def test_training_targets_end_where_the_held_out_part_begins():
    made = data(series_of(40, 25))
    for step in range(8):
        following = made.train_batch(step, 16, 0).inputs[..., -HORIZON]
        assert following.nan_to_num(0).max() <= made.train_ends[0]
    lengths = made.train_ends - made.series.bounds[:-1]
    # of the last step before the cut nothing is known, of the one before it the first value is
    batch = made.segment(0, 1)
    last = made.segment((int(lengths[0]) - 1) // CONTEXT, 1)
    at = (int(lengths[0]) - 1) % CONTEXT
    assert last.targets[0, at].isnan().all()
    assert last.targets[0, at - 1].isnan().tolist() == [False, True, True]
    assert batch.documents is not None
    assert batch.documents[0, 0] == 1


def test_segments_read_every_training_step_once_a_round_and_mark_where_series_begin():
    made = data(series_of(41, 27))
    count = int((made.train_ends - made.series.bounds[:-1]).sum())
    begins = 0
    positions: list[float] = []
    for step in range(count):
        batch = made.segment(step, 1)
        positions += batch.inputs[0, :, -HORIZON].nan_to_num(-1).tolist()
        if batch.documents is not None:
            begins += int(batch.documents[0, -1])
    assert begins == 2 * CONTEXT
    assert len(positions) == count * CONTEXT


def test_the_cut_is_one_time_for_all_and_late_and_early_series_are_told():
    made = data(series_of(60, 30, 12, begins=(0, 30, 5)), validation=0.2)
    when = {
        float(made.series.times[cut])
        for cut, end in zip(made.train_ends, made.series.ends, strict=True)
        if cut < end
    }
    assert len(when) == 1
    assert "1 of the series end too early to be checked, or are too short" in made.split
    assert made.train_ends[2] == made.series.ends[2]


@pytest.mark.parametrize("length", [30, SEASON + 4, HORIZON + 2])
def test_all_may_be_held_out_after_the_steps_that_scales_are_read_from(length):
    made = data(series_of(length), validation=1)
    first = max(2, min(SEASON + 2, length - HORIZON)) - 1
    assert made.origins.tolist() == [*range(first, length - HORIZON, HORIZON)]
    with pytest.raises(DataError, match="nothing to train on"):
        made.train_batch(0, 1, 0)


@pytest.mark.parametrize("stride", [1, 2, None])
def test_origins_are_a_stride_apart_and_their_targets_all_held_out(stride):
    made = data(series_of(100), stride=stride)
    assert set(np.diff(made.origins).tolist()) == {stride or HORIZON}
    assert made.origins[0] == made.train_ends[0] - 1
    assert made.origins[-1] + HORIZON < made.series.ends[0]


@pytest.mark.parametrize("count", [1, 2])
def test_forecasts_to_check_are_counted_in_words(count):
    made = data(series_of(40), validation=count * HORIZON / 40)
    assert len(made.origins) == count
    assert f" {count} forecast{'s' * (count - 1)} to check" in made.split


def test_a_horizon_longer_than_the_series_is_refused():
    with pytest.raises(DataError, match="has 9 steps, too few to hold out 8"):
        data(series_of(9), horizon=8)


def test_a_constant_series_is_told_and_has_a_unit():
    series = series_of(30)
    made = data(DatedSeries(**{**vars(series), "values": np.full(30, 5.0)}))
    assert "a never changes, so MASE is undefined" in made.split
    assert made.units(np.array([4])) == 5.0
    assert made.train_batch(0, 2, 0).inputs[..., : -2 * HORIZON].isfinite().all()


def test_forecasts_in_units_of_the_data_are_the_reference_and_units_of_the_errors():
    made = data(series_of(40))
    origins = np.array([12, 20])
    z = draw(2, HORIZON, 2).numpy()
    goal = np.stack([truth(made, int(origin)) for origin in origins])
    exact = made.in_units(goal[..., None], origins)[..., 0]
    np.testing.assert_allclose(exact, made.truth(origins))
    shifted = made.in_units(z, origins) - made.in_units(0 * z, origins)
    np.testing.assert_allclose(shifted, z * made.units(origins)[:, None, None])


def test_covariates_have_their_mean_and_deviation_of_the_training_part():
    made = data(series_of(40))
    trained = np.arange(made.train_ends[0])
    spread = made.features
    assert spread is not None
    assert spread.mean[-HORIZON:] == pytest.approx([trained.mean()] * HORIZON)
    assert spread.std[-HORIZON - 1] == pytest.approx(2 * trained.std())
    assert set(spread.mean[: -HORIZON - 1]) == {0.0}


def test_rows_before_a_window_are_padding_where_a_series_had_not_begun():
    made = data(series_of(40, 25))
    for ahead, batch in made.warmed(3, None, 2):
        assert len(ahead) == 2
        for back, part in zip((2, 1), ahead, strict=True):
            expected = batch.inputs[:, 0, -HORIZON] - back * CONTEXT
            keep = torch.ones(len(expected), CONTEXT) if part.keep is None else part.keep
            real = keep[:, 0].bool()
            assert torch.equal(part.inputs[real, 0, -HORIZON], expected[real])


def test_the_built_in_series_are_the_same_for_a_seed():
    one, two, other = sales(0), sales(0), sales(1)
    np.testing.assert_equal(one.values, two.values)
    assert not np.array_equal(one.values, other.values, equal_nan=True)
    assert np.isnan(one.values[one.ends[0] : one.bounds[1]]).all()
    assert not np.isnan(one.known).any()


def test_covariates_far_from_zero_are_kept_apart():
    """A population, a time in seconds: float32 has one number for steps that follow each other."""
    near = series_of(40, 25)
    far = replace(near, known=near.known + 1e9, past=near.past + 1e9)
    [given], [expected] = (list(data(s).validation_batches(1000)) for s in (far, near))
    assert (given.inputs.dtype, expected.inputs.dtype) == (torch.float64, torch.float32)
    covariates = 1 + HORIZON
    off = given.inputs[..., -covariates:] - 1e9
    torch.testing.assert_close(off, expected.inputs[..., -covariates:].double(), equal_nan=True)
    own = given.inputs[..., :-covariates].float()
    torch.testing.assert_close(own, expected.inputs[..., :-covariates])
