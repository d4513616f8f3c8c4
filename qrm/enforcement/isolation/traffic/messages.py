"""Netlink messages of links and tc to and from plain values. Pure."""

from __future__ import annotations

import socket
from dataclasses import dataclass
from typing import Any

from qrm.enforcement.isolation.traffic.plan import QUANTUM, HtbClass

ROOT = 0xFFFFFFFF
"""TC_H_ROOT (kernel uapi linux/pkt_sched.h, as all below)."""
HOOK = 0xFFFFFFF1
"""TC_H_CLSACT and TC_H_INGRESS: where one of the qdiscs clsact and ingress can be."""
INGRESS = 0xFFFFFFF2
"""Filters for what a device receives: TC_H_MAKE(TC_H_CLSACT, TC_H_MIN_INGRESS)."""
EGRESS = 0xFFFFFFF3
"""Filters for what a device sends."""
CONTROL = (2, 3)
"""NLMSG_ERROR, which is also the acknowledgement, and NLMSG_DONE."""

_ALL_PROTOCOLS = socket.htons(3)
"""ETH_P_ALL in network order."""
_PIPE, _STOLEN = 3, 4
"""TC_ACT_PIPE: the next action follows; TC_ACT_STOLEN: the packet has gone elsewhere."""
_EGRESS_REDIRECT = 1
"""TCA_EGRESS_REDIR of mirred."""
_U32 = 2**32 - 1


@dataclass(frozen=True, slots=True)
class Link:
    """A network device."""

    index: int
    name: str
    kind: str = ""
    """Such as veth or ifb; "" for hardware and the loopback device."""
    is_up: bool = True
    is_loopback: bool = False
    peer: int = 0
    """The index of the device that it is linked with: a veth's other end, a macvlan's lower device; 0 for none."""
    peer_netnsid: int | None = None
    """Where that device is; None: beside this one."""


@dataclass(frozen=True, slots=True)
class Qdisc:
    """A queueing discipline."""

    index: int
    kind: str
    handle: int
    parent: int


@dataclass(frozen=True, slots=True)
class Filter:
    """A filter; of others' only as much as tells that they are not ours."""

    kind: str
    preference: int
    handle: int
    priority: int | None = None
    """The priority that it gives to packets."""
    target: int = 0
    """The index of the device to which it redirects them; 0 for none."""


@dataclass(frozen=True, slots=True)
class Counters:
    """What a class has sent on and dropped so far."""

    bytes: int = 0
    packets: int = 0
    drops: int = 0


def kind(message: Any) -> str:
    """The kind of a qdisc, class or filter."""
    return str(message.get_attr("TCA_KIND") or "")


def link(message: Any) -> Link:
    """A link."""
    return Link(
        index=message["index"],
        name=str(message.get_attr("IFLA_IFNAME") or ""),
        kind=str(message.get_nested("IFLA_LINKINFO", "IFLA_INFO_KIND") or ""),
        is_up=bool(message["flags"] & 1),
        is_loopback=bool(message["flags"] & 8),
        peer=message.get_attr("IFLA_LINK") or 0,
        peer_netnsid=message.get_attr("IFLA_LINK_NETNSID"),
    )


def qdisc(message: Any) -> Qdisc:
    """A qdisc."""
    return Qdisc(message["index"], kind(message), message["handle"], message["parent"])


def htb_class(message: Any) -> HtbClass:
    """An HTB class; one that others have made may have numbers that no plan has."""
    options = message.get_attr("TCA_OPTIONS")
    parms = options.get_attr("TCA_HTB_PARMS")
    parent = 0 if message["parent"] == ROOT else message["parent"] & 0xFFFF
    return HtbClass(
        minor=message["handle"] & 0xFFFF,
        parent=parent,
        rate=options.get_attr("TCA_HTB_RATE64") or parms["rate"],
        ceil=options.get_attr("TCA_HTB_CEIL64") or parms["ceil"],
        buffer=parms["buffer"],
        cbuffer=parms["cbuffer"],
        priority=parms["prio"],
    )


def htb_options(wanted: HtbClass) -> list[tuple[str, Any]]:
    """The attributes of an HTB class; rates of 4 GiB/s (34 Gbit/s) and more need the 64-bit ones."""
    parms = {
        "rate": min(wanted.rate, _U32),
        "ceil": min(wanted.ceil, _U32),
        "buffer": wanted.buffer,
        "cbuffer": wanted.cbuffer,
        "quantum": QUANTUM,
        "prio": wanted.priority or 0,
    }
    options: list[tuple[str, Any]] = [("TCA_HTB_PARMS", parms)]
    if wanted.rate >= _U32:
        options.append(("TCA_HTB_RATE64", wanted.rate))
    if wanted.ceil >= _U32:
        options.append(("TCA_HTB_CEIL64", wanted.ceil))
    return options


def counters(message: Any) -> Counters:
    """A class's."""
    stats = message.get_attr("TCA_STATS2")
    if stats is None:
        return Counters()
    basic, queue = stats.get_attr("TCA_STATS_BASIC") or {}, stats.get_attr("TCA_STATS_QUEUE") or {}
    return Counters(basic.get("bytes", 0), basic.get("packets", 0), queue.get("drops", 0))


def filter_(message: Any) -> Filter:
    """A filter."""
    options = message.get_attr("TCA_OPTIONS")
    made = Filter(kind(message), message["info"] >> 16, message["handle"])
    if made.kind != "matchall" or options is None:
        return made
    priority, target = None, 0
    for _, action in (options.get_attr("TCA_MATCHALL_ACT") or {"attrs": ()})["attrs"]:
        name, told = action.get_attr("TCA_ACT_KIND"), action.get_attr("TCA_ACT_OPTIONS")
        if name == "skbedit":
            priority = told.get_attr("TCA_SKBEDIT_PRIORITY")
        elif name == "mirred" and (parms := told.get_attr("TCA_MIRRED_PARMS"))["eaction"] == _EGRESS_REDIRECT:
            target = parms["ifindex"]
    return Filter(made.kind, made.preference, made.handle, priority, target)


def filter_options(wanted: Filter) -> list[tuple[str, Any]]:
    """The attributes of a matchall filter that sets the priority and redirects."""
    edit = {"attrs": [("TCA_SKBEDIT_PARMS", {"action": _PIPE}), ("TCA_SKBEDIT_PRIORITY", wanted.priority)]}
    parms = {"action": _STOLEN, "eaction": _EGRESS_REDIRECT, "ifindex": wanted.target}
    actions = [
        ("TCA_ACT_PRIO_1", {"attrs": [("TCA_ACT_KIND", "skbedit"), ("TCA_ACT_OPTIONS", edit)]}),
        (
            "TCA_ACT_PRIO_2",
            {"attrs": [("TCA_ACT_KIND", "mirred"), ("TCA_ACT_OPTIONS", {"attrs": [("TCA_MIRRED_PARMS", parms)]})]},
        ),
    ]
    return [("TCA_MATCHALL_ACT", {"attrs": actions})]


def filter_info(preference: int) -> int:
    """The field tcm_info: where in the order, and for which protocols."""
    return preference << 16 | _ALL_PROTOCOLS
