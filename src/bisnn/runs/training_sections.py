"""The sections of a config that say how a network is trained, and how it predicts."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from bisnn.runs.section import Count, NotNegative, Section


class Train(Section):
    # 0: by the number of training points, recorded in the run's config
    epochs: Annotated[int, Field(ge=0, le=10_000_000)] = 0
    # Networks that predict as one: trained one by one, from other weights and in another order
    members: Annotated[int, Field(ge=1, le=1000)] = 1
    member: Annotated[int, Field(ge=0, lt=1000)] = 0  # which of them this is; set by bisnn
    batch_size: Count = 40  # over all processes
    samples: Count = 1  # realisations of the weights a step
    # By default logistic for classes, squared for regression
    loss: Literal["logistic", "squared", "smooth_l1"] | None = None
    over_time: Literal["sum", "mean"] = "sum"
    # First time steps that do not count in the loss, nor, by default, in predictions
    burn_in: Annotated[int, Field(ge=0)] = 10
    # Time steps worked on at a time, so that memory does not grow with T; 0: all
    chunk: Annotated[int, Field(ge=0)] = 0
    schedule: Literal["constant", "cosine"] = "constant"  # of the learning rate
    # Times that a cosine schedule runs; the weights at the end of each are a member of the model
    cycles: Count = 1
    # Factor on the loss that keeps neurons neither silent nor saturated
    activity: NotNegative = 0.0
    validate_every: Count = 1  # epochs
    # "best": of the lowest validation loss (NLL; regression: squared error)
    keep: Literal["last", "best"] = "last"
    # Stop after so many validations without a better one; 0: never
    patience: Annotated[int, Field(ge=0)] = 0
    checkpoint_seconds: NotNegative = 10.0  # between checkpoints
    device: Literal["cpu", "cuda"] = "cpu"
    dtype: Literal["float32", "float64"] = "float32"
    # "mixed": operands of products with real numbers may be rounded; see `kernels`
    precision: Literal["full", "mixed"] = "full"
    # Of PyTorch; 0: as many as it would take, recorded in the run's config
    threads: Annotated[int, Field(ge=0)] = 0

    @model_validator(mode="after")
    def _cycles(self) -> Train:
        if self.cycles > 1 and (self.schedule != "cosine" or self.keep != "last" or self.patience):
            raise ValueError(
                'cycles are of schedule = "cosine", with keep = "last" and patience = 0, as the '
                "weights at the end of each are kept: set these, or leave it out"
            )
        if self.epochs % self.cycles:
            raise ValueError(f"epochs must be a multiple of cycles = {self.cycles}")
        if self.members > 1 and self.member:
            raise ValueError("member is one of several: leave it out, or members")
        return self


class Predict(Section):
    samples: Count = 10  # members of the ensemble, Bayes-BiSNN or with `dropout` only
    # Members by dropout: readouts that do not see network.dropout of the neurons
    dropout: bool = False
    encodings: Count = 1  # spike trains that a point's prediction is the mean over; points only
    # First time steps that predictions leave out; by default train.burn_in
    burn_in: Annotated[int, Field(ge=0)] | None = None


def check_members(train: Train, predict: Predict, dropout: float, posterior: bool | None) -> None:
    """See that a run has one source of members, or a posterior for each of its networks."""
    if not predict.dropout:
        return
    if not dropout:
        raise ValueError("predict.dropout: needs network.dropout above 0, as in training; got 0")
    if posterior or train.members > 1 or train.cycles > 1:
        raise ValueError(
            "predict.dropout: is for one network without a posterior, and this run has other "
            "members; leave it out"
        )
