"""The allocator's own part of the configuration."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

import msgspec

from qrm.allocator.settings import convert_settings, unusable
from qrm.cpuset import CPUSet
from qrm.errors import ParseError


class Settings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What an operator can set for the CPU allocator."""

    reserved: Annotated[int, msgspec.Meta(ge=0)] | str = 0
    """CPUs that only system containers may use: a list in kernel format such as "0,32", or how many of them.

    A number is taken as whole cores, one NUMA node after the other, lowest ids first. Default: none. Source: Katalyst's
    --cpu-resource-plugin-reserved-list and --cpu-resource-plugin-reserved, which splits cores where this does not.
    """

    reclaim_overlap: bool = True
    """Whether reclaimed containers run on the idle CPUs of the share pool; otherwise they get CPUs of their own.

    Default: true. Source: Katalyst's allow_shared_cores_overlap_reclaimed_cores.
    """

    reclaim_min: Annotated[int, msgspec.Meta(ge=1)] = 4
    """The smallest reclaim pool in CPUs, raised to the number of NUMA nodes where there are more of them.

    Default: 4. Source: Katalyst's reservedReclaimedCPUsSize, max(4, number of NUMA nodes).
    """

    @property
    def reserved_list(self) -> CPUSet | None:
        """The reserved CPUs by id; None where `reserved` is a number."""
        return CPUSet.parse(self.reserved) if isinstance(self.reserved, str) else None


_REMEDIES = {
    "reserved": 'write a CPU list such as "0,32" or a number of CPUs such as 2',
    "reclaim_overlap": "write true or false",
    "reclaim_min": "write a number of CPUs, 1 or more",
}


def read_settings(values: Mapping[str, object]) -> Settings:
    """The settings behind the keys and values of the configuration file.

    Raises:
        ConfigError: a key is unknown or a value is unusable; the message names both, the hint the remedy.
    """
    settings = convert_settings(Settings, values, _REMEDIES, allocator="cpu")
    try:
        _ = settings.reserved_list
    except ParseError as error:
        raise unusable("reserved", values, error.message, _REMEDIES, allocator="cpu") from error
    return settings
