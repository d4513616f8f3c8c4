"""`python -m tests.shim.frames.fuzz SECONDS`: sends the transport what nobody should, for so long.

After each script: nobody's exception went unhandled, nothing was logged as an error, both connections have ended, and
a bystander's call on another connection, held and changed, was answered. After a hundred of them: no socket was
forgotten rather than closed.
"""

from __future__ import annotations

import asyncio
import gc
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import structlog
import uvloop
from hypothesis import HealthCheck, Phase, given, settings

from qrm.shim.transport import Limits
from tests.shim.frames import wire
from tests.shim.frames.answering import Answering, ask, status
from tests.shim.frames.conversation import CLIENT
from tests.shim.frames.holding import CHANGE, FREE, Hands
from tests.shim.frames.roads import Road, through
from tests.shim.frames.strategies import Script, scripts
from tests.shim.frames.wire import message

_PATIENCE = 60.0
"""Seconds after which a connection that should have ended hangs."""
_SOON = 0.02
"""Seconds in which a connection to the runtime arrives, if it does."""
_BATCH = 100
_MIB = 1 << 20


@dataclass
class Scene:
    """A transport with handlers, and a bystander; an event loop of its own."""

    loop: asyncio.AbstractEventLoop
    folder: Path
    done: int = 0
    logged: list[structlog.typing.EventDict] = field(default_factory=list)
    hands: Hands = field(default_factory=lambda: Hands(request=b"s" * 3000, reply=b"g" * 2000))

    def play(self, script: Script) -> None:
        """Send a script, and look whether all is well."""
        self.loop.run_until_complete(asyncio.wait_for(self._play(script), 4 * _PATIENCE))
        self.done += 1

    async def open(self) -> None:
        """Begin."""
        self.hands.go.set()
        self._open = through(self.folder, self.hands.all(), Limits(max_message_bytes=_MIB))
        self.road = await self._open.__aenter__()
        await self._meet()

    async def renew(self) -> None:
        """Have another bystander, so that only the transport's memory is left to grow."""
        await self._answering.__aexit__()
        for peer in (self.client, self.server):
            await self.road.drop(peer)
        for record in (self.hands.seen, self.hands.replies, self.hands.errors):
            record.clear()
        await self._meet()

    async def _meet(self) -> None:
        self.client, self.server = await self.road.connect()
        self._answering = Answering(self.server)
        await self._answering.__aenter__()

    async def close(self) -> None:
        """End."""
        await self._answering.__aexit__()
        await self._open.__aexit__(None, None, None)

    async def _play(self, script: Script) -> None:
        reader, writer = await asyncio.open_unix_connection(self.road.entry)
        writer.write(wire.PREFACE)
        far = _Far(self.road)
        readers = [asyncio.create_task(_drain(reader))]
        for side, content in script.pieces:
            with suppress(ConnectionError, RuntimeError):  # uvloop's word for a closed one
                (writer if side == CLIENT else await far.writer()).write(content)
            await asyncio.sleep(0)
        for path in (CHANGE, FREE):
            heard = await ask(self.client, path, b"bystander")
            assert status(heard) == 0
            assert heard.data == message(self.hands.reply if path == CHANGE else b"bystander")
        if script.ends != CLIENT:
            far.end()
            await asyncio.sleep(0)
        _end(writer)
        await asyncio.wait_for(asyncio.gather(*readers), _PATIENCE)
        await asyncio.wait_for(far.ended(), _PATIENCE)
        writer.close()
        await asyncio.wait_for(self._alone(), _PATIENCE)
        self._well()

    async def _alone(self) -> None:
        """Wait until the transport knows of nobody but the bystander."""
        assert self.road.transport is not None
        while self.road.transport.connections > 1:
            await asyncio.sleep(0.001)

    def _well(self) -> None:
        assert not self.road.troubles, self.road.troubles
        bad = [entry for entry in self.logged if entry["log_level"] in {"error", "critical"} or "exc_info" in entry]
        assert not bad, bad
        self.logged.clear()


class _Far:
    """The runtime's side: it takes every connection, speaks on the first, and listens to none."""

    def __init__(self, road: Road) -> None:
        self._road = road
        self._writers: list[asyncio.StreamWriter] = []
        self._readers: list[asyncio.Task[None]] = []
        self._first = asyncio.Event()
        self._taking = asyncio.create_task(self._take())

    async def _take(self) -> None:
        while True:
            reader, writer = await self._road.arrival()
            self._writers.append(writer)
            self._readers.append(asyncio.create_task(_drain(reader)))
            self._first.set()

    async def writer(self) -> asyncio.StreamWriter:
        """The first connection; ConnectionError where there is none soon."""
        with suppress(TimeoutError):
            await asyncio.wait_for(self._first.wait(), _SOON)
        if not self._writers:
            raise ConnectionError
        return self._writers[0]

    def end(self) -> None:
        """Say on every connection that there will be no more."""
        for writer in self._writers:
            _end(writer)

    async def ended(self) -> None:
        """Wait until the transport has closed every connection."""
        await asyncio.sleep(0)
        self._taking.cancel()
        await asyncio.gather(*self._readers)
        for writer in self._writers:
            writer.close()


def _end(writer: asyncio.StreamWriter) -> None:
    with suppress(OSError, RuntimeError):
        writer.write_eof()


async def _drain(reader: asyncio.StreamReader) -> None:
    with suppress(ConnectionError):
        while await reader.read(1 << 16):
            pass


def fuzz(play: Callable[[Script], None], examples: int, *, shrink: bool = True) -> None:
    """Play so many scripts; hypothesis tells of the smallest that fails."""
    phases = [Phase.generate, *([Phase.shrink] if shrink else [])]

    @settings(
        max_examples=examples,
        deadline=None,
        database=None,
        phases=phases,
        suppress_health_check=list(HealthCheck),
        print_blob=False,
    )
    @given(scripts())
    def run(script: Script) -> None:
        play(script)

    run()


def on_stage(act: Callable[[Scene], None], folder: Path, factory: Callable[[], asyncio.AbstractEventLoop]) -> None:
    """Let `act` have a scene."""
    with asyncio.Runner(loop_factory=factory) as runner:
        scene = Scene(runner.get_loop(), folder)
        with structlog.testing.capture_logs() as scene.logged:
            scene.loop.run_until_complete(scene.open())
            try:
                act(scene)
            finally:
                scene.loop.run_until_complete(scene.close())


def main(seconds: str) -> None:
    """Play scripts for so long, on uvloop, and print what became of memory and descriptors."""
    process, begun = psutil.Process(), time.monotonic()
    lost: list[object] = []
    warnings.simplefilter("error", ResourceWarning)
    sys.unraisablehook = lambda about: lost.append(about.exc_value)

    def act(scene: Scene) -> None:
        while time.monotonic() < begun + float(seconds):
            fuzz(scene.play, _BATCH)
            scene.loop.run_until_complete(scene.renew())
            gc.collect()
            assert not lost, lost
            tasks = len(asyncio.all_tasks(scene.loop))
            print(
                f"{time.monotonic() - begun:6.0f} s  {scene.done} scripts  {process.memory_info().rss / _MIB:.1f} MiB  "
                f"{process.num_fds()} descriptors  {tasks} tasks",
                flush=True,
            )

    with tempfile.TemporaryDirectory(prefix="qrm-") as folder:
        on_stage(act, Path(folder), uvloop.new_event_loop)


if __name__ == "__main__":
    main(*sys.argv[1:])
