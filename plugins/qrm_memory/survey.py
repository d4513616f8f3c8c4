"""What is held: one pass over the state, sorted into bound pods and containers that float."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from qrm.allocator import ContainerKey, Holding, NativeQos, QosLevel, ResourceRequest
from qrm_memory.ground import Ground
from qrm_memory.requested import Amounts, added, asked, is_exclusive

FLOATING = "memory"
"""The pool of those whose nodes change with what others leave."""
DEDICATED = "dedicated"
"""The pool of those that stay where they are."""

Members = Sequence[tuple[ContainerKey, Holding]]

RECLAIMED, BEST_EFFORT, BURSTABLE, GUARANTEED, NEVER = range(5)
"""The order in which zones are widened. Dedicated and adopted pods keep theirs."""


@dataclass(frozen=True, slots=True)
class Unit:
    """A bound pod: all of its bound containers are on the same nodes, and share what is reserved for it."""

    uid: str
    line: Holding | None
    """The pod as a whole; None where it was adopted, or holds nothing yet."""
    containers: Members
    zone: int
    """Its nodes; 0 where they are gone."""
    need: Amounts
    """What is reserved for it, containers that have exited included."""
    adopted: bool
    """It ran before qrm did."""
    exclusive: bool
    """Its nodes are nobody else's."""
    importance: int
    """Its place in the order of widening: that of its most important container."""

    @property
    def key(self) -> ContainerKey:
        """The place of the pod as a whole in the ledger."""
        return ContainerKey(self.uid, "")


@dataclass(frozen=True, slots=True)
class Survey:
    """All holdings in order."""

    units: Mapping[str, Unit]
    """The bound pods, by uid."""
    floats: Members
    """The containers that float."""
    narrow: Members
    """Reclaimed containers that want to be on one node."""
    promised: tuple[Amounts, Amounts]
    """What is promised to running floating containers, without and with memory-only nodes."""
    adopted: Sequence[tuple[int, Amounts]]
    """The same of adopted ones, which are where they are."""


def importance(request: ResourceRequest) -> int:
    """The place of a container in the order of widening."""
    level = request.qos.level
    if level is QosLevel.DEDICATED or level is QosLevel.RECLAIMED:
        return NEVER if level is QosLevel.DEDICATED else RECLAIMED
    if request.native_qos is NativeQos.GUARANTEED:
        return GUARANTEED
    return BEST_EFFORT if request.native_qos is NativeQos.BEST_EFFORT else BURSTABLE


def survey(ground: Ground, holdings: Mapping[ContainerKey, Holding], planned: ContainerKey | None = None) -> Survey:
    """Sorts `holdings`, without the container that is being planned. This is the only loop over all of them."""
    lines: dict[str, Holding] = {}
    bound: dict[str, list[tuple[ContainerKey, Holding]]] = {}
    floats: list[tuple[ContainerKey, Holding]] = []
    narrow: list[tuple[ContainerKey, Holding]] = []
    for item in holdings.items():
        key, held = item
        if not key.container:
            lines[key.pod_uid] = held
            continue
        if key == planned:
            continue
        qos = held.request.qos
        level, binding = qos.level, qos.memory.numa_binding
        if level is QosLevel.DEDICATED or (binding and level is QosLevel.SHARED):
            bound.setdefault(key.pod_uid, []).append(item)
        elif binding and level is QosLevel.RECLAIMED:
            narrow.append(item)
        else:
            floats.append(item)
    units = {uid: unit_of(ground, uid, lines.get(uid), bound[uid]) for uid in sorted(bound)}
    return Survey(units, floats, narrow, *_promised(ground, floats))


def unit_of(ground: Ground, uid: str, line: Holding | None, containers: Members) -> Unit:
    """The bound pod of these. A line that floats belongs to a pod whose nodes are gone."""
    ordered = sorted(containers, key=lambda item: item[0].container) if len(containers) > 1 else containers
    if line is None:
        zone = 0
        for _, held in ordered:
            zone |= held.allocation.nodes.mask
    else:
        zone = line.allocation.nodes.mask if line.allocation.pool == DEDICATED else 0
    sums = added(asked(held.request) for _, held in ordered if held.running or line is None)
    adopted = any(held.adopted for _, held in ordered)
    return Unit(
        uid,
        line,
        ordered,
        zone & ground.present,
        at_least(sums, reserved(line)),
        adopted,
        exclusive=any(is_exclusive(held.request) for _, held in ordered),
        importance=NEVER if adopted else max([importance(held.request) for _, held in ordered]),
    )


def reserved(line: Holding | None) -> Amounts:
    """What the pod as a whole holds."""
    if line is None:
        return {}
    return {name: sum(parts.values()) for name, parts in line.allocation.amounts.items()}


def at_least(one: Amounts, other: Amounts) -> Amounts:
    """The larger amount of each resource."""
    return {name: max(one.get(name, 0), other.get(name, 0)) for name in sorted(one.keys() | other.keys())}


def _promised(ground: Ground, floats: Members) -> tuple[tuple[Amounts, Amounts], list[tuple[int, Amounts]]]:
    """A container that has exited is let in again without being asked, so it need not count meanwhile."""
    sums: tuple[dict[str, int], dict[str, int]] = ({}, {})
    adopted: list[tuple[int, Amounts]] = []
    for _, held in floats:
        request = held.request
        if not held.running or request.qos.level is QosLevel.RECLAIMED:
            continue
        amounts = asked(request)
        zone = held.allocation.nodes.mask & ground.present
        if held.adopted and zone:
            adopted.append((zone, amounts))
            continue
        total = sums[request.qos.memory_only_nodes]
        for name, amount in amounts.items():
            total[name] = total.get(name, 0) + amount
    return sums, adopted
