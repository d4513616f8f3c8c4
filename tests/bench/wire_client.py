"""A client that sends ready-made frames, so that what it takes itself is little and the same on all roads."""

from __future__ import annotations

import asyncio
import struct
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

import hpack
import uvloop

from tests.bench import wire_calls as wire
from tests.bench.wire_calls import Call, frame

_MIB = 1 << 20
_WINDOW = 16 * _MIB
_WARM_UP = 10
"""Calls of each connection that are not counted."""

Probe = Callable[[], Sequence[float]]
"""CPU seconds of whoever takes part, at this moment."""


@dataclass
class Round:
    """What came of a round."""

    seconds: list[float] = field(default_factory=list)
    """Of each call."""
    elapsed: float = 0.0
    cpu: tuple[float, ...] = ()
    """Seconds of CPU time meanwhile, as probed; the client's own last."""
    counting: bool = False


class _Client(asyncio.Protocol):
    """One connection with one call at a time."""

    def __init__(self, call: Call, result: Round) -> None:
        self.calls = 0
        self.stopping = False
        self.idle: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._call, self._body, self._blocks = call, wire.body(call), wire.blocks(call)
        self._result = result
        self._stream = -1
        self._buffer = bytearray()
        self._got = self._owed = 0
        self._decoder = hpack.Decoder()
        self._begun = 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.WriteTransport", transport)  # uvloop's is no subclass
        self.transport.write(wire.PREFACE + wire.settings(_WINDOW) + wire.window_update(0, _WINDOW))
        self._next()

    def connection_lost(self, exc: Exception | None) -> None:
        self._fail(f"cut off: {exc}")

    def _fail(self, why: str) -> None:
        if not self.idle.done():
            self.idle.set_exception(RuntimeError(f"{self._call.name}, call {self.calls}: {why}"))

    def _next(self) -> None:
        if self.stopping:
            self.idle.set_result(None)
            return
        self.calls += 1
        self._stream += 2
        self._got = 0
        head = frame(wire.HEADERS, wire.END_HEADERS, self._stream, next(self._blocks))
        ready = head + frame(wire.DATA, wire.END_STREAM, self._stream, self._body)
        self._begun = time.perf_counter()
        self.transport.write(ready)

    def data_received(self, data: bytes) -> None:
        buffer = self._buffer
        buffer += data
        at, size, ended = 0, len(buffer), False
        while size >= at + 9:
            high, low, kind, flags, _ = struct.unpack_from(">BHBBL", buffer, at)
            end = at + 9 + (high << 16 | low)
            if size < end:
                break
            if kind == wire.DATA:
                self._got += end - at - 9
            elif kind == wire.HEADERS:
                ended = self._heard(flags, bytes(buffer[at + 9 : end]))
            elif kind in {wire.SETTINGS, wire.PING} and not flags & wire.ACK:
                self.transport.write(
                    frame(kind, wire.ACK, 0, bytes(buffer[at + 9 : end]) if kind == wire.PING else b"")
                )
            elif kind in {wire.RST_STREAM, wire.GOAWAY}:
                self._fail(f"a frame of type {kind}: {bytes(buffer[at + 9 : end])!r}")
            at = end
        del buffer[:at]
        self._give_back(len(data), ended)
        if ended:
            self._next()

    def _heard(self, flags: int, block: bytes) -> bool:
        """A header list has come; whether the call has ended with it. The first two calls are looked at closely."""
        ended = bool(flags & wire.END_STREAM)
        if self.calls <= 2:
            said = dict(self._decoder.decode(block, raw=True))
            if ended and said[b"grpc-status"] != b"0":
                self._fail(repr(said))
        if ended:
            if self._result.counting:
                self._result.seconds.append(time.perf_counter() - self._begun)
            if self._got != self._call.size:
                self._fail(f"{self._got} bytes instead of {self._call.size}")
        return ended

    def _give_back(self, size: int, ended: bool) -> None:
        self._owed += size
        if self._owed >= _MIB:
            self.transport.write(wire.window_update(0, self._owed))
            if not ended:
                self.transport.write(wire.window_update(self._stream, self._owed))
            self._owed = 0


def measure(socket: Path, call: Call, clients: int, seconds: float, probe: Probe) -> Round:
    """Make calls for so long, one at a time on each of `clients` connections; blocks the thread.

    Raises RuntimeError where a call did not end as it should.
    """
    return uvloop.run(_measure(socket, call, clients, seconds, probe))


async def _measure(socket: Path, call: Call, clients: int, seconds: float, probe: Probe) -> Round:
    loop, result = asyncio.get_running_loop(), Round()
    made = [_Client(call, result) for _ in range(clients)]
    waiting = iter(made)
    for _ in made:
        await loop.create_unix_connection(lambda: next(waiting), str(socket))
    ending = asyncio.gather(*(client.idle for client in made))
    while min(client.calls for client in made) < _WARM_UP and not ending.done():
        await asyncio.sleep(0.002)
    result.counting = True
    before, begun = (*probe(), time.thread_time()), time.perf_counter()
    await asyncio.wait([ending], timeout=seconds)
    result.counting = False
    result.elapsed = time.perf_counter() - begun
    result.cpu = tuple(now - was for now, was in zip((*probe(), time.thread_time()), before, strict=True))
    for client in made:
        client.stopping = True
    await ending
    for client in made:
        client.transport.close()
    return result
