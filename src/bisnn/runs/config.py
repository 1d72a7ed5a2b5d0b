"""A run's settings: one small TOML file, validated; `--set section.key=value` on top; the resolved
ones are saved beside the run.

Symbols: `tau`, `temperature` (rho), `lr` (eta) and the time constants are the paper's, in time
steps. Whatever a config leaves out has the default below.
"""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Iterator, Sequence
from importlib import resources
from pathlib import Path
from typing import Annotated, Any, Literal

import tomli_w
from pydantic import Field, ValidationError, model_serializer, model_validator

from bisnn.alphabet import BINARY, alphabet_of
from bisnn.bits.philox import Purpose, words
from bisnn.display import note
from bisnn.files import read_text
from bisnn.runs import config_errors, defaults
from bisnn.runs.augment_section import Augment
from bisnn.runs.kinds import AnyData, AnyRule, tag_of
from bisnn.runs.own import OwnData
from bisnn.runs.section import Count, NotNegative, Positive, Section, Share
from bisnn.runs.training_sections import Predict, Train, check_members
from bisnn.runs.tune_section import Tune

__all__ = ["Config", "keys", "load", "parse", "shipped"]

VERSION = 1  # of the file format
DOTS = 100  # on a line: no setting has so many parts
TOO_DEEP = "is nested too deeply; a config has sections, keys and plain values"


class Encode(Section):
    """From a row of numbers to spikes (T, N)."""

    # "rate": the number in [0, 1] is the probability of a spike
    code: Literal["population", "rate"] = "population"
    steps: Count = 100  # T
    neurons: Annotated[int, Field(ge=2)] = 10  # a dimension, "population" only
    width: Positive = 1.0  # of the tuning curves, in spacings


# Layers whose spikes a layer reads: numbers from 0, convolutions first, or "input"; by default the
# layer before it.
Inputs = list[Annotated[int, Field(ge=0)] | Literal["input"]] | None


class Convolution(Section):
    channels: Count
    kernel: Count
    stride: Count = 1
    padding: Annotated[int, Field(ge=0)] = 0
    pool: Count = 1  # edge of the max-pooling window
    inputs: Inputs = None


class Dense(Section):
    """A layer of neurons; in a file, a number of neurons stands for one with all defaults."""

    neurons: Count
    recurrent: bool = False  # each neuron reads all neurons of the layer too, one time step later
    inputs: Inputs = None

    @model_validator(mode="before")
    @classmethod
    def _number(cls, given: Any) -> Any:
        return given if isinstance(given, dict) else {"neurons": given}

    @model_serializer(mode="wrap")
    def _plain(self, whole: Any) -> Any:
        return self.neurons if self == Dense(neurons=self.neurons) else whole(self)


class Architecture(Section):
    # Convolutional layers, for recordings; the dense ones come after them
    conv: list[Convolution] = []
    # Dense layers: the number of neurons, or a table with `recurrent` and `inputs`
    layers: list[Dense] = [Dense(neurons=256), Dense(neurons=256)]
    # "binary", "ternary", or a list of levels such as [-3, -1, 1, 3]; rule "full" has real weights
    weights: Literal["binary", "ternary"] | list[int] = "binary"
    gradient: Literal["local", "bptt"] = "local"
    readout_after: Literal["every", "last"] = "every"
    readout_gain: Positive = 1.0
    # Binary latents start at +-init; logits of other levels with log-odds of 2 init for one of them
    init: NotNegative = 0.5
    dropout: Share = 0.0  # of the neurons, whose spikes a readout does not see while training

    @model_validator(mode="after")
    def _any(self) -> Architecture:
        if not self.layers and not self.conv:
            raise ValueError("layers must have at least one item where there is no conv")
        alphabet_of(self.weights)
        return self


class NeuronSettings(Section):
    # "fixed": the SRM in integers, for spikes and hard weights
    kind: Literal["srm", "fixed"] = "srm"
    tau_mem: Positive = 10.0
    tau_syn: Positive = 6.0
    tau_ref: Positive = 2.0
    threshold: Positive = 0.5
    surrogate: Literal["sigmoid", "box"] = "sigmoid"
    slope: Positive = 1.0
    # "fixed" only: bits of a trace below the unit of the current
    fraction: Annotated[int, Field(ge=0, le=24)] = 12

    @model_validator(mode="after")
    def _ordered(self) -> NeuronSettings:
        if self.kind == "srm" and self.fraction != 12:
            raise ValueError('fraction is of kind = "fixed": leave it out, or set that')
        if self.tau_mem <= self.tau_syn:
            raise ValueError(
                f"tau_mem must be above tau_syn = {self.tau_syn:g}, or the synaptic filter is not "
                "positive"
            )
        return self


