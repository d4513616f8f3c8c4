"""The allocator's own part of the configuration."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

import msgspec

from qrm.allocator.settings import convert_settings, unusable
from qrm.errors import ParseError
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


def read_settings(values: Mapping[str, object]) -> Settings:
    """The settings behind the keys and values of the configuration file.

    Raises:
        ConfigError: A key is unknown or a value is unusable; the message names both, the hint the remedy.
    """
    settings = convert_settings(Settings, values, _REMEDIES, allocator="memory")
    try:
        _check(settings.reserved)
    except ParseError as error:
        raise unusable("reserved", values, error.message, _REMEDIES, allocator="memory") from error
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
