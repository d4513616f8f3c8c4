"""What a pod's Katalyst annotations say, checked as a whole.

Names, values and meanings are those of the Katalyst api consts/qos. Katalyst logs what it cannot read and goes on
without it; here it is a `BadRequest`, because a pod that silently runs unlike it was asked is the worse failure.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from qrm.errors import BadRequest
from qrm.pods import values
from qrm.pods.model import CpuEnhancement, MemoryEnhancement, NetworkEnhancement, Qos, QosLevel
from qrm.pods.values import NotAllowed, Reader, without_repeats

DOMAIN = "katalyst.kubewharf.io/"
QOS_LEVEL = f"{DOMAIN}qos_level"
CPU_ENHANCEMENT = f"{DOMAIN}cpu_enhancement"
MEMORY_ENHANCEMENT = f"{DOMAIN}memory_enhancement"
NETWORK_ENHANCEMENT = f"{DOMAIN}network_enhancement"
NUMA_NUMBER = f"{DOMAIN}numa_number"
NUMA_IDS = f"{DOMAIN}numa_ids"
MEMORY_ONLY_NODES = "qrm.io/memory_only_nodes"
"""Ours: Katalyst knows no NUMA nodes without CPUs."""
PROFILE = "qrm.io/profile"
"""Ours: a profile of the configuration instead of the one of the pod's QoS level."""
IO_MAX = "qrm.io/io_max"
"""Ours: limits by device, such as {"/dev/sda": {"wbps": 1048576, "riops": 100}}."""

_SHOWN = 80
"""Characters of a value that a message quotes: a pod's annotations may have 256 KiB, a gRPC status a few KiB."""


@dataclass(frozen=True, slots=True)
class _Key:
    """What may be asked by one key, and what else the pod must then say.

    The conditions hold for values other than `default`: to say what is so anyway is no contradiction.
    """

    read: Reader
    levels: tuple[QosLevel, ...] = tuple(QosLevel)
    default: Any = None
    needs_binding: bool = False
    not_exclusive: bool = False


def _flag(*levels: QosLevel, default: bool = False, needs_binding: bool = False, not_exclusive: bool = False) -> _Key:
    return _Key(values.flag, levels or tuple(QosLevel), default, needs_binding, not_exclusive)


_DEDICATED, _SHARED, _RECLAIMED, _SYSTEM = QosLevel.DEDICATED, QosLevel.SHARED, QosLevel.RECLAIMED, QosLevel.SYSTEM

_KEYS: dict[str, dict[str, _Key]] = {
    CPU_ENHANCEMENT: {
        "cpuset_pool": _Key(values.pool_name, (_SHARED, _SYSTEM)),
        "numa_share": _flag(_SHARED, default=True, needs_binding=True),
        "suppression_tolerance_rate": _Key(values.number, (_RECLAIMED,)),
        "cpu_burst_policy": _Key(values.one_of("default", "closed", "static", "dynamic"), (_SHARED, _DEDICATED)),
        "cpu_burst_percent": _Key(values.whole(0, 100), (_SHARED, _DEDICATED)),
        "cpu_burst_threshold": _Key(values.number, (_SHARED, _DEDICATED)),
        "align_by_socket": _flag(_DEDICATED, needs_binding=True),
        "distribute_evenly_across_numa": _flag(_DEDICATED, needs_binding=True, not_exclusive=True),
        # Katalyst has dedicated_cores with numa_binding only; here whole cores can be had without it too.
        "full_pcpus_pairing": _flag(_DEDICATED, not_exclusive=True),
    },
    MEMORY_ENHANCEMENT: {
        "numa_binding": _flag(_SHARED, _DEDICATED, _RECLAIMED),
        "numa_exclusive": _flag(_DEDICATED, needs_binding=True),
        "rss_overuse_threshold": _Key(values.positive),
        "oom_priority": _Key(values.oom_priority),
    },
    NETWORK_ENHANCEMENT: {
        "namespace_type": _Key(values.one_of("host_ns", "host_ns_preferred", "anti_host_ns", "anti_host_ns_preferred")),
        "topology_affinity_restricted": _flag(),
    },
}
# Annotations of their own, whose name is their key. Katalyst reads its two for dedicated_cores with numa_binding only.
_SINGLE: dict[str, _Key] = {
    NUMA_NUMBER: _Key(values.whole(1, values.MAX_NODES), (_DEDICATED,), needs_binding=True),
    NUMA_IDS: _Key(values.node_ids, (_DEDICATED,), needs_binding=True),
    MEMORY_ONLY_NODES: _flag(),
    PROFILE: _Key(values.profile_name),
    IO_MAX: _Key(values.io_limits),
}