class Config(Section):
    """All settings of a run."""

    version: int
    seed: Annotated[int, Field(ge=0, lt=2**32)] = 0
    data: AnyData
    encode: Encode = Encode()
    augment: Augment = Augment()
    network: Architecture = Architecture()
    neuron: NeuronSettings = NeuronSettings()
    rule: AnyRule
    train: Train = Train()
    predict: Predict = Predict()
    tune: Tune | None = None  # of the search alone; see `bisnn.tuning`

    @property
    def task(self) -> str:
        """ "classification" or "regression", as the data ask for."""
        return self.data.predicts()

    @property
    def recorded(self) -> bool:
        """Whether the data are recordings, of spikes or of events."""
        return self.data.steps_recorded() is not None

    @property
    def steps(self) -> int:
        """T."""
        return self.data.steps_recorded() or self.encode.steps

    @property
    def burn_in(self) -> int:
        """First time steps that predictions leave out."""
        return self.train.burn_in if self.predict.burn_in is None else self.predict.burn_in

    @property
    def training_seed(self) -> int:
        """Of all draws of the training: of several networks on the same data each has its own."""
        k = self.train.member
        return int(words(1, self.seed, Purpose.TRAINED_MEMBERS, k)[0]) if k else self.seed

    @property
    def loss(self) -> str:
        """The loss of training; unless it is set, that of the task."""
        return self.train.loss or ("logistic" if self.task == "classification" else "squared")

    @model_validator(mode="before")
    @classmethod
    def _completed(cls, settings: Any) -> Any:
        if not isinstance(settings, dict):
            return settings
        data, rule = (_kind_of(name, settings) for name in ("data", "rule"))
        if data is None or rule is None:
            return settings  # reported elsewhere
        return defaults.completed(settings, data, rule)

    @model_validator(mode="after")
    def _fits_its_data(self) -> Config:
        """What depends on the data, once they are known."""
        if isinstance(self.data, OwnData) and self.data.recorded is None:
            return self
        recordings = self.recorded
        if recordings and not self.train.epochs:
            raise ValueError("train.epochs: is missing, and recordings have no default; add it")
        where = "data.steps" if recordings else "encode.steps"
        for name, burn_in in (
            ("train.burn_in", self.train.burn_in),
            ("predict.burn_in", self.burn_in),
        ):
            if burn_in >= self.steps:
                raise ValueError(f"{name} must be below {where} = {self.steps}; got {burn_in}")
        if recordings and self.encode != Encode():
            raise ValueError(
                f"encode is for points; {self.data.name} has recordings, with data.steps and "
                "data.bin_us: leave it out"
            )
        if recordings and self.predict.encodings > 1:
            raise ValueError(
                "predict.encodings: recordings are spikes already, in one way; "
                f"got {self.predict.encodings}"
            )
        if not recordings and (self.network.conv or self.augment != Augment()):
            raise ValueError(
                f"network.conv and augment are for recordings; {self.data.name} has points: "
                "leave them out"
            )
        if self.augment != Augment() and len(self.data.shape_recorded()) != 3:
            raise ValueError(
                "augment is for recordings of pixels, (T, C, H, W); got (T, "
                f"{', '.join(map(str, self.data.shape_recorded()))}): leave it out"
            )
        if (self.loss == "logistic") != (self.task == "classification"):
            raise ValueError(
                f'train.loss = "{self.loss}" does not fit the task {self.task}: '
                "leave it out for the usual one"
            )
        return self

    @model_validator(mode="after")
    def _together(self) -> Config:
        if (self.train.keep == "best" or self.train.patience) and not self.data.validation:
            raise ValueError(
                'train.keep = "best" and train.patience need held-out points: '
                "set data.validation, e.g. to 0.2"
            )
        if self.train.samples > 1 and self.rule.posterior() is False:
            raise ValueError(
                f'train.samples: rule "{self.rule.name}" has one realisation of its weights; '
                f"got {self.train.samples}"
            )
        if not self.rule.any_levels and alphabet_of(self.network.weights) != BINARY:
            raise ValueError(
                f'network.weights: rule "{self.rule.name}" trains no other levels than its own; '
                f"got {self.network.weights!r}: leave it out, or take rule st or bayes"
            )
        if self.neuron.kind == "fixed" and not self.rule.hard_weights():
            raise ValueError(
                'neuron.kind = "fixed" takes hard weights: set rule.straight_through = true, or '
                "another rule"
            )
        if self.train.chunk and self.train.activity:
            raise ValueError(
                "train.activity looks at whole recordings, train.chunk never sees one: "
                "leave one of the two at 0"
            )
        check_members(self.train, self.predict, self.network.dropout, self.rule.posterior())
        depth = len(self.network.conv) + len(self.network.layers)
        local = self.network.gradient == "local" and depth > 1
        if local and self.network.readout_after == "last":
            raise ValueError(
                'network.readout_after must be "every" with local gradients, or layers below the '
                "last never learn"
            )
        return self

    def to_toml(self) -> str:
        """All settings, as the file that `load` reads."""
        return tomli_w.dumps(self.model_dump(exclude_none=True))

    def updated(self, **values: Any) -> Config:
        """A copy with settings changed by `values`, validated: `updated(**{"rule.lr": 0.1})`."""
        settings = self.model_dump(exclude_none=True)
        for key, value in values.items():
            _assign(settings, key, value, "config.updated")
        return parse(settings, "config.updated")


