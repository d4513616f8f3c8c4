"""A CRI runtime in memory, over a real unix socket, that can be made to fail, hang, restart and lie.

    async with FakeRuntime(folder) as fake, KubeletClient(fake.endpoint) as kubelet:
        running = await kubelet.start_pod(pod)
        fake.faults.fail("StopContainer", grpc.StatusCode.INTERNAL, "disk on fire")
        fake.exit_container(running.containers["main"], code=1)
        assert [call.method for call in fake.calls] == [...]

The tests hold it to what the real containerd answers.
"""

from __future__ import annotations

from pathlib import Path
from types import TracebackType
from typing import Self

import grpc

from qrm.cpuset import CPUSet, NodeSet
from qrm.demo.fake_cgroups import CgroupTree
from qrm.demo.fake_echo import Echo
from qrm.demo.fake_faults import Faults
from qrm.demo.fake_service import Call, Service
from qrm.demo.fake_store import Store
from qrm.errors import QrmError

__all__ = ["Call", "FakeRuntime"]


class FakeRuntime:
    """The runtime; an async context manager that listens while it is open.

    Args:
        folder: Where its files are: `cgroup/` as /sys/fs/cgroup of version 2, `proc/` with PID/cgroup, the socket.
        socket: The socket's path where it is not to be in `folder`; 107 bytes at most.
        cpus: The CPUs that the kernel would have online.
        nodes: The NUMA nodes that the kernel would have memory on.
        pod_updates: Whether UpdatePodSandboxResources is there, as in containerd 2.3 and later.
        release: Which containerd's errors to give; (1, 6), (1, 7) and (2, 1) have been compared.
    """

    def __init__(
        self,
        folder: Path,
        *,
        socket: Path | None = None,
        cpus: CPUSet | None = None,
        nodes: NodeSet | None = None,
        pod_updates: bool = False,
        release: tuple[int, int] = (1, 6),
    ) -> None:
        self.socket = socket or folder / "containerd.sock"
        self.endpoint = f"unix://{self.socket}"
        self.cgroups = CgroupTree(
            folder / "cgroup", folder / "proc", cpus or CPUSet(range(8)), nodes or NodeSet(range(2))
        )
        self.store = Store(self.cgroups, release)
        self.faults = Faults(self.socket)
        self.echo = Echo()
        self.calls: list[Call] = []
        """Every call of CRI that arrived, in order, those that a fault struck among them."""
        self._service = Service(self.store, self.faults, self.echo, self.calls, pod_updates=pod_updates)
        self._server: grpc.aio.Server | None = None

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    async def start(self) -> None:
        """Listen, with the pods and containers that there were."""
        server = grpc.aio.server(
            options=[
                ("grpc.max_receive_message_length", -1),
                ("grpc.max_send_message_length", -1),
                # grpc-core refuses some metadata over 8 KiB, by chance; grpc-go does not.
                ("grpc.max_metadata_size", 1 << 20),
                ("grpc.absolute_max_metadata_size", 1 << 20),
            ],
        )
        server.add_generic_rpc_handlers((self._service,))
        try:
            server.add_insecure_port(f"unix:{self.socket}")
        except RuntimeError as error:
            raise QrmError(f"cannot listen on {self.socket}", hint="sockets have paths of 107 bytes at most") from error
        await server.start()
        self._server = server

    async def stop(self) -> None:
        """Be gone at once: calls in flight fail with UNAVAILABLE; pods and containers run on."""
        if self._server:
            await self._server.stop(None)
            self._server = None

    def exit_container(self, container_id: str, code: int = 0) -> None:
        """Let a running container end by itself; no call tells of it."""
        self.store.exit(self.store.containers[container_id], code)

    def hide(self, some_id: str) -> None:
        """Leave a pod or a container out of lists, as a runtime that lies; everything else still knows it."""
        self.store.hidden.add(some_id)

    def show(self, some_id: str) -> None:
        """Take back `hide`."""
        self.store.hidden.discard(some_id)

    def cgroup_of(self, container_id: str) -> Path:
        """The folder of a container's cgroup; it exists while the container runs."""
        return self.cgroups.path(self.store.containers[container_id].cgroup)

    def calls_of(self, method: str) -> list[Call]:
        """The recorded calls of one method."""
        return [call for call in self.calls if call.method == method]
