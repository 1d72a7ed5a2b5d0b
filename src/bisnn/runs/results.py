"""What an evaluation finds, typed: the verdict, in evaluation.json, and all that a report shows."""

from __future__ import annotations

from typing import Annotated, Any

import torch
from pydantic import BaseModel, ConfigDict, Field, PlainSerializer
from torch import Tensor

from bisnn.intervals import Interval
from bisnn.runs.data_sections import Task
from bisnn.shipping.energy import Ledger

Metric = Annotated[Interval, PlainSerializer(Interval._asdict, return_type=dict)]
Metrics = dict[str, Metric]  # value and 95 % interval, by name of the metric


class Finding(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, arbitrary_types_allowed=True)


class PlainCalibration(Finding):
    """The plain ECE, beside what a calibrated model with the same confidences would show."""

    ece: float
    calibrated_mean: float
    calibrated_high: float


class Memory(Finding):
    """Of the weights."""

    weights: int
    bits: int  # of each
    bytes: int
    bytes_32_bit: int


class Kept(Finding):
    """How a guarantee held on the test points: of sets coverage, set size, time steps, the share
    that was decided and the accuracy of these; of intervals coverage and width.
    """

    coverage: float  # asked for
    correction: str  # for several looks; empty for intervals
    recordings: int  # calibrated on
    steps: int  # of a whole recording
    samples: int | None  # members of the predictor
    metrics: Metrics


class Verdict(Finding):
    """A run's model judged on its test points: what `evaluate` returns and writes."""

    task: Task
    rule: str
    model: str  # digest of the model's file
    epoch: int  # that the weights are from
    points: int  # tested
    seconds: float | None  # of training, where a checkpoint still knows them
    metrics: dict[str, Metrics]  # of each predictor
    calibration: dict[str, PlainCalibration]  # of each predictor of classes
    baseline: dict[str, Metrics]  # of what answers without a look at a point
    beaten_by: list[str]  # predictors that are better than it by their whole interval
    memory: Memory
    energy: Ledger
    guarantee: Kept | None = None  # of a calibrated run
    temperature: float = 1.0  # of the probabilities

    def numbers(self, predictor: str) -> dict[str, float]:
        """A predictor's metrics as plain numbers, the ECE among them as it is usually computed."""
        values = {name: interval.value for name, interval in self.metrics[predictor].items()}
        ece = {"ece": self.calibration[predictor].ece} if self.calibration else {}
        return {**values, **ece}


EMPTY: Any = Field(default_factory=lambda: torch.zeros(0))


class Predictions(Finding):
    """Predictions on the test points, (N, ...) each; what does not apply is empty.

    For classes: mean, entropy and mutual information. For targets: mean and deviation.
    """

    mean: Tensor
    entropy: Tensor = EMPTY
    mutual_information: Tensor = EMPTY
    std: Tensor = EMPTY


class Curves(Finding):
    """Means over some test points of the prediction up to each time step, (T',), or empty."""

    entropy: Tensor = EMPTY
    expected_entropy: Tensor = EMPTY
    mutual_information: Tensor = EMPTY
    accuracy: Tensor = EMPTY
    std: Tensor = EMPTY
    rmse: Tensor = EMPTY


class Plane(Finding):
    """Probabilities over the plane of two features, (rows, columns, C), and training points."""

    probs: dict[str, Tensor]  # of each predictor
    low: Tensor
    high: Tensor
    x: Tensor
    y: Tensor


class Slices(Finding):
    """Events of recordings, counted in slices of time, (n, slices, 2, H, W)."""

    counts: Tensor
    edges_us: list[int]


class FeatureMaps(Finding):
    """Spikes of the channels of a layer that fire most, counted over time, (n, k, H, W)."""

    counts: Tensor
    channels: Tensor
    of: int


class Raster(Finding):
    """Input and spikes of a few test points; every spike, (T, n, N), or counts of them."""

    points: Tensor  # (n,)
    input: Tensor | Slices
    layers: list[Tensor | FeatureMaps]


class Histogram(Finding):
    """Of the probability of the highest level, by layer; of binary weights p = sigma(2 w^r)."""

    counts: Tensor
    edges: Tensor


class Evaluation(Verdict):
    """The verdict, and all else that a report shows."""

    format: int
    classes: list[str]
    x: Tensor  # test points; without columns for recordings
    y: Tensor
    recordings: str  # digest of the test recordings; empty for points
    predictors: dict[str, Predictions]
    members: dict[str, int | None]  # of each predictor
    over_time: dict[str, Curves]
    plane: Plane | None
    raster: Raster
    rates: list[Tensor]  # of each layer's neurons, (N,)
    posterior: Histogram | None
