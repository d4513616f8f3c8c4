"""What the HTB trees are to look like: rates and class ids out of the configuration and pods' annotations. Pure.

A pod's own rate is next to nothing: what it sends beyond it borrows from its class, in turn with the class's other
pods, and only what the class has not got is borrowed from the node. HTB lends first from the classes that are within
their own rate and then from the root, so each class has its guaranteed rate whatever others send, and pods can come and
go without a change of anybody else's numbers.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from qrm.config import NetworkClass, NetworkSection
from qrm.errors import ConfigError
from qrm.pods.declared import bandwidth
from qrm.pods.model import NET_EGRESS, NET_INGRESS

MAJOR = 0x7172
"""Of our HTB qdiscs ("qr"). Packets keep their class id as priority behind us, and a qdisc elsewhere takes it for one
of its own classes if it has the same major, so it is none that people use."""
ROOT_MINOR = 1
CLASS_MINORS = range(2, 16)
POD_MINORS = range(0x10, 0x10000, 0x10)
"""Multiples of 16: qdiscs that go by the lowest four bits of the priority (pfifo_fast, mqprio) see ordinary traffic."""
QUANTUM = 1 << 16
"""Bytes a pod sends in its turn: the largest packet before segmentation, so that turns are fair in bytes."""

_BITS_PER_MBIT = 1_000_000
_LEAST = 8_000
"""Bit/s: a pod's own rate, and the least that a class can have."""
_LARGEST_FRAME = 1600
"""Bytes; an Ethernet frame with all its headers, as tc assumes."""
_TIMER = 250
"""Hz; tc-htb wants a burst of at least what is sent between two ticks. Distributions use 250 to 1000."""
_LATE = 50
"""Per second: a node under load may come back to a class only after 20 ms, and what exceeds the burst by then is lost
to it. On a slow machine a ceiling of 20 Mbit/s was measured at 14 to 17 with the 4 ms of `_TIMER`, at 19 with 20 ms."""
_LARGE = 1 << 20
"""Bytes of burst beyond which `_TIMER` is enough, so that fast classes do not crowd out the others."""
_TICK = 64
"""Nanoseconds in which HTB counts bursts (kernel include/net/pkt_sched.h, PSCHED_SHIFT)."""
_LONGEST_BURST = 2**32 - 1


@dataclass(frozen=True, slots=True)
class HtbClass:
    """One class, in the kernel's own units, so that what it is to be can be compared with what the kernel says."""

    minor: int
    parent: int
    """A minor; 0 for the qdisc itself."""
    rate: int
    """Bytes per second."""
    ceil: int
    """Bytes per second."""
    buffer: int
    """Ticks that a full burst takes at `rate`."""
    cbuffer: int
    """Ticks that a full burst takes at `ceil`."""
    priority: int | None = None
    """Of a class without classes below it; None for the others, where the kernel knows none."""

    @property
    def handle(self) -> int:
        """The class id, which is the priority that packets of this class carry."""
        return MAJOR << 16 | self.minor


@dataclass(frozen=True, slots=True)
class Trunk:
    """What all pods' classes hang on."""

    root: HtbClass
    classes: Mapping[str, HtbClass]
    """By the name in the configuration."""

    def all(self) -> tuple[HtbClass, ...]:
        """Parents first."""
        return (self.root, *self.classes.values())


@dataclass(frozen=True, slots=True)
class Ceilings:
    """The most that one pod may send and receive, in bit/s."""

    egress: int
    ingress: int


def trunk(section: NetworkSection, node: int) -> Trunk:
    """The classes of a node that can send and receive `node` bit/s.

    Raises:
        ConfigError: The classes do not fit into it, or contradict themselves.
    """
    names = sorted(section.classes)
    if len(names) > len(CLASS_MINORS):
        raise ConfigError(f"network.classes: {len(names)} of them, allowed: {len(CLASS_MINORS)}")
    made, promised = {}, 0
    for minor, name in zip(CLASS_MINORS, names, strict=False):
        rate, ceil = _rates(name, section.classes[name], node)
        promised += rate
        made[name] = _htb(minor, ROOT_MINOR, max(rate, _LEAST), ceil)
    if promised > node:
        raise ConfigError(
            f"network.classes: {_mbit(promised)} Mbit/s are guaranteed in all, the node has {_mbit(node)}",
            hint="lower guaranteed, or set network.rate_mbit if the node has more",
        )
    return Trunk(_htb(ROOT_MINOR, 0, node, node), made)


def ceilings(klass: NetworkClass, most: int, annotations: Mapping[str, str]) -> Ceilings:
    """What a pod of a class that may have `most` bit/s may have itself.

    Raises:
        BadRequest: An annotation is no bandwidth.
    """
    asked = bandwidth(annotations)
    usual = min(most, klass.pod_maximal_mbit * _BITS_PER_MBIT or most)
    return Ceilings(min(usual, asked.get(NET_EGRESS, usual)), min(usual, asked.get(NET_INGRESS, usual)))


def leaf(minor: int, parent: HtbClass, klass: NetworkClass, ceil: int) -> HtbClass:
    """A pod's class below its class of traffic, with at most `ceil` bit/s."""
    return _htb(minor, parent.minor, min(_LEAST, ceil), ceil, klass.priority)


def most(klass: HtbClass) -> int:
    """A class's ceiling in bit/s."""
    return klass.ceil * 8


def free_minor(used: Collection[int]) -> int | None:
    """The lowest class id for a pod that is in nobody's use; None where all 4095 are taken."""
    return next((minor for minor in POD_MINORS if minor not in used), None)


def _rates(name: str, klass: NetworkClass, node: int) -> tuple[int, int]:
    rate, ceil = _share(klass.guaranteed, node), min(node, _share(klass.maximal, node))
    if ceil < _LEAST:
        raise ConfigError(f"network.classes.{name}.maximal = {klass.maximal!r}: nothing at all cannot be enforced")
    if rate > ceil:
        raise ConfigError(
            f"network.classes.{name}.guaranteed = {klass.guaranteed!r}: more than its maximal, {_mbit(ceil)} Mbit/s"
        )
    return rate, ceil


def _share(text: str, whole: int) -> int:
    """Bit/s of "40%" or of a number in Mbit/s."""
    return whole * int(text[:-1]) // 100 if text.endswith("%") else int(text) * _BITS_PER_MBIT


def _htb(minor: int, parent: int, rate: int, ceil: int, priority: int | None = None) -> HtbClass:
    slow, fast = rate // 8, ceil // 8
    return HtbClass(minor, parent, slow, fast, _buffer(slow), _buffer(fast), priority)


def _buffer(rate: int) -> int:
    """The burst at `rate` bytes per second, in ticks."""
    burst = max(rate // _TIMER, min(rate // _LATE, _LARGE)) + _LARGEST_FRAME
    return min(_LONGEST_BURST, -(-burst * 1_000_000_000 // (rate * _TICK)))


def _mbit(bits: int) -> str:
    return f"{bits / _BITS_PER_MBIT:g}"
