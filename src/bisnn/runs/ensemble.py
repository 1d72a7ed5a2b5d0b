"""Trained models that predict as one, whatever their networks, rules and seeds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch

from bisnn.data.events import Recording
from bisnn.prediction import Classification, Regression
from bisnn.runs.model import Model, load


class Ensemble:
    """Several models as one predictor: its members are all of theirs, each with the same weight.

    A model with more members counts more. Models of `bisnn train --members` are one model already,
    which ships; these need agree in nothing but what they take and what they say.

    Args:
        models: two or more, in memory or as run folders: of the same classes, or all of targets,
            and of inputs of the same kind.

    >>> from bisnn.runs import config, model, training
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     runs = [
    ...         training.train(
    ...             config.load("two_moons_bayes", ["train.epochs=1", f"seed={seed}"]),
    ...             f"{folder}/{seed}",
    ...             show=False,
    ...         )
    ...         for seed in (0, 1)
    ...     ]
    ...     Ensemble(runs).predict([[0.2, 0.7]]).members.shape
    torch.Size([20, 1, 2])
    """

    def __init__(self, models: Sequence[Model | str | Path]):
        if isinstance(models, (str, Path)) or len(models) < 2:
            raise ValueError(
                f"models: must be a list of two or more; got {models!r}; give e.g. [run, other]"
            )
        for model in models:
            if not isinstance(model, (Model, str, Path)):
                raise ValueError(
                    f"models: must be models or run folders; got {model!r}; load it with bisnn.load"
                )
        loaded = [model if isinstance(model, Model) else load(model) for model in models]
        self.models = tuple(loaded)
        first = loaded[0]
        for k, model in enumerate(loaded):
            if (model.classes, model.config.task) != (first.classes, first.config.task):
                raise ValueError(
                    f"models: must have the same classes, in the same order; got "
                    f"{list(model.classes)} of number {k} and {list(first.classes)}; "
                    "leave one out"
                )
            if model.config.recorded != first.config.recorded or model.features != first.features:
                raise ValueError(
                    "models: must take the same inputs, recordings or as many features; number "
                    f"{k} takes others; leave it out"
                )

    def predict(
        self, x: Any, samples: int | Literal["usual"] | None = "usual", over_time: str = "mean"
    ) -> Classification | Regression:
        """Predict from raw features.

        Args:
            x, samples, over_time: as in `Model.predict`.
        """
        return self._joined(lambda model: model.predict(x, samples, over_time))

    def predict_recordings(
        self,
        recordings: Sequence[str | Path | np.ndarray | Recording],
        samples: int | Literal["usual"] | None = "usual",
        over_time: str = "mean",
    ) -> Classification | Regression:
        """Predict recordings of an event camera.

        Args:
            recordings, samples, over_time: as in `Model.predict_recordings`.
        """
        return self._joined(lambda model: model.predict_recordings(recordings, samples, over_time))

    def predict_spikes(
        self, x: Any, samples: int | Literal["usual"] | None = "usual", over_time: str = "mean"
    ) -> Classification | Regression:
        """Predict recordings that are spikes already.

        Args:
            x, samples, over_time: as in `Model.predict_spikes`.
        """
        return self._joined(lambda model: model.predict_spikes(x, samples, over_time))

    def predict_series(
        self,
        x: Any,
        samples: int | Literal["usual"] | None = "usual",
        over_time: str | None = None,
    ) -> Classification | Regression:
        """Predict series of values, or of spikes.

        Args:
            x, samples, over_time: as in `Model.predict_series`.
        """
        return self._joined(lambda model: model.predict_series(x, samples, over_time))

    def tempered(self, temperature: float | None = None) -> Ensemble:
        """All models at a `temperature`, by default each at its own; see `Model.tempered`."""
        return Ensemble([model.tempered(temperature) for model in self.models])

    def _joined(
        self, predict: Callable[[Model], Classification | Regression]
    ) -> Classification | Regression:
        results = [predict(model) for model in self.models]
        device = results[0].members.device
        members = torch.cat([result.members.to(device) for result in results])
        return type(results[0]).of(members)
