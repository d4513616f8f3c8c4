"""Which part of an amount counts on which NUMA node. The kernel decides page by page; this is the bookkeeping.

A pod on several nodes may use the memory of all of them, so its parts are moved about when others need room on one of
them; for pods that are bound, no node is promised twice as long as that is possible at all.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from qrm_memory.ground import members

Parts = Mapping[int, int]
"""Bytes by NUMA node, without zeros."""


@dataclass(frozen=True, slots=True)
class Entry:
    """What one pod asks of one resource."""

    uid: str
    zone: int
    amount: int
    before: Parts
    """The parts that it had until now."""


def portions(amount: int, weights: Mapping[int, int], step: int = 1) -> dict[int, int]:
    """`amount` in proportion to `weights`, in whole steps; evenly where all weights are 0.

    No part is larger than its weight unless `amount` is larger than all of them together.
    """
    total = sum(weights.values())
    if not total:
        weights, total = dict.fromkeys(weights, 1), len(weights)
    steps, seen, given, parts = amount // step, 0, 0, {}
    for node in sorted(weights):
        seen += weights[node]
        upto = steps * seen // total
        if upto > given:
            parts[node] = (upto - given) * step
        given = upto
    return parts


def balance(entries: Sequence[Entry], capacity: Mapping[int, int], step: int) -> dict[str, dict[int, int]]:
    """The parts of each entry, by pod, moved as little as possible so that no node has more than its capacity.

    Where the entries do not fit at all, as after adoption, some node has more.
    """
    found: dict[str, dict[int, int]] = {}
    used = dict.fromkeys(capacity, 0)
    several = []
    for entry in entries:
        if entry.zone & (entry.zone - 1):
            several.append(entry)
        else:
            node = entry.zone.bit_length() - 1
            found[entry.uid] = {node: entry.amount} if entry.amount else {}
            used[node] = used.get(node, 0) + entry.amount
    for entry in sorted(several, key=lambda each: (each.zone.bit_count(), _is_new(each), each.uid)):
        room = {node: max(capacity.get(node, 0) - used.get(node, 0), 0) for node in members(entry.zone)}
        found[entry.uid] = parts = _first(entry, room, capacity, step)
        for node, part in parts.items():
            used[node] = used.get(node, 0) + part
    zones = {entry.uid: members(entry.zone) for entry in several}
    for node in sorted(used) if several else ():
        while used[node] > capacity.get(node, 0) and _relieve(node, found, zones, used, capacity):
            pass
    return found


def _is_new(entry: Entry) -> bool:
    return sum(entry.before.values()) != entry.amount


def _first(entry: Entry, room: Mapping[int, int], capacity: Mapping[int, int], step: int) -> dict[int, int]:
    """What the entry had, with more or less of it if its amount is another one now."""
    kept = {node: part for node, part in entry.before.items() if entry.zone >> node & 1}
    lacking = entry.amount - sum(kept.values())
    if lacking < 0:
        return portions(entry.amount, kept, step)
    weights = {node: max(free - kept.get(node, 0), 0) for node, free in room.items()}
    if sum(weights.values()) < lacking:
        weights = {node: capacity.get(node, 0) for node in room}
    for node, part in portions(lacking, weights, step).items():
        kept[node] = kept.get(node, 0) + part
    return kept


def _relieve(
    over: int,
    parts: dict[str, dict[int, int]],
    zones: Mapping[str, Sequence[int]],
    used: dict[int, int],
    capacity: Mapping[int, int],
) -> bool:
    """Moves bytes away from a node that has too many, over other nodes if need be; False where there is no way."""
    came: dict[int, tuple[int, str]] = {}
    queue = [over]
    for node in queue:
        spare = capacity.get(node, 0) - used[node]
        if node != over and spare > 0:
            _shift(over, node, min(spare, used[over] - capacity.get(over, 0)), came, parts, used)
            return True
        for uid in sorted(zones):
            if parts[uid].get(node):
                for other in zones[uid]:
                    if other != over and other in used and other not in came:
                        came[other] = (node, uid)
                        queue.append(other)
    return False


def _shift(
    start: int,
    end: int,
    amount: int,
    came: Mapping[int, tuple[int, str]],
    parts: dict[str, dict[int, int]],
    used: dict[int, int],
) -> None:
    """Moves up to `amount` bytes along the way by which `end` was found."""
    way = []
    node = end
    while node != start:
        before, uid = came[node]
        way.append((before, node, uid))
        amount = min(amount, parts[uid][before])
        node = before
    for before, after, uid in way:
        parts[uid][before] -= amount
        if not parts[uid][before]:
            del parts[uid][before]
        parts[uid][after] = parts[uid].get(after, 0) + amount
    used[start] -= amount
    used[end] += amount
