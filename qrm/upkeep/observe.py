"""Learns from the runtime's lists which containers have ended, vanished, or come about after all.

kubelet asks for both lists each second, so looking at the replies as they pass costs no call of our own.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import structlog

from qrm.allocation.placements import Placements
from qrm.enforcement.texts import lenient
from qrm.ledger.annotation import KEY, read_annotation
from qrm.ledger.record import Record
from qrm.pods.identity import container_name
from qrm.wire import cri_pb2 as cri

log = structlog.get_logger(__name__)

_LIVE = (cri.ContainerState.CONTAINER_CREATED, cri.ContainerState.CONTAINER_RUNNING)


@dataclass(slots=True)
class _Seen:
    """The last reply, and the book's version once everything in it had been taken in."""

    reply: bytes = b""
    version: int = -1


class Observer:
    """Takes in unfiltered ListContainers and ListPodSandbox replies.

    `asked` is when, by the monotonic clock, the list was asked for: what changed later is not judged by it.
    """

    def __init__(self, placements: Placements, *, uncertain_seconds: float) -> None:
        self._placements = placements
        self._book = placements.book
        self.uncertain_seconds = uncertain_seconds
        self.unknown: tuple[cri.Container, ...] = ()
        """Live containers of the last list that the ledger does not know."""
        self._containers = _Seen()
        self._sandboxes = _Seen()

    def saw_containers(self, reply: bytes, asked: float) -> None:
        """A ListContainersResponse, serialised."""
        if not self._is_old_news(self._containers, reply):
            self.judge_containers(lenient(cri.ListContainersResponse, reply).containers, asked)
            self._taken_in(self._containers, reply)

    def judge_containers(self, containers: Iterable[cri.Container], asked: float) -> None:
        """What a complete list of containers says about the ledger."""
        listed = {each.id: each for each in containers}
        self._commit_uncertain(listed.values())
        self._placements.exited(self._ended(listed, asked))
        self._placements.revived(self._alive_after_all(listed.values(), asked))
        self._placements.released(self._given_up(asked))
        known = {record.container_id for record in self._book.ledger}
        coming = {_instance(record) for record in self._book.ledger if record.pending}
        self.unknown = tuple(
            each
            for each in listed.values()
            if each.state in _LIVE and each.id not in known and _listed_instance(each) not in coming
        )

    def saw_sandboxes(self, reply: bytes, asked: float) -> None:
        """A ListPodSandboxResponse, serialised."""
        if not self._is_old_news(self._sandboxes, reply):
            self.judge_sandboxes(lenient(cri.ListPodSandboxResponse, reply).items, asked)
            self._taken_in(self._sandboxes, reply)

    def judge_sandboxes(self, sandboxes: Iterable[cri.PodSandbox], asked: float) -> None:
        """What a complete list of sandboxes says about the ledger.

        One that is not ready is never used again: it is as good as gone once nothing runs in it.
        """
        ready = {each.id: each.state == cri.PodSandboxState.SANDBOX_READY for each in sandboxes}
        judged = [record for record in self._book.ledger if self._placements.older_than(record, asked)]
        alive = {record.sandbox_id for record in self._book.ledger if record.running and not record.is_pod}
        for sandbox_id in {record.sandbox_id for record in judged}:
            if sandbox_id not in ready or not (ready[sandbox_id] or sandbox_id in alive):
                log.info("sandbox is over", sandbox=sandbox_id, listed=sandbox_id in ready)
                self._placements.sandbox_gone(sandbox_id)

    def _is_old_news(self, seen: _Seen, reply: bytes) -> bool:
        return seen.version == self._book.version and seen.reply == reply

    def _taken_in(self, seen: _Seen, reply: bytes) -> None:
        waiting = any(record.pending for record in self._book.ledger)
        seen.reply, seen.version = reply, -1 if waiting else self._book.version

    def _ended(self, listed: Mapping[str, cri.Container], asked: float) -> Sequence[str]:
        ended = []
        for record in self._book.ledger:
            if not record.running or not record.container_id:
                continue
            container = listed.get(record.container_id)
            if container is None:
                if self._placements.older_than(record, asked):
                    ended.append(record.container_id)
            elif container.state == cri.ContainerState.CONTAINER_EXITED:
                ended.append(record.container_id)
        return ended

    def _alive_after_all(self, containers: Iterable[cri.Container], asked: float) -> Sequence[str]:
        """Containers that an earlier list had left out, or whose start only seemed to have failed."""
        found = (self._book.ledger.find(each.id) for each in containers if each.state in _LIVE)
        return [
            record.container_id
            for record in found
            if record is not None and not record.running and self._placements.older_than(record, asked)
        ]

    def _commit_uncertain(self, containers: Iterable[cri.Container]) -> None:
        """Creations whose reply was lost but which the runtime has carried out."""
        uncertain = {_instance(record): record for record in self.uncertain()}
        if not uncertain:
            return
        for container in containers:
            record = uncertain.get(_listed_instance(container))
            if record is not None:
                log.info("creation with lost reply was carried out", id=container.id, pod=str(record.request.pod))
                kept = read_annotation(container.annotations.get(KEY, ""))
                self._placements.carried_out(record, container.id, kept.cpuset if kept else None)

    def _given_up(self, asked: float) -> Sequence[Record]:
        """Creations with an unknown outcome that the runtime still does not list after the time for that is over."""
        now = time.time()
        limit = now - self.uncertain_seconds
        return [
            record
            for record in self.uncertain()
            if record.created < limit and record.awaited < now and self._placements.older_than(record, asked)
        ]

    def uncertain(self) -> Sequence[Record]:
        """Creations whose outcome is not known, and for whose answer no call of this process waits."""
        in_flight = self._placements.in_flight
        return [record for record in self._book.ledger if record.pending and record.key not in in_flight]


def _instance(record: Record) -> tuple[str, str, int]:
    """What names a container instance before the runtime has given it an id."""
    return record.sandbox_id, record.key.container, record.attempt


def _listed_instance(container: cri.Container) -> tuple[str, str, int]:
    name = container_name(container.labels, container.metadata)
    return container.pod_sandbox_id, name, container.metadata.attempt
