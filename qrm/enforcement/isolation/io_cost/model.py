"""The lines of io.cost.model and io.cost.qos, and which parameters a disk is to have. Pure.

The format is the kernel's (cgroup-v2.rst; block/blk-iocost.c, ioc_cost_model_prfill and ioc_qos_prfill): a line for
each device, with percentages printed to two decimals. A value that is written makes `ctrl` "user"; with "auto" the
kernel goes back to its own values.
"""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

import msgspec

from qrm.config import IoCostModel, IoCostQos
from qrm.errors import ConfigError, ParseError

_PERCENT = re.compile(r"(\d+)\.(\d\d)", re.ASCII)
_PERCENTAGES = ("rpct", "wpct", "min", "max")


@dataclass(frozen=True, slots=True)
class Model:
    """What a disk can do at most: bytes a second, and 4 KiB operations a second in sequence and at random places."""

    rbps: int
    rseqiops: int
    rrandiops: int
    wbps: int
    wseqiops: int
    wrandiops: int


@dataclass(frozen=True, slots=True)
class Qos:
    """When a disk is saturated. Latencies are microseconds, all else is hundredths of a percent."""

    rpct: int
    rlat: int
    wpct: int
    wlat: int
    min: int
    max: int


@dataclass(frozen=True, slots=True)
class Params:
    """What one disk is to have."""

    model: Model
    qos: Qos


@dataclass(frozen=True, slots=True)
class ModelLine:
    """One device's line of io.cost.model."""

    user: bool
    """False: the values are the kernel's own (ctrl=auto)."""
    model: Model


@dataclass(frozen=True, slots=True)
class QosLine:
    """One device's line of io.cost.qos."""

    enable: bool
    """Whether costs count on this device at all."""
    user: bool
    """False: the values are the kernel's own (ctrl=auto)."""
    qos: Qos


MODEL_DEFAULT = "ctrl=auto"
"""Written behind the device's number, it leaves the model to the kernel, as before anybody wrote one."""
QOS_DEFAULT = "enable=0 ctrl=auto"


def format_model(line: ModelLine) -> str:
    """What to write behind the device's number."""
    return f"ctrl=user model=linear {_pairs(asdict(line.model))}" if line.user else MODEL_DEFAULT


def format_qos(line: QosLine) -> str:
    """What to write behind the device's number."""
    if not line.user:
        return f"enable={line.enable:d} ctrl=auto"
    values = {name: _percent(value) if name in _PERCENTAGES else value for name, value in asdict(line.qos).items()}
    return f"enable={line.enable:d} ctrl=user {_pairs(values)}"


def parse_models(text: str) -> dict[str, ModelLine]:
    """The lines of io.cost.model by the device's number; raises ParseError."""
    lines: dict[str, ModelLine] = {}
    for number, words in _lines(text):
        model = Model(**{each.name: _number(words, each.name, text) for each in fields(Model)})
        lines[number] = ModelLine(words.get("ctrl") == "user", model)
    return lines


def parse_qos(text: str) -> dict[str, QosLine]:
    """The lines of io.cost.qos by the device's number; raises ParseError."""
    lines: dict[str, QosLine] = {}
    for number, words in _lines(text):
        hundredths = {
            name: _PERCENT.sub(r"\1\2", value) if name in _PERCENTAGES else value for name, value in words.items()
        }
        qos = Qos(**{each.name: _number(hundredths, each.name, text) for each in fields(Qos)})
        lines[number] = QosLine(words.get("enable") == "1", words.get("ctrl") == "user", qos)
    return lines


def merge(base: Params | None, model: IoCostModel, qos: IoCostQos, default_qos: Qos) -> Params:
    """`base` with what the configuration says instead; without a base, the configuration has to say the whole model.

    Raises:
        ConfigError: the model is not whole, or min is above max; the message is for behind the device's name.
    """
    said = _said(model)
    if base is None:
        missing = [each.name for each in fields(Model) if each.name not in said]
        if missing:
            raise ConfigError(
                f"nothing is known about this disk, and its model lacks {', '.join(missing)}",
                hint="set its kind, or let `qrm calibrate-io` measure it",
            )
        base = Params(Model(**said), default_qos)
    asked = {name: round(value * 100) if name in _PERCENTAGES else int(value) for name, value in _said(qos).items()}
    merged = Params(replace(base.model, **said), replace(base.qos, **asked))
    if merged.qos.min > merged.qos.max:
        low, high = _percent(merged.qos.min), _percent(merged.qos.max)
        raise ConfigError(f"qos.min is {low} and above qos.max, which is {high}", hint="set both")
    return merged


def _said(section: IoCostModel | IoCostQos) -> dict[str, Any]:
    """The values that are set."""
    pairs = ((name, getattr(section, name)) for name in section.__struct_fields__)
    return {name: value for name, value in pairs if value is not msgspec.UNSET}


def _pairs(values: dict[str, Any]) -> str:
    return " ".join(f"{name}={value}" for name, value in values.items())


def _percent(hundredths: int) -> str:
    return f"{hundredths // 100}.{hundredths % 100:02d}"


def _lines(text: str) -> list[tuple[str, dict[str, str]]]:
    """Each device's number, and its words as they stand behind it."""
    split = [line.split() for line in text.splitlines()]
    return [(words[0], dict(word.split("=", 1) for word in words[1:] if "=" in word)) for words in split if words]


def _number(words: dict[str, str], name: str, text: str) -> int:
    value = words.get(name, "")
    if not (value.isascii() and value.isdecimal()):
        raise ParseError(f"{name} is {value!r}, which is no number, in {text[:300]!r}")
    return int(value)
