"""The kinds of data that a config may name: a section for each, which loads what it describes.

A section knows all that a run asks of its data, so another dataset is another section here, and its
name in `DATA`. What reads files and loads PyTorch is imported where it is called: a config is
checked without either.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import Field, model_validator

from bisnn.runs.section import Count, NotNegative, Section, Share

if TYPE_CHECKING:
    from bisnn.data.archives import Recordings
    from bisnn.data.loading import LoadedData
    from bisnn.data.windows import Window

Task = Literal["classification", "regression"]


class DataSection(Section):
    """Where points, or recordings, come from."""

    name: str
    validation: Share = 0.0  # of the training points, held out
    paths: ClassVar[tuple[str, ...]] = ()  # keys that are paths, relative to the config file

    @classmethod
    def takes_defaults_of_points(cls, settings: dict[str, Any]) -> bool:
        """Whether a section with these settings has defaults of rule and training: points do."""
        return True

    def predicts(self) -> Task:
        return "classification"

    def each_step(self) -> bool:
        """Whether every time step has a label of its own, rather than the recording one."""
        return False

    def steps_recorded(self) -> int | None:
        """T of a recording; None for points, which a code turns into spikes."""
        return None

    def step_us(self) -> int | None:
        """Length of a recording's time step, in microseconds; None where there is no such thing."""
        return None

    def shape_recorded(self) -> tuple[int, ...]:
        """Of a time step of a recording."""
        return self.window().shape[1:]

    def window(self) -> Window:
        """What of a recording the network sees."""
        raise ValueError(f"data.name: {self.name} has no recordings of events")

    def load(self, seed: int, device: str, show: bool) -> LoadedData:
        """The points, the same for the same seed.

        With `show`, a progress bar runs while a cache of recordings is built, perhaps on `device`.
        """
        raise NotImplementedError

    def described(self, loaded: LoadedData) -> DataSection:
        """This section, with what a model must know of data that it cannot know by itself."""
        return self

    def complaint(self, run: object) -> str | None:
        """What to say of a run whose data are no longer what it began with; None where they may
        differ."""
        return None

    def moved(self, to: Path) -> DataSection:
        """This section for a dataset that lies elsewhere now."""
        raise ValueError(
            f"--data: the data of this run, {self.name}, are in no file or folder that could have "
            f"moved; got {to}; leave it out"
        )

    def title(self) -> str:
        """What a report calls the data."""
        return self.name.replace("_", " ")

    def source(self) -> tuple[str, ...]:
        """What tells these data from others of the same kind, for a report that compares runs."""
        return (self.name,)

    def check_recordings(self, recordings: Sequence[Any]) -> None:
        """Refuse, or warn of, recordings to predict that cannot be like those of the training."""


class TwoMoonsData(DataSection):
    """Two interleaved half circles in the unit square."""

    name: Literal["two_moons"]
    train: Count = 200  # points per class
    test: Count = 1000  # points per class
    noise: NotNegative = 0.1

    def load(self, seed: int, device: str, show: bool) -> LoadedData:
        from bisnn.data import loading, toy

        parts = toy.two_moons(self.train, self.test, noise=self.noise, seed=seed)
        train, test = (loading.Split(*part) for part in parts)
        return loading.from_splits(train, test, ("0", "1"), self.validation, seed)


class OneDData(DataSection):
    """1-D regression on three clusters."""

    name: Literal["one_d"]
    per_unit: Count = 20  # training points per unit of x
    test: Count = 200  # points, evenly, noiseless
    noise: NotNegative = 0.1

    def predicts(self) -> Task:
        return "regression"

    def load(self, seed: int, device: str, show: bool) -> LoadedData:
        from bisnn.data import loading, toy

        parts = toy.one_d(self.per_unit, self.test, noise=self.noise, seed=seed)
        train, test = (loading.Split(*part) for part in parts)
        return loading.from_splits(train, test, (), self.validation, seed)