@dataclass(frozen=True, slots=True)
class _Asked:
    """One key with the value that a pod gave it; `name` is empty for an annotation that is a value itself."""

    annotation: str
    name: str
    text: str
    key: _Key
    value: Any


def read_qos(annotations: Mapping[str, str], default: QosLevel) -> Qos:
    """What `annotations` of a pod say about its QoS; `default` is the level of a pod that names none.

    Raises:
        BadRequest: A value or key that does not exist, or values that contradict each other; the message names the
            annotation, the key in it, the value and what is allowed.
    """
    by_default = QOS_LEVEL not in annotations
    level = default if by_default else _read_level(annotations[QOS_LEVEL])
    asked = [*_singles(annotations, level), *_enhancements(annotations, level)]
    found = {(each.annotation, each.name): each.value for each in asked}
    qos = Qos(
        level=level,
        cpu=CpuEnhancement(**_named(asked, CPU_ENHANCEMENT)),
        memory=MemoryEnhancement(**_named(asked, MEMORY_ENHANCEMENT)),
        network=NetworkEnhancement(**_named(asked, NETWORK_ENHANCEMENT)),
        numa_number=found.get((NUMA_NUMBER, "")),
        numa_ids=found.get((NUMA_IDS, "")),
        by_default=by_default,
        memory_only_nodes=found.get((MEMORY_ONLY_NODES, ""), False),
        profile=found.get((PROFILE, ""), ""),
        io_max=found.get((IO_MAX, ""), {}),
    )
    for each in asked:
        _check(each, qos)
    return qos


def _read_level(text: str) -> QosLevel:
    try:
        return QosLevel(text)
    except ValueError:
        raise _refusal(QOS_LEVEL, "", repr(text), ", ".join(QosLevel)) from None


def _singles(annotations: Mapping[str, str], level: QosLevel) -> Iterator[_Asked]:
    for annotation, key in _SINGLE.items():
        if annotation in annotations:
            yield _read(annotation, "", annotations[annotation], key, level)


def _enhancements(annotations: Mapping[str, str], level: QosLevel) -> Iterator[_Asked]:
    for annotation, keys in _KEYS.items():
        for name, text in _members(annotation, annotations.get(annotation, "{}")).items():
            if name not in keys:
                raise _refusal(annotation, repr(name), _as_json(text), f"the keys {', '.join(keys)}")
            if not isinstance(text, str):
                raise _refusal(annotation, name, _as_json(text), "a string, in quotes")
            yield _read(annotation, name, text, keys[name], level)


def _members(annotation: str, text: str) -> dict[str, Any]:
    """The members of the JSON object `text`."""
    try:
        members = json.loads(text, object_pairs_hook=without_repeats)
    except (ValueError, RecursionError) as error:
        raise _refusal(annotation, "", repr(text), f"a JSON object of strings ({_cut(str(error))})") from None
    if not isinstance(members, dict):
        raise _refusal(annotation, "", repr(text), 'a JSON object of strings, such as {"key": "value"}')
    return members


def _read(annotation: str, name: str, text: str, key: _Key, level: QosLevel) -> _Asked:
    try:
        return _Asked(annotation, name, text, key, key.read(text, level))
    except NotAllowed as allowed:
        raise _refusal(annotation, name, repr(text), str(allowed)) from None


def _named(asked: list[_Asked], annotation: str) -> dict[str, Any]:
    return {each.name: each.value for each in asked if each.annotation == annotation}


def _check(asked: _Asked, qos: Qos) -> None:
    """Raise BadRequest where the rest of what the pod says contradicts one value."""
    key = asked.key
    if asked.value == key.default:
        return
    if qos.level not in key.levels:
        origin = f", the default without {QOS_LEVEL}" if qos.by_default else ""
        allowed = f"only with {QOS_LEVEL} {' or '.join(key.levels)}; this pod has {qos.level}{origin}"
    elif key.needs_binding and not qos.memory.numa_binding:
        allowed = f"only with numa_binding 'true' in {MEMORY_ENHANCEMENT}"
    elif key.not_exclusive and qos.memory.numa_exclusive:
        allowed = f"only without numa_exclusive 'true' in {MEMORY_ENHANCEMENT}"
    else:
        return
    raise _refusal(asked.annotation, asked.name, repr(asked.text), allowed)


def _refusal(annotation: str, name: str, shown: str, allowed: str) -> BadRequest:
    place = f"{annotation}: {_cut(name)} is" if name else f"{annotation} is"
    return BadRequest(f"{place} {_cut(shown)}, allowed: {allowed}")


def _cut(text: str) -> str:
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."


def _as_json(value: object) -> str:
    return "an object or a list" if isinstance(value, dict | list) else json.dumps(value)
