"""`python -m tests.bench.wire_runtime SOCKET`: answers calls with ready-made frames, on uvloop, until SIGTERM."""

from __future__ import annotations

import asyncio
import struct
import sys
from dataclasses import dataclass
from itertools import pairwise
from typing import cast

import hpack
import uvloop

from tests.bench import wire_calls as wire
from tests.bench.wire_calls import frame

_GIVE_BACK = 16384
"""Bytes after which the connection's window is given back, as grpc-go does at a quarter of it."""


@dataclass(slots=True)
class _Answer:
    """What is still to be sent on a stream."""

    messages: list[tuple[int, int]]
    """Where each DATA frame's content begins and ends."""
    content: memoryview
    sent: int = 0
    begun: bool = False


class _Ready:
    """An answer of which only the stream's number is missing."""

    def __init__(self, call: wire.Call) -> None:
        self.content = b"".join(struct.pack(">?L", False, len(message)) + message for message in call.answer)
        ends, start = [0], 0
        for message in call.answer:
            end = start + len(message) + 5
            ends += range(start + wire.MAX_FRAME, end, wire.MAX_FRAME)
            ends.append(end)
            start = end
        self.cuts = list(pairwise(sorted(set(ends))))


_ANSWERS = [_Ready(call) for call in wire.calls()]


class _Connection(asyncio.Protocol):
    """One connection. It keeps to the windows that it is given."""

    def __init__(self) -> None:
        self._buffer = bytearray(b"")
        self._preface = True
        encoder = hpack.Encoder()
        begin, end = (
            [(":status", "200"), ("content-type", "application/grpc")],
            [("grpc-status", "0"), ("grpc-message", "")],
        )
        self._begin, self._end = encoder.encode(begin), encoder.encode(end)
        self._begin_again, self._end_again = encoder.encode(begin), encoder.encode(end)
        self._kinds: dict[int, int] = {}
        self._window, self._initial, self._owed = wire.WINDOW, wire.WINDOW, 0
        self._windows: dict[int, int] = {}
        self._pending: dict[int, _Answer] = {}

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.WriteTransport", transport)  # uvloop's is no subclass
        self._transport.write(wire.settings(wire.WINDOW))

    def data_received(self, data: bytes) -> None:
        buffer = self._buffer
        buffer += data
        at = 0
        if self._preface and len(buffer) >= len(wire.PREFACE):
            self._preface, at = False, len(wire.PREFACE)
        out: list[bytes] = []
        while len(buffer) >= at + 9:
            high, low, kind, flags, stream = struct.unpack_from(">BHBBL", buffer, at)
            end = at + 9 + (high << 16 | low)
            if len(buffer) < end:
                break
            self._take(kind, flags, stream, bytes(buffer[at + 9 : end]), out)
            at = end
        del buffer[:at]
        self._pump(out)
        if out:
            self._transport.write(b"".join(out))

    def _take(self, kind: int, flags: int, stream: int, payload: bytes, out: list[bytes]) -> None:
        if kind == wire.DATA:
            if stream not in self._kinds:
                self._kinds[stream] = payload[5]
            self._owed += len(payload)
            if self._owed >= _GIVE_BACK:
                out.append(wire.window_update(0, self._owed))
                self._owed = 0
            if flags & wire.END_STREAM:
                ready = _ANSWERS[self._kinds.pop(stream)]
                self._pending[stream] = _Answer(ready.cuts, memoryview(ready.content))
        elif kind == wire.WINDOW_UPDATE:
            amount = int.from_bytes(payload, "big")
            if stream:
                self._windows[stream] = self._windows.get(stream, self._initial) + amount
            else:
                self._window += amount
        elif kind == wire.SETTINGS and not flags & wire.ACK:
            self._initial = dict(struct.iter_unpack(">HL", payload)).get(wire.INITIAL_WINDOW, self._initial)
            out.append(frame(wire.SETTINGS, wire.ACK, 0, b""))
        elif kind == wire.PING and not flags & wire.ACK:
            out.append(frame(wire.PING, wire.ACK, 0, payload))
        elif kind == wire.RST_STREAM:
            self._pending.pop(stream, None)

    def _pump(self, out: list[bytes]) -> None:
        """Send what the windows let through."""
        for stream, answer in list(self._pending.items()):
            if not answer.begun:
                answer.begun = True
                out.append(frame(wire.HEADERS, wire.END_HEADERS, stream, self._begin))
                self._begin = self._begin_again
            if self._send(stream, answer, out):
                out.append(frame(wire.HEADERS, wire.END_HEADERS | wire.END_STREAM, stream, self._end))
                self._end = self._end_again
                del self._pending[stream]
                self._windows.pop(stream, None)

    def _send(self, stream: int, answer: _Answer, out: list[bytes]) -> bool:
        window = self._windows.get(stream, self._initial)
        room = min(window, self._window)
        begun = answer.sent
        while answer.sent < len(answer.messages):
            start, end = answer.messages[answer.sent]
            if room < end - start:
                break
            room -= end - start
            self._window -= end - start
            window -= end - start
            out.append(frame(wire.DATA, 0, stream, bytes(answer.content[start:end])))
            answer.sent += 1
        if answer.sent > begun:
            self._windows[stream] = window
        return answer.sent == len(answer.messages)


async def main(path: str) -> None:
    """Serve."""
    server = await asyncio.get_running_loop().create_unix_server(_Connection, path)
    await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(main(*sys.argv[1:]))
