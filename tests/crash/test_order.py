"""What is told to containers is durable before: a crash in between must find in the ledger who runs where."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from qrm.allocator import ContainerKey
from qrm.cpuset import CPUSet, NodeSet
from qrm.demo.fake_cgroups import CgroupTree
from qrm.demo.fake_runtime import FakeRuntime
from qrm.demo.pods import container_resources, pod_resources
from qrm.ledger.store import Ledger
from qrm.wire import cri_pb2
from tests.support import UnderTest, dedicated, pod, under_test

from .world import MACHINE, lines_of


class Witness(CgroupTree):
    """Cgroups that note which cpusets reach them that the ledger's file does not know of, in part or as a whole."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder / "cgroup", folder / "proc", MACHINE, NodeSet(range(2)))
        self._ledger = folder / "state" / "ledger.db"
        self.unwritten: list[str] = []
        self.different: list[str] = []

    def apply(self, cgroup: str, resources: cri_pb2.LinuxContainerResources) -> None:
        """As the tree's own, and compare."""
        super().apply(cgroup, resources)
        for record in lines_of(self._ledger):
            told = CPUSet.parse(resources.cpuset_cpus)
            if record.container_id and cgroup.endswith(record.container_id) and record.cpus != told:
                said = self.different if told <= (record.cpus or told) else self.unwritten
                said.append(f"{told}, where the file has {record.cpus}")


@pytest.fixture
def _slow_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """The ledger's disk takes its time."""
    write = Ledger._write

    def slow(ledger: Ledger, lines: Iterable[tuple[ContainerKey, bytes | None]]) -> None:
        time.sleep(0.05)
        write(ledger, lines)

    monkeypatch.setattr(Ledger, "_write", slow)


@asynccontextmanager
async def _witnessed(folder: Path) -> AsyncIterator[tuple[UnderTest, Witness]]:
    """A node in which a witness compares what the kernel is told with what the ledger's file says."""
    fake, witness = FakeRuntime(folder, pod_updates=True), Witness(folder)
    fake.cgroups = fake.store.cgroups = witness
    async with fake, under_test(folder, fake=fake) as node:
        yield node, witness


@pytest.mark.usefixtures("_slow_disk")
async def test_nobody_grows_before_it_is_durable(tmp_path: Path) -> None:
    """On a disk that takes its time, who gains from a pod's end waits until that end is written."""
    async with _witnessed(tmp_path) as (node, witness):
        shared = await node.kubelet.start_pod(pod("shared", 500))
        own = await node.kubelet.start_pod(dedicated("own", 2))
        await node.settled()
        # The end of the container is being written when that of its pod comes.
        await node.kubelet.end_pod(own)
        await node.settled()
        assert CPUSet.parse(node.kernel_cpus(shared.containers["c0"])) == MACHINE
    assert witness.unwritten == []


@pytest.mark.usefixtures("_slow_disk")
async def test_nobody_shrinks_before_it_is_durable(tmp_path: Path) -> None:
    """Neither by a resize nor by what tells containers beside it: after a crash nobody would know of it."""
    async with _witnessed(tmp_path) as (node, witness):
        shared = await node.kubelet.start_pod(pod("shared", 500))
        own = await node.kubelet.start_pod(dedicated("own", 2))
        await node.settled()
        bigger = dedicated("own", 4)
        # The pod's new size is being written, and growth waits for that, when the container is to have its own.
        await node.kubelet.update_pod_resources(own.sandbox_id, pod_resources(bigger))
        await node.kubelet.update_resources(own.containers["c0"], container_resources(bigger, bigger.containers[0]))
        await node.settled()
        assert len(CPUSet.parse(node.kernel_cpus(shared.containers["c0"]))) == len(MACHINE) - 4
    assert (witness.unwritten, witness.different) == ([], [])
