"""How much the node can send and receive: the speed of the device with the default route."""

from __future__ import annotations

from pathlib import Path

from qrm.config import NetworkSection
from qrm.enforcement.isolation.dimension import NotEnforced

_BITS_PER_MBIT = 1_000_000
_REMEDY = "set network.rate_mbit to what the node can send and receive, in Mbit/s"


def node_rate(section: NetworkSection, sysfs: Path, proc: Path) -> int:
    """In bit/s.

    Raises:
        NotEnforced: It is not configured, and no device tells.
    """
    if section.rate_mbit:
        return section.rate_mbit * _BITS_PER_MBIT
    device = default_device(proc)
    if not device:
        raise NotEnforced("no device has a default route", hint=_REMEDY)
    try:
        speed = int((sysfs / "class/net" / device / "speed").read_text())
    except (OSError, ValueError):
        speed = -1  # as of a device that is down; a virtual one refuses to be read
    if speed <= 0:
        raise NotEnforced(f"{device} tells no speed", hint=_REMEDY)
    return speed * _BITS_PER_MBIT


def default_device(proc: Path) -> str:
    """The device of the default route with the lowest metric, IPv4's before IPv6's; "" for none."""
    routes = [
        (int(fields[6]), fields[0])
        for fields in _lines(proc / "net/route")
        if len(fields) > 7 and fields[1] == fields[7] == "00000000"  # Destination and Mask
    ]
    routes = routes or [
        (int(fields[5], 16), fields[9])
        for fields in _lines(proc / "net/ipv6_route")
        if len(fields) > 9 and fields[0] == "0" * 32 and fields[1] == "00" and fields[9] != "lo"
    ]
    return min(routes, default=(0, ""))[1]


def _lines(path: Path) -> list[list[str]]:
    try:
        return [line.split() for line in path.read_text().splitlines()]
    except OSError:
        return []
