"""From pydantic's errors to one line each: key, rule, value, fix, and the key probably meant."""

from __future__ import annotations

import difflib
import types
import typing
from collections.abc import Iterator
from typing import Any

from pydantic import BaseModel

# What other libraries and papers call a setting. Of several keys the first that the config has is
# meant.
SYNONYMS = {
    "rule.lr": ("learning_rate", "learningrate", "eta", "alpha", "step_size"),
    "rule.temperature": ("rho", "kl_weight", "beta_kl"),
    "rule.tau": ("gumbel_temperature", "relaxation"),
    "rule.name": ("algorithm", "method"),
    "train.epochs": ("n_epochs", "num_epochs", "max_epochs", "iterations"),
    "train.batch_size": ("batch", "batchsize", "bs", "minibatch"),
    "train.patience": ("early_stopping", "early_stop"),
    "train.schedule": ("scheduler", "lr_schedule", "lr_scheduler", "decay"),
    "train.threads": ("num_threads", "n_jobs", "workers", "num_workers"),
    "train.device": ("gpu", "cuda", "accelerator"),
    "train.precision": ("amp", "mixed_precision"),
    "train.members": ("networks", "n_networks"),
    "train.cycles": ("snapshots", "restarts"),
    "predict.samples": ("ensemble", "ensemble_size", "n_members", "num_samples", "n_samples"),
    "network.layers": (
        "hidden",
        "hidden_size",
        "hidden_sizes",
        "hidden_layers",
        "units",
        "neurons_per_layer",
    ),
    "network.dropout": ("dropout_rate", "p_drop"),
    "neuron.threshold": ("theta", "v_threshold", "v_th", "vth", "thresh"),
    "neuron.tau_mem": ("tau_m",),
    "neuron.tau_syn": ("tau_s",),
    "neuron.tau_ref": ("tau_r", "refractory"),
    "data.steps": ("T", "timesteps", "time_steps", "num_steps"),
    "encode.steps": ("T", "timesteps", "time_steps", "num_steps"),
    "data.bin_us": ("dt", "bin", "time_window"),
    "data.validation": ("val_split", "validation_split", "val"),
    "data.test_share": ("test_size", "test_split"),
    "seed": ("random_state", "random_seed"),
}


# Keys that there were, and why they are gone.
REMOVED = {
    "predict.readouts": "is gone: the mean of several readouts helped some recordings and harmed "
    "others; predictions come from the last layer's readout; leave it out",
}


def keys(model: type[BaseModel], prefix: str = "") -> Iterator[str]:
    """All valid keys of a config, dotted, but for those of sections of the user's own."""
    for name, field in model.model_fields.items():
        sections = sections_of(field.annotation)
        if not sections:
            yield prefix + name
        for section in sections:
            if "name" not in section.model_fields or name_of(section):
                yield from keys(section, f"{prefix}{name}.")


def sections_of(annotation: Any) -> list[type[BaseModel]]:
    """The kinds of section that a field takes, by name, for data and rule; none for a value."""
    union = typing.get_origin(annotation) in (typing.Union, types.UnionType)
    options = typing.get_args(annotation) if union else (annotation,)
    options = tuple(
        typing.get_args(option)[0] if typing.get_origin(option) is typing.Annotated else option
        for option in options
    )
    return [
        option for option in options if isinstance(option, type) and issubclass(option, BaseModel)
    ]


def name_of(section: type[BaseModel]) -> str | None:
    """The `name` by which a kind of data or rule is chosen; None for those of the user's own."""
    names = typing.get_args(section.model_fields["name"].annotation)
    return names[0] if names else None


def kinds_of(config: type[BaseModel], field: str) -> dict[str, Any]:
    """The kinds of section that a field takes, by name; "own" for one of the user's own."""
    return {
        name_of(option) or "own": option
        for option in sections_of(config.model_fields[field].annotation)
    }


def line(details: Any, settings: dict[str, Any], config: type[BaseModel]) -> str:
    """One pydantic error as one line: key, rule, value, fix."""
    location = [str(part) for part in details["loc"]]
    # Pydantic puts the variant's name behind the section's
    if len(location) > 1 and location[0] in ("data", "rule"):
        del location[1]
    # A number stands for a dense layer
    if location[-1:] == ["neurons"] and not isinstance(details["input"], dict):
        del location[-1]
    key, kind, context = ".".join(location), details["type"], details.get("ctx", {})
    if key in REMOVED:
        return f"{key}: {REMOVED[key]}"
    if kind == "extra_forbidden":
        return f"{key}: unknown key; {_nearest(key, settings, config)}"
    if kind == "missing":
        return f"{key}: is missing; add it"
    if kind == "union_tag_not_found" and not isinstance(details["input"], dict):
        return f"{key}: must be a section with a name; got {details['input']!r}"
    if kind == "union_tag_not_found":
        return f"{key}.name: is missing; give one of {_names(config, location[0])}"
    if kind == "union_tag_invalid":
        near = difflib.get_close_matches(
            context["tag"], _names(config, location[0]).split(", "), n=1
        )
        return (
            f"{key}.name: must be one of {_names(config, location[0])}; got {context['tag']!r}"
            + (f"; did you mean {near[0]!r}?" if near else "")
        )
    if kind == "value_error":
        return (f"{key}: " if key else "") + str(context["error"])
    message = details["msg"][0].lower() + details["msg"][1:].replace("should", "must", 1)
    message = message.removeprefix("input ")
    return f"{key}: {message}; got {details['input']!r}"


def _names(config: type[BaseModel], section: str) -> str:
    return ", ".join(name for name in kinds_of(config, section) if name != "own")


def _nearest(key: str, settings: dict[str, Any], config: type[BaseModel]) -> str:
    """The valid key that an unknown one was probably meant to be; best of its own section."""
    head, _, leaf = key.rpartition(".")
    own = [f"{head}.{name}" if head else name for name in _fields(head, settings, config)]
    every = list(keys(config))
    if key in every:
        return f"it belongs to another {head}; {settings[head].get('name')} has {', '.join(own)}"
    meant = [right for right, wrong in SYNONYMS.items() if leaf in wrong]
    if head.startswith("network.conv"):
        meant = []
    here = [
        right
        for right in meant
        if right.rpartition(".")[2] in _fields(right.rpartition(".")[0], settings, config)
    ]
    if meant and not here:
        section = meant[0].partition(".")[0]
        return (
            f"you may mean {meant[0]}, which {section} {settings[section].get('name')} does not "
            "have"
        )
    everywhere = {valid.rpartition(".")[2]: valid for valid in every}
    near = here or difflib.get_close_matches(key, own, n=1)
    near = near or [everywhere[name] for name in difflib.get_close_matches(leaf, everywhere, n=1)]
    return f"the nearest valid key is {near[0]}" if near else f"valid keys here: {', '.join(own)}"


def _fields(head: str, settings: dict[str, Any], config: type[BaseModel]) -> list[str]:
    """The keys of a section, of the kind that the settings have; none without a valid one."""
    if not head:
        return list(config.model_fields)
    section, _, below = head.partition(".")
    options = sections_of(config.model_fields[section].annotation)
    given = settings.get(section)
    name = given.get("name") if isinstance(given, dict) else None
    for option in options:
        if len(options) == 1 or name_of(option) == name:
            if not below:
                return list(option.model_fields)
            # Of a list, as network.conv
            (item,) = typing.get_args(option.model_fields[below.partition(".")[0]].annotation)
            return list(item.model_fields)
    return []
