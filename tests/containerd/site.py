"""A node with real containers, and what its kernel says about them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from qrm.cpuset import CPUSet
from qrm.demo.cgroups import PodCgroups, cgroup_file
from qrm.demo.containerd import PrivateContainerd
from qrm.demo.kubelet import KubeletClient, RunningPod
from qrm.demo.pods import ContainerSpec, Pod
from qrm.metrics import Metrics
from qrm.service.node import Node
from qrm.service.serve import running
from tests.support import HOSTS_OWN, MIB, PATIENCE, config, until, wait_ready

DRIFT_SECONDS = 0.3
TELL = (
    "/bin/sh",
    "-c",
    'grep Cpus_allowed_list /proc/self/status >/tmp/first; trap "exit 0" TERM; while :; do sleep 1; done',
)
"""A command that begins with writing down where it runs."""


class Watching(Metrics):
    """Metrics that let a test look at the node at the moment at which a creation is passed on to the runtime."""

    def __init__(self) -> None:
        super().__init__()
        self.look: Callable[[], None] = lambda: None

    @contextmanager
    def step(self, name: str) -> Iterator[None]:
        """Time a step, and look first."""
        if name == "forward":
            self.look()
        with super().step(name):
            yield


def shared(name: str, millis: int = 100, limit: int = 0) -> Pod:
    """A pod with one container c0 at the node's default level, shared_cores."""
    return Pod(name, (ContainerSpec("c0", millis, limit, command=TELL),))


def dedicated(name: str, cpus: int = 1) -> Pod:
    """A pod with one container c0 that asks for whole CPUs of its own."""
    spec = ContainerSpec("c0", cpus * 1000, cpus * 1000, 64 * MIB, 64 * MIB, command=TELL)
    return Pod(name, (spec,), annotations={"katalyst.kubewharf.io/qos_level": "dedicated_cores"})


@dataclass
class Site:
    """The node. `kubelet` talks to qrm, `direct` to containerd behind its back."""

    folder: Path
    containerd: PrivateContainerd
    cgroups: PodCgroups
    direct: KubeletClient
    metrics: Watching = field(default_factory=Watching)
    """Of the qrm that runs."""
    _stack: AsyncExitStack = field(default_factory=AsyncExitStack)
    _node: Node | None = None
    _kubelet: KubeletClient | None = None

    def __post_init__(self) -> None:
        more = f"{HOSTS_OWN}[upkeep]\ndrift_seconds = {DRIFT_SECONDS}"
        self.config = config(self.folder, self.containerd.endpoint, more=more, layout=None)

    @property
    def node(self) -> Node:
        """The qrm that runs."""
        assert self._node is not None
        return self._node

    @property
    def kubelet(self) -> KubeletClient:
        """kubelet's connection to it."""
        assert self._kubelet is not None
        return self._kubelet

    @property
    def machine(self) -> CPUSet:
        """All CPUs."""
        return self.node.planner.machine.online

    async def start(self) -> None:
        """Run qrm, with the ledger that the last one left."""
        self._stack, self.metrics = AsyncExitStack(), Watching()
        self._node = await self._stack.enter_async_context(running(self.config, metrics=self.metrics))
        client = KubeletClient(f"unix://{self.config.shim.socket}", cgroups=self.cgroups)
        self._kubelet = await self._stack.enter_async_context(client)
        await wait_ready(self._node)

    async def stop(self) -> None:
        """End qrm; nothing where none runs."""
        await self._stack.aclose()

    async def first_words(self, container_id: str) -> CPUSet:
        """Where the container ran at its first instructions, by what it wrote down itself, once it has."""
        async with asyncio.timeout(PATIENCE):
            while True:
                written = await self.kubelet.exec_sync(container_id, ["cat", "/tmp/first"])  # noqa: S108, its own
                if written.stdout.endswith(b"\n"):
                    return CPUSet.parse(written.stdout.decode().partition(":")[2])

    async def info(self, container_id: str) -> Any:
        """containerd's own record of a container."""
        return json.loads((await self.direct.container_status(container_id, verbose=True)).info["info"])

    async def allowed(self, container_id: str) -> CPUSet:
        """Where the kernel lets the container's process run."""
        pid = (await self.info(container_id))["pid"]
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("Cpus_allowed_list"):
                return CPUSet.parse(line.partition(":")[2])
        raise AssertionError("no Cpus_allowed_list")

    def file(self, pod: RunningPod, name: str) -> Path | None:
        """A file of the cgroup of a pod's container c0; None where there is no such cgroup, or no such file in it."""
        return cgroup_file(f"{pod.pod.cgroup(self.cgroups.cgroup_root)}/{pod.containers['c0']}", name)

    def cpus(self, pod: RunningPod) -> CPUSet:
        """The cpuset in the cgroup of a pod's container c0."""
        path = self.file(pod, "cpuset.cpus")
        assert path is not None
        return CPUSet.parse(path.read_text())

    def quota(self, pod: RunningPod) -> int:
        """The CFS quota of a pod's container c0 in microseconds; -1 for none."""
        if path := self.file(pod, "cpu.cfs_quota_us"):
            return int(path.read_text())
        path = self.file(pod, "cpu.max")
        assert path is not None
        amount = path.read_text().split()[0]
        return -1 if amount == "max" else int(amount)

    async def has(self, pod: RunningPod, cpus: CPUSet) -> None:
        """Wait until a pod's container c0 has `cpus` in its cgroup."""
        await until(lambda: self.cpus(pod) == cpus)
