"""A node whose qrm may die at any moment, while the runtime behind it and the pods on it live on.

The runtime is the fake one, in the test's own process; qrm is a process of its own. `World.agreed` is the judge: it
compares what the ledger's file says with what the runtime and the cgroups say.
"""

from __future__ import annotations

import asyncio
import signal
import sqlite3
import sys
from asyncio.subprocess import Process
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager, closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import grpc
import msgspec
import pytest

from qrm.config import Config
from qrm.cpuset import CPUSet, NodeSet
from qrm.demo.fake_cgroups import CgroupTree
from qrm.demo.fake_runtime import FakeRuntime
from qrm.demo.fake_store import Store
from qrm.demo.kubelet import KubeletClient, RunningPod
from qrm.enforcement.channel import open_channel
from qrm.ledger.annotation import KEY, read_annotation
from qrm.ledger.codec import decode
from qrm.ledger.record import CPU, Record
from qrm.service import api
from qrm.wire import cri_pb2
from tests.support import PATIENCE, config, config_text

CHECKOUT = Path(__file__).resolve().parents[2]
MACHINE = CPUSet(range(8))
NO_ROUNDS = "[upkeep]\ndrift_seconds = 3600"
"""What a restart does not put right is not to be put right by the next round of upkeep."""

Answer = TypeVar("Answer")


class Point(NamedTuple):
    """Where qrm kills itself."""

    step: str
    moment: str

    def __str__(self) -> str:
        return f"{self.moment} {self.step}"


class Guard(CgroupTree):
    """Cgroups that note whenever a container runs on CPUs which qrm has promised to another pod alone."""

    def __init__(self, folder: Path, store: Store) -> None:
        super().__init__(folder / "cgroup", folder / "proc", MACHINE, NodeSet(range(2)))
        self._store = store
        self.violations: list[str] = []

    def start(self, cgroup: str, resources: cri_pb2.LinuxContainerResources) -> int:
        """As the tree's own, and look."""
        pid = super().start(cgroup, resources)
        self._look()
        return pid

    def apply(self, cgroup: str, resources: cri_pb2.LinuxContainerResources) -> None:
        """As the tree's own, and look."""
        super().apply(cgroup, resources)
        self._look()

    def _look(self) -> None:
        running = {}
        for container in self._store.containers.values():
            if (self.path(container.cgroup) / "cgroup.procs").exists():
                text = (self.path(container.cgroup) / "cpuset.cpus.effective").read_text()
                running[container.id] = (container, CPUSet.parse(text))
        for owner, own in running.values():
            kept = read_annotation(owner.config.annotations.get(KEY, ""))
            if kept is None or not kept.exclusive:
                continue
            for other, cpus in running.values():
                if other.sandbox_id != owner.sandbox_id and cpus & own:
                    self.violations.append(f"{other.name} ran on {cpus}, where {owner.name} has {own} alone")


