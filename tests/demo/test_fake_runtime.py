"""What the fake runtime does where no containerd here can be asked: cgroup v2, pod updates, many containers, echoes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import pytest

from qrm.cpuset import CPUSet
from qrm.demo.fake_runtime import FakeRuntime
from qrm.demo.kubelet import KubeletClient
from qrm.demo.pods import ContainerSpec, Pod
from qrm.wire import cri_pb2
from tests.support import PATIENCE

MAIN = ContainerSpec("main", cpu_request=500, cpu_limit=1500, memory_limit=64 << 20)


@pytest.fixture
async def kubelet(fake: FakeRuntime) -> AsyncIterator[KubeletClient]:
    async with KubeletClient(fake.endpoint, timeout=PATIENCE) as client:
        yield client


@pytest.fixture
async def channel(fake: FakeRuntime) -> AsyncIterator[grpc.aio.Channel]:
    async with grpc.aio.insecure_channel(fake.endpoint, options=[("grpc.max_receive_message_length", -1)]) as made:
        yield made


def unary(channel: grpc.aio.Channel, method: str) -> grpc.aio.UnaryUnaryMultiCallable[bytes, bytes]:
    return channel.unary_unary(f"/test.Echo/{method}")


def value(fake: FakeRuntime, container: str, name: str) -> str:
    return (fake.cgroup_of(container) / name).read_text().strip()


async def test_what_was_applied_stands_in_files(fake: FakeRuntime, kubelet: KubeletClient) -> None:
    running = await kubelet.start_pod(Pod("web", (MAIN,)))
    container = running.containers["main"]
    assert value(fake, container, "cpu.max") == "150000 100000"
    assert value(fake, container, "cpu.weight") == "20"
    assert value(fake, container, "memory.max") == str(64 << 20)
    assert value(fake, container, "memory.swap.max") == "0"
    assert value(fake, container, "cpuset.cpus") == ""
    assert value(fake, container, "cpuset.cpus.effective") == "0-7"
    pid = value(fake, container, "cgroup.procs")
    assert (fake.cgroups.proc / pid / "cgroup").read_text() == f"0::{running.pod.cgroup()}/{container}\n"

    update = cri_pb2.LinuxContainerResources(cpuset_cpus="3,2", cpuset_mems="1", cpu_quota=-1)
    await kubelet.update_resources(container, update)
    assert value(fake, container, "cpuset.cpus") == value(fake, container, "cpuset.cpus.effective") == "2-3"
    assert value(fake, container, "cpuset.mems") == "1"
    assert value(fake, container, "cpu.max") == "max 100000"
    await kubelet.end_pod(running)
    assert not (fake.cgroups.proc / pid).exists()


async def test_a_cpuset_of_nothing_widens_as_the_kernel_does(tmp_path: Path) -> None:
    async with FakeRuntime(tmp_path, cpus=CPUSet([4, 6])) as fake, KubeletClient(fake.endpoint) as kubelet:
        running = await kubelet.start_pod(Pod("web", (MAIN,)))
        container = running.containers["main"]
        await kubelet.update_resources(container, cri_pb2.LinuxContainerResources(cpuset_cpus="0-5"))
        assert value(fake, container, "cpuset.cpus.effective") == "4"
        await kubelet.update_resources(container, cri_pb2.LinuxContainerResources(cpuset_cpus="5"))
        assert value(fake, container, "cpuset.cpus.effective") == "4,6"


async def test_unified_is_merged_and_applied_last(fake: FakeRuntime, kubelet: KubeletClient) -> None:
    running = await kubelet.start_pod(Pod("web", (MAIN,)))
    container = running.containers["main"]
    for key, number in (("cpu.weight", "7"), ("memory.high", "1000")):
        await kubelet.update_resources(container, cri_pb2.LinuxContainerResources(unified={key: number}))
    (fake.cgroup_of(container) / "cpu.weight").write_text("9\n")
    await kubelet.update_resources(container, cri_pb2.LinuxContainerResources(cpuset_cpus="1"))
    assert value(fake, container, "cpu.weight") == "7"
    assert value(fake, container, "memory.high") == "1000"


async def test_an_idle_container_refuses_updates(fake: FakeRuntime, kubelet: KubeletClient) -> None:
    running = await kubelet.start_pod(Pod("web", (MAIN,)))
    container = running.containers["main"]
    await kubelet.update_resources(container, cri_pb2.LinuxContainerResources(unified={"cpu.idle": "1"}))
    update = cri_pb2.LinuxContainerResources(cpuset_cpus="1")
    with pytest.raises(grpc.aio.AioRpcError, match="invalid argument"):
        await kubelet.update_resources(container, update)
    (fake.cgroup_of(container) / "cpu.idle").write_text("0")
    await kubelet.update_resources(container, update)
    assert value(fake, container, "cpu.idle") == "1"


@pytest.mark.parametrize("pod_updates", [False, True])
async def test_pod_updates_are_there_only_if_wanted(tmp_path: Path, pod_updates: bool) -> None:
    async with FakeRuntime(tmp_path, pod_updates=pod_updates) as fake, KubeletClient(fake.endpoint) as kubelet:
        sandbox = await kubelet.run_pod(Pod("web", (MAIN,)))
        resources = cri_pb2.LinuxContainerResources(cpu_shares=99)
        if pod_updates:
            await kubelet.update_pod_resources(sandbox, resources)
            assert fake.store.pods[sandbox].resources == resources
        else:
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await kubelet.update_pod_resources(sandbox, resources)
            assert caught.value.code() == grpc.StatusCode.UNIMPLEMENTED


async def test_five_hundred_containers(fake: FakeRuntime, kubelet: KubeletClient) -> None:
    pods = [Pod(f"pod-{number}", (MAIN,)) for number in range(500)]
    await asyncio.gather(*(kubelet.start_pod(pod) for pod in pods))
    assert len({each.id for each in await kubelet.containers()}) == 500
    assert len(list(fake.cgroups.proc.iterdir())) == 1000


async def test_an_echo_carries_bytes_and_metadata(channel: grpc.aio.Channel) -> None:
    sent = (("initial-colour", "blue"), ("traceparent", "00-1"), ("data-bin", b"\x00\xff"))
    call = unary(channel, "Anything")(b"\x00" * (20 << 20), metadata=sent)
    assert await call == b"\x00" * (20 << 20)
    assert ("initial-colour", "blue") in tuple(await call.initial_metadata())
    assert set(sent[1:]) <= set(await call.trailing_metadata())
    assert await unary(channel, "Anything")(b"") == b""


async def test_echoes_of_streams(channel: grpc.aio.Channel) -> None:
    async def words() -> AsyncIterator[bytes]:
        for word in (b"one", b"two"):
            yield word

    stream: grpc.aio.UnaryStreamMultiCallable[bytes, bytes] = channel.unary_stream("/test.Echo/Stream")
    assert [each async for each in stream(b"x", metadata=(("count", "3"),))] == [b"x"] * 3
    collect: grpc.aio.StreamUnaryMultiCallable[bytes, bytes] = channel.stream_unary("/test.Echo/Collect")
    assert await collect(words()) == b"onetwo"
    chat: grpc.aio.StreamStreamMultiCallable[bytes, bytes] = channel.stream_stream("/test.Echo/Chat")
    assert [each async for each in chat(words())] == [b"one", b"two"]


async def test_an_echo_fails_as_told(channel: grpc.aio.Channel) -> None:
    metadata = (("code", "9"), ("message", "not today"), ("grpc-status-details-bin", b"\x08\x09"), ("more", "1"))
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await unary(channel, "Fail")(b"", metadata=metadata)
    assert (caught.value.code(), caught.value.details()) == (grpc.StatusCode.FAILED_PRECONDITION, "not today")
    trailing = tuple(caught.value.trailing_metadata())
    assert ("grpc-status-details-bin", b"\x08\x09") in trailing
    assert ("more", "1") in trailing


async def test_an_echo_sees_deadlines_and_cancellation(fake: FakeRuntime, channel: grpc.aio.Channel) -> None:
    deadline = unary(channel, "Deadline")
    # grpc-core rounds a deadline up, by at most a few percent, when it writes it to the wire.
    assert 500 < float(await deadline(b"", timeout=1000)) < 1500
    assert await deadline(b"") == b"none"
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await unary(channel, "Wait")(b"", timeout=2)
    assert caught.value.code() == grpc.StatusCode.DEADLINE_EXCEEDED
    async with asyncio.timeout(PATIENCE):
        while not fake.echo.cancelled:
            await asyncio.sleep(0.01)
