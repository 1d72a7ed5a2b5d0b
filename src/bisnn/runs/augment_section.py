"""The section of a config that changes training recordings."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, model_validator

from bisnn.runs.section import Section, Share


class Augment(Section):
    """Changes of training recordings, drawn anew each epoch."""

    rotate: Annotated[float, Field(ge=0, le=180)] = 0.0  # degrees, at most, either way
    zoom: Share = 0.0  # larger or smaller by at most this share
    shift: Annotated[int, Field(ge=0)] = 0  # pixels, at most, along each axis
    drop: Share = 0.0  # of the spikes, left out
    # Time steps, at most, that a recording begins earlier or later
    jitter: Annotated[int, Field(ge=0)] = 0
    # Kinds of corruption, of which one changes the events of each recording first
    corruptions: list[str] = []
    # Of the corruption, the lowest and the highest, drawn evenly; 0 changes nothing
    strengths: Annotated[list[Annotated[int, Field(ge=0, le=5)]], Field(min_length=2)] = [0, 5]

    @model_validator(mode="after")
    def _known(self) -> Augment:
        from bisnn.data.corruption import CORRUPTIONS

        unknown = [kind for kind in self.corruptions if kind not in CORRUPTIONS]
        if unknown:
            raise ValueError(
                f"corruptions must be of {', '.join(CORRUPTIONS)}; got {', '.join(unknown)}"
            )
        if len(self.strengths) != 2 or self.strengths[0] > self.strengths[1]:
            raise ValueError(
                f"strengths must be the lowest and the highest, e.g. [0, 5]; got {self.strengths}"
            )
        return self
