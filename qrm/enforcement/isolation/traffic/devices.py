"""Where a pod's traffic passes on the host: the other ends of its veths. Nothing is entered, nothing written."""

from __future__ import annotations

import errno
import os
from dataclasses import dataclass
from pathlib import Path

from qrm.enforcement.isolation.dimension import NotEnforced
from qrm.enforcement.isolation.traffic.messages import Link
from qrm.enforcement.isolation.traffic.rtnl import Rtnl, TrafficError

_OWN_NAMESPACE = Path("/proc/thread-self/ns/net")
_VIRTUAL_FUNCTION = (
    "a device of its own, such as an SR-IOV virtual function: its traffic does not pass the host's stack"
)
_NOT_SHAPED = "its traffic does not pass a veth, where qrm shapes"


class NamespaceGone(NotEnforced):
    """The pod's network namespace is not there any more."""


@dataclass(frozen=True, slots=True)
class Veth:
    """A pair of which one end is the pod's."""

    inside: str
    """The name that the pod sees, such as eth0."""
    host: Link


@dataclass(frozen=True, slots=True)
class Devices:
    """What connects a pod with the world."""

    is_host: bool = False
    """The pod has the host's network namespace and nothing of its own."""
    veths: tuple[Veth, ...] = ()
    others: tuple[str, ...] = ()
    """Each with its kind and why it cannot be shaped."""


def find(rtnl: Rtnl, netns: str) -> Devices:
    """The devices of the pod whose network namespace is at the path `netns`; "" stands for the host's.

    Raises:
        NamespaceGone: There is none.
        NotEnforced: The kernel would not tell.
    """
    if not netns:
        return Devices(is_host=True)
    try:
        namespace = os.open(netns, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ESRCH):
            raise NamespaceGone(f"{netns}: the network namespace is gone") from None
        raise NotEnforced(f"{netns}: cannot be opened: {error.strerror}") from None
    try:
        if os.path.samestat(os.fstat(namespace), _OWN_NAMESPACE.stat()):
            return Devices(is_host=True)
        netnsid = rtnl.netnsid(namespace)
        return _sorted(rtnl, netnsid)
    except TrafficError as error:
        if error.errno == errno.EINVAL:  # what was mounted there when we looked is not a network namespace now
            raise NamespaceGone(f"{netns}: no network namespace") from None
        raise
    finally:
        os.close(namespace)


def _sorted(rtnl: Rtnl, netnsid: int) -> Devices:
    veths, others = [], []
    for inside in rtnl.links(netnsid):
        if inside.is_loopback or (inside.kind and inside.peer_netnsid is None):
            continue  # made by the pod itself and connected with nothing outside
        host = _other_end(rtnl, inside, netnsid) if inside.kind == "veth" else None
        if host is not None:
            veths.append(Veth(inside.name, host))
        elif inside.kind != "veth":
            others.append(f"{inside.name} is {_described(inside.kind)}")
    return Devices(False, tuple(veths), tuple(others))


def _other_end(rtnl: Rtnl, inside: Link, netnsid: int) -> Link | None:
    """The host's end of a veth; None where the other end is in a third namespace.

    Both ends have to name each other: which namespace `peer_netnsid` means, only the pod's own ids tell.
    """
    host = rtnl.link(inside.peer)
    if host is None or host.kind != "veth" or (host.peer, host.peer_netnsid) != (inside.index, netnsid):
        return None
    return host


def _described(kind: str) -> str:
    return f"{kind}: {_NOT_SHAPED}" if kind else _VIRTUAL_FUNCTION
