"""The kernel's links, qdiscs, classes and filters: one request each, typed, with every write logged and counted.

Requests are made of pyroute2's messages rather than by its helpers, which compute bursts of their own, and all carry
NLM_F_ACK, without which pyroute2 waits for ever for an answer that does not come.
"""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Iterable, Sequence
from typing import Any

import structlog
from pyroute2 import IPRoute
from pyroute2.netlink import NLM_F_ACK, NLM_F_CREATE, NLM_F_DUMP, NLM_F_ECHO, NLM_F_EXCL, NLM_F_REPLACE, NLM_F_REQUEST
from pyroute2.netlink.exceptions import NetlinkError
from pyroute2.netlink.rtnl import (
    RTM_DELLINK,
    RTM_DELQDISC,
    RTM_DELTCLASS,
    RTM_DELTFILTER,
    RTM_GETLINK,
    RTM_GETQDISC,
    RTM_GETTCLASS,
    RTM_GETTFILTER,
    RTM_NEWLINK,
    RTM_NEWQDISC,
    RTM_NEWTCLASS,
    RTM_NEWTFILTER,
)
from pyroute2.netlink.rtnl.ifinfmsg import ifinfmsg
from pyroute2.netlink.rtnl.tcmsg import tcmsg

from qrm.enforcement.isolation.dimension import NotEnforced
from qrm.enforcement.isolation.traffic import messages
from qrm.enforcement.isolation.traffic.messages import HOOK, ROOT, Counters, Filter, Link, Qdisc
from qrm.enforcement.isolation.traffic.plan import HtbClass

log = structlog.get_logger(__name__)

ABSENT = (errno.ENOENT, errno.ENODEV, errno.EINVAL)
"""What the kernel says where the device, the qdisc or the class to be looked at or deleted is not there."""
_ADD = NLM_F_CREATE | NLM_F_EXCL
_PUT = NLM_F_CREATE | NLM_F_REPLACE
_MODULE = "the kernel says so where it has no such module"
_IFF_UP = 1


class TrafficError(NotEnforced):
    """The kernel refused a request."""

    def __init__(self, what: str, number: int, hint: str = "") -> None:
        self.errno = number
        name = errno.errorcode.get(number, str(number))
        super().__init__(f"{what} was refused with {name} ({os.strerror(number)})", hint=hint)


