"""Tells containers that exist what has changed for them: before a new one is made, and behind its back.

CPUs are told in a creation's own time, since the new container must not share them. Memory nodes never are where pages
may have to move, which can take seconds: that is, for every container that has been started (`Growth` tells those, one
at a time). A container that has not run yet has no pages and is told everything at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import replace

import structlog

from qrm.allocation.book import Book
from qrm.allocator import ContainerKey
from qrm.cpuset import CPUSet
from qrm.enforcement.locks import ContainerLocks
from qrm.enforcement.pushes import Outcome, Pusher
from qrm.errors import LedgerError, QrmError
from qrm.ledger.record import CPU, Record

log = structlog.get_logger(__name__)


class ShrinkFailed(QrmError):
    """A running container could not be taken off CPUs that a new one needs."""


class Teller:
    """Pushes, and what the runtime confirmed of them."""

    def __init__(self, book: Book, pusher: Pusher, locks: ContainerLocks) -> None:
        self.locks = locks
        self._book = book
        self._pusher = pusher

    async def push(self, key: ContainerKey, *, mems: bool = False) -> Outcome:
        """Tell the container at `key` its cpuset, and with `mems` its memory nodes, if that is due."""
        record = self._book.ledger.get(key)
        if record is None or not (record.push_due or (mems and record.mems_due)):
            return Outcome.APPLIED
        async with self.locks.of(record.container_id):
            return await self.push_locked(record.container_id, mems=mems)

    async def durable(self, container_id: str) -> Record | None:
        """The container's line, durable where something of it is due.

        Else a crash would leave a container that was told what its line does not say, and nobody would know before the
        next comparison with the kernel. With a disk that takes nothing a container may still be told to leave CPUs.
        """
        record = self._book.ledger.find(container_id)
        if record is None or not (record.push_due or record.mems_due) or self._book.ledger.is_durable(record.key):
            return record
        with suppress(LedgerError):
            await self._book.ledger.flush()
        return self._book.ledger.find(container_id)

    async def push_locked(self, container_id: str, *, mems: bool = False) -> Outcome:
        """As `push`, for a caller that holds the container's lock. What the runtime confirms is written down."""
        record = await self.durable(container_id)
        if record is None:
            return Outcome.APPLIED
        cpus = self._tellable(record)
        nodes = record.mems if mems and record.mems_due else None
        if cpus is None and nodes is None:
            return Outcome.WAITS if record.push_due else Outcome.APPLIED
        outcome = await self._pusher.push(container_id, cpus=cpus, mems=nodes)
        log.info("pushed", **record.named, cpus=str(cpus), mems=str(nodes), before=str(record.applied), outcome=outcome)
        current = self._book.ledger.find(container_id)
        if current is not None and outcome is Outcome.APPLIED:
            nodes = current.applied_mems if nodes is None else nodes
            self._book.put(replace(current, applied=current.applied if cpus is None else cpus, applied_mems=nodes))
        elif current is not None and outcome is Outcome.GONE:
            self._book.put(replace(current, running=False))
        return outcome

    def _tellable(self, record: Record) -> CPUSet | None:
        """The cpuset that a container can be told now; None where it is up to date or has to wait."""
        if not record.push_due or record.cpus is None:
            return None
        cpus = record.cpus - self._not_yet_free(record)
        return cpus if cpus and cpus != record.applied else None

    def _not_yet_free(self, record: Record) -> CPUSet:
        """The CPUs that a container is to gain, but not yet.

        Another pod's still runs there and one of the two has them alone, or it is not durable that they are free.
        """
        gained = record.cpus - (record.applied or CPUSet()) if record.cpus else CPUSet()
        if not self._book.ledger.is_durable(record.key):
            return gained
        taken = CPUSet()
        for other in self._book.due() if gained else ():
            if other.key.pod_uid != record.key.pod_uid and (_is_exclusive(record) or _is_exclusive(other)):
                runs_on = self._book.planner.machine.online if other.applied is None else other.applied
                taken |= runs_on - (other.cpus or CPUSet())
        return gained & taken

    async def shrink(self, record: Record, others: Iterable[ContainerKey]) -> None:
        """Take others off the CPUs that they lose, and wait until the runtime has confirmed it.

        Among them are those that have lost CPUs to an earlier change and not been told yet, if `record` gets these.
        """
        allocation = record.allocations.get(CPU)
        exclusive = allocation.exclusive if allocation else CPUSet()
        changed = set(others)
        losing = [
            each
            for each in self._book.due()
            if each.key != record.key and _loses(each, None if each.key in changed else exclusive)
        ]
        outcomes = await asyncio.gather(*(self.push(each.key) for each in losing))
        told = zip(losing, outcomes, strict=True)
        stuck = [each.key for each, outcome in told if outcome in _NOT_SENT and not self._has_left(each)]
        if stuck:
            names = ", ".join(f"{key.pod_uid}/{key.container}" for key in stuck)
            raise ShrinkFailed(f"cannot take CPUs back from {names}", hint="the log has the runtime's answer")

    def _has_left(self, before: Record) -> bool:
        """Whether a container is off the CPUs that it had to leave as of `before`; another push may have seen to it."""
        now = self._book.ledger.get(before.key)
        if now is None or not now.running or now.container_id != before.container_id:
            return True
        had = self._book.planner.machine.online if before.applied is None else before.applied
        return now.applied is not None and now.applied.isdisjoint(had - (before.cpus or CPUSet()))


_NOT_SENT = (Outcome.FAILED, Outcome.WAITS)


def _is_exclusive(record: Record) -> bool:
    return bool(record.allocations[CPU].exclusive)


def _loses(record: Record, wanted: CPUSet | None) -> bool:
    """Whether a live container runs on CPUs that it is to leave, and (with `wanted`) these are among them."""
    if record.cpus is None:
        return False
    if record.applied is None:
        return True
    lost = record.applied - record.cpus
    return bool(lost if wanted is None else lost & wanted)
