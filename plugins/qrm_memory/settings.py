"""The allocator's own part of the configuration."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated

import msgspec

from qrm.errors import ConfigError, ParseError
from qrm.units import parse_quantity

Size = Annotated[int, msgspec.Meta(ge=0)] | str
"""A number of bytes or a Kubernetes quantity."""


class Settings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What an operator can set for the memory allocator."""

    reserved: Size | dict[str, Size] = 0
    """Memory that containers are never promised: one quantity for each NUMA node, or quantities by NUMA node.

    Memory that is set aside for hugepages is not counted anyway. NUMA nodes that the machine does not have are left
    out. Default: none. Source: Katalyst's --memory-resource-plugin-reserved and
    --memory-resource-plugin-numa-reserved, which are in GB.
    """

    def reserved_on(self, node: int) -> int:
        """The bytes that are reserved on a NUMA node."""
        sizes = self.reserved
        return _size(sizes.get(str(node), 0) if isinstance(sizes, dict) else sizes)


_REMEDIES = {"reserved": 'write a quantity such as "2Gi" for each NUMA node, or quantities by node, such as 0 = "2Gi"'}
_FIELD = re.compile(r"`(?:\$\.)?(\w+)[^`]*`$")
"""msgspec ends its messages with the field at fault."""


def read_settings(values: Mapping[str, object]) -> Settings:
    """The settings behind the keys and values of the configuration file.

    Raises:
        ConfigError: A key is unknown or a value is unusable; the message names both, the hint the remedy.
    """
    try:
        settings = msgspec.convert(dict(values), Settings)
    except msgspec.ValidationError as error:
        match = _FIELD.search(str(error))
        raise _unusable(match[1] if match else "", values, str(error).partition(" - at ")[0]) from error
    try:
        _check(settings.reserved)
    except ParseError as error:
        raise _unusable("reserved", values, error.message) from error
    return settings


def _size(size: int | str) -> int:
    """Bytes, rounded up; raises ParseError."""
    return size if isinstance(size, int) else int(parse_quantity(size).to_integral_value(rounding="ROUND_CEILING"))


def _check(reserved: int | str | dict[str, int | str]) -> None:
    if not isinstance(reserved, dict):
        _size(reserved)
        return
    for node, size in reserved.items():
        if not (node.isascii() and node.isdigit() and str(int(node)) == node):
            raise ParseError(f"{node!r} is not a NUMA node")
        _size(size)


def _unusable(name: str, values: Mapping[str, object], problem: str) -> ConfigError:
    remedy = _REMEDIES.get(name, f"the settings of memory are {', '.join(_REMEDIES)}")
    return ConfigError(f"memory: {name} = {values.get(name)!r} is not usable: {problem}", hint=remedy)
