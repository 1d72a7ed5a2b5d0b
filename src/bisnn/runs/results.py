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


class FurtherMetrics(Finding):
    """Numbers on a classifier's probabilities that users of other libraries look for, as
    `bisnn.metrics` has them.
    """

    adaptive_ece: float  # bins of equal numbers
    debiased_ece: float
    aurc: float  # area under the curve of risk over coverage
    reliability: float  # parts of the Brier score: reliability - resolution + uncertainty
    resolution: float
    uncertainty: float


class Memory(Finding):
    """Of the weights."""

    weights: int
    bits: int  # of each
    bytes: int
    bytes_32_bit: int


class Kept(Finding):
    """How a guarantee held on the test points: of sets coverage, set size, time steps, the share
    that was decided and how many of these sets hold the truth; of intervals coverage and width.
    """

    coverage: float  # asked for
    correction: str  # for several looks; empty for intervals
    most: int  # classes of a set that decides
    recordings: int  # calibrated on
    tested: int  # of these, that are test points too: then this is no test
    falls_short: bool  # the coverage is lower than chance explains
    steps: int  # of a whole recording
    predictor: str
    metrics: Metrics

    def doubt(self) -> str:
        """Why the guarantee cannot be read off these numbers, in one sentence; or empty."""
        if self.tested:
            return (
                f"{self.tested:,} of the {self.recordings:,} calibration points are test points: "
                "this is no test of the guarantee"
            )
        if self.falls_short:
            return (
                "the coverage is below what was asked for, beyond chance: the test points are "
                "unlike the calibration points (other people, places, sensors?), and the guarantee "
                "is for points like those"
            )
        return ""


class Decisions(Finding):
    """How many test points were decided, with a set of few classes, and how early; by the run's own
    calibration, or by one on half of the test points.
    """

    coverage: float  # asked for
    calibrated_on: int  # points
    own: bool  # by the run's calibration
    most: int  # classes of a set that decides
    judged: int  # test points
    steps: int  # of a whole recording
    covered: int  # whose class was in the set that was answered
    decided: int
    right: int  # of the decided, whose class was in the set
    mean_steps: float | None  # until the answer, of the decided; None where none is

    def sentence(self, things: str = "points") -> str:
        """One line that a person understands; `things` are what was judged."""
        if self.mean_steps is None:
            return f"of {self.judged:,} test {things} none could be decided"
        decided, right = "were decided", f"{self.right:,} of them correctly"
        if self.most > 1:
            decided = f"got a set of at most {self.most} classes"
            right = f"{self.right:,} of these sets hold the right one"
        return (
            f"of {self.judged:,} test {things} {self.decided:,} {decided}, after "
            f"{self.mean_steps:.1f} of {self.steps} time steps on average, and {right}; "
            f"calibrated on {self.calibrated_on:,} {'' if self.own else 'other '}{things}, which "
            "guarantees that on average the answer holds the right class at least "
            f"{100 * self.coverage:.10g} % of the time, on {things} like those"
        )


class Separation(Finding):
    """How well a score of uncertainty tells other recordings from the test recordings."""

    auroc: float
    aupr: float
    fpr95: float


class OtherSet(Finding):
    """Recordings of something else; or, as a control, of the run's own classes, which only the
    camera tells apart.
    """

    name: str
    control: bool
    recordings: int
    scores: dict[str, dict[str, Separation]]  # by predictor and score


class OtherData(Finding):
    """What was set beside the test recordings."""

    folder: str
    sets: list[OtherSet]


class Verdict(Finding):
    """A run's model judged on its test points: what `evaluate` returns and writes."""

    task: Task  #: "classification" or "regression"
    rule: str  #: that trained it
    model: str  #: digest of the model's file
    epoch: int  #: that the weights are from
    points: int  #: tested
    seconds: float | None  #: of training, where a checkpoint still knows them
    metrics: dict[str, Metrics]  #: of each predictor
    calibration: dict[str, PlainCalibration]  #: of each predictor of classes
    further: dict[str, FurtherMetrics] = {}  #: of each predictor of classes
    baseline: dict[str, Metrics]  #: of what answers without a look at a point
    beaten_by: list[str]  #: predictors that are better than it by their whole interval
    memory: Memory  #: bytes of the weights
    energy: Ledger  #: of an inference
    guarantee: Kept | None = None  #: of a calibrated run
    temperature: float = 1.0  #: of the probabilities
    calibration_file: str = ""  #: its digest, where the run had one
    decisions: Decisions | None = None  #: of classes, where there are points enough
    ood: OtherData | None = None  #: where other data were given

    def numbers(self, predictor: str) -> dict[str, float]:
        """The metrics of `predictor` as plain numbers, the ECE among them as usually computed."""
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


class Looked(Finding):
    """What a classifier would answer at each look, while a recording goes on."""

    path: Tensor  # (P, 2) time steps and members of the looks
    sets: Tensor  # bool (P, n, C): of the points of the raster
    stops: Tensor  # (M,) time steps after which each point that was judged was answered
    decided: Tensor  # bool (M,)
    targets: Tensor  # (L,) coverages asked for
    coverage: Tensor  # (L,) found, on test points that calibrated nothing


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
    looked: Looked | None = None
    other_entropy: dict[str, dict[str, Tensor]] = {}  # (N,), by set of other data and predictor