class TableData(DataSection):
    """One's own points: a CSV, TSV, NPY or NPZ file (with `x`, `y` and perhaps `names`) of features
    and the class or target.

    Columns of words are categories, blanks are filled in: see `packed.columns`.
    """

    name: Literal["table"]
    train: str  # path, relative to the config file
    test: str | None = None  # path; without one, `test_share` of the rows
    test_share: Annotated[float, Field(gt=0, lt=1)] = 0.2
    task: Task = "classification"
    # Column of the class or target, by name, or by number where there is no header; default: the
    # last
    target: str | None = None
    drop: list[str] = []  # columns left out
    categorical: list[str] = []  # columns of numbers that name categories
    rescale: bool = True  # each feature to [0, 1] by its range in the training rows
    paths: ClassVar[tuple[str, ...]] = ("train", "test")

    def predicts(self) -> Task:
        return self.task

    def load(self, seed: int, device: str, show: bool) -> LoadedData:
        from bisnn.data import tabular

        return tabular.load(**self.model_dump(exclude={"name"}), seed=seed)

    def complaint(self, run: object) -> str | None:
        return f"{self.train}: is not what {run} began with (or its test file is not): restore it"

    def moved(self, to: Path) -> DataSection:
        files = {"train": self.train, **({"test": self.test} if self.test else {})}
        if to.is_dir():
            places = {key: str((to / Path(file).name).resolve()) for key, file in files.items()}
        elif len(files) == 1:
            places = {"train": str(to.resolve())}
        else:
            raise ValueError(
                f"--data: must be the folder that holds {Path(self.train).name} and "
                f"{Path(files['test']).name}; got {to}; give a folder"
            )
        return self.model_copy(update=places)

    def title(self) -> str:
        return Path(self.train).name

    def source(self) -> tuple[str, ...]:
        return (self.name, self.train, self.test or "")


class EventData(DataSection):
    """Recordings of an event camera: a time step is a bin of time, a spike at least one event."""

    # Folder of the unpacked archive, relative to the config file; without one, that of the
    # environment's BISNN_DATA
    root: str = ""
    steps: Count = 60  # T
    bin_us: Count = 5000  # length of a time step, in microseconds
    paths: ClassVar[tuple[str, ...]] = ("root",)

    @classmethod
    def takes_defaults_of_points(cls, settings: dict[str, Any]) -> bool:
        return False

    def steps_recorded(self) -> int | None:
        return self.steps

    def step_us(self) -> int | None:
        return self.bin_us

    def read(self, root: str, train: bool, show: bool) -> Recordings:
        """The training or the test recordings in a folder."""
        raise NotImplementedError

    def load(self, seed: int, device: str, show: bool) -> LoadedData:
        from bisnn.data import cache, events, loading

        root = self._folder()
        if not root:
            raise ValueError(
                f"data.root: must name the folder of {self._archive()}; got none; "
                "give it, or set the "
                "environment's BISNN_DATA"
            )
        try:
            train, test = (self.read(root, train, show) for train in (True, False))
            self._check_classes(train, root)
        except (events.BadEvents, cache.BadCache):
            raise  # names its file
        except ValueError as error:
            raise ValueError(f"data.{error}") from None
        return loading.from_recordings(train, test, self.validation, seed)

    def moved(self, to: Path) -> DataSection:
        if not to.is_dir():
            raise ValueError(
                f"--data: must be the folder of {self._archive()}; there is no folder {to}"
            )
        return self.model_copy(update={"root": str(to.resolve())})

    def _folder(self) -> str | None:
        return self.root or os.environ.get("BISNN_DATA")

    def _archive(self) -> str:
        return self.name

    def _check_classes(self, train: Recordings, root: str) -> None:
        missing = sorted(set(range(len(train.names))) - set(train.labels.tolist()))
        if missing:
            names = ", ".join(train.names[i] for i in missing)
            raise ValueError(
                f"classes: {root} has no training recording of {names}; "
                "give a folder that has, or fewer classes"
            )

    def complaint(self, run: object) -> str | None:
        return f"{self._folder()}: its recordings are not those that {run} began with: restore them"


Digit = Annotated[int, Field(ge=0, le=9)]


class DigitEventData(EventData):
    """Recordings of handwritten digits."""

    # Digits; the others are left out
    classes: Annotated[list[Digit], Field(min_length=1)] = list(range(10))


class NMNISTData(DigitEventData):
    """N-MNIST, 34 x 34 pixels: Train/<digit>/<id>.bin, Test/<digit>/<id>.bin."""

    name: Literal["nmnist"]

    def read(self, root: str, train: bool, show: bool) -> Recordings:
        from bisnn.data.archives import NMNIST

        looks = self.model_dump(include={"steps", "bin_us", "classes"})
        return NMNIST(root, train, **looks, show=show)

    def window(self) -> Window:
        from bisnn.data.archives import NMNIST

        return NMNIST.window(self.steps, self.bin_us)


