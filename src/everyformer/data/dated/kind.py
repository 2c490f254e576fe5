"""`DatedTables`: tables with a column of times, whose series are forecast."""

from everyformer.core.config import field_defaults
from everyformer.core.errors import DataError
from everyformer.core.tasks import FORECAST, TASKS, TaskName
from everyformer.data.config import DataConfig
from everyformer.data.dated.series import read_series, shows_series
from everyformer.data.dated.windows import ForecastDataset, forecast_dataset
from everyformer.data.kind import Kind, Request, refuse
from everyformer.data.options import (
    ContextOptions,
    EncodingOptions,
    ForecastOptions,
    SeriesOptions,
    SharedOptions,
    TableOptions,
)


class DatedTables(Kind):
    """Tables of series, one a column or one below the other."""

    name = "series with times"
    reads = (
        SharedOptions,
        ForecastOptions,
        SeriesOptions,
        ContextOptions,
        TableOptions,
        EncodingOptions,
    )

    @classmethod
    def recognises(cls, request: Request) -> bool:
        """True where the task or an option says so, or where nothing is said and a table's header
        names a time beside columns of numbers alone."""
        if request.word is not None:
            return any(TASKS[name].forecasts for name in request.tasks)
        if FORECAST not in request.able:
            return False
        defaults = field_defaults(DataConfig)
        said = (*ForecastOptions.names(), *SeriesOptions.names(), "context")
        if any(getattr(request.config, name) != defaults[name] for name in said):
            return True
        return shows_series(request.source, request.config)

    def check(self) -> None:
        super().check()
        others = (name for name in TableOptions.names() if name != "header")
        refuse(self.config, others, self.name, ": their columns are chosen by --data.time-column, "
               "--data.series-column and --data.value-column")  # fmt: skip

    @property
    def task(self) -> TaskName:
        return "forecast"

    def load(self) -> ForecastDataset:
        source = self.request.source
        series = read_series(source, self.config)
        dataset = forecast_dataset(series, self.config, source.name)
        if not len(dataset.origins):
            raise DataError(
                f"no held-out forecast of '{source.spec}' has a value to check it by; give more of "
                "the past, a shorter --horizon or another --data.validation"
            )
        return dataset