@dataclass
class World:
    """The node. `kubelet` talks to qrm, `direct` to the runtime behind its back."""

    folder: Path
    fake: FakeRuntime
    guard: Guard
    config: Config
    direct: KubeletClient
    process: Process | None = None
    _kubelet: KubeletClient | None = None
    _file: Path = field(init=False)
    _trigger: Path = field(init=False)

    def __post_init__(self) -> None:
        self._file = self.folder / "qrm.toml"
        self._trigger = self.folder / "armed"
        self._file.write_text(config_text(self.folder, self.fake.endpoint, more=NO_ROUNDS))

    @property
    def kubelet(self) -> KubeletClient:
        """kubelet's connection to the qrm that runs."""
        assert self._kubelet is not None
        return self._kubelet

    @property
    def ledger_file(self) -> Path:
        """The ledger's main file."""
        return Path(self.config.state.directory) / "ledger.db"

    async def start(self, point: Point | None = None) -> None:
        """Start qrm, to die at `point` once it is armed, and wait until it lets pods in."""
        self._trigger.unlink(missing_ok=True)
        command = [sys.executable, "-m", "tests.crash.service", str(self._file)]
        command += [*point, str(self._trigger)] if point else []
        with (self.folder / "qrm.log").open("ab") as log:
            self.process = await asyncio.create_subprocess_exec(*command, cwd=CHECKOUT, stdout=log, stderr=log)
        self._kubelet = KubeletClient(f"unix://{self.config.shim.socket}", timeout=PATIENCE)
        ready, ended = asyncio.ensure_future(self._ready()), asyncio.ensure_future(self.process.wait())
        await asyncio.wait({ready, ended}, timeout=PATIENCE, return_when=asyncio.FIRST_COMPLETED)
        ended.cancel()
        if not ready.done():
            ready.cancel()
            pytest.fail(f"qrm does not start; exit code: {self.process.returncode}")
        await ready

    async def _ready(self) -> None:
        while not (await self.ask("status", api.Status)).ready:
            await asyncio.sleep(0.01)

    def arm(self) -> None:
        """From now on qrm dies at its point."""
        self._trigger.touch()

    async def crashed(self) -> None:
        """Wait until qrm has died of SIGKILL; fails where it lives on."""
        assert self.process is not None
        async with asyncio.timeout(PATIENCE):
            assert await self.process.wait() == -signal.SIGKILL
        await self._forget()

    async def kill(self) -> None:
        """kill -9."""
        assert self.process is not None
        self.process.kill()
        await self.crashed()

    async def stop(self) -> None:
        """What a service manager does; fails where qrm does not end well."""
        assert self.process is not None
        self.process.terminate()
        async with asyncio.timeout(PATIENCE):
            assert await self.process.wait() == 0
        await self._forget()

    async def close(self) -> None:
        """End what still runs and show qrm's log to a failed test."""
        if self.process is not None and self.process.returncode is None:
            self.process.kill()
            await self.process.wait()
        await self._forget()
        log = self.folder / "qrm.log"
        if log.exists():
            print(log.read_text(errors="replace"))

    async def ask(self, method: str, kind: type[Answer]) -> Answer:
        """The admin socket's answer, from a qrm that may still be starting."""
        async with open_channel(self.config.shim.admin_socket, 1 << 20) as channel:
            call: Any = channel.unary_unary(api.PREFIX + method)
            reply = await call(b"null", timeout=PATIENCE, wait_for_ready=True)
            return msgspec.json.decode(reply, type=kind)

    def durable(self) -> list[Record]:
        """The ledger's lines as a qrm that starts now would find them."""
        return lines_of(self.ledger_file)

    async def agreed(self) -> dict[str, Record]:
        """Wait until nothing is left to do, and ledger, runtime and cgroups agree; return the lines by container id."""
        wrong: list[str] = []
        try:
            async with asyncio.timeout(PATIENCE):
                while wrong := await self._wrong():
                    await asyncio.sleep(0.05)
        except TimeoutError:
            pytest.fail("\n".join(wrong))
        if self.guard.violations:
            pytest.fail("\n".join(self.guard.violations))
        return {each.container_id: each for each in self.durable() if each.container_id}

    async def _wrong(self) -> list[str]:
        records = self.durable()
        file = {(each.key.container, each.container_id, str(each.cpus)) for each in records if not each.is_pod}
        memory = {(each.container, each.id, each.cpus) for each in await self.ask("pods", list[api.Container])}
        return differences(self.fake, records) + [f"only in memory or on disk: {each}" for each in file ^ memory]

    async def killed_during(self, call: Awaitable[object], method: str, *, done: bool) -> None:
        """kill -9 while the runtime works on the first call of `method`, which it carries out or does not.

        `call` is kubelet's call that leads to it.
        """
        hang = self.fake.faults.hang(method, after=done)
        task = asyncio.ensure_future(call)
        async with asyncio.timeout(PATIENCE):
            await hang.entered.wait()
        assert self.process is not None
        self.process.kill()
        await unavailable(task)
        await self.crashed()

    async def end(self, *pods: RunningPod) -> None:
        """Delete pods as kubelet does, also where a part of them is gone already."""
        for each in pods:
            listed = {found.id for found in await self.kubelet.containers()}
            containers = listed & set(each.containers.values())
            for container_id in containers:
                await self.kubelet.stop_container(container_id)
            if each.sandbox_id in {found.id for found in await self.kubelet.pods()}:
                await self.kubelet.stop_pod(each.sandbox_id)
            for container_id in containers:
                await self.kubelet.remove_container(container_id)
            await self.kubelet.remove_pod(each.sandbox_id)

    async def empty(self, free: dict[str, int]) -> None:
        """Wait until the ledger has no line any more; fails where a CPU is still held."""
        await self.agreed()
        assert self.durable() == []
        assert (await self.ask("status", api.Status)).free == free

    async def free(self) -> dict[str, int]:
        """Millicores by NUMA node that nobody holds."""
        return (await self.ask("status", api.Status)).free

    def cpus(self, container_id: str) -> CPUSet:
        """Where a running container may run, by its cgroup."""
        return CPUSet.parse((self.fake.cgroup_of(container_id) / "cpuset.cpus.effective").read_text())

    async def _forget(self) -> None:
        self.process = None
        if self._kubelet is not None:
            await self._kubelet.close()
            self._kubelet = None


