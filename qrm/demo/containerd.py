"""A containerd of one's own: beside any other on the machine, in one folder, gone without a trace afterwards."""

from __future__ import annotations

import asyncio
import os
import signal
from asyncio.subprocess import Process
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

import grpc

from qrm.demo.containerd_config import missing_tools, search_path, write_config
from qrm.demo.image import IMAGE, write_image
from qrm.demo.kubelet import KubeletClient
from qrm.demo.leftovers import remove_leftovers
from qrm.errors import QrmError

__all__ = ["PrivateContainerd", "missing_tools"]

_SOCKET_PATH_LIMIT = 107
_LOG_TAIL = 15
_INTERVAL = 0.05


class PrivateContainerd:
    """Debian's containerd with the CRI and the demo image, running while the context is open.

    The folder must be new, or left by one of these whose process died: then it and its containers are removed first.
    Leaving the context ends containerd and all its containers, and removes the folder. containerd also ends when the
    thread that started it does.

    Args:
        folder: A short path, since sockets in it may have 107 bytes; such as /run/qrm-demo-1234.
        pod_subnet: Addresses for pods with a network of their own, such as "10.231.0.0/24"; empty for none.
        tools: A folder with other programs than those on PATH, containerd itself for example.
        patience: Seconds that a start may take, and an orderly end; after them the end is forced.
    """

    def __init__(
        self, folder: Path, *, pod_subnet: str = "", tools: Path | None = None, patience: float = 60.0
    ) -> None:
        self.folder = folder
        self.socket = folder / "containerd.sock"
        self.endpoint = f"unix://{self.socket}"
        self.log = folder / "containerd.log"
        self._pod_subnet = pod_subnet
        self._tools = tools
        self._patience = patience
        self._environment = {**os.environ, "PATH": search_path(tools)}
        self._process: Process | None = None

    @property
    def pid(self) -> int | None:
        """containerd's process id while it is meant to run."""
        return self._process.pid if self._process else None

    async def __aenter__(self) -> Self:
        self._refuse_unusable()
        try:
            await asyncio.to_thread(self._prepare)
            await self.start()
            await self._import_image()
        except BaseException:
            await self._end()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._end()

    async def start(self) -> None:
        """Run containerd again after `stop` or `kill`, with what it had; returns when the CRI answers.

        Raises:
            QrmError: it ended or did not answer in time; the message has the end of its log.
        """
        with self.log.open("ab") as log:
            command = ["setpriv", "--pdeathsig", "TERM", "containerd", "--config", str(self.folder / "config.toml")]
            self._process = await asyncio.create_subprocess_exec(
                *command, stdin=asyncio.subprocess.DEVNULL, stdout=log, stderr=log, env=self._environment
            )
        try:
            async with asyncio.timeout(self._patience), KubeletClient(self.endpoint) as client:
                await self._until_answering(self._process, client)
        except TimeoutError as error:
            raise self._failure(f"containerd did not answer within {self._patience:.0f} s") from error

    async def stop(self) -> None:
        """End containerd as a service manager would; its containers run on."""
        await self._signal(signal.SIGTERM)

    async def kill(self) -> None:
        """End containerd as a crash would; its containers run on."""
        await self._signal(signal.SIGKILL)

    async def restart(self) -> None:
        """An upgrade of containerd under running containers."""
        await self.stop()
        await self.start()

    async def _signal(self, number: signal.Signals) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        with suppress(ProcessLookupError):
            process.send_signal(number)
        try:
            await asyncio.wait_for(process.wait(), self._patience)
        except TimeoutError:
            process.kill()
            await process.wait()

    def _refuse_unusable(self) -> None:
        if missing := missing_tools(pod_network=bool(self._pod_subnet), tools=self._tools):
            raise QrmError("containerd cannot run here", hint=f"apt install {' '.join(missing)}")
        if os.geteuid() != 0:
            raise QrmError("containerd cannot run here", hint="become root")
        # containerd listens on a second socket, whose name is longer.
        if len(os.fsencode(f"{self.socket}.ttrpc")) > _SOCKET_PATH_LIMIT:
            raise QrmError(f"{self.folder} is too long for a socket in it", hint="use a folder like /run/qrm-demo-1")
        if self.folder.exists() and any(self.folder.iterdir()) and not (self.folder / "config.toml").exists():
            raise QrmError(f"{self.folder} holds other files", hint="name a folder that does not exist")

    def _prepare(self) -> None:
        remove_leftovers(self.folder, self.socket, self._environment)
        self.folder.mkdir(parents=True, mode=0o700)
        write_config(self.folder, self.socket, pod_subnet=self._pod_subnet)
        write_image(self.folder / "image.tar")

    async def _until_answering(self, process: Process, client: KubeletClient) -> None:
        while True:
            if process.returncode is not None:
                raise self._failure(f"containerd ended with exit code {process.returncode}")
            if self.socket.exists():
                try:
                    await client.version()
                except grpc.aio.AioRpcError as error:
                    # While the CRI is not initialised, 1.6 answers UNKNOWN and later releases UNAVAILABLE.
                    if error.code() is grpc.StatusCode.UNIMPLEMENTED:
                        raise self._failure(f"containerd has no CRI: {error.details()}") from error
                else:
                    return
            await asyncio.sleep(_INTERVAL)

    async def _import_image(self) -> None:
        command = ["ctr", "--address", str(self.socket), "--namespace", "k8s.io", "images", "import", "--no-unpack"]
        # The CRI unpacks it for the first pod; ctr would do so for the snapshotter that is usual, not for the one here.
        process = await asyncio.create_subprocess_exec(
            *command, str(self.folder / "image.tar"),
            stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.PIPE,
            env=self._environment,
        )  # fmt: skip
        _, complaint = await process.communicate()
        if process.returncode != 0:
            raise self._failure(f"ctr cannot import the image: {complaint.decode(errors='replace').strip()}")
        # The CRI learns of the image by an event.
        try:
            async with asyncio.timeout(self._patience), KubeletClient(self.endpoint) as client:
                await client.version(wait=True)
                while not await client.has_image(IMAGE):  # noqa: ASYNC110, there is nothing to wait for
                    await asyncio.sleep(_INTERVAL)
        except TimeoutError as error:
            raise self._failure("the CRI does not know the imported image") from error

    async def _end(self) -> None:
        if self._process and self._process.returncode is None:
            await self._end_pods()
        await self.stop()
        await asyncio.to_thread(remove_leftovers, self.folder, self.socket, self._environment)

    async def _end_pods(self) -> None:
        """Let the CRI take down pods and their networks; what it does not manage in time is removed afterwards."""
        try:
            async with asyncio.timeout(self._patience), KubeletClient(self.endpoint, timeout=self._patience) as client:
                for pod in await client.pods():
                    await client.stop_pod(pod.id)
                    await client.remove_pod(pod.id)
        except (TimeoutError, grpc.aio.AioRpcError):
            return

    def _failure(self, message: str) -> QrmError:
        lines = self.log.read_text(errors="replace").splitlines()[-_LOG_TAIL:] if self.log.exists() else []
        return QrmError("\n".join([message, *lines]), hint="the lines above are the end of containerd's log")