def differences(a: Config, b: Config) -> list[str]:
    """The dotted keys in which two configs differ; the number of threads does not count."""
    left, right = (
        {
            f"{s}.{k}": v
            for s, d in c.model_dump().items()
            for k, v in (d if isinstance(d, dict) else {"": d}).items()
        }
        for c in (a, b)
    )
    changed = [key.rstrip(".") for key in {**left, **right} if left.get(key) != right.get(key)]
    return [key for key in changed if key != "train.threads"]


# What may change when a run is resumed: how long, when it stops or saves, and where it is computed.
CHANGEABLE = (
    "train.epochs",
    "train.patience",
    "train.checkpoint_seconds",
    "train.threads",
    "train.device",
)


def resumed(path: Path, overrides: Sequence[str] = ()) -> Config:
    """The config of a run folder, with overrides of what may change; others are a ValueError."""
    before = load(path)
    if not overrides:
        return before
    config = load(path, overrides)
    fixed = [key for key in differences(before, config) if key not in CHANGEABLE]
    if fixed:
        raise ValueError(
            f"--set {', '.join(fixed)}: a run keeps the settings it began with, but for "
            f"{', '.join(CHANGEABLE)}; train a new run"
        )
    return config


def shipped() -> dict[str, Path]:
    """The configs that come with the package, by name."""
    folder = Path(str(resources.files("bisnn.runs") / "configs"))
    return {path.stem: path for path in sorted(folder.glob("*.toml"))}


def load(path: str | Path, overrides: Sequence[str] = ()) -> Config:
    """Read a config file, or one that comes with the package by its name.

    Args:
        path: of the file, or the name.
        overrides: settings that replace the file's, as "section.key=value".

    >>> load("two_moons_bayes", ["rule.temperature=0.001", "seed=3"]).seed
    3
    """
    file = Path(path)
    if not file.exists():
        known = shipped()
        if str(path) not in known:
            near = difflib.get_close_matches(file.stem, known, n=1)
            hint = (
                f"did you mean {near[0]!r}?"
                if near
                else f"those that come with bisnn: {', '.join(known)}"
            )
            raise ValueError(f"{path}: there is no such config file; {hint}")
        file = known[str(path)]
    try:
        settings = _toml(read_text(file), str(file))
    except tomllib.TOMLDecodeError as error:
        raise ValueError(f"{file}: is not valid TOML: {error}") from None
    except UnicodeDecodeError:
        raise ValueError(f"{file}: is not a text file in UTF-8; give a TOML config") from None
    rule_first = sorted(overrides, key=lambda o: o.partition("=")[0].strip() != "rule.name")
    for override in rule_first:
        key, equals, value = override.partition("=")
        if key.count(".") > DOTS:
            raise ValueError(f"--set {key:.40}...: {TOO_DEEP}")
        if not equals or not key.strip():
            raise ValueError(
                f"--set {override}: must read section.key=value, e.g. --set rule.lr=0.1"
            )
        parsed = _value(value.strip())
        if key.strip() in _paths(settings) and isinstance(parsed, str):
            # a path on the command line is relative to where it was typed
            parsed = str(Path(parsed).resolve())
        if key.strip() == "rule.name":
            given = {other.partition("=")[0].strip() for other in overrides}
            _drop_keys_of_another_rule(settings, parsed, given)
        _assign(settings, key.strip(), parsed, f"--set {override}")
    source = " ".join([str(file), *(f"--set {override}" for override in overrides)])
    return _absolute(parse(settings, source), file.parent)