class Rtnl:
    """A netlink socket in the network namespace of the thread that makes it, for that thread alone."""

    def __init__(self) -> None:
        self._socket = IPRoute()
        self.writes = 0
        self.link(index=1)  # the kernel gives the socket its port with the first request
        with socket.socket(fileno=os.dup(self._socket.fileno())) as same:
            self.port: int = same.getsockname()[0]
        """What the kernel's notifications name as the author of our writes."""

    def close(self) -> None:
        """Give the socket back."""
        self._socket.close()

    # --- links

    def link(self, index: int = 0, name: str = "") -> Link | None:
        """One link by index or by name; None where there is none."""
        message = _link(index, [("IFLA_IFNAME", name)] if name else [])
        try:
            return next(map(messages.link, self._ask(message, RTM_GETLINK, 0, f"link {name or index}")), None)
        except TrafficError as error:
            if error.errno in ABSENT:
                return None
            raise

    def links(self, netnsid: int) -> Sequence[Link]:
        """All links of another network namespace, by the id that ours has for it; that namespace is not entered."""
        message = _link(0, [("IFLA_IF_NETNSID", netnsid)])
        return [messages.link(each) for each in self._ask(message, RTM_GETLINK, NLM_F_DUMP, f"links of {netnsid}")]

    def netnsid(self, namespace: int) -> int:
        """The id that our namespace has for the one behind the open file `namespace`; made where there is none yet.

        The kernel makes one itself as soon as a veth ends in both, and drops it with the namespace.
        """
        for _ in range(2):
            try:
                found = (self._socket.get_netnsid(fd=namespace) or {}).get("nsid")
                if found is not None and 0 <= found < 1 << 31:
                    return int(found)
                self._socket.set_netnsid(fd=namespace)
            except NetlinkError as error:
                if error.code != errno.EEXIST:
                    raise TrafficError("an id of the pod's network namespace", error.code) from None
        raise NotEnforced("the pod's network namespace gets no id")

    def add_ifb(self, name: str, queue: int) -> None:
        """Make an ifb that is up, with room for `queue` packets where HTB has no class for them."""
        kind = {"attrs": [("IFLA_INFO_KIND", "ifb")]}
        message = _link(0, [("IFLA_IFNAME", name), ("IFLA_TXQLEN", queue), ("IFLA_LINKINFO", kind)])
        message["flags"] = message["change"] = _IFF_UP
        self._write(message, RTM_NEWLINK, _ADD, f"{name}: an ifb")

    def set_up(self, link: Link) -> None:
        """Set a link up."""
        message = _link(link.index, [])
        message["flags"] = message["change"] = _IFF_UP
        self._write(message, RTM_NEWLINK, 0, f"{link.name}: up")

    def delete_link(self, link: Link) -> None:
        """Delete a link, and with it all that is on it."""
        self._write(_link(link.index, []), RTM_DELLINK, 0, f"{link.name}: its deletion")

    # --- qdiscs

    def qdiscs(self) -> Sequence[Qdisc]:
        """All of the namespace: the kernel knows no dump of one device."""
        return [messages.qdisc(each) for each in self._ask(tcmsg(), RTM_GETQDISC, NLM_F_DUMP, "qdiscs")]

    def hook(self, index: int) -> str:
        """The kind of the qdisc at a device's ingress hook, "ingress" or "clsact"; "" for none."""
        return self._qdisc_kind(index, HOOK)

    def root(self, index: int) -> str:
        """The kind of a device's root qdisc; "" for none."""
        return self._qdisc_kind(index, ROOT)

    def _qdisc_kind(self, index: int, parent: int) -> str:
        try:
            # The kernel answers a request for one qdisc as it notifies others: to the asker only with NLM_F_ECHO.
            found = self._ask(_tc(index, parent), RTM_GETQDISC, NLM_F_ECHO, f"qdisc of device {index}")
            return next((messages.qdisc(each).kind for each in found), "")
        except TrafficError as error:
            if error.errno in ABSENT:
                return ""
            raise

    def add_htb(self, device: Link, handle: int) -> None:
        """Make HTB a device's root qdisc; packets of no class pass it unshaped."""
        glob = {"version": 3, "rate2quantum": 10, "defcls": 0, "debug": 0, "direct_pkts": 0}
        message = _tc(device.index, ROOT, handle, "htb", [("TCA_HTB_INIT", glob)])
        self._write(message, RTM_NEWQDISC, _ADD, f"{device.name}: htb")

    def put_fq_codel(self, device: Link, parent: int, flows: int, target: int, interval: int) -> None:
        """Make fq_codel the qdisc of a class, in place of any other; times are in microseconds."""
        options = [
            ("TCA_FQ_CODEL_FLOWS", flows),
            ("TCA_FQ_CODEL_TARGET", target),
            ("TCA_FQ_CODEL_INTERVAL", interval),
        ]
        message = _tc(device.index, parent, 0, "fq_codel", options)
        self._write(message, RTM_NEWQDISC, _PUT, f"{device.name}: fq_codel below {parent & 0xFFFF:#x}")

    def add_clsact(self, device: Link) -> None:
        """Open both hooks of a device."""
        self._write(_tc(device.index, HOOK, HOOK & 0xFFFF0000, "clsact"), RTM_NEWQDISC, _ADD, f"{device.name}: clsact")

    def delete_qdisc(self, device: Link, parent: int) -> None:
        """Delete the qdisc at `parent`, and with it all that is below it."""
        self._write(_tc(device.index, parent), RTM_DELQDISC, 0, f"{device.name}: deletion of a qdisc")

    # --- classes

    def classes(self, index: int) -> dict[int, tuple[HtbClass, Counters]]:
        """All of a device's HTB classes by minor, and what has passed them."""
        found = self._ask(_tc(index, 0), RTM_GETTCLASS, NLM_F_DUMP, f"classes of device {index}")
        pairs = [(messages.htb_class(each), messages.counters(each)) for each in found if messages.kind(each) == "htb"]
        return {made.minor: (made, counted) for made, counted in pairs}

    def put_class(self, device: Link, wanted: HtbClass, old: HtbClass | None) -> None:
        """Make a class or give it other numbers; its parent cannot be changed."""
        parent = wanted.handle & 0xFFFF0000 | wanted.parent
        message = _tc(device.index, parent, wanted.handle, "htb", messages.htb_options(wanted))
        self._write(message, RTM_NEWTCLASS, _PUT, f"{device.name}: {_told(wanted)}", _told(old))

    def delete_class(self, device: Link, handle: int) -> None:
        """Delete a class that has none below it, and its qdisc."""
        self._write(_tc(device.index, 0, handle), RTM_DELTCLASS, 0, f"{device.name}: deletion of a class")

    # --- filters

    def filters(self, index: int, parent: int) -> Sequence[Filter]:
        """The filters at one hook, in the order in which packets meet them."""
        found = self._ask(_tc(index, parent), RTM_GETTFILTER, NLM_F_DUMP, f"filters of device {index}")
        return [messages.filter_(each) for each in found]

    def add_filter(self, device: Link, wanted: Filter, parent: int) -> None:
        """Make a matchall filter that sets the priority and redirects."""
        message = _tc(device.index, parent, wanted.handle, "matchall", messages.filter_options(wanted))
        message["info"] = messages.filter_info(wanted.preference)
        self._write(
            message, RTM_NEWTFILTER, _ADD, f"{device.name}: a filter to class {(wanted.priority or 0) & 0xFFFF:#x}"
        )

    def delete_filter(self, device: Link, found: Filter, parent: int) -> None:
        """Delete one filter."""
        message = _tc(device.index, parent, found.handle, found.kind)
        message["info"] = messages.filter_info(found.preference)
        self._write(message, RTM_DELTFILTER, 0, f"{device.name}: deletion of a filter")

    # --- one request

    def _ask(self, message: Any, kind: int, flags: int, what: str) -> Iterable[Any]:
        return self._exchange(message, kind, flags, f"reading {what}")

    def _write(self, message: Any, kind: int, flags: int, what: str, old: str = "") -> None:
        try:
            self._exchange(message, kind, flags, what)
        except TrafficError as error:
            if flags & NLM_F_CREATE and error.errno in (errno.ENOENT, errno.EOPNOTSUPP):
                raise TrafficError(what, error.errno, _MODULE) from None
            raise
        self.writes += 1
        log.info("written", netlink=what, old=old)

    def _exchange(self, message: Any, kind: int, flags: int, what: str) -> list[Any]:
        try:
            request = self._socket.put(message, msg_type=kind, msg_flags=NLM_F_REQUEST | NLM_F_ACK | flags)
            answers = list(self._socket.get(msg_seq=request.msg_seq))
        except NetlinkError as error:
            raise TrafficError(what, error.code) from None
        except OSError as error:
            raise TrafficError(what, error.errno or 0) from None
        return [each for each in answers if each["header"]["type"] not in messages.CONTROL]


def _link(index: int, attributes: list[tuple[str, Any]]) -> Any:
    message = ifinfmsg()
    message["index"] = index
    message["attrs"] = attributes
    return message


def _tc(index: int, parent: int, handle: int = 0, kind: str = "", options: list[tuple[str, Any]] | None = None) -> Any:
    message = tcmsg()
    message["index"], message["parent"], message["handle"] = index, parent, handle
    attributes: list[tuple[str, Any]] = [("TCA_KIND", kind)] if kind else []
    if options is not None:
        attributes.append(("TCA_OPTIONS", {"attrs": options}))
    message["attrs"] = attributes
    return message


def _told(made: HtbClass | None) -> str:
    if made is None:
        return ""
    return f"class {made.minor:#x} in {made.parent:#x}, {made.rate} to {made.ceil} bytes/s, priority {made.priority}"
