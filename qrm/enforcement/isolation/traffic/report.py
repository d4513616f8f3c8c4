"""What `qrm explain` says of a pod's traffic."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from qrm.enforcement.isolation.dimension import Fact
from qrm.enforcement.isolation.traffic import hooks
from qrm.enforcement.isolation.traffic.devices import Devices
from qrm.enforcement.isolation.traffic.messages import Counters
from qrm.enforcement.isolation.traffic.plan import HtbClass
from qrm.enforcement.isolation.traffic.rtnl import Rtnl

_HOST = "not enforced: the pod has the host's network, where no device is its own"
_BITS_PER_MBIT = 1_000_000


def facts(
    rtnl: Rtnl,
    name: str,
    wanted: Sequence[HtbClass],
    seen: Sequence[tuple[str, Mapping[int, tuple[HtbClass, Counters]]]],
    devices: Devices,
) -> Sequence[Fact]:
    """What a pod of the class of traffic `name` is to have, and what the kernel has.

    `wanted` and `seen` are about what it sends and what it receives, in this order; the latter with the trees' names.
    """
    if devices.is_host:
        return [Fact("network class", name, _HOST)]
    found = [Fact("network device", "a veth", f"not enforced: {other}") for other in devices.others]
    minors = [hooks.minor_of(rtnl, veth.host) for veth in devices.veths]
    for veth, minor in zip(devices.veths, minors, strict=True):
        text = "" if minor is None else f"class {minor:#x}"
        if not text and (at := rtnl.hook(veth.host.index)) not in ("", hooks.CLSACT):
            text = f"not enforced: an {at} qdisc of somebody else"
        found.append(Fact(f"network filters of {veth.inside}", f"class {wanted[0].minor:#x}", text))
    if minors:
        minor = next((each for each in minors if each is not None), wanted[0].minor)
        for asked, (tree, classes) in zip(wanted, seen, strict=True):
            there, counted = classes.get(minor, (None, Counters()))
            text = _described(name, there) if there is not None else ""
            if there is not None and there.parent != asked.parent:
                text = f"another class, {text}"
            found.append(Fact(tree.replace("qrm-", "network "), _described(name, asked), text))
            drops = str(counted.drops)
            found.append(Fact(tree.replace("qrm-", "network packets dropped, "), drops, drops))
    return found


def mbit(bits: int) -> str:
    """A rate in bit/s as people say it."""
    return f"{bits / _BITS_PER_MBIT:g} Mbit/s"


def _described(name: str, made: HtbClass) -> str:
    return f"{name}, at most {mbit(made.ceil * 8)}, priority {made.priority}"
