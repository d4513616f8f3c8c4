"""qrm as processes that follow one another: by take-over, or by restarts as systemd does them."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
import time
from asyncio.subprocess import Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from qrm.config import parse
from qrm.service.sockets import listening_aside
from tests.support import PATIENCE

CHECKOUT = Path(__file__).resolve().parents[2]
ACTIVATED = """
import os, sys
for place, number in enumerate(sys.argv[1].split(",")):
    os.dup2(int(number), 3 + place)
os.environ["LISTEN_PID"] = str(os.getpid())
os.execv(sys.executable, sys.argv[2:])
"""
"""What stands between systemd's fork and its exec."""


@dataclass
class Running:
    """One qrm process; what it becomes when it detaches has the same log."""

    process: Process
    log: Path

    async def said(self, event: str) -> None:
        """Wait until the log has an event."""
        async with asyncio.timeout(PATIENCE):
            while f"event={event}" not in self.log.read_text():
                assert self.process.returncode in (None, 0), self.log.read_text()
                await asyncio.sleep(0.01)

    @property
    def size(self) -> tuple[int, int]:
        """Open descriptors, and resident bytes."""
        of = psutil.Process(self.process.pid)
        return of.num_fds(), of.memory_info().rss


@dataclass
class Succession:
    """All qrm processes of one node."""

    folder: Path
    text: str
    """The configuration."""
    activated: bool = False
    """Whether to play systemd: to hold the socket, and to start the next process when the last one's pid has ended."""
    all: list[Running] = field(default_factory=list)
    _socket: socket.socket | None = None

    @property
    def now(self) -> Running:
        """The process that serves."""
        return self.all[-1]

    async def begin(self) -> None:
        """Start the first one, and wait until it lets pods in."""
        if self.activated:
            public = Path(parse(self.text).shim.socket)
            public.parent.mkdir(mode=0o700, exist_ok=True)
            self._socket = listening_aside(public)
        await self._start()

    async def replace(self) -> float:
        """Put another one in its place; returns the seconds until that lets pods in."""
        before, begun = self.now, time.monotonic()
        if self.activated:
            before.process.terminate()
            async with asyncio.timeout(PATIENCE):
                assert await before.process.wait() == 0, before.log.read_text()
            await self._start()
        else:
            await self._start("--take-over")
        return time.monotonic() - begun

    async def _start(self, *arguments: str) -> None:
        settings, number = self.folder / "qrm.toml", len(self.all)
        settings.write_text(self.text)
        log = self.folder / f"qrm-{number}.log"
        command = [sys.executable, "-m", "qrm.cli.main", "serve", "--config", str(settings), *arguments]
        environment = {**os.environ}
        passed = [] if self._socket is None else [self._socket.fileno()]
        if passed:
            command = [sys.executable, "-S", "-c", ACTIVATED, str(passed[0]), *command]
            environment |= {"LISTEN_FDS": "1", "LISTEN_FDNAMES": "qrm.socket", "NOTIFY_SOCKET": f"{self.folder}/notify"}
        with log.open("wb") as out:
            process = await asyncio.create_subprocess_exec(
                *command, cwd=CHECKOUT, env=environment, stdout=out, stderr=out, pass_fds=passed
            )
        self.all.append(Running(process, log))
        await self.now.said("ready")

    async def end(self) -> None:
        """End the last one where it runs, and wait until nothing of the others is left."""
        if self.now.process.returncode is None:
            self.now.process.terminate()
        async with asyncio.timeout(PATIENCE):
            for each in self.all:
                assert await each.process.wait() == 0, each.log.read_text()
                await each.said("stopped")
        if self._socket is not None:
            self._socket.close()

    def kill(self) -> None:
        """End at once whatever still runs."""
        for each in self.all:
            if each.process.returncode is None:
                each.process.send_signal(signal.SIGKILL)

    @property
    def trouble(self) -> list[str]:
        """What the processes have said that nothing good led to."""
        bad = ("level=error", "Traceback", "calls ended", "left in the middle")
        return [line for each in self.all for line in each.log.read_text().splitlines() if any(x in line for x in bad)]


@asynccontextmanager
async def succession(folder: Path, text: str, *, activated: bool = False) -> AsyncIterator[Succession]:
    """A first process, ready for pods; in the end nothing is left of any."""
    made = Succession(folder, text, activated)
    try:
        await made.begin()
        yield made
        await made.end()
    finally:
        made.kill()
