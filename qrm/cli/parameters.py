"""Values on the command line that are more than a text or a number."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from qrm.config import Config, load
from qrm.errors import ParseError
from qrm.pods import qos
from qrm.units import parse_millis, parse_quantity

_KNOWN = (
    qos.QOS_LEVEL,
    qos.CPU_ENHANCEMENT,
    qos.MEMORY_ENHANCEMENT,
    qos.NETWORK_ENHANCEMENT,
    qos.NUMA_NUMBER,
    qos.NUMA_IDS,
    qos.MEMORY_ONLY_NODES,
)

Command = TypeVar("Command", bound=Callable[..., Any])


def config_option(command: Command) -> Command:
    """`--config FILE`, as the parameter `config_file`."""
    text = "The configuration file; the built-in defaults without it."
    return click.option("--config", "config_file", type=click.Path(path_type=Path), metavar="FILE", help=text)(command)


def read_config(file: Path | None) -> Config:
    """The configuration in `file`, or the defaults; raises ConfigError."""
    return load(file) if file else Config()


class Quantity(click.ParamType[int]):
    """A CPU quantity as Kubernetes writes it, in millicores."""

    name = "quantity"

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Called by click."""
        try:
            return parse_millis(value)
        except ParseError as error:
            self.fail(str(error), param, ctx)


class Bytes(click.ParamType[int]):
    """An amount of bytes as Kubernetes writes it."""

    name = "bytes"

    def convert(self, value: str | int, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Called by click."""
        try:
            amount = int(parse_quantity(str(value)))
        except ParseError as error:
            self.fail(str(error), param, ctx)
        if amount < 1:
            self.fail(f"{value!r} is less than one byte", param, ctx)
        return amount


class Annotation(click.ParamType[tuple[str, str]]):
    """KEY=VALUE. A key without a domain is one of Katalyst's, and those are checked, since a typo would ask nothing."""

    name = "annotation"

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, str]:
        """Called by click."""
        key, equals, text = value.partition("=")
        if not equals:
            self.fail(f"{value!r} is not KEY=VALUE", param, ctx)
        if "/" not in key:
            key = f"{qos.DOMAIN}{key}"
        if key.startswith(qos.DOMAIN) and key not in _KNOWN:
            known = ", ".join(each.removeprefix(qos.DOMAIN) for each in _KNOWN)
            self.fail(f"{key!r} means nothing to qrm; known are {known}", param, ctx)
        return key, text


QUANTITY = Quantity()
BYTES = Bytes()
ANNOTATION = Annotation()
