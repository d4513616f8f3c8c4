"""Drift is seen, counted and put back; nothing is written where nothing differs."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import pytest

from qrm.cpuset import CPUSet
from qrm.demo.kubelet import KubeletClient
from qrm.upkeep import growth
from qrm.wire import cri_pb2 as cri
from tests.support import UnderTest, dedicated, pod, under_test, until


@pytest.fixture
async def under(tmp_path: Path) -> AsyncIterator[UnderTest]:
    async with under_test(tmp_path, more="[upkeep]\ndrift_seconds = 0.1\n") as made:
        yield made


def counted(under: UnderTest) -> float:
    return float(under.node.metrics.drift.labels("cpuset")._value.get())


async def test_a_foreign_write_is_put_back_and_counted(under: UnderTest) -> None:
    """Somebody writes a running container's cpuset: within the next rounds it is as the ledger says."""
    running = await under.kubelet.start_pod(dedicated("db", 2))
    container = running.containers["c0"]
    cpus = under.kernel_cpus(container)
    (under.fake.cgroup_of(container) / "cpuset.cpus").write_text("0-7\n")
    await until(lambda: counted(under) == 1)
    await until(lambda: under.kernel_cpus(container) == cpus)
    await under.settled()
    assert counted(under) == 1


async def test_the_steady_state_makes_no_updates(under: UnderTest) -> None:
    """Round after round, the runtime is asked for lists and told nothing."""
    await under.kubelet.start_pod(dedicated("db", 2))
    await under.kubelet.start_pod(pod("web"))
    await under.settled()
    seen = len(under.fake.calls_of("UpdateContainerResources"))
    lists = len(under.fake.calls_of("ListContainers"))
    await until(lambda: len(under.fake.calls_of("ListContainers")) > lists + 5)
    assert len(under.fake.calls_of("UpdateContainerResources")) == seen
    assert counted(under) == 0


async def test_a_growth_that_fails_is_tried_again(under: UnderTest) -> None:
    """The runtime refuses twice: what a container gained reaches it all the same."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(growth, "FIRST_RETRY", 0.05)
        patch.setattr(growth, "LAST_RETRY", 0.05)
        shared = await under.kubelet.start_pod(pod("web"))
        new = await under.kubelet.start_pod(dedicated("db", 3))
        under.fake.faults.fail("UpdateContainerResources", grpc.StatusCode.UNKNOWN, "busy", times=2)
        await under.kubelet.end_pod(new)
        await until(lambda: under.kernel_cpus(shared.containers["c0"]) == "0-7")


async def test_a_container_that_is_gone_is_no_failure(under: UnderTest) -> None:
    """It ends between plan and push: that counts as done, and the new pod comes up."""
    shared = await under.kubelet.start_pod(pod("web"))
    under.fake.faults.fail("UpdateContainerResources", grpc.StatusCode.NOT_FOUND, "no such container")
    new = await under.kubelet.start_pod(dedicated("db", 3))
    assert len(under.record(new.containers["c0"]).cpus or ()) == 3
    assert under.node.book.ledger.find(shared.containers["c0"]) is not None


async def test_a_stuck_shrink_refuses_the_dedicated_pod_only(under: UnderTest) -> None:
    """While a running container cannot be taken off, no dedicated pod is put on its CPUs; others are unharmed."""
    await under.kubelet.start_pod(pod("web"))
    under.fake.faults.fail("UpdateContainerResources", grpc.StatusCode.UNKNOWN, "EBUSY", times=None)
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await under.kubelet.start_pod(dedicated("db", 3))
    assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
    assert "cannot take CPUs back" in str(caught.value.details())
    under.fake.faults.clear()
    await under.kubelet.start_pod(pod("other"))
    await under.kubelet.start_pod(dedicated("db2", 3))
    await under.settled()
    under.check()


async def test_what_came_behind_our_back_is_adopted_as_it_is(under: UnderTest) -> None:
    """A container made at the runtime directly is in the ledger after the next round, unchanged."""
    async with KubeletClient(under.fake.endpoint) as direct:
        running = await direct.start_pod(pod("stranger"))
        container = running.containers["c0"]
        await direct.update_resources(container, cri.LinuxContainerResources(cpuset_cpus="2-3"))
        await until(lambda: under.node.book.ledger.find(container) is not None)
        assert under.record(container).mark == "adopted"
        assert under.kernel_cpus(container) == "2-3"
        new = await under.kubelet.start_pod(dedicated("db", 3))
        await under.settled()
        theirs = CPUSet.parse(under.kernel_cpus(container))
        assert theirs
        assert theirs.isdisjoint(under.record(new.containers["c0"]).cpus or CPUSet())
