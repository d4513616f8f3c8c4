"""Our own calls to the runtime, and what its answers are read as."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

from qrm.cpuset import CPUSet
from qrm.demo import fake_records
from qrm.demo.fake_runtime import FakeRuntime
from qrm.demo.kubelet import KubeletClient
from qrm.enforcement.channel import CallError, open_channel
from qrm.enforcement.runtime import RuntimeClient
from qrm.wire import cri_pb2 as cri
from tests.support import dedicated


async def test_a_container_is_told_whole(tmp_path: Path) -> None:
    """Process, cpuset in the runtime's spec and the resources at creation come from the verbose status."""
    async with FakeRuntime(tmp_path) as fake, KubeletClient(fake.endpoint) as kubelet:
        running = await kubelet.start_pod(dedicated("db", 2))
        container = running.containers["c0"]
        await kubelet.update_resources(container, cri.LinuxContainerResources(cpuset_cpus="2-3"))
        channel = open_channel(fake.endpoint, 64 << 20)
        client = RuntimeClient(channel)
        details = await client.container(container)
        sandbox = await client.sandbox_config(running.sandbox_id)
        with pytest.raises(CallError) as caught:
            await client.container("nobody")
        await channel.close()
    assert details.pid > 0
    assert details.cpus == CPUSet([2, 3])
    assert (details.asked.cpu_shares, details.asked.cpu_quota) == (2048, 200_000)
    assert sandbox.linux.cgroup_parent == running.pod.cgroup()
    assert sandbox.linux.resources.cpu_shares == 2048
    assert sandbox.annotations["katalyst.kubewharf.io/qos_level"] == "dedicated_cores"
    assert caught.value.code is grpc.StatusCode.NOT_FOUND


ODD = [None, 0, -1, 2**70, 1.5, "", "what", True, [], ["what"], [None], {}, {"a": None}]


def spoiled(told: object) -> Iterator[object]:
    """`told` with each part of it once in place of something odd, or left out."""
    yield from ODD
    if isinstance(told, dict):
        for key, value in told.items():
            others = {name: each for name, each in told.items() if name != key}
            yield others
            yield from ({**others, key: each} for each in spoiled(value))
    elif isinstance(told, list):
        yield from ([each] for value in told for each in spoiled(value))


async def test_a_runtime_that_tells_less_is_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Missing, null and odd parts of the verbose JSON read as not said, whichever they are."""
    async with FakeRuntime(tmp_path) as fake, KubeletClient(fake.endpoint) as kubelet:
        running = await kubelet.start_pod(dedicated("db", 2))
        container = running.containers["c0"]
        told = json.loads(fake.store.containers[container].status(verbose=True).info["info"])
        told |= json.loads(fake.store.pods[running.sandbox_id].status(verbose=True).info["info"])
        told["runtimeSpec"]["linux"]["namespaces"] = [{"type": "network", "path": "/n"}]
        texts = ["not json", "[" * 3000, *(json.dumps(each) for each in spoiled(told))]
        channel = open_channel(fake.endpoint, 64 << 20)
        client = RuntimeClient(channel)
        for text in texts:
            monkeypatch.setattr(fake_records, "_info", lambda _text=text, **_record: {"info": _text})
            assert (await client.container(container)).pid >= 0
            assert (await client.sandbox(running.sandbox_id)).pid >= 0
            assert (await client.sandbox_config(running.sandbox_id)).metadata.name == "db"
        await channel.close()


def test_outcomes_that_are_not_known() -> None:
    """Only the runtime's own answer says that something was not done."""
    unknown = {code for code in grpc.StatusCode if not CallError(code).outcome_known}
    assert unknown == {grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED, grpc.StatusCode.DEADLINE_EXCEEDED}