def lines_of(ledger: Path) -> list[Record]:
    """What is written in a ledger's file, also while a service has it open."""
    with closing(sqlite3.connect(f"file:{ledger}?mode=ro", uri=True)) as connection:
        return [decode(text) for (text,) in connection.execute("SELECT record FROM records")]


def differences(fake: FakeRuntime, records: list[Record]) -> list[str]:
    """What is not as it should be once everything has settled: empty where all agree."""
    wrong = [f"{each.key} is still pending" for each in records if each.pending]
    wrong += [f"{each.key} is on {each.applied}, not yet on {each.cpus}" for each in records if each.push_due]
    wrong += _held_twice(records)
    by_id = {each.container_id: each for each in records if each.container_id and each.running}
    live = {cri_pb2.CONTAINER_CREATED, cri_pb2.CONTAINER_RUNNING}
    for container_id, record in by_id.items():
        container = fake.store.containers.get(container_id)
        if container is None or container.state not in live:
            wrong.append(f"{record.key} is said to run")
        elif CPUSet.parse(container.resources.cpuset_cpus) not in (record.cpus, CPUSet()):
            wrong.append(f"{record.key}: {record.cpus}, but the runtime has {container.resources.cpuset_cpus!r}")
    for container in fake.store.containers.values():
        if container.state != cri_pb2.CONTAINER_RUNNING:
            continue
        cpus = CPUSet.parse((fake.cgroup_of(container.id) / "cpuset.cpus.effective").read_text())
        expected = by_id.get(container.id)
        if expected is None:
            wrong.append(f"{container.name} runs without being in the ledger")
        elif cpus != expected.cpus:
            wrong.append(f"{container.name} runs on {cpus}, the ledger has {expected.cpus}")
    return wrong


def _held_twice(records: list[Record]) -> list[str]:
    return [
        f"{other.key} has {other.cpus}, of which {owner.allocations[CPU].exclusive} are {owner.key}'s alone"
        for owner in records
        for other in records
        if other.key.pod_uid != owner.key.pod_uid
        and CPU in owner.allocations
        and other.cpus
        and owner.allocations[CPU].exclusive & other.cpus
    ]


@asynccontextmanager
async def world(folder: Path) -> AsyncIterator[World]:
    """A node on which qrm does not run yet."""
    fake = FakeRuntime(folder, pod_updates=True)
    guard = Guard(folder, fake.store)
    fake.cgroups = fake.store.cgroups = guard
    async with fake, KubeletClient(fake.endpoint) as direct:
        settings = config(folder, fake.endpoint, more=NO_ROUNDS)
        made = World(folder, fake, guard, settings, direct)
        try:
            yield made
        finally:
            await made.close()


async def unavailable(call: Awaitable[object]) -> None:
    """What kubelet sees of a call during which qrm dies."""
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
