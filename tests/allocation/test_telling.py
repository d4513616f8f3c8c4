"""Taking others off CPUs, where several creations do it at once."""

from __future__ import annotations

import asyncio
import sqlite3
from pathlib import Path

import grpc
import pytest

from qrm.allocation.book import Book
from qrm.allocation.planner import Planner
from qrm.allocation.registry import load_allocators
from qrm.allocation.telling import ShrinkFailed, Teller
from qrm.allocator import Allocation, PodIdentity, ResourceRequest
from qrm.config import IsolationSection
from qrm.cpuset import CPUSet
from qrm.enforcement.cgroup import Cgroups
from qrm.enforcement.channel import CallError
from qrm.enforcement.isolation.containers import ContainerFiles
from qrm.enforcement.locks import ContainerLocks
from qrm.enforcement.processes import Processes
from qrm.enforcement.pushes import Pusher
from qrm.enforcement.runtime import ContainerDetails
from qrm.ledger.record import CPU, Record
from qrm.ledger.store import Ledger, open_ledger
from qrm.metrics import Metrics
from qrm.topology.generate import write_sysfs
from qrm.topology.sysfs import read_machine
from qrm.wire import cri_pb2 as cri
from tests.support import TWO_NODES


class Runtime:
    """Confirms updates, or refuses them, and remembers the cpusets."""

    def __init__(self, *, refuses: bool = False) -> None:
        self.told: list[str] = []
        self._refuses = refuses

    async def container(self, container_id: str) -> ContainerDetails:
        raise CallError(grpc.StatusCode.NOT_FOUND, "no process of it has a cgroup here")

    async def update(self, container_id: str, resources: cri.LinuxContainerResources) -> None:
        await asyncio.sleep(0)
        if self._refuses:
            raise CallError(grpc.StatusCode.INTERNAL, "cgroup is frozen")
        self.told.append(resources.cpuset_cpus)


def record(uid: str, cpus: str, applied: str | None = None, *, container_id: str = "") -> Record:
    request = ResourceRequest(PodIdentity(uid, "ns", uid), "main", cpu_millis=1000)
    told = None if applied is None else CPUSet.parse(applied)
    held = {CPU: Allocation(CPU, CPUSet.parse(cpus))}
    return Record(request.key, request, "sandbox", container_id=container_id, allocations=held, applied=told)


def teller(folder: Path, runtime: Runtime, *records: Record) -> Teller:
    """One whose book has `records`, none of which is durable yet."""
    write_sysfs(TWO_NODES, folder)
    book = Book(Planner(read_machine(folder), load_allocators({"cpu": {}})), open_ledger(folder / "ledger.db")[0])
    for each in records:
        book.put(each)
    processes = Processes(runtime, Cgroups(folder, folder))  # type: ignore[arg-type]
    files = ContainerFiles(IsolationSection(), {}, processes, lambda _: None)
    return Teller(book, Pusher(runtime, files, Metrics()), ContainerLocks())  # type: ignore[arg-type]


@pytest.mark.parametrize(("full", "told"), [(True, "2-3"), (False, "2-7")])
async def test_what_another_creation_has_taken_off_counts_for_both(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, full: bool, told: str
) -> None:
    """On a full disk what it gains cannot be durably free: the second push has nothing to say, and nothing is wrong."""

    def write(*_: object) -> None:
        raise sqlite3.OperationalError("database or disk is full")

    if full:
        monkeypatch.setattr(Ledger, "_write", write)
    runtime = Runtime()
    moving = record("moving", "2-7", "0-3", container_id="c1")
    tells = teller(tmp_path, runtime, moving)
    await asyncio.gather(*(tells.shrink(record(uid, "0-1"), [moving.key]) for uid in ("first", "second")))
    assert runtime.told == [told]


async def test_who_cannot_be_taken_off_is_named(tmp_path: Path) -> None:
    """For all that want its CPUs."""
    moving = record("moving", "2-7", "0-3", container_id="c1")
    tells = teller(tmp_path, Runtime(refuses=True), moving)
    shrinks = (tells.shrink(record(uid, "0-1"), [moving.key]) for uid in ("first", "second"))
    for failure in await asyncio.gather(*shrinks, return_exceptions=True):
        assert isinstance(failure, ShrinkFailed)
        assert "moving/main" in str(failure)
