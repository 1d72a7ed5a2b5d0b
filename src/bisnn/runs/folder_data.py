"""The section of a config for recordings of one's own in a folder; see `bisnn.data.folders`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field, model_validator

from bisnn.runs.data_sections import EventData
from bisnn.runs.section import Count

if TYPE_CHECKING:
    from bisnn.data.loading import LoadedData
    from bisnn.data.windows import Window


class FolderData(EventData):
    """One's own recordings: root/<class>/<file>, in any format that can be read.

    Split at random, by folders `train` and `test`, or by `split.csv`.
    """

    name: Literal["folder"]
    classes: Annotated[list[str], Field(min_length=1)] | None = None  # default: all there are
    test_share: Annotated[float, Field(gt=0, lt=1)] = 0.2  # where the folder does not say
    # Width and height of the sensor; default: what the first recording says
    size: Annotated[list[Count], Field(min_length=2, max_length=2)] | None = None
    # x0, y0, width, height of the part that is kept; default: all
    crop: Annotated[list[int], Field(min_length=4, max_length=4)] | None = None
    # Edge of the squares of pixels that become one, their events summed
    downsample: Annotated[int, Field(ge=1, le=1024)] = 1
    min_events: Count = 1  # of such a square in a time step that make a spike
    steps: Count
    bin_us: Count | None = None  # type: ignore[assignment]  # a time step is so long,
    bin_events: Count | None = None  # or has so many events

    @model_validator(mode="after")
    def _fits(self) -> FolderData:
        if (self.bin_us is None) == (self.bin_events is None):
            raise ValueError(
                "needs bin_us, the length of a time step, or bin_events, its number of events, "
                f"and not both; got bin_us = {self.bin_us}, bin_events = {self.bin_events}"
            )
        if self.classes is not None and len(set(self.classes)) < max(2, len(self.classes)):
            raise ValueError(
                f"classes must be two or more, each named once; got {self.classes}; "
                "leave it out for all"
            )
        if self.crop is not None:
            self._check_crop(self.crop, self.size)
        return self

    def _check_crop(self, crop: list[int], size: list[int] | None) -> None:
        x0, y0, width, height = crop
        wide, high = size or (x0 + width, y0 + height)
        if min(x0, y0) < 0 or min(width, height) < 1 or x0 + width > wide or y0 + height > high:
            raise ValueError(
                "crop must be [x0, y0, width, height] inside the sensor"
                f"{f' of {wide} x {high} pixels' if size else ''}; got {crop}; make it smaller"
            )
        if width % self.downsample or height % self.downsample:
            raise ValueError(
                f"crop must be a multiple of downsample = {self.downsample} wide and high; "
                f"got {width} x {height}; change one of the two"
            )

    def step_us(self) -> int | None:
        return self.bin_us

    def window(self) -> Window:
        from bisnn.data.windows import Window

        if self.size is None:
            raise ValueError("data.size: is known once the recordings are loaded; give it")
        width, height = self.size
        crop = None
        if self.crop is not None:
            x0, y0, wide, high = self.crop
            crop = (x0, y0, wide, high)
        looks: dict[str, Any] = {"least": self.min_events, "per_step": self.bin_events}
        return Window(
            (width, height), self.steps, self.bin_us, None, crop, self.downsample, **looks
        )

    def shape_recorded(self) -> tuple[int, ...]:
        """As many axes as there will be, before the recordings have said how large they are."""
        return (2, 0, 0) if self.size is None else super().shape_recorded()

    def load(self, seed: int, device: str, show: bool) -> LoadedData:
        from bisnn.data import folders

        root = self._folder()
        if not root:
            raise ValueError(
                f"data.root: must name the folder of {self._archive()}; got none; give it, or set "
                "the environment's BISNN_DATA"
            )
        listing = folders.listed(root)
        if self.classes is not None:
            listing = listing.of_classes(self.classes)
        if len(listing.classes) < 2:
            raise ValueError(
                f"data.root: {root} must have recordings of two classes or more; got "
                f"{', '.join(listing.classes)} alone; give the folder that holds one for each class"
            )
        size = self.size or list(folders.sensor_of(listing))
        if self.crop is not None:
            try:
                self._check_crop(self.crop, size)
            except ValueError as error:
                raise ValueError(f"data.{error}") from None
        window = self.model_copy(update={"size": size}).window()
        parts = folders.split_of(listing, self.test_share, self.validation, seed)
        return folders.load(listing, parts, window, show)

    def described(self, loaded: LoadedData) -> FolderData:
        from bisnn.data.archives import Recordings
        from bisnn.data.loading import Clips

        assert isinstance(loaded.train.x, Clips)
        recordings = loaded.train.x.recordings
        assert isinstance(recordings, Recordings)
        assert recordings.source is not None
        found = {"size": list(recordings.source.window.size), "classes": list(loaded.classes)}
        return self.model_copy(update=found)

    def _archive(self) -> str:
        return "the recordings"

    def title(self) -> str:
        return Path(self._folder() or self.name).name

    def source(self) -> tuple[str, ...]:
        return (self.name, self._folder() or "")
