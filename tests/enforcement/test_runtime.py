"""Our own calls to the runtime, and what its answers are read as."""

from __future__ import annotations

import json
from pathlib import Path

import grpc
import pytest

from qrm.cpuset import CPUSet
from qrm.demo.fake_runtime import FakeRuntime
from qrm.demo.kubelet import KubeletClient
from qrm.enforcement import runtime as runtime_module
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


@pytest.mark.parametrize(
    "info",
    [
        {},
        {"info": "not json"},
        {"info": "[]"},
        {"info": json.dumps({"runtimeSpec": None, "config": None})},
        {"info": json.dumps({"runtimeSpec": {"linux": {"resources": {"cpu": {"cpus": "what"}}}}})},
        {"info": json.dumps({"config": {"linux": {"resources": {"cpu_shares": "many"}}}})},
    ],
)
async def test_a_runtime_that_tells_less_is_no_error(info: dict[str, str]) -> None:
    """Missing, null and odd parts of the verbose JSON read as not said."""
    parsed = runtime_module._info(info)
    assert isinstance(parsed, dict)
    asked = runtime_module._resources(((parsed.get("config") or {}).get("linux") or {}).get("resources"))
    assert asked.cpu_quota == 0


def test_outcomes_that_are_not_known() -> None:
    """Only the runtime's own answer says that something was not done."""
    unknown = {code for code in grpc.StatusCode if not CallError(code).outcome_known}
    assert unknown == {grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED, grpc.StatusCode.DEADLINE_EXCEEDED}
