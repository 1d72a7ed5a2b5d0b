"""The loop of a training run: batches, steps, epochs, validation, checkpoints.

All draws are keyed by what they are for (seed, epoch, sample or value; the rule's own by its count
of them): a run that was killed and resumed ends with the same bits as one that was not, at the same
number of threads and processes.
"""

from __future__ import annotations

import math
import signal
import time
import tomllib
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from bisnn import metrics
from bisnn.bits.philox import Purpose
from bisnn.data.dataset import Dataset
from bisnn.data.series import Series
from bisnn.display import RunDisplay
from bisnn.errors import Interrupted, Stopped
from bisnn.kernels import draws
from bisnn.kernels.graphs import Graphs, to_device
from bisnn.losses import activity_loss, chunked_backward, local_loss
from bisnn.network import Output
from bisnn.optimizer import Rule
from bisnn.realisation import map_weight
from bisnn.runs import defaults
from bisnn.runs.building import build_network, state_after_a_step
from bisnn.runs.config import CHANGEABLE, Config, differences, parse
from bisnn.runs.folder import RunFolder, alike
from bisnn.runs.inputs import (
    check_unchanged,
    described,
    input_shape,
    load_dataset,
    shuffled,
    training_spikes,
)
from bisnn.runs.labels import by_time, is_ragged, labels_that_count, mask_of, score
from bisnn.runs.model import Model
from bisnn.runs.monitoring import (
    NOT_FINITE,
    check_rates,
    log,
    near_chance,
    signals,
    tensorboard_writer,
)
from bisnn.runs.processes import Processes, Total

AHEAD = {"cpu": 0, "cuda": 1}  # steps that are handed out before a step's sums are read


# Attributes of a Training
PROGRESS = ("step", "rows", "seconds", "sums", "before", "best", "since_best", "stopped_early")


def _equal(a: Sequence[Tensor], b: Sequence[Tensor]) -> bool:
    return all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


@torch.no_grad()
def _write(net: torch.nn.Module, weights: list[Tensor]) -> None:
    for p, value in zip(net.parameters(), weights, strict=True):
        p.copy_(value)