class MNISTDVSData(DigitEventData):
    """MNIST-DVS: scale04/mnist_<digit>_scale04_<id>.aedat; ids above 900 are for testing."""

    name: Literal["mnist_dvs"]
    scale: Literal[4, 8, 16] = 4
    crop: Annotated[int, Field(ge=1, le=128)] = 26  # pixels, of the middle
    steps: Count = 400

    def read(self, root: str, train: bool, show: bool) -> Recordings:
        from bisnn.data.archives import MNISTDVS

        looks = self.model_dump(include={"steps", "bin_us", "classes", "scale", "crop"})
        return MNISTDVS(root, train, **looks, show=show)

    def window(self) -> Window:
        from bisnn.data.archives import MNISTDVS

        return MNISTDVS.window(self.crop, self.steps, self.bin_us)


class SimulatedData(DigitEventData):
    """Digits in front of the simulated camera: MNIST's, from `root`, or scikit-learn's."""

    name: Literal["digits"]
    crop: Annotated[int, Field(ge=1, le=128)] = 26
    steps: Count = 25
    bin_us: Count = 20_000

    @model_validator(mode="after")
    def _whole(self) -> SimulatedData:
        if self.classes != list(range(10)):
            raise ValueError("digits comes with all ten classes: leave out data.classes")
        return self

    def load(self, seed: int, device: str, show: bool) -> LoadedData:
        from bisnn.data import loading
        from bisnn.data.simulation import Digits

        looks = {**self.model_dump(include={"steps", "bin_us", "crop"}), "device": device}
        train, test = (
            Digits(part, self.root or "digits", **looks, show=show) for part in (True, False)
        )
        return loading.from_recordings(train, test, self.validation, seed)

    def window(self) -> Window:
        from dataclasses import replace

        from bisnn.data.archives import MNISTDVS

        # The simulated camera's clock begins at 0
        return replace(MNISTDVS.window(self.crop, self.steps, self.bin_us), start_us=0)

    def moved(self, to: Path) -> DataSection:
        # Without a root, the digits are those of scikit-learn
        return super().moved(to) if self.root else DataSection.moved(self, to)

    def complaint(self, run: object) -> str | None:
        return None  # simulated recordings may differ between devices

    def check_recordings(self, recordings: Sequence[Any]) -> None:
        from bisnn.display import note

        if not self.root:
            note(
                "recordings: this model knows digits along a path of their own, which no file has; "
                "of others, expect guesses"
            )


class TonicData(EventData):
    """A dataset that tonic reads from `root`, its `save_to`; steps and bin_us have no default."""

    name: Literal["tonic"]
    dataset: Literal["NMNIST", "DVSGesture", "SHD"]
    steps: Count
    bin_us: Count
    pool: Annotated[int, Field(ge=1, le=700)] = 1  # edge of the squares of pixels that become one

    def read(self, root: str, train: bool, show: bool) -> Recordings:
        from bisnn.data import tonic_sets

        source = tonic_sets.tonic_dataset(self.dataset, root, train)
        looks: dict[str, Any] = self.model_dump(include={"steps", "bin_us", "pool"})
        looks["start_us"] = tonic_sets.TONIC[self.dataset][1]
        return tonic_sets.FromTonic(source, **looks, show=show)

    def window(self) -> Window:
        from bisnn.data import tonic_sets

        sensor_size, start_us = tonic_sets.TONIC[self.dataset]
        return tonic_sets.FromTonic.window(
            sensor_size, self.steps, self.bin_us, self.pool, start_us
        )

    def _archive(self) -> str:
        return f"tonic's {self.dataset}"

    def _check_classes(self, train: Recordings, root: str) -> None:
        pass  # a dataset of tonic's has the classes that it has

    def check_recordings(self, recordings: Sequence[Any]) -> None:
        if self.dataset != "NMNIST" and any(isinstance(some, (str, Path)) for some in recordings):
            raise ValueError(
                f"recordings: no file that can be read here is one of {self.dataset}; "
                "give arrays, as tonic's dataset[i][0]"
            )


# What `data.name` may be; see `kinds`
SECTIONS = (
    TwoMoonsData,
    OneDData,
    TableData,
    NMNISTData,
    MNISTDVSData,
    SimulatedData,
    TonicData,
)
