"""The section of a config that names series: where they are, what is learned, how they become
spikes.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import Field, model_validator

from bisnn.data.series_code import SeriesCode
from bisnn.runs.data_sections import DataSection, Task
from bisnn.runs.section import Count, Finite

if TYPE_CHECKING:
    from bisnn.data.loading import LoadedData
    from bisnn.data.series import How, Series


class SeriesData(DataSection):
    """Series of spikes or values: an NPZ file with `x` (N, T, D), `y` and perhaps `lengths`; a
    folder of CSV files, one per recording; or arrays given from Python.
    """

    name: Literal["series"]
    train: str = ""  # path, relative to the config file; none: given from Python
    test: str | None = None  # path; without one, `test_share` of the recordings
    test_share: Annotated[float, Field(gt=0, lt=1)] = 0.2
    steps: Count  # values of a recording; longer ones are cut
    task: Task = "classification"
    labels: Literal["recording", "step"] = "recording"  # what each label is of
    target: str | None = None  # CSV: column of the labels
    drop: list[str] = []  # CSV: columns left out, such as the time
    code: Literal["spikes", "delta", "rate", "population", "latency"] = "population"
    neurons: Annotated[int, Field(ge=2)] = 8  # "population": per channel
    threshold: Annotated[float, Field(gt=0, le=1)] = 0.1  # "delta": share of a channel's range
    substeps: Count = 1  # time steps of the network that a value lasts for
    # Time steps by which each input enters late, once for each
    delays: Annotated[list[Annotated[int, Field(ge=0)]], Field(min_length=1)] = [0]
    low: list[Finite] = []  # the range of every channel, recorded when training begins
    high: list[Finite] = []
    paths: ClassVar[tuple[str, ...]] = ("train", "test")

    @model_validator(mode="after")
    def _fitting(self) -> SeriesData:
        if self.code == "latency" and self.substeps < 2:
            raise ValueError(
                'data.code = "latency" tells values by when they fire, and needs data.substeps '
                f"of 2 or more; got {self.substeps}: give e.g. 8"
            )
        if len(set(self.delays)) < len(self.delays) or max(self.delays) >= self.steps_recorded():
            raise ValueError(
                f"data.delays: must be different numbers below {self.steps_recorded()}, the time "
                f"steps of a recording; got {self.delays}"
            )
        if len(self.low) != len(self.high) or any(
            low >= high for low, high in zip(self.low, self.high, strict=True)
        ):
            raise ValueError(
                "data.low and data.high: are the ranges of the channels, which training records; "
                f"got {self.low} and {self.high}: leave them out"
            )
        return self

    @classmethod
    def takes_defaults_of_points(cls, settings: dict[str, Any]) -> bool:
        return False

    def predicts(self) -> Task:
        return self.task

    def each_step(self) -> bool:
        return self.labels == "step"

    def steps_recorded(self) -> int:
        return self.steps * self.substeps

    def shape_recorded(self) -> tuple[int, ...]:
        return (self.series_code().inputs,)

    def series_code(self) -> SeriesCode:
        """How values become spikes; with the channels' ranges once training has begun."""
        low, high, delays = tuple(self.low), tuple(self.high), tuple(self.delays)
        return SeriesCode(self.code, self.neurons, self.threshold, self.substeps, delays, low, high)

    def load(self, seed: int, device: str, show: bool) -> LoadedData:
        from bisnn.data import series, series_files

        if not self.train:
            raise ValueError(
                "data.train: is missing; add the path of an NPZ file or of a folder of CSV files, "
                "or give series from Python: data=bisnn.data.Series(train, test)"
            )
        train, test = (
            series_files.read(path, self.each_step(), self.target, self.drop) if path else None
            for path in (self.train, self.test)
        )
        assert train is not None
        return series.load(train, test, self.how(), seed)

    def load_given(self, given: Series, seed: int) -> LoadedData:
        """Series from Python, in place of those of the files."""
        from bisnn.data import series

        return series.load(given.train, given.test, self.how(), seed)

    def without_files(self) -> SeriesData:
        """This section for series that are given from Python."""
        return self.model_copy(update={"train": "", "test": None})

    def how(self) -> How:
        """What becomes of the series, for `data.series`."""
        from bisnn.data.series import How

        return How(
            self.series_code(),
            self.steps,
            self.task,
            self.each_step(),
            self.test_share,
            self.validation,
        )

    def described(self, loaded: LoadedData) -> SeriesData:
        from bisnn.data.loading import Clips
        from bisnn.data.series import SeriesTrains

        assert isinstance(loaded.train.x, Clips)
        trains = loaded.train.x.recordings
        assert isinstance(trains, SeriesTrains)
        ranges = {"low": list(trains.code.low), "high": list(trains.code.high)}
        return self.model_copy(update=ranges)

    def complaint(self, run: object) -> str | None:
        where = self.train or "data"
        return f"{where}: is not what {run} began with (or its test file is not): restore it"

    def moved(self, to: Path) -> SeriesData:
        if self.test is None:
            return self.model_copy(update={"train": str(to.resolve())})
        names = {"train": Path(self.train).name, "test": Path(self.test).name}
        if not all((to / name).exists() for name in names.values()):
            raise ValueError(
                f"--data: must be the folder that holds {names['train']} and {names['test']}; got "
                f"{to}; give a folder"
            )
        places = {key: str((to / name).resolve()) for key, name in names.items()}
        return self.model_copy(update=places)

    def title(self) -> str:
        return Path(self.train).name if self.train else self.name

    def source(self) -> tuple[str, ...]:
        return (self.name, self.train, self.test or "")