def parse(settings: dict[str, Any], source: str) -> Config:
    """From `settings`, as TOML has them, to a Config; a ValueError has a line for each thing wrong,
    which begins with their `source`.
    """
    version = settings.get("version")
    if version != VERSION:
        got = "none" if version is None else repr(version)
        raise ValueError(
            f"{source}: version: this bisnn reads configs of version {VERSION}; got {got}; "
            f"write version = {VERSION}, or install the bisnn that the config was written for"
        )
    try:
        return Config.model_validate(settings)
    except ValidationError as error:
        lines = [f"{source}: {line}" for line in _lines(error, settings)]
        raise ValueError("\n".join(lines)) from None


def _lines(error: ValidationError, settings: dict[str, Any]) -> list[str]:
    """A line for each thing wrong."""
    try:
        return [config_errors.line(details, settings, Config) for details in error.errors()]
    except RecursionError:  # of a value, when it is shown
        return [TOO_DEEP]


def _kind_of(field: str, settings: dict[str, Any]) -> Any:
    """The kind of section that settings have as their data or rule; None where they name none."""
    given = settings.get(field)
    tag = tag_of(given) if isinstance(given, dict) else None
    return config_errors.kinds_of(Config, field).get(tag or "")


def _paths(settings: dict[str, Any]) -> list[str]:
    """The keys of these settings that are paths."""
    data = _kind_of("data", settings)
    return [f"data.{name}" for name in getattr(data, "paths", ())]


def keys() -> Iterator[str]:
    """All valid keys, dotted."""
    return config_errors.keys(Config)


def _assign(settings: dict[str, Any], key: str, value: Any, source: str) -> None:
    *sections, leaf = key.split(".")
    for section in sections:
        settings = settings.setdefault(section, {})
        if not isinstance(settings, dict):
            raise ValueError(
                f"{source}: {section} is a value, not a section; the key must read section.key"
            )
    settings[leaf] = value


def _drop_keys_of_another_rule(settings: dict[str, Any], name: Any, given: set[str]) -> None:
    """Leave out what the new rule does not have, and say so, and what it keeps but for keys that
    are given too; ignore an unknown rule here.
    """
    rule = settings.get("rule")
    kind = _kind_of("rule", {"rule": {"name": name}})
    if kind is None or not isinstance(rule, dict):
        return
    kept = kind.model_fields
    dropped = [key for key in rule if key not in kept and key != "name"]
    for key in dropped:
        del rule[key]
    if dropped:
        kept_values = {k: v for k, v in rule.items() if k != "name" and f"rule.{k}" not in given}
        stays = ", ".join(f"{key} = {value!r}" for key, value in kept_values.items())
        note(
            f"rule.name = {name}: leaves out {', '.join(dropped)}, which it does not have; "
            f"keeps {stays or 'nothing'}"
        )


def _value(text: str) -> Any:
    """A TOML value; anything that is none is a string, so that quotes may be left out."""
    try:
        return _toml(f"value = {text}", "--set")["value"]
    except tomllib.TOMLDecodeError:
        return text


def _toml(text: str, source: str) -> dict[str, Any]:
    """Parse TOML; a ValueError where it is nested too deep for the parser or its memory."""
    if any(line.count(".") > DOTS for line in text.splitlines()):
        raise ValueError(f"{source}: {TOO_DEEP}")
    try:
        return tomllib.loads(text)
    except RecursionError:
        raise ValueError(f"{source}: {TOO_DEEP}") from None
    except ValueError as error:  # also of whole numbers with too many digits
        raise tomllib.TOMLDecodeError(str(error)) from None


def _absolute(config: Config, folder: Path) -> Config:
    """Paths, relative to the config file, made absolute: the run's own config lies elsewhere."""
    paths = {name: getattr(config.data, name) for name in config.data.paths}
    absolute = {
        name: str((folder / path).resolve())
        for name, path in paths.items()
        if isinstance(path, str) and path
    }
    return config.model_copy(update={"data": config.data.model_copy(update=absolute)})
