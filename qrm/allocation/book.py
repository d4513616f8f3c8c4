"""The ledger's records together with the allocators' view of them, changed as one and without awaiting.

Nothing here talks to anybody: a change is visible to the next plan at once, and durable after the ledger's next flush.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import replace

from qrm.allocation.planner import Allocations, Holdings, Offers, Plan, Planner
from qrm.allocation.remote.errors import PluginError
from qrm.allocator import Allocation, ContainerKey, Holding, Quantities, ResourceRequest
from qrm.cpuset import NodeSet
from qrm.ledger.record import CPU, Record
from qrm.ledger.store import Ledger


class Book:
    """All placements of the node, in memory."""

    def __init__(self, planner: Planner, ledger: Ledger) -> None:
        self.planner = planner
        self.ledger = ledger
        self._holdings: dict[str, dict[ContainerKey, Holding]] = {each.resource: {} for each in planner.allocators}
        self.version = 0
        """Grows with each change, so that who looks again can see that there is nothing new."""
        self._by_pod: dict[str, set[ContainerKey]] = defaultdict(set)
        for record in ledger:
            self._index(record)

    def put(self, record: Record) -> None:
        """Add or replace a record."""
        self.version += 1
        self._unindex(record.key)
        self.ledger.put(record)
        self._index(record)

    def drop(self, key: ContainerKey) -> None:
        """Remove a record."""
        self.version += 1
        self._unindex(key)
        self.ledger.remove(key)

    def of_pod(self, pod_uid: str) -> tuple[Record, ...]:
        """The records of a pod's containers, without the pod's own."""
        found = (self.ledger.get(key) for key in self._by_pod.get(pod_uid, ()) if key.container)
        return tuple(record for record in found if record is not None)

    def home(self, request: ResourceRequest) -> NodeSet | None:
        """The NUMA nodes on which other containers of the pod are; None where there are none."""
        siblings = (record for record in self.of_pod(request.pod.uid) if record.key != request.key)
        return next((record.nodes for record in siblings if record.nodes), None)

    def plan(self, request: ResourceRequest, offers: Offers | None = None, pod_offers: Offers | None = None) -> Plan:
        """A plan for `request`; nothing is changed. Raises what `Planner.plan` raises."""
        return self.planner.plan(request, self._holdings, offers, self.home(request), pod_offers)

    def check_exclusive(self, key: ContainerKey, held: Mapping[str, Allocation]) -> None:
        """That a plugin has not given a container CPUs that another pod has for itself, or the reverse.

        Raises:
            PluginError: It has; the message names the CPUs and the pod.
        """
        given = held.get(CPU)
        if given is None:
            return
        for record in self.ledger:
            other = record.allocations.get(CPU)
            if other is None or record.key.pod_uid == key.pod_uid:
                continue
            clash = given.exclusive & other.exclusive
            if clash:
                raise PluginError(f"plugin {CPU} gave out CPUs {clash}, which {record.request.pod} has for itself")

    def apply(self, allocations: Allocations, template: Record) -> tuple[ContainerKey, ...]:
        """Write `allocations` into the records; returns the keys of those besides `template`'s that changed.

        `template` is the record of the container that was planned: it is put with its own allocations, and its pod's
        record is made from it where there is none.
        """
        others = []
        # A container all of whose resources come from plugins has nothing in the plan, and is put all the same.
        for key, changed in {template.key: {}, **allocations}.items():
            record = self.ledger.get(key)
            if key == template.key:
                record = template
            elif key == template.request.pod_key:
                record = replace(record or template, key=key, request=template.request, sandbox_id=template.sandbox_id)
                record = replace(record, container_id="", asked=b"", hints={}, applied=None, running=True)
                record = replace(record, applied_mems=None)
                if self.ledger.get(key) is None:
                    record = replace(record, allocations={})
            elif record is None:
                continue
            else:
                others.append(key)
            self.put(replace(record, allocations={**record.allocations, **changed}))
        return tuple(others)

    def settle(self) -> None:
        """Let the others have what was given back."""
        for key, changed in self.planner.settle(self._holdings).items():
            record = self.ledger.get(key)
            if record is not None:
                self.put(replace(record, allocations={**record.allocations, **changed}))

    def drop_pod_if_empty(self, pod_uid: str) -> None:
        """Remove the pod's own record once none of its containers holds anything."""
        if not self.of_pod(pod_uid):
            self.drop(ContainerKey(pod_uid, ""))

    def holdings(self) -> Holdings:
        """What everybody holds, by resource; to be copied by who wants to change it."""
        return self._holdings

    def quantities(self) -> dict[str, Quantities]:
        """How much there is of each resource now."""
        return self.planner.quantities(self._holdings)

    def due(self) -> Iterable[Record]:
        """The live containers whose cpuset differs from what the runtime last confirmed."""
        return (record for record in self.ledger if record.push_due)

    def mems_due(self) -> Iterable[Record]:
        """As `due`, for memory nodes."""
        return (record for record in self.ledger if record.mems_due)

    def _index(self, record: Record) -> None:
        self._by_pod[record.key.pod_uid].add(record.key)
        for resource, holdings in self._holdings.items():
            holding = record.holding(resource)
            if holding is not None:
                holdings[record.key] = holding

    def _unindex(self, key: ContainerKey) -> None:
        old = self.ledger.get(key)
        if old is None:
            return
        self._by_pod[key.pod_uid].discard(key)
        if not self._by_pod[key.pod_uid]:
            del self._by_pod[key.pod_uid]
        for holdings in self._holdings.values():
            holdings.pop(key, None)
