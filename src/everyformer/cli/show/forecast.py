"""Fan chart of `everyformer show RUN forecast`: held-out forecasts beside what came."""

from __future__ import annotations

from everyformer.cli.show.options import ShowOptions, folder_of, tell
from everyformer.core.errors import ConfigError
from everyformer.core.tasks import TASKS

FORECAST = "forecast"
PANELS = 4
"""series that are drawn"""
PAST = 3
"""horizons of the past that are drawn"""


def draw_forecast(options: ShowOptions) -> int:
    """Draw the last held-out forecast of the first series, and print where it is.

    Raises:
        ConfigError: a run that forecasts nothing, or a saved model, which has no data.
    """
    import numpy as np

    from everyformer.cli.trained import open_run
    from everyformer.data.dated.times import written
    from everyformer.data.dated.windows import ForecastDataset
    from everyformer.prediction.forecasts import SeriesReader
    from everyformer.report.forecast import Fan, draw_fans

    trained = open_run(options.run)
    if not TASKS[trained.task].forecasts or trained.data is None:
        raise ConfigError(
            f"{options.run} has no forecasts to draw: that takes a run of the task forecast "
            "(everyformer train NAME --data sales.csv --task forecast)"
        )
    data = trained.own_dataset("give one that does")
    assert isinstance(data, ForecastDataset)
    reader = SeriesReader.load(trained.path, device=trained.device)
    owner = data.owner(data.origins)
    numbers = np.unique(owner)[:PANELS]
    origins = np.array([data.origins[owner == number][-1] for number in numbers])
    made = reader.quantiles(data, origins)
    fans = []
    for number, origin, quantiles, truth in zip(
        numbers, origins, made, data.truth(origins), strict=True
    ):
        first = max(data.series.bounds[number], origin + 1 - PAST * max(data.horizon, data.season))
        step = data.series.step
        time = written(data.series.times[origin : origin + 1], step.dated, step.zoned)[0]
        past = data.series.values[first : origin + 1]
        fans.append(Fan(data.series.names[number], past, truth, quantiles, time))
    path = folder_of(options, trained.path) / f"{FORECAST}.{options.format}"
    shows = (
        f"The last held-out forecast of {len(fans)} of {len(data.series.names):,} series: "
        f"{data.horizon} steps ahead, with the median and intervals of the model, and what came."
    )
    return tell(options, draw_fans(fans, trained.config.quantiles, path), shows)