class Training:
    """A run in memory. `state()` is all that the next step depends on."""

    def __init__(
        self,
        config: Config,
        processes: Processes,
        show: bool = True,
        given: Dataset | Series | None = None,
    ):
        self.processes = processes
        self.data = load_dataset(config, show, given)
        config = described(config, self.data)
        self.targets = self.data.standardised(self.data.train.y)
        points = len(self.data.train.x)
        if not config.train.epochs:
            config = config.updated(
                **{"train.epochs": defaults.epochs(points, config.train.batch_size)}
            )
        self.config = config
        if config.train.batch_size < processes.count:
            raise ValueError(
                f"train.batch_size: must be at least the {processes.count} processes; "
                f"got {config.train.batch_size}"
            )
        self.steps_per_epoch = math.ceil(points / config.train.batch_size)
        self.net = build_network(
            config, input_shape(config, len(self.data.low)), self.data.outputs
        ).to(processes.device)
        self.rule = config.rule.build(
            list(self.net.parameters()), config.training_seed, self.steps_per_epoch
        )
        alone = not dist.is_initialized()  # and so `share` is 1
        recorded = processes.device.type == "cuda" and alone and not config.train.chunk
        # The whole of a step where the rule allows it, else the pass
        self._whole = isinstance(self.rule, Rule) and self.rule.capturable
        self._graphs = (
            Graphs(list(self.net.parameters()), self.rule if self._whole else None)  # type: ignore[arg-type]
            if recorded
            else None
        )
        self._began = 0  # epochs before this process
        self.step = 0  # updates so far
        self.rows = 0  # of metrics.jsonl
        self.seconds = 0.0  # of training, over all its pieces
        # Points, loss, score, each layer's rate, this epoch
        self.sums = torch.zeros(3 + len(self.net.layers), dtype=torch.float64)
        self.before = self._hard_weights()  # when this epoch began
        self.best: dict[str, Any] | None = None  # validation loss, epoch and weights
        self.since_best = 0  # validations
        self.stopped_early = False
        self.snapshots: list[list[Tensor]] = []  # latents at the end of each cycle, if several

    @property
    def steps_per_cycle(self) -> int:
        """Updates from the highest learning rate to the lowest."""
        return self.config.train.epochs * self.steps_per_epoch // self.config.train.cycles

    def _hard_weights(self) -> list[Tensor]:
        return [map_weight(p).to(torch.int8).cpu() for p in self.net.parameters()]

    @property
    def epochs_done(self) -> int:
        return self.step // self.steps_per_epoch

    @property
    def finished(self) -> bool:
        return self.stopped_early or self.epochs_done >= self.config.train.epochs

    def state(self) -> dict[str, Any]:
        progress = {name: getattr(self, name) for name in PROGRESS}
        latents = [p.detach() for p in self.net.parameters()]
        about = {
            "config": self.config.to_toml(),
            "data": self.data.digest(),
            "processes": self.processes.count,
        }
        if self.config.train.cycles > 1:
            about["snapshots"] = self.snapshots
        return {
            **progress,
            **about,
            "finished": self.finished,
            "latents": latents,
            "rule": self.rule.state_dict(),
        }

    def fits(self, state: Any) -> bool:
        """Whether this is a checkpoint as `state()` makes them, in all of its structure."""
        mine = {**self.state(), "rule": state_after_a_step(self.rule)}
        best = state.get("best") if isinstance(state, dict) else None
        if best is not None:
            mine["best"] = {"loss": 0.0, "epoch": 0, "weights": mine["latents"]}
        taken = state.get("snapshots") if isinstance(state, dict) else None
        if "snapshots" in mine and isinstance(taken, list):
            mine["snapshots"] = [mine["latents"]] * len(taken)
        if not alike(mine, state) or min(state["step"], state["rows"], state["since_best"]) < 0:
            return False
        try:
            parse(tomllib.loads(state["config"]), "config")
        except (ValueError, RecursionError):
            return False
        return True

    def load(self, state: dict[str, Any], folder: RunFolder) -> None:
        """Go on from a checkpoint of the same config and the same data."""
        began = parse(tomllib.loads(state["config"]), str(folder))
        # Where the data lie does not matter, if a digest says what they are
        checked = self.config.data.complaint(folder) is not None
        places = [f"data.{name}" for name in self.config.data.paths if checked]
        changed = [
            key for key in differences(began, self.config) if key not in (*CHANGEABLE, *places)
        ]
        if changed:
            raise ValueError(
                f"{folder.config_file}: was changed since the run began, in {', '.join(changed)}; "
                "change it back"
            )
        if self.config.train.cycles > 1 and began.train.epochs != self.config.train.epochs:
            raise ValueError(
                "train.epochs: a run with train.cycles keeps the length of its cycles; got "
                f"{self.config.train.epochs} in place of {began.train.epochs}; train a new run"
            )
        check_unchanged(self.config, self.data, state["data"], folder)
        self.snapshots = state.get("snapshots", [])
        for name in PROGRESS:
            setattr(self, name, state[name])
        _write(self.net, state["latents"])
        self.rule.load_state_dict(state["rule"])
        self._began = self.epochs_done
        # The patience may have changed
        self.stopped_early = 0 < self.config.train.patience <= self.since_best
        if self.step > self.config.train.epochs * self.steps_per_epoch:
            got, least = self.config.train.epochs, self._epoch
            raise ValueError(
                f"train.epochs: the run is in epoch {least} already; got {got}; "
                f"give {least} or more"
            )

    # One step

    def update(self) -> Tensor:
        """Update the weights once; return what this process adds to the epoch's sums."""
        config, data = self.config, self.data.train
        epoch, position = divmod(self.step, self.steps_per_epoch)
        order = shuffled(len(data.x), config.training_seed, epoch)
        batch = order[position * config.train.batch_size : (position + 1) * config.train.batch_size]
        mine = batch[self.processes.rank :: self.processes.count]
        share = len(mine) / len(batch)  # of the mean over points; processes add theirs up
        if len(mine) == 0:
            # a last batch smaller than the number of processes: take part with weight 0
            mine = batch[:1]
        x = training_spikes(config, data.x[mine], epoch, mine, self.processes.device)
        y = to_device(by_time(config, self.targets[mine]), self.processes.device)
        seen = [*mask_of(data.x[mine], self.processes.device), *self._seen(epoch, mine)]
        for group in self.rule.param_groups:
            group["lr"] = config.rule.lr * self._share_of_lr()
        # Mini-batches of all sizes have passed: none will need memory beside that of the graphs
        record = epoch > self._began
        step = partial(self._realise_and_update, share, len(mine), record)
        if self._graphs and self._whole:
            sums = self._graphs.run(step, x, y, *seen, record=record)
        else:
            sums = step(x, y, *seen)
        self.step += 1
        if config.train.cycles > 1 and self.step % self.steps_per_cycle == 0:
            self.snapshots.append([p.detach().cpu().clone() for p in self.net.parameters()])
        return sums

    def _share_of_lr(self) -> float:
        """The present share of the learning rate: a cosine over each cycle, or all of it."""
        if self.config.train.schedule == "constant":
            return 1.0
        into = self.step % self.steps_per_cycle
        return 0.5 * (1 + math.cos(math.pi * into / self.steps_per_cycle))

    def _realise_and_update(
        self, share: float, points: int, record: bool, *inputs: Tensor
    ) -> Tensor:
        """Update the weights from the gradients of some realisations; return what this process adds
        to the epoch's sums.
        """
        backward = partial(self._backward, share)
        sums = torch.zeros_like(self.sums, device=self.processes.device)
        for _ in range(self.config.train.samples):
            realisation: AbstractContextManager[None] = (
                self.rule.sampled() if isinstance(self.rule, Rule) else nullcontext()
            )
            with realisation:
                if self._graphs and not self._whole:
                    means = self._graphs.run(backward, *inputs, record=record)
                else:
                    means = backward(*inputs)
            sums += (points if share else 0) * means
        self.processes.add_gradients(self.net.parameters())
        self.rule.step()
        if not isinstance(self.rule, Rule):
            self.rule.zero_grad()
        return sums

    def _seen(self, epoch: int, samples: Tensor) -> Sequence[Tensor]:
        """Factors (B, n) of the spikes that each readout sees, 0 or 1/(1 - dropout), if any."""
        p = self.config.network.dropout
        if not p:
            return ()
        sizes = [math.prod(layer.output_shape) for layer in self.net.layers]
        drawn = draws.uniform(
            to_device(samples, self.processes.device),
            sum(sizes),
            self.config.training_seed,
            Purpose.DROPOUT,
            epoch,
        )
        return ((drawn >= p).to(self.net.dtype) / (1 - p)).split(sizes, 1)

    def _backward(self, share: float, x: Tensor, y: Tensor, *more: Tensor) -> Tensor:
        """Add `share` times one realisation's gradients; return 1, its loss, score and rates;
        `more` are the mask of ragged recordings and the factors of dropout, if any."""
        train, spikes, readouts = self.config.train, [], []
        mask, seen = (more[0], more[1:]) if is_ragged(self.data.train.x) else (None, more)

        def note(output: Output) -> None:
            spikes.append([s.detach().mean() * len(s) for s in output.spikes])
            readouts.append(output.logits.detach())

        settings: dict[str, Any] = {
            "loss": self.config.loss,
            "over_time": train.over_time,
            "burn_in": train.burn_in,
            "mask": mask,
        }
        if train.chunk:
            loss = chunked_backward(
                self.net,
                x,
                y,
                train.chunk,
                **settings,
                factor=share,
                seen=seen or None,
                each=note,
            )
        else:
            output = self.net(x, seen=seen or None, potentials=bool(train.activity))
            loss = local_loss(output, y, **settings)
            if train.activity:
                loss = loss + train.activity * activity_loss(self.net, output, mask=mask)
            note(output)
            del output  # spikes, as they are not needed any more
            (loss * share).backward()
        reached = score(self.config, torch.cat(readouts), y, mask)
        rates = [torch.stack(layer).sum() / len(x) for layer in zip(*spikes, strict=True)]
        return torch.stack([torch.ones_like(loss), loss.detach(), reached, *rates]).double()

    # The loop

    def epochs(self, go_on: Callable[[], bool]) -> Iterator[dict[str, Any]]:
        """Train in memory, with no file written, to the end or for as long as `go_on()`; yields
        each epoch's row of metrics.
        """
        while not self.finished and go_on():
            self.sums += self.update().cpu()
            if not bool(torch.isfinite(self.sums).all()):
                raise Stopped(NOT_FINITE.format(epoch=self._epoch, folder="training"))
            if self.step % self.steps_per_epoch == 0:
                row = self._end_epoch()
                check_rates(row, self.config, "training")
                yield row

    def fit(self, folder: RunFolder, display: RunDisplay) -> Model:
        """Train to the end, or until a signal; write checkpoints, metrics and the model."""
        first = self.processes.first  # only the first process writes; all learn of its errors
        tensorboard = (
            tensorboard_writer(folder.path, self.epochs_done) if self.processes.rank == 0 else None
        )
        began, saved = time.monotonic() - self.seconds, time.monotonic()
        save = stop = False  # what a process asked for: all read it after the same step
        row: dict[str, Any] = {}  # of the last epoch
        under_way: deque[Total] = deque()

        def read(ahead: int) -> None:
            """Count the steps under way, but for the last `ahead` of them."""
            nonlocal save, stop
            while len(under_way) > ahead:
                added, (due, caught_one) = under_way.popleft().values()
                save, stop = save or due, stop or caught_one
                self.sums += added
                if not bool(torch.isfinite(added).all()):
                    raise Stopped(NOT_FINITE.format(epoch=self._epoch, folder=folder))

        def asked() -> list[bool]:
            """Whether this process asks for a checkpoint, and for the end."""
            due = time.monotonic() - saved >= self.config.train.checkpoint_seconds
            return [due and self.processes.rank == 0, bool(caught[0])]

        with signals() as caught:
            while not self.finished and not stop:
                sums = self.update()
                under_way.append(Total(sums, asked()))
                epoch_ends = self.step % self.steps_per_epoch == 0
                read(0 if epoch_ends else AHEAD[self.processes.device.type])
                self.seconds = time.monotonic() - began
                if display.show and self.sums[0]:  # nothing to show before the first step is read
                    display.step(self.step / self.steps_per_epoch, self._running())
                if epoch_ends:
                    row = self._end_epoch()
                    first(partial(folder.append_metrics, row))
                    self.rows += 1
                    display.epoch(row)
                    if tensorboard:
                        log(tensorboard, row)
                    check_rates(row, self.config, folder)
                    under_way.append(Total(torch.zeros_like(sums), asked()))  # it took a while
                    read(0)
                if save or stop or self.finished:
                    read(0)
                    saved, save = time.monotonic(), False
                    self._check_weights(folder)
                    first(lambda: folder.save_state(self.state()))
        if tensorboard:
            tensorboard.close()
        model = self.trained_model()
        first(lambda: model.save(folder.model_file))
        known = labels_that_count(self.config, *self.data.train)
        if self.finished and row and (guess := near_chance(row, known)):
            display.say(f"{folder}: {guess}")
        if stop:
            raise self._interrupted(folder, caught[0] or signal.SIGTERM)
        return model

    def _check_weights(self, folder: RunFolder) -> None:
        if not all(bool(torch.isfinite(p).all()) for p in self.net.parameters()):
            raise Stopped(NOT_FINITE.format(epoch=self._epoch, folder=folder))

    def _interrupted(self, folder: RunFolder, number: int) -> Interrupted:
        """The error that says where signal `number` stopped the run, and how to go on."""
        where = f"in epoch {self._epoch} of {self.config.train.epochs}"
        if self.finished:
            where = "at its end"
        text = f"stopped {where} and saved; go on with: bisnn resume {folder}"
        return Interrupted(text, number)

    @property
    def _epoch(self) -> int:
        """The epoch, from 1, of the last step."""
        return math.ceil(self.step / self.steps_per_epoch)

    def _running(self) -> dict[str, Any]:
        """Means over the epoch so far."""
        points, loss, score, *rates = self.sums.tolist()
        quality = {"accuracy": score / points}
        if self.config.task == "regression":
            # In the targets' units, as all but the loss
            quality = {"rmse": self.data.target_scale * math.sqrt(score / points)}
        return {"loss": loss / points, **quality, "rates": [rate / points for rate in rates]}

    def _end_epoch(self) -> dict[str, Any]:
        """The epoch's row of metrics; begins the next."""
        now = self._hard_weights()
        flipped = sum(int((a != b).sum()) for a, b in zip(now, self.before, strict=True))
        row = {"epoch": self.epochs_done, "step": self.step, **self._running()}
        # Share of the weights whose sign changed in this epoch
        row["flips"] = flipped / sum(a.numel() for a in now)
        row["lr"] = self.rule.param_groups[0]["lr"]
        self.sums, self.before = torch.zeros_like(self.sums), now
        if (
            self.data.validation is not None
            and self.epochs_done % self.config.train.validate_every == 0
        ):
            row["validation"] = self._validate()
            self._compare(row["validation"])
        return row

    def _validate(self) -> dict[str, float]:
        """Loss (NLL, or squared error) and score of the usual predictor on the held-out points,
        which the processes share.
        """
        assert self.data.validation is not None
        model = self._model(self.epochs_done)
        x, y = self.data.validation
        mine = torch.arange(len(x)).tensor_split(self.processes.count)[self.processes.rank]
        means = self.processes.gather(
            [model.predict_labelled(x[mine], model.members).mean.cpu()] if len(mine) else []
        )
        truth = labels_that_count(self.config, x, y)
        return self.processes.first(lambda: self.quality(torch.cat(means), truth))

    def quality(self, mean: Tensor, y: Tensor) -> dict[str, float]:
        """Loss and score of predictions for held-out points."""
        if self.config.task == "classification":
            return {"loss": metrics.nll(mean, y), "accuracy": metrics.accuracy(mean, y)}
        error = metrics.rmse(mean, y)
        return {"loss": (error / self.data.target_scale) ** 2, "rmse": error}

    def _compare(self, validation: dict[str, float]) -> None:
        if math.isfinite(validation["loss"]) and (
            self.best is None or validation["loss"] < self.best["loss"]
        ):
            weights = [p.detach().cpu().clone() for p in self.net.parameters()]
            self.best = {"loss": validation["loss"], "epoch": self.epochs_done, "weights": weights}
            self.since_best = 0
        else:
            self.since_best += 1
        self.stopped_early = 0 < self.config.train.patience <= self.since_best

    def _model(self, epoch: int) -> Model:
        return Model.of(self.net, self.config, self.data, epoch)

    def trained_model(self) -> Model:
        """The model that the run keeps: the last, or the best on the held-out points."""
        if self.config.train.keep == "last" or self.best is None:
            own = [p.detach().cpu() for p in self.net.parameters()]
            # Those of the last cycle are the network's own
            others = tuple(tuple(one) for one in self.snapshots if not _equal(one, own))
            return replace(self._model(self.epochs_done), others=others)
        net = build_network(
            self.config, input_shape(self.config, len(self.data.low)), self.data.outputs
        )
        _write(net, self.best["weights"])
        return Model.of(net, self.config, self.data, self.best["epoch"])
