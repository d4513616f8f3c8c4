"""What the fake runtime can be made to do wrong, as its client sees it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import pytest

from qrm.demo.fake_runtime import FakeRuntime
from qrm.demo.kubelet import KubeletClient
from qrm.demo.pods import ContainerSpec, Pod
from qrm.errors import QrmError
from qrm.wire import cri_pb2
from tests.support import PATIENCE, answering

MAIN = ContainerSpec("main", cpu_request=500)
POD = Pod("web", (MAIN,))
INTERNAL, UNAVAILABLE = grpc.StatusCode.INTERNAL, grpc.StatusCode.UNAVAILABLE


@pytest.fixture
async def kubelet(fake: FakeRuntime) -> AsyncIterator[KubeletClient]:
    async with KubeletClient(fake.endpoint, timeout=PATIENCE) as client:
        yield client


def code_of(caught: pytest.ExceptionInfo[grpc.aio.AioRpcError]) -> grpc.StatusCode:
    return caught.value.code()


async def test_a_failure_strikes_so_many_calls(fake: FakeRuntime, kubelet: KubeletClient) -> None:
    fake.faults.fail("RunPodSandbox", INTERNAL, "disk on fire", times=2, details=b"\x08\x0d")
    for _ in range(2):
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await kubelet.run_pod(POD)
        assert (code_of(caught), caught.value.details()) == (INTERNAL, "disk on fire")
        assert ("grpc-status-details-bin", b"\x08\x0d") in tuple(caught.value.trailing_metadata())
    assert await kubelet.pods() == []
    await kubelet.run_pod(POD)


async def test_a_failure_after_the_fact_has_done_it(fake: FakeRuntime, kubelet: KubeletClient) -> None:
    fake.faults.fail("RunPodSandbox", INTERNAL, after=True)
    with pytest.raises(grpc.aio.AioRpcError):
        await kubelet.run_pod(POD)
    assert len(await kubelet.pods()) == 1


async def test_a_failure_can_be_for_good_and_for_all(fake: FakeRuntime, kubelet: KubeletClient) -> None:
    fake.faults.fail("*", UNAVAILABLE, "not initialized yet", times=None)
    for _ in range(3):
        with pytest.raises(grpc.aio.AioRpcError):
            await kubelet.version()
    fake.faults.clear()
    await kubelet.version()


async def test_a_hanging_call_goes_on_when_released(fake: FakeRuntime, kubelet: KubeletClient) -> None:
    hang = fake.faults.hang("RunPodSandbox")
    call = asyncio.create_task(kubelet.run_pod(POD))
    await hang.entered.wait()
    assert await kubelet.pods() == []
    hang.release()
    (pod,) = [await call]
    assert [each.id for each in await kubelet.pods()] == [pod]


async def test_a_hanging_call_that_is_given_up_is_not_done(fake: FakeRuntime) -> None:
    hang = fake.faults.hang("RunPodSandbox")
    async with KubeletClient(fake.endpoint, timeout=2) as hasty, KubeletClient(fake.endpoint) as patient:
        call = asyncio.create_task(hasty.run_pod(POD))
        await hang.entered.wait()
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call
        assert code_of(caught) == grpc.StatusCode.DEADLINE_EXCEEDED
        await hang.left.wait()  # the client can know of its own deadline before the server does
        fake.faults.clear()
        await patient.version()
        assert await patient.pods() == []


async def test_a_call_can_be_done_after_its_client_gave_up(fake: FakeRuntime) -> None:
    fake.faults.finish_late("RunPodSandbox")
    async with KubeletClient(fake.endpoint, timeout=2) as hasty, KubeletClient(fake.endpoint) as patient:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await hasty.run_pod(POD)
        assert code_of(caught) == grpc.StatusCode.DEADLINE_EXCEEDED
        async with asyncio.timeout(PATIENCE):
            while not await patient.pods():
                await asyncio.sleep(0.01)


@pytest.mark.parametrize(("after", "pods"), [(False, 0), (True, 1)])
async def test_the_connection_can_be_cut(fake: FakeRuntime, kubelet: KubeletClient, after: bool, pods: int) -> None:
    fake.faults.drop("RunPodSandbox", after=after)
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await kubelet.run_pod(POD)
    assert code_of(caught) == UNAVAILABLE
    await answering(kubelet)
    assert len(await kubelet.pods()) == pods


async def test_cutting_a_connection_spares_other_runtimes(fake: FakeRuntime, kubelet: KubeletClient) -> None:
    async with (
        FakeRuntime(fake.socket.parent / "other") as other,
        KubeletClient(other.endpoint) as neighbour,
    ):
        hang = other.faults.hang("Version")
        call = asyncio.create_task(neighbour.version())
        await hang.entered.wait()
        fake.faults.drop("Version")
        with pytest.raises(grpc.aio.AioRpcError):
            await kubelet.version()
        hang.release()
        assert (await call).runtime_name == "fake"


async def test_calls_can_be_slow(fake: FakeRuntime) -> None:
    fake.faults.delay("*", 30)
    fake.faults.delay("Status", 0)
    async with KubeletClient(fake.endpoint, timeout=0.1) as kubelet:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await kubelet.version()
        assert code_of(caught) == grpc.StatusCode.DEADLINE_EXCEEDED
        await kubelet.call("Status", cri_pb2.StatusRequest(), cri_pb2.StatusResponse, deadline=30)


async def test_a_restart_keeps_what_runs(fake: FakeRuntime, kubelet: KubeletClient) -> None:
    running = await kubelet.start_pod(POD)
    hang = fake.faults.hang("Version")
    call = asyncio.create_task(kubelet.version())
    await hang.entered.wait()
    await fake.stop()
    for broken in (call, kubelet.version()):
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await broken
        assert code_of(caught) == UNAVAILABLE
    await fake.start()
    await answering(kubelet)
    (container,) = await kubelet.containers()
    assert (container.id, container.state) == (running.containers["main"], cri_pb2.CONTAINER_RUNNING)


async def test_a_container_can_end_by_itself(fake: FakeRuntime, kubelet: KubeletClient) -> None:
    running = await kubelet.start_pod(POD)
    container = running.containers["main"]
    fake.exit_container(container, 3)
    status = (await kubelet.container_status(container)).status
    assert (status.state, status.exit_code, status.reason) == (cri_pb2.CONTAINER_EXITED, 3, "Error")
    assert not fake.cgroup_of(container).exists()
    fake.exit_container(container, 4)
    assert (await kubelet.container_status(container)).status.exit_code == 3


async def test_lists_can_lie(fake: FakeRuntime, kubelet: KubeletClient) -> None:
    running = await kubelet.start_pod(POD)
    for hidden in (running.sandbox_id, running.containers["main"]):
        fake.hide(hidden)
    assert (await kubelet.pods(), await kubelet.containers()) == ([], [])
    assert (await kubelet.container_status(running.containers["main"])).status.id
    for hidden in (running.sandbox_id, running.containers["main"]):
        fake.show(hidden)
    assert len(await kubelet.containers()) == len(await kubelet.pods()) == 1


async def test_calls_are_recorded_in_order(fake: FakeRuntime, kubelet: KubeletClient) -> None:
    running = await kubelet.start_pod(POD)
    fake.faults.fail("StopContainer", INTERNAL)
    with pytest.raises(grpc.aio.AioRpcError):
        await kubelet.stop_container(running.containers["main"], grace=7)
    methods = [method for method, _ in fake.calls]
    assert methods == ["RunPodSandbox", "PodSandboxStatus", "CreateContainer", "StartContainer", "StopContainer"]
    ((_, request),) = fake.calls_of("StopContainer")
    assert request == cri_pb2.StopContainerRequest(container_id=running.containers["main"], timeout=7)


async def test_a_socket_that_cannot_be_is_explained(tmp_path: Path) -> None:
    with pytest.raises(QrmError, match="cannot listen"):
        await FakeRuntime(tmp_path, socket=tmp_path / ("x" * 120)).start()
