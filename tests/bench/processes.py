"""The runtime and qrm as processes of their own, so that neither shares an event loop with who measures."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import grpc.aio
import msgspec
import psutil

from qrm.demo.kubelet import KubeletClient
from qrm.service import api
from qrm.topology.generate import Layout, write_sysfs

ROOT = Path(__file__).parents[2]
_MEMORY = Path("/dev/shm")  # noqa: S108 - not a file of our own
_STARTING, _STOPPING = 60.0, 60.0
"""Seconds that a process may take to serve, and to end."""


@dataclass(frozen=True)
class Service:
    """Where one qrm and the runtime behind it are."""

    folder: Path
    """Sockets, logs and the generated machine, beside the runtime's cgroups; best in memory."""
    state: Path
    """The ledger's folder; on a disk where its fsync is to cost what it does."""
    endpoint: str
    """The runtime's."""
    layout: Layout

    @property
    def socket(self) -> Path:
        """kubelet's."""
        return self.folder / "run/qrm.sock"

    @property
    def admin(self) -> Path:
        """The qrm command's."""
        return self.folder / "run/admin.sock"

    @property
    def log(self) -> Path:
        """What qrm has printed."""
        return self.folder / "qrm.log"

    @property
    def stages(self) -> dict[str, float]:
        """What the last start spent its time on, in seconds; see tests.bench.service."""
        told: dict[str, float] = json.loads((self.folder / "stages.json").read_text())
        return told

    def kubelet(self) -> KubeletClient:
        """A connection as kubelet has it, through qrm."""
        return KubeletClient(f"unix://{self.socket}")

    def direct(self) -> KubeletClient:
        """A connection past qrm."""
        return KubeletClient(self.endpoint)

    def start(self) -> psutil.Popen:
        """Begin to run qrm; it does not listen yet."""
        sysfs = self.folder / "sys"
        if not sysfs.exists():
            write_sysfs(self.layout, sysfs)
        settings = self.folder / "qrm.toml"
        settings.write_text(
            f'runtime.endpoint = "{self.endpoint}"\n'
            f'shim = {{ socket = "{self.socket}", admin_socket = "{self.admin}", '
            f'pod_resources_socket = "{self.admin}.pods" }}\n'
            f'state.directory = "{self.state}"\n'
            f'metrics.listen = ""\n'
            f'log.level = "warning"\n'
            f'host = {{ sysfs = "{sysfs}", proc = "{self.folder}/proc", cgroup = "{self.folder}/cgroup" }}\n'
        )
        with self.log.open("ab") as log:
            return _start(self.folder, log, "tests.bench.service", str(settings), str(self.folder / "stages.json"))

    @asynccontextmanager
    async def running(self) -> AsyncIterator[psutil.Popen]:
        """A qrm that is ready for pods while the context is open."""
        process = await asyncio.to_thread(self.start)
        try:
            await self.ready(process)
            yield process
        finally:
            await stop(process)

    async def ready(self, process: psutil.Popen) -> tuple[float, float]:
        """Wait for qrm; returns when, by the monotonic clock, it answered Version and when it was ready for pods."""
        async with asyncio.timeout(_STARTING), self.kubelet() as kubelet, Admin(self.admin) as admin:
            await _connects(self.socket, process, self.log)
            await kubelet.version(wait=True)
            answered = time.monotonic()
            while not (await admin.status()).ready:
                await asyncio.sleep(0.01)
        return answered, time.monotonic()


class Admin:
    """A connection to qrm's admin socket; an async context manager."""

    def __init__(self, socket: Path) -> None:
        self._channel = grpc.aio.insecure_channel(f"unix:{socket}")

    async def __aenter__(self) -> Admin:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._channel.close()

    async def status(self) -> api.Status:
        """As `qrm status`."""
        ask: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = self._channel.unary_unary(api.PREFIX + "status")
        return msgspec.json.decode(await ask(b"null", wait_for_ready=True), type=api.Status)

    async def settled(self) -> None:
        """Wait until every container has been told its cpuset."""
        while (await self.status()).pushes_due:
            await asyncio.sleep(0.005)


@contextmanager
def memory_folder() -> Iterator[Path]:
    """A temporary folder in memory where that can be had: cgroup files on a disk take milliseconds to write again."""
    within = _MEMORY if os.access(_MEMORY, os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix="qrm-", dir=within) as folder:
        yield Path(folder)


@asynccontextmanager
async def fake_runtime(folder: Path, layout: Layout) -> AsyncIterator[str]:
    """A fake runtime in a process of its own, with the CPUs of `layout`; gives its endpoint."""
    with (folder / "runtime.log").open("wb") as log:
        process = _start(folder, log, "tests.bench.runtime", str(folder), str(layout.cpus), str(layout.nodes))
    try:
        await _connects(folder / "containerd.sock", process, folder / "runtime.log")
        yield f"unix://{folder}/containerd.sock"
    finally:
        await stop(process)


@asynccontextmanager
async def plugin(folder: Path, sysfs: Path, name: str) -> AsyncIterator[Path]:
    """One of qrm's allocators as a plugin in a process of its own; gives its socket."""
    folder.mkdir(exist_ok=True)
    settings = folder / "plugin.toml"
    settings.write_text(f'log.level = "warning"\nhost.sysfs = "{sysfs}"\n')
    socket = folder / f"qrm-{name}.sock"
    command = ("qrm.cli.main", "plugin", "serve", "--config", str(settings), "--directory", str(folder), name)
    with (folder / "plugin.log").open("wb") as log:
        process = _start(folder, log, *command)
    try:
        await _connects(socket, process, folder / "plugin.log")
        yield socket
    finally:
        await stop(process)


@asynccontextmanager
async def socket_process(socket: Path, module: str, *arguments: str) -> AsyncIterator[psutil.Popen]:
    """A module in a process of its own, which listens on `socket`."""
    log = socket.with_suffix(".log")
    with log.open("wb") as file:
        process = _start(socket.parent, file, module, *arguments)
    try:
        await _connects(socket, process, log)
        yield process
    finally:
        await stop(process)


async def stop(process: psutil.Popen) -> None:
    """End a process that `start` began, with a signal first and by force if that does not help."""
    if process.poll() is not None:
        return
    process.send_signal(signal.SIGTERM)
    try:
        await asyncio.to_thread(process.wait, _STOPPING)
    except psutil.TimeoutExpired:
        process.kill()
        await asyncio.to_thread(process.wait)
        raise


def _start(folder: Path, log: IO[bytes], module: str, *arguments: str) -> psutil.Popen:
    """A module as a process; all but the first start of it find their bytecode, as those of an installed qrm do."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    environment["PYTHONPYCACHEPREFIX"] = str(folder / "bytecode")
    command = [sys.executable, "-m", module, *arguments]
    return psutil.Popen(command, cwd=ROOT, env=environment, stdout=log, stderr=subprocess.STDOUT)


async def _connects(socket: Path, process: psutil.Popen, log: Path) -> None:
    """Wait until `process` listens on `socket`; gRPC's own dialling would add its pauses to what is measured."""
    while True:
        try:
            _, writer = await asyncio.open_unix_connection(socket)
        except OSError as error:
            if process.poll() is not None:
                raise RuntimeError(f"it has ended: {log.read_text()}") from error
            await asyncio.sleep(0.002)
        else:
            writer.close()
            return
