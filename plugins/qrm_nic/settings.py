"""The allocator's own part of the configuration."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from ipaddress import IPv4Address, IPv6Address
from typing import Annotated, TypeVar

import msgspec

from qrm.allocator.settings import convert_settings
from qrm.errors import ConfigError

_Table = TypeVar("_Table")
_Ratio = Annotated[float, msgspec.Meta(gt=0, le=1)]


class NicSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What an operator can say about one NIC, where sysfs says nothing or something else."""

    speed: Annotated[int, msgspec.Meta(ge=1)] | None = None
    """Mbit/s. Default: what sysfs says."""

    node: Annotated[int, msgspec.Meta(ge=0)] | None = None
    """The NUMA node that it is attached to. Default: what sysfs says."""

    namespace: str = ""
    """The network namespace that it is in; empty, the default, for the host's.

    A NIC in another namespace is not in the host's sysfs: naming it here is the only way to have it used, and it is
    taken to be up.
    """

    ipv4: str = ""
    """The address that pods on it are told. Default: its first one, where the kernel lets it be seen."""

    ipv6: str = ""
    """The address that pods on it are told. Default: its first one, where the kernel lets it be seen."""

    netns_path: str = ""
    """The path of its network namespace that pods on it are told. Default: none."""

    ignore: bool = False
    """Whether it is kept from new pods. Default: false."""


class Settings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What an operator can set for the NIC allocator."""

    egress_ratio: _Ratio = 0.94
    """The part of a NIC's speed that containers can be promised for sending; the rest is headers and headroom.

    Default: 0.94. Source: Katalyst's --network-resource-plugin-egress-capacity-rate.
    """

    ingress_ratio: _Ratio = 0.90
    """The same for receiving. Default: 0.90. Source: Katalyst's --network-resource-plugin-ingress-capacity-rate."""

    reserved: Annotated[int, msgspec.Meta(ge=0)] = 0
    """Mbit/s in each direction that are kept for the system, on the first NIC by name in the host's network namespace.

    Default: 0. Source: Katalyst's --network-resource-plugin-reserved-bandwidth, which is on the first NIC too.
    """

    assume_speed: Annotated[int, msgspec.Meta(ge=0)] = 0
    """Mbit/s of NICs whose speed neither sysfs nor `nics` tells; 0: these are not used. Default: 0."""

    nics: dict[str, NicSettings] = {}
    """By name, what is to be known about single NICs."""


_REMEDIES = {
    "egress_ratio": "write a number above 0 and up to 1, such as 0.94",
    "ingress_ratio": "write a number above 0 and up to 1, such as 0.9",
    "reserved": "write whole Mbit/s, 0 or more",
    "assume_speed": "write whole Mbit/s, or 0 to leave such NICs alone",
    "nics": "write a table for each NIC by its name, such as [allocators.nic.nics.eth0]",
}
_NIC_REMEDIES = {
    "speed": "write whole Mbit/s, 1 or more, such as 10000",
    "node": "write the number of a NUMA node, such as 0",
    "namespace": 'write the name of a network namespace, or "" for the host\'s',
    "ipv4": "write one address, such as 192.0.2.7",
    "ipv6": "write one address, such as 2001:db8::7",
    "netns_path": "write a path, such as /run/netns/blue",
    "ignore": "write true or false",
}


def read_settings(values: Mapping[str, object]) -> Settings:
    """The settings behind the keys and values of the configuration file.

    Raises:
        ConfigError: A key is unknown or a value is unusable; the message names both, the hint the remedy.
    """
    # NICs come first and one by one, because msgspec does not say in which of them it stumbled.
    nics = values.get("nics")
    if isinstance(nics, Mapping):
        for name, table in nics.items():
            _check_nic(f"nics.{name}", table)
    return convert_settings(Settings, values, _REMEDIES, allocator="nic")


def _check_nic(place: str, table: object) -> None:
    if not isinstance(table, Mapping):
        raise ConfigError(f"nic: {place} = {table!r} is not usable: it is no table", hint=_REMEDIES["nics"])
    nic = convert_settings(NicSettings, table, _NIC_REMEDIES, allocator="nic", within=f"{place}.")
    _check_address(place, "ipv4", nic.ipv4, IPv4Address)
    _check_address(place, "ipv6", nic.ipv6, IPv6Address)


def _check_address(place: str, field: str, text: str, parse: Callable[[str], object]) -> None:
    try:
        _ = parse(text) if text else None
    except ValueError as error:
        raise ConfigError(
            f"nic: {place}.{field} = {text!r} is not usable: {error}", hint=_NIC_REMEDIES[field]
        ) from error
