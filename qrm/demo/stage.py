"""Where the demo plays: qrm in this process, before Debian's containerd or a simulated runtime, all of it its own."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator, MutableMapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import structlog

from qrm.config import (
    Config,
    HostSection,
    IsolationSection,
    LogSection,
    MetricsSection,
    RuntimeSection,
    ShimSection,
    StateSection,
)
from qrm.cpuset import CPUSet
from qrm.demo.cgroups import PodCgroups
from qrm.demo.containerd import PrivateContainerd, missing_tools
from qrm.demo.fake_runtime import FakeRuntime
from qrm.demo.kubelet import KubeletClient
from qrm.enforcement.cgroup import Cgroups
from qrm.errors import QrmError
from qrm.service import logs
from qrm.service.node import Node
from qrm.service.serve import running
from qrm.topology.generate import Layout, write_sysfs
from qrm.topology.machine import Machine
from qrm.topology.sysfs import read_machine

SIMULATED = Layout(sockets=2, nodes_per_socket=2, l3_per_socket=2, cores_per_socket=8, threads=2)
"""Two sockets of two NUMA nodes each, with SMT: 32 CPUs, 8 on each node."""
PREFIX = "qrm-demo-"
"""How the names of the demo's folders and cgroups begin; the process id follows."""
LEAST_CORES = 2
"""One for a dedicated pod, one for all others."""
MEMORY = Path("/dev/shm")  # noqa: S108, what is made in it has a name that nobody can guess
"""Where a simulated node is put if possible: it is a thousand files."""

_RUN = Path("/run")
_KILLED = 137
"""The exit code of a process that SIGKILL ended, as containerd tells it."""
_CALL_SECONDS = 30.0
_READY_SECONDS = 20.0


@dataclass(frozen=True, slots=True)
class Stage:
    """A serving node, and kubelet's connection to it."""

    node: Node
    kubelet: KubeletClient
    runtime: str
    """Name and version of what runs the containers."""
    cgroups: PodCgroups | None
    """Kubelet's part of the cgroup tree; None where the runtime is simulated, which makes it by itself."""
    _kernel: Cgroups
    _kill: Callable[[str, int], None]

    @property
    def machine(self) -> Machine:
        """What the node is made of."""
        return self.node.planner.machine

    async def cpus(self, container_id: str) -> CPUSet | None:
        """The CPUs on which the kernel lets a container run; None where it does not run."""
        pid = await self._pid(container_id)
        found = await asyncio.to_thread(self._kernel.cpuset_of, pid) if pid else None
        return found.effective if found else None

    async def kill(self, container_id: str) -> None:
        """End a container's process as the kernel's OOM killer would; nobody is told.

        Raises:
            QrmError: it has none.
        """
        pid = await self._pid(container_id)
        if not pid:
            # To the kernel, process 0 is the caller's whole group.
            raise QrmError(f"container {container_id} does not run")
        self._kill(container_id, pid)

    async def _pid(self, container_id: str) -> int:
        """The container's first process; 0 where it does not run."""
        status = await self.kubelet.container_status(container_id, verbose=True)
        return int(json.loads(status.info["info"])["pid"])


def why_not_real() -> str:
    """What keeps the demo from using containerd here, and the remedy, for people; empty where nothing does."""
    simulated = "this is a built-in simulated node"
    if os.geteuid() != 0:
        return f"Without root {simulated}; sudo qrm demo uses containerd."
    if missing := missing_tools():
        return f"Without {', '.join(missing)} {simulated}; apt install {' '.join(missing)} changes that."
    if len(read_machine(Path("/sys")).cores) < LEAST_CORES:
        return f"This machine has too few cores, so {simulated}."
    return ""


@asynccontextmanager
async def real_stage() -> AsyncIterator[Stage]:
    """This machine, with a containerd of its own that is gone afterwards, and its containers with it.

    Raises:
        QrmError: something cannot be started or removed.
    """
    with (
        tempfile.TemporaryDirectory(prefix=_prefix(), dir=_RUN) as name,
        PodCgroups(f"/{Path(name).name}") as cgroups,
    ):
        folder = Path(name)
        async with PrivateContainerd(folder / "containerd") as containerd:
            config = _config(folder, containerd.endpoint, HostSection())
            async with _served(config, cgroups, lambda _, pid: os.kill(pid, signal.SIGKILL)) as stage:
                yield stage


@asynccontextmanager
async def simulated_stage() -> AsyncIterator[Stage]:
    """A machine of files in a temporary folder, with a runtime that runs nothing.

    Raises:
        QrmError: the temporary folder's path is too long for a socket.
    """
    parent = MEMORY if os.access(MEMORY, os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix=_prefix(), dir=parent) as name:
        folder = Path(name)
        host = HostSection(sysfs=str(folder / "sys"), proc=str(folder / "proc"), cgroup=str(folder / "cgroup"))
        await asyncio.to_thread(write_sysfs, SIMULATED, folder / "sys")
        async with FakeRuntime(folder, cpus=SIMULATED.cpus, nodes=SIMULATED.nodes, pod_updates=True) as fake:
            # By this file the kernel shows, and qrm knows, that it is a cgroup mount of version 2.
            (folder / "cgroup" / "cgroup.controllers").write_text("cpuset cpu io memory pids\n")
            config = _config(folder, fake.endpoint, host)
            async with _served(config, None, lambda container, _: fake.exit_container(container, _KILLED)) as stage:
                yield stage


def _prefix() -> str:
    return f"{PREFIX}{os.getpid()}-"


def _config(folder: Path, endpoint: str, host: HostSection) -> Config:
    own = folder / "qrm"
    return Config(
        runtime=RuntimeSection(endpoint=endpoint),
        shim=ShimSection(
            socket=str(own / "qrm.sock"),
            admin_socket=str(own / "admin.sock"),
            pod_resources_socket=str(own / "pod-resources.sock"),
        ),
        state=StateSection(directory=str(own / "state")),
        # What is not a pod's own is the machine's, and none of the demo's business.
        isolation=IsolationSection(rdt="off", io_cost="off", network="off"),
        metrics=MetricsSection(listen=""),
        log=LogSection(level="warning", format="console"),
        host=host,
    )


@asynccontextmanager
async def _served(config: Config, cgroups: PodCgroups | None, kill: Callable[[str, int], None]) -> AsyncIterator[Stage]:
    """The stage in front of a runtime that listens."""
    endpoint = f"unix://{config.shim.socket}"
    with _logging(config.log):
        async with (
            running(config) as node,
            KubeletClient(endpoint, timeout=_CALL_SECONDS, cgroups=cgroups) as kubelet,
        ):
            async with asyncio.timeout(_READY_SECONDS):
                await node.context.ready.wait()
            version = await kubelet.version()
            runtime = f"{version.runtime_name} {version.runtime_version}"
            kernel = Cgroups(Path(config.host.cgroup), Path(config.host.proc))
            yield Stage(node, kubelet, runtime, cgroups, kernel, kill)


@contextmanager
def _logging(section: LogSection) -> Iterator[None]:
    """The service's log on standard error, without the refusals, which the demo shows itself."""
    before = structlog.get_config()
    logs.configure(section)
    structlog.configure(processors=[_drop_refusals, *structlog.get_config()["processors"]])
    try:
        yield
    finally:
        structlog.configure(**before)


def _drop_refusals(_: object, __: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    if event["event"] == "refused":
        raise structlog.DropEvent
    return event
