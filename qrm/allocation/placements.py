"""The transaction of a placement: plan, record, shrink, then commit or revert; and the way back.

Planning and reserving happen without awaiting, so two creations can never be given the same free CPUs. Everything that
talks comes after, and works on what the book says when it is its turn.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable
from dataclasses import dataclass, replace

import structlog

from qrm.allocation.book import Book
from qrm.allocation.planner import Offers, Plan, whole_pod
from qrm.allocation.remote.crew import Crew
from qrm.allocation.remote.errors import PluginUnavailable
from qrm.allocation.telling import Teller
from qrm.allocator import Allocation, ContainerKey, ResourceRequest
from qrm.cpuset import CPUSet
from qrm.errors import LedgerError
from qrm.ledger.record import Mark, Record
from qrm.metrics import Metrics

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Ask:
    """A container instance that wants to exist or to change."""

    request: ResourceRequest
    sandbox_id: str
    attempt: int
    asked: bytes
    """kubelet's own LinuxContainerResources, serialised."""


@dataclass(frozen=True, slots=True)
class Reservation:
    """What `reserve` has set aside, to be committed or reverted."""

    record: Record
    previous: Record | None
    """What stood at the same key before, if anything."""


class Placements:
    """All changes to what containers hold go through here."""

    def __init__(self, book: Book, teller: Teller, metrics: Metrics, crew: Crew) -> None:
        self.book = book
        self.crew = crew
        self.teller = teller
        self.metrics = metrics
        self.due = asyncio.Event()
        """Set when containers may be waiting for a push."""
        self.stale = asyncio.Event()
        """Set when plugins may hold something for pods that are gone."""
        self.in_flight: set[ContainerKey] = set()
        """Containers between their reservation and the runtime's answer."""
        self._since: dict[ContainerKey, float] = {}

    async def reserve(self, ask: Ask) -> Reservation:
        """Steps plan, record and shrink of a creation. After it, nobody else runs on what was reserved.

        Raises:
            DoesNotFit, BadRequest: refused; nothing has changed.
            LedgerError, ShrinkFailed, or an allocator's own error: undone as far as it had got.
        """
        with self.metrics.step("consult"):
            offers = await self.crew.hints(ask.request)
            pod_offers = await self._pod_offers(ask.request)
        with self.metrics.step("plan"):
            reservation, plan, others = self._reserve(ask, offers, pod_offers)
        record = reservation.record
        key = record.key
        log.info("planned", **record.named, cpus=str(record.cpus), moving=len(others))
        self.in_flight.add(key)
        self._since[key] = time.monotonic()
        try:
            if self.crew:
                record, moved = await self._allocate_remotely(record, plan)
                reservation, others = replace(reservation, record=record), (*others, *moved)
            with self.metrics.step("record"):
                await self.book.ledger.flush()
            with self.metrics.step("shrink"):
                await self.teller.shrink(record, others)
        except BaseException:
            self._undo(reservation)
            raise
        return reservation

    def unknown_outcome(self, reservation: Reservation) -> None:
        """The runtime has not answered: what is reserved stays so until a list of its containers tells."""
        self.in_flight.discard(reservation.record.key)

    def older_than(self, record: Record, moment: float) -> bool:
        """Whether `record` has stood as it is since before `moment` of the monotonic clock.

        A list that was asked for at `moment` says something about such a record, and nothing about a younger one.
        """
        return self._since.get(record.key, 0.0) < moment and record.key not in self.in_flight

    async def commit(self, reservation: Reservation, container_id: str, cpus: CPUSet) -> None:
        """The runtime has made the container to run on `cpus`; if others need some of these by now, it is told so.

        Becomes durable behind the reply: after a crash before that, the line is pending, and the runtime's list tells.
        """
        with self.metrics.step("commit"):
            self.carried_out(reservation.record, container_id, cpus)
        await self.teller.push(reservation.record.key, mems=True)

    def carried_out(self, pending: Record, container_id: str, cpus: CPUSet | None) -> None:
        """The memory's part of `commit`, if the line still stands. None: it is not known on what the container runs."""
        self.in_flight.discard(pending.key)
        record = self.book.ledger.get(pending.key)
        if record is None or record.attempt != pending.attempt:
            return
        self._since[pending.key] = time.monotonic()
        mems = record.mems if cpus else None
        self.book.put(replace(record, container_id=container_id, applied=cpus, applied_mems=mems))
        self.due.set()

    def revert(self, reservation: Reservation) -> None:
        """The runtime has said no: give back what was reserved.

        Where an earlier try of the same instance has an unknown outcome, the answer may just mean that it succeeded
        ("name is reserved"): then everything stays, as after `unknown_outcome`.
        """
        self.in_flight.discard(reservation.record.key)
        previous = reservation.previous
        if previous is not None and previous.pending and previous.attempt == reservation.record.attempt:
            return
        self._undo(reservation)

    def changed(self, container_id: str, asked: bytes, cpus: CPUSet | None) -> None:
        """The runtime has taken a running container's change (`asked`: all of it now) and runs it on `cpus`.

        None: its answer was lost, so that the cpuset is to be told again.
        """
        record = self.book.ledger.find(container_id)
        if record is not None:
            self.in_flight.discard(record.key)
            mems = record.mems if cpus else None
            self.book.put(replace(record, asked=asked, applied=cpus, applied_mems=mems))
            self.due.set()

    def note_unmanaged(self, ask: Ask, container_id: str) -> None:
        """Remember a container that passed unmodified, to be repaired by upkeep."""
        self.book.put(replace(self._record(ask), container_id=container_id, mark=Mark.UNMANAGED))
        self.due.set()

    def leave_behind(self, until: float) -> None:
        """Another process goes on with the ledger: what the runtime was asked to make may come until the time `until`.

        Unlike a creation that was broken off, it may still succeed, and must find its CPUs reserved.
        """
        for key in self.in_flight:
            record = self.book.ledger.get(key)
            if record is not None and record.pending:
                self.book.put(replace(record, awaited=until))

    def exited(self, container_ids: Iterable[str]) -> None:
        """These instances have ended; what they held stays reserved for their pods."""
        self._set_running(container_ids, running=False)

    def revived(self, container_ids: Iterable[str]) -> None:
        """These instances were thought to have ended, and run."""
        self._set_running(container_ids, running=True)

    def released(self, records: Iterable[Record]) -> None:
        """These lines are over for good: what they held is free."""
        pods = set()
        for record in records:
            if self.book.ledger.get(record.key) == record:
                self.book.drop(record.key)
                self._since.pop(record.key, None)
                log.info("released", **record.named, cpus=str(record.cpus))
                pods.add(record.key.pod_uid)
        for pod_uid in pods:
            self.book.drop_pod_if_empty(pod_uid)
        if pods:
            self.stale.set()
            self.settle()

    def sandbox_gone(self, sandbox_id: str) -> None:
        """A sandbox has been stopped or has vanished, and with it all that ran in it."""
        self.released([record for record in self.book.ledger if record.sandbox_id == sandbox_id])

    def resize_pod(self, sandbox_id: str, millis: int) -> None:
        """The pod as a whole asks for `millis` millicores from now on."""
        for record in self.book.ledger:
            if record.sandbox_id == sandbox_id:
                self.book.put(replace(record, request=replace(record.request, pod_cpu_millis=millis)))
        self.settle()

    def settle(self) -> None:
        """Let the others have what is free now; upkeep makes it durable and tells them."""
        try:
            self.book.settle()
        except Exception:
            # The others keep what they have, which is safe; the next change tries again.
            log.exception("allocator failed to settle")
            self.metrics.failures.labels("allocator", "", "kept").inc()
        self.due.set()

    async def flush_or_log(self) -> None:
        """Make what changed durable; a failure is logged, counted, and tried again with the next change."""
        try:
            await self.book.ledger.flush()
        except LedgerError as error:
            log.error("ledger not written", error=str(error), next="with the next change")
            self.metrics.failures.labels("ledger", "", "kept").inc()

    def _set_running(self, container_ids: Iterable[str], *, running: bool) -> None:
        changed = False
        for container_id in container_ids:
            record = self.book.ledger.find(container_id)
            if record is not None and record.running is not running:
                self._since[record.key] = time.monotonic()
                self.book.put(replace(record, running=running))
                changed = True
        if changed:
            self.settle()

    async def _allocate_remotely(self, record: Record, plan: Plan) -> tuple[Record, tuple[ContainerKey, ...]]:
        """What plugins allocate to the container, and the others that change because of it."""
        with self.metrics.step("consult"):
            held = await self._for_pod(record, plan) | await self.crew.allocate(record.request, plan.chosen)
            self.book.check_exclusive(record.key, held)
            current = self.book.ledger.get(record.key)
            if current is None or current.attempt != record.attempt:
                raise PluginUnavailable("the pod has been stopped while a plugin was asked")
            record = replace(current, allocations={**current.allocations, **held})
            self.book.put(record)
            return record, await self.reconcile(held)

    async def _for_pod(self, record: Record, plan: Plan) -> dict[str, Allocation]:
        """With the scope `pod`, what the pod as a whole gets; its first container holds it."""
        if not self.book.planner.alignment.whole_pod or self.book.home(record.request):
            return {}
        return await self.crew.allocate_for_pod(whole_pod(record.request), plan.chosen)

    async def reconcile(self, resources: Iterable[str] | None = None) -> tuple[ContainerKey, ...]:
        """Take over what plugins have changed for others, and let them forget pods that are gone.

        Only plugins for `resources` are asked, or all. Returns the containers that hold something else now.
        """
        requests = {record.key: record.request for record in self.book.ledger if not record.is_pod}
        coming = frozenset(key.pod_uid for key in self.in_flight)
        moved = []
        for key, held in (await self.crew.reconcile(requests, coming, resources)).items():
            record = self.book.ledger.get(key)
            if record is not None and any(record.allocations.get(name) != each for name, each in held.items()):
                self.book.put(replace(record, allocations={**record.allocations, **held}))
                moved.append(key)
        return tuple(moved)

    async def _pod_offers(self, request: ResourceRequest) -> Offers:
        """With the scope `pod`, what plugins offer for a pod as a whole, before its first container."""
        if not self.book.planner.alignment.whole_pod or self.book.home(request):
            return {}
        return await self.crew.hints(whole_pod(request), for_pod=True)

    def _reserve(
        self, ask: Ask, offers: Offers, pod_offers: Offers
    ) -> tuple[Reservation, Plan, tuple[ContainerKey, ...]]:
        plan: Plan = self.book.plan(ask.request, offers, pod_offers)
        previous = self.book.ledger.get(ask.request.key)
        record = replace(self._record(ask), hints=plan.hints, nodes=plan.nodes, allocations=dict(plan.own))
        if previous is not None and previous.container_id and previous.attempt == ask.attempt:
            held = {**previous.allocations, **record.allocations}
            record = replace(previous, request=ask.request, asked=ask.asked, allocations=held)
            record = replace(record, hints=plan.hints, nodes=plan.nodes, mark=Mark.NONE)
        others = self.book.apply(plan.allocations, record)
        return Reservation(record, previous), plan, others

    def _record(self, ask: Ask) -> Record:
        return Record(
            ask.request.key, ask.request, ask.sandbox_id, attempt=ask.attempt, asked=ask.asked, created=time.time()
        )

    def _undo(self, reservation: Reservation) -> None:
        record, previous = reservation.record, reservation.previous
        current = self.book.ledger.get(record.key)
        self.in_flight.discard(record.key)
        if current is None or (current.attempt, current.container_id) != (record.attempt, record.container_id):
            return
        if previous is None:
            self.book.drop(record.key)
            self._since.pop(record.key, None)
            self.book.drop_pod_if_empty(record.key.pod_uid)
        elif previous.container_id == current.container_id:
            current = replace(current, request=previous.request, asked=previous.asked, hints=previous.hints)
            self.book.put(replace(current, allocations=previous.allocations, mark=previous.mark))
        else:
            self.book.put(previous)
        self.stale.set()
        self.settle()
