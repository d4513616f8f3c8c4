"""How the text of one annotation value becomes a number, a name or a set.

A `Reader` is given the text and the pod's level; it answers with the value, or raises `NotAllowed` with what is.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

import msgspec

from qrm.config import IoLimits
from qrm.cpuset import NodeSet
from qrm.errors import ParseError
from qrm.pods.model import QosLevel

Reader = Callable[[str, QosLevel], Any]

MAX_NODES = 1024
"""More NUMA nodes than any kernel is built for (NODES_SHIFT in mm/Kconfig is at most 10)."""

_OOM_PRIORITIES = {
    QosLevel.RECLAIMED: range(-100, 0),
    QosLevel.SHARED: range(100),
    QosLevel.DEDICATED: range(100, 200),
    QosLevel.SYSTEM: range(200, 300),
}
"""Katalyst api consts/qos, PodAnnotationMemoryEnhancementOOMPriority."""
_OOM_IGNORED, _OOM_TOP = -300, 300
"""The two priorities that a pod of any level may have (same place)."""

_POOL_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,61}[A-Za-z0-9])?")
_POOLS_OF_THE_NODE = re.compile(r"(?:dedicated|fallback|interrupt|reclaim|reserve)|(?:isolation|system).*|.*-NUMA.*")
"""Pools that exist for something else than shared_cores (Katalyst qrm-plugins commonstate/pool)."""
_WHOLE = re.compile(r"-?[0-9]{1,9}")
_NUMBER = re.compile(r"[0-9]{1,9}(?:\.[0-9]{1,9})?")


class NotAllowed(Exception):
    """The value is not one of those that its text, which follows "allowed: ", describes."""


def without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """The members of a JSON object, for `json.loads`; raises ValueError for two of one name."""
    members: dict[str, Any] = {}
    for name, value in pairs:
        if name in members:
            raise ValueError(f"{name!r} is there twice")
        members[name] = value
    return members


def flag(text: str, _level: QosLevel) -> bool:
    """A boolean, which Katalyst writes as a string."""
    if text not in ("true", "false"):
        raise NotAllowed("'true' or 'false'")
    return text == "true"


def one_of(*allowed: str) -> Reader:
    """A reader of one of the words `allowed`."""

    def read(text: str, _level: QosLevel) -> str:
        if text not in allowed:
            raise NotAllowed(", ".join(allowed))
        return text

    return read


def whole(lowest: int, highest: int) -> Reader:
    """A reader of a whole number from `lowest` to `highest`."""

    def read(text: str, _level: QosLevel) -> int:
        if not _WHOLE.fullmatch(text) or not lowest <= int(text) <= highest:
            raise NotAllowed(f"a whole number from {lowest} to {highest}")
        return int(text)

    return read


def number(text: str, _level: QosLevel) -> float:
    """A decimal fraction of zero or more."""
    if not _NUMBER.fullmatch(text):
        raise NotAllowed("a number of 0 or more, such as 0.8")
    return float(text)


def positive(text: str, _level: QosLevel) -> float:
    """A decimal fraction above zero."""
    if not _NUMBER.fullmatch(text) or not float(text):
        raise NotAllowed("a number above 0, such as 0.8")
    return float(text)


def oom_priority(text: str, level: QosLevel) -> int:
    """A priority in the range of the pod's level, or one of the two that any pod may have."""
    own = _OOM_PRIORITIES[level]
    if not _WHOLE.fullmatch(text) or (int(text) not in own and int(text) not in (_OOM_IGNORED, _OOM_TOP)):
        raise NotAllowed(f"a whole number from {own[0]} to {own[-1]} for {level}, or {_OOM_IGNORED}, or {_OOM_TOP}")
    return int(text)


def pool_name(text: str, level: QosLevel) -> str:
    """The name of a pool; for shared_cores none of those that the node keeps for something else."""
    if not _POOL_NAME.fullmatch(text):
        raise NotAllowed("up to 63 letters, digits, '-', '_' and '.', first and last a letter or digit")
    if level is QosLevel.SHARED and _POOLS_OF_THE_NODE.fullmatch(text):
        raise NotAllowed(
            "for shared_cores any name but dedicated, fallback, interrupt, reclaim, reserve, isolation..., system... "
            "and ...-NUMA..., which are the node's own"
        )
    return text


def profile_name(text: str, _level: QosLevel) -> str:
    """The name of a profile; whether the node has it is for the configuration to say."""
    if not _POOL_NAME.fullmatch(text):
        raise NotAllowed("the name of a profile in the node's configuration")
    return text


def io_limits(text: str, _level: QosLevel) -> dict[str, IoLimits]:
    """Limits by device, as JSON."""
    try:
        json.loads(text, object_pairs_hook=without_repeats)
        return msgspec.json.decode(text, type=dict[str, IoLimits])
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise NotAllowed(
            f'JSON such as {{"/dev/sda": {{"rbps": 0, "wbps": 1048576, "riops": 0, "wiops": 100}}}} ({error})'
        ) from None


def node_ids(text: str, _level: QosLevel) -> NodeSet:
    """At least one NUMA node id, in the kernel's list format."""
    try:
        ids = NodeSet.parse(text)
    except ParseError:
        ids = NodeSet()
    if ids and max(ids) < MAX_NODES:
        return ids
    raise NotAllowed(f"at least one id from 0 to {MAX_NODES - 1}, written like 0-1 or 0,1")
