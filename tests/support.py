"""A qrm node under test, in this process, in front of a runtime that may be fake or real."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import grpc
import pytest

from qrm.config import Config, parse
from qrm.cpuset import CPUSet
from qrm.demo.fake_runtime import FakeRuntime
from qrm.demo.kubelet import KubeletClient
from qrm.demo.pods import ContainerSpec, Pod
from qrm.ledger.record import Record
from qrm.metrics import Metrics
from qrm.service.node import Node
from qrm.service.serve import running
from qrm.topology.generate import Layout, write_sysfs

TWO_NODES = Layout(nodes_per_socket=2, l3_per_socket=2, cores_per_socket=8)
"""8 CPUs without SMT, 0-3 on NUMA node 0 and 4-7 on node 1."""

PATIENCE = 60.0
"""Seconds after which something that has to happen does not any more, on however busy a machine."""
MIB = 1 << 20
HOSTS_OWN = '[isolation]\nrdt = "off"\nio_cost = "off"\nnetwork = "off"\n'
"""What is not a pod's own is this machine's, which may be in use."""


def dedicated(name: str, cpus: int, *, annotations: dict[str, str] | None = None, count: int = 1) -> Pod:
    """A pod with `count` containers c0, c1, ... that each ask for `cpus` whole CPUs of their own."""
    said = {"katalyst.kubewharf.io/qos_level": "dedicated_cores", **(annotations or {})}
    millis = cpus * 1000
    containers = tuple(
        ContainerSpec(f"c{each}", cpu_request=millis, cpu_limit=millis, memory_limit=64 * MIB) for each in range(count)
    )
    return Pod(name, containers, annotations=said)


def pod(name: str, millis: int = 100, *, level: str = "", annotations: dict[str, str] | None = None) -> Pod:
    """A pod with one container c0 that asks for `millis` millicores, at `level` or the node's default."""
    said = {"katalyst.kubewharf.io/qos_level": level} if level else {}
    return Pod(name, (ContainerSpec("c0", cpu_request=millis),), annotations={**said, **(annotations or {})})


def config(folder: Path, endpoint: str, *, more: str = "", layout: Layout | None = TWO_NODES) -> Config:
    """A configuration with everything under `folder`; the machine is generated, or this one where layout is None."""
    return parse(config_text(folder, endpoint, more=more, layout=layout))


def config_text(folder: Path, endpoint: str, *, more: str = "", layout: Layout | None = TWO_NODES) -> str:
    """As `config`, as a file has it."""
    host = ""
    if layout is not None:
        sysfs = folder / "sys"
        if not sysfs.exists():
            write_sysfs(layout, sysfs)
        host = f'[host]\nsysfs = "{sysfs}"\nproc = "{folder}/proc"\ncgroup = "{folder}/cgroup"\n'
    return f"""
        [runtime]
        endpoint = "{endpoint}"
        [shim]
        socket = "{folder}/run/qrm.sock"
        admin_socket = "{folder}/run/admin.sock"
        pod_resources_socket = "{folder}/run/pod-resources.sock"
        budget_seconds = {PATIENCE}
        [state]
        directory = "{folder}/state"
        [metrics]
        listen = ""
        {host}
        {more}
        """


@dataclass(frozen=True)
class UnderTest:
    """A serving node, kubelet's connection to it, and the runtime behind it."""

    node: Node
    kubelet: KubeletClient
    fake: FakeRuntime
    config: Config

    def record(self, container_id: str) -> Record:
        """The ledger's line of a container."""
        found = self.node.book.ledger.find(container_id)
        assert found is not None, f"{container_id} is not in the ledger"
        return found

    def ledger_cpus(self, container_id: str) -> str:
        """The container's CPUs by the ledger."""
        return str(self.record(container_id).cpus)

    def kernel_cpus(self, container_id: str) -> str:
        """The container's CPUs by its cgroup."""
        return (self.fake.cgroup_of(container_id) / "cpuset.cpus").read_text().strip()

    async def settled(self) -> None:
        """Wait until no push is due and everything is durable."""
        await until(lambda: not any(self.node.book.due()) and not self.node.placements.due.is_set())
        await self.node.book.ledger.flush()

    def check(self) -> None:
        """No CPU is held twice, and every running container is where the ledger says."""
        exclusive = CPUSet()
        for record in self.node.book.ledger:
            held = record.allocations.get("cpu")
            if held is not None and record.is_pod:
                assert exclusive.isdisjoint(held.exclusive), f"{record.key} holds CPUs of another pod"
                exclusive |= held.exclusive
        for record in self.node.book.ledger:
            known = record.running and record.container_id in self.fake.store.containers
            if known and self.fake.cgroup_of(record.container_id).exists():
                assert self.kernel_cpus(record.container_id) == str(record.cpus)


async def until(condition: Callable[[], bool], seconds: float = PATIENCE) -> None:
    """Wait until `condition` holds; an assertion fails where it does not within `seconds`."""
    async with asyncio.timeout(seconds):
        while not condition():
            await asyncio.sleep(0.01)


@asynccontextmanager
async def under_test(
    folder: Path, *, more: str = "", layout: Layout = TWO_NODES, fake: FakeRuntime | None = None
) -> AsyncIterator[UnderTest]:
    """A node in front of a fake runtime with the same CPUs; of a given `fake`, the caller takes care."""
    if fake is None:
        async with (
            FakeRuntime(folder, pod_updates=True) as own,
            under_test(folder, more=more, layout=layout, fake=own) as made,
        ):
            yield made
        return
    settings = config(folder, fake.endpoint, more=more, layout=layout)
    async with running(settings, metrics=Metrics()) as node, KubeletClient(f"unix://{settings.shim.socket}") as kubelet:
        await wait_ready(node)
        yield UnderTest(node, kubelet, fake, settings)


async def wait_ready(node: Node) -> None:
    """Wait until the node has compared its ledger with the runtime."""
    async with asyncio.timeout(PATIENCE):
        await node.context.ready.wait()


async def answering(kubelet: KubeletClient) -> None:
    """Wait until the runtime answers, after a restart or a cut, as kubelet's next try would find.

    To wait for a connection is not enough: a call can begin on one that is about to be found broken.
    """
    async with asyncio.timeout(PATIENCE):
        while True:
            try:
                await kubelet.version(wait=True)
            except grpc.aio.AioRpcError as error:
                if error.code() is not grpc.StatusCode.UNAVAILABLE:
                    raise
                await asyncio.sleep(0.05)
            else:
                return


async def refused(call: Awaitable[object]) -> str:
    """The text with which `call` was refused."""
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    return f"{caught.value.code().name}: {caught.value.details()}"
