"""A link without sockets: what kubelet and the runtime send goes in by hand, what they get is read as frames."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from hpack import Decoder, Encoder

from qrm.shim.exchange import Handler
from qrm.shim.http2 import frames
from qrm.shim.http2.connection import Connection
from qrm.shim.http2.limits import Limits
from qrm.shim.http2.link import Link
from qrm.shim.http2.messages import wrapped
from qrm.shim.http2.sides import RuntimeSide
from qrm.shim.http2.stream import Call

Fields = list[tuple[bytes, bytes]]

REQUEST: Fields = [
    (b":method", b"POST"),
    (b":scheme", b"http"),
    (b":path", b"/runtime.v1.RuntimeService/Version"),
    (b":authority", b"localhost"),
    (b"content-type", b"application/grpc"),
    (b"te", b"trailers"),
]
REPLY: Fields = [(b":status", b"200"), (b"content-type", b"application/grpc")]
OK: Fields = [(b"grpc-status", b"0"), (b"grpc-message", b"")]
HELD = b"/runtime.v1.RuntimeService/CreateContainer"


def framed(message: bytes) -> bytes:
    """A gRPC message with its prefix."""
    return b"".join(wrapped(message))


def request(path: bytes = HELD, *more: tuple[bytes, bytes]) -> Fields:
    """Request headers."""
    return [(name, path if name == b":path" else value) for name, value in REQUEST] + list(more)


@dataclass(frozen=True)
class Frame:
    """One frame that a peer got; `fields` of a whole header block."""

    kind: int
    flags: int
    stream: int
    payload: bytes
    fields: Fields = field(default_factory=list)

    @property
    def end(self) -> bool:
        return self.kind in (frames.DATA, frames.HEADERS) and bool(self.flags & frames.END_STREAM)


class Reader:
    """Cuts bytes into frames, with header blocks put together and decoded."""

    def __init__(self, *, preface: bool) -> None:
        self._decoder = Decoder(max_header_list_size=1 << 24)
        self._data = b""
        self._skip = len(frames.PREFACE) if preface else 0
        self._block = b""

    def read(self, data: bytes) -> list[Frame]:
        self._data += data
        if len(self._data) < self._skip:
            return []
        self._data, self._skip = self._data[self._skip :], 0
        found: list[Frame] = []
        while len(self._data) >= frames.HEAD:
            high, low, kind, flags, stream = frames.unpack_head(self._data)
            stop = frames.HEAD + (high << 8 | low)
            if len(self._data) < stop:
                break
            payload, self._data = self._data[frames.HEAD : stop], self._data[stop:]
            found += self._whole(Frame(kind, flags, stream, payload))
        return found

    def _whole(self, frame: Frame) -> Iterable[Frame]:
        if frame.kind not in (frames.HEADERS, frames.CONTINUATION):
            return (frame,)
        self._block += frame.payload
        if frame.kind == frames.HEADERS:
            self._first = frame
        if not frame.flags & frames.END_HEADERS:
            return ()
        block, self._block = self._block, b""
        fields: Any = self._decoder.decode(block, raw=True)
        fields = [(bytes(name), bytes(value)) for name, value in fields]
        return (Frame(frames.HEADERS, self._first.flags, frame.stream, block, fields),)


class Peer:
    """kubelet or the runtime: an end of one connection, as its wire."""

    def __init__(self, connection: Connection, *, client: bool) -> None:
        self.connection = connection
        self.encoder = Encoder()
        self.got: list[Frame] = []
        self.closed = False
        self.reading = True
        self._reader = Reader(preface=not client)

    def write(self, *pieces: bytes | bytearray | memoryview) -> None:
        self.got += self._reader.read(b"".join(pieces))

    def waiting(self) -> int:
        return 0

    def close(self, *, at_once: bool) -> None:
        self.closed = True

    def read(self, *, on: bool) -> None:
        self.reading = on

    def take(self, *kinds: int) -> list[Frame]:
        """What has come since the last time, of those kinds; all else is forgotten."""
        got, self.got = self.got, []
        return [frame for frame in got if frame.kind in (kinds or (0, 1, 3, 7))]

    def headers(self, stream: int, fields: Fields, *, end: bool = False) -> bytes:
        return frames.header_frames(stream, self.encoder.encode(fields), end=end, largest=frames.DEFAULT_FRAME)


@dataclass
class Rig:
    """Both peers, and the link between them, which dials unless `away`."""

    limits: Limits = field(default_factory=Limits)
    handlers: Mapping[bytes, Handler] = field(default_factory=dict)
    away: bool = False
    settings: dict[int, int] = field(default_factory=dict)
    """Of kubelet."""

    def __post_init__(self) -> None:
        self.ended_calls: list[Call] = []
        self.tasks: set[asyncio.Task[None]] = set()
        self.runtimes: list[Peer] = []
        self.link = Link(self)
        self.kubelet = Peer(self.link.client, client=True)
        self.link.client.wire = self.kubelet
        self.say(self.kubelet, frames.PREFACE + frames.settings(self.settings) + frames.SETTINGS_ACK)
        if not self.away:
            self.say(self.runtime, frames.settings({}) + frames.SETTINGS_ACK)
            self.runtime.take()
        self.kubelet.take()

    @property
    def runtime(self) -> Peer:
        """The latest connection."""
        return self.runtimes[-1]

    def say(self, peer: Peer, *data: bytes) -> None:
        """Send as `peer`."""
        peer.connection.receive(b"".join(data))
        self.link.flush()

    def break_off(self, peer: Peer) -> None:
        """The peer's socket is gone."""
        peer.connection.wire = None
        peer.connection.close()
        self.link.flush()

    # As the hub.

    def dial(self, side: RuntimeSide) -> None:
        if self.away:
            raise FileNotFoundError(2, "No such file or directory")
        self.runtimes.append(Peer(side, client=False))
        side.wire = self.runtimes[-1]

    def running(self, task: asyncio.Task[None]) -> None:
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    def ended(self, call: Call) -> None:
        self.ended_calls.append(call)

    def gone(self, link: Link) -> None:
        self.is_gone = True


def data(stream: int, payload: bytes, *, end: bool = False, pad: int | None = None) -> bytes:
    """A DATA frame."""
    flags = frames.END_STREAM if end else 0
    if pad is not None:
        return frames.frame(frames.DATA, flags | frames.PADDED, stream, bytes((pad,)) + payload + bytes(pad))
    return frames.frame(frames.DATA, flags, stream, payload)


def payload(got: Iterable[Frame]) -> bytes:
    """All DATA among frames without padding, put together."""
    return b"".join(frame.payload for frame in got if frame.kind == frames.DATA)
