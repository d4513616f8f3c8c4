"""A connection of kubelet's and the one to the runtime that belongs to it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from typing import Protocol

import grpc

from qrm.shim.exchange import Handler
from qrm.shim.http2 import frames
from qrm.shim.http2.connection import Connection
from qrm.shim.http2.frames import ProtocolError
from qrm.shim.http2.headers import Headers
from qrm.shim.http2.held import Held
from qrm.shim.http2.limits import Limits
from qrm.shim.http2.status import code_of, code_of_reset
from qrm.shim.http2.stream import Call, Half

_DRAINING = b"qrm-bye\x00"
"""Payload of the PING whose answer says that the client has seen our first GOAWAY."""


class Hub(Protocol):
    """What all links share."""

    @property
    def limits(self) -> Limits:
        """What a connection may cost."""

    @property
    def handlers(self) -> Mapping[bytes, Handler]:
        """By path."""

    def dial(self, side: RuntimeSide) -> None:
        """Connect to the runtime. Raises OSError."""

    def running(self, task: asyncio.Task[None]) -> None:
        """A handler has begun."""

    def ended(self, call: Call) -> None:
        """A call is over."""

    def gone(self, link: Link) -> None:
        """A client's connection is closed."""


class Link:
    """kubelet's connection, and the runtime's that goes with it: at most one that takes new calls."""

    def __init__(self, hub: Hub) -> None:
        self.hub = hub
        self.client = ClientSide(self)
        self.runtime: RuntimeSide | None = None
        self.older: list[RuntimeSide] = []
        """Connections on which the runtime takes no new calls, but still has some."""
        self.held: dict[Held, None] = {}
        """Calls whose request is being collected, the oldest first."""
        self.held_bytes = 0

    def reach(self) -> RuntimeSide | OSError:
        """The connection for a new call, dialled where there is none; or why there is none."""
        runtime = self.runtime
        if runtime is not None and runtime.takes_calls:
            return runtime
        side = RuntimeSide(self)
        try:
            self.hub.dial(side)
        except OSError as error:
            return error
        if runtime is not None:
            self.older.append(runtime)
        self.runtime = side
        side.start({frames.ENABLE_PUSH: 0, **_carried(self.client, self.hub.limits)})
        return side

    def relay(self, half: Half, headers: Headers, *, end: bool, ahead: int = 0) -> Half | None:
        """Begin a client's call at the runtime, and pass on what either says; None where it cannot be reached.

        `ahead` is what the client was granted on the runtime's behalf.
        """
        runtime = self.reach()
        if isinstance(runtime, OSError):
            half.fail(grpc.StatusCode.UNAVAILABLE, away(runtime))
            return None
        other = runtime.open(half)
        other.ahead = ahead
        half.pass_to(other)
        other.send_headers(headers, end=end)
        return other

    def flush(self) -> None:
        """Send what is to be sent on all connections."""
        self.client.flush()
        if self.runtime is not None:
            self.runtime.flush()
        for side in list(self.older):
            side.flush()
            if not side.streams:
                side.close()
        if self.client.leaving is not None and not self.client.streams:
            self.client.close()

    def throttle(self) -> None:
        """Read from no side whose data another one does not take for now."""
        runtimes = [*self.older, self.runtime] if self.runtime is not None else list(self.older)
        client = self.client
        if client.wire is not None:
            client.wire.read(on=not any(side.paused for side in runtimes))
        for side in runtimes:
            if side.wire is not None:
                side.wire.read(on=not client.paused)

    def drain(self) -> None:
        """Tell the client to begin no calls any more, and to say when it has heard that."""
        if self.client.leaving is None and not self.client.closed:
            self.client.out.append(frames.goaway(frames.LAST_STREAM, frames.NO_ERROR))
            self.client.out.append(frames.frame(frames.PING, 0, 0, _DRAINING))
            self.client.flush()

    def leave(self, last: int | None = None, error: int = frames.NO_ERROR, debug: bytes = b"") -> None:
        """Tell the client which calls were the last ones; the connection ends with them."""
        if self.client.leaving is None and not self.client.closed:
            self.client.leaving = self.client.last if last is None else last
            self.client.out.append(frames.goaway(self.client.leaving, error, debug))

    def may_grant(self, held: Held) -> bool:
        """Whether a call that is being collected may be sent more of: not too many at a time, but one always."""
        return self.held_bytes < self.hub.limits.max_held_bytes or held is next(iter(self.held), None)


class ClientSide(Connection):
    """The connection that kubelet has made."""

    def __init__(self, link: Link) -> None:
        super().__init__(link.hub.limits)
        self.link = link
        self.leaving: int | None = None
        """The last stream by our final GOAWAY."""
        self.warned = False
        """Whether it was passed a first GOAWAY of the runtime's, which names no last stream."""
        self._expected = frames.PREFACE
        self.start(
            {
                frames.MAX_CONCURRENT_STREAMS: self.limits.max_streams,
                frames.MAX_HEADER_LIST_SIZE: self.limits.max_header_bytes,
            }
        )

    def _preface(self, data: bytes | bytearray) -> int:
        """Take the client's preface, as much of it as is there."""
        expected = self._expected
        if not expected:
            return 0
        here = bytes(data[: len(expected)])
        if not expected.startswith(here):
            raise ProtocolError(frames.PROTOCOL_ERROR, "not HTTP/2")
        self._expected = expected[len(here) :]
        return len(here)

    def opposite(self) -> Connection | None:
        return self.link.runtime

    def opening(self, stream: int, headers: Headers, *, end: bool) -> None:
        if not stream & 1:
            raise ProtocolError(frames.PROTOCOL_ERROR, f"HEADERS on stream {stream}")
        if stream <= self.last or (self.leaving is not None and stream > self.leaving):
            return  # a stream that was reset, or one that the client knows it has to begin elsewhere
        self.last = stream
        half = Half(self, stream, Call(headers.path, time.perf_counter()))
        half.received_end = end
        self.streams[stream] = half
        if len(self.streams) > self.limits.max_streams:
            half.call.code = grpc.StatusCode.UNAVAILABLE
            half.reset(frames.REFUSED_STREAM)
            return
        handler = self.link.hub.handlers.get(headers.path)
        if handler is None:
            self.link.relay(half, headers, end=end)
        else:
            Held(self.link, half, headers, handler).begin()

    def forgotten(self, half: Half) -> None:
        self.link.hub.ended(half.call)

    def was_reset(self, half: Half, error: int) -> None:
        if half.call.code is None:
            half.call.code = grpc.StatusCode.CANCELLED
        if half.sink is not None:
            half.sink.reset(error)
        elif half.other is not None:
            half.other.reset(error)

    def peer_settings(self) -> None:
        runtime = self.link.runtime
        if runtime is not None:
            runtime.tell(_carried(self, self.limits))
        else:
            self.link.reach()

    def peer_leaves(self, last: int, error: int, debug: bytes) -> None:
        """Passed on: the streams that it names are those of a server, of which there are none."""
        if self.link.runtime is not None:
            self.link.runtime.out.append(frames.goaway(last, error, debug))

    def pinged_back(self, payload: bytes) -> None:
        if payload == _DRAINING:
            self.link.leave()

    def lost(self) -> None:
        for half in list(self.streams.values()):
            half.discard()
            self.forget_reset(half, frames.CANCEL)
        for side in (self.link.runtime, *self.link.older):
            if side is not None:
                side.close()
        self.link.hub.gone(self.link)


class RuntimeSide(Connection):
    """Our connection to the runtime."""

    def __init__(self, link: Link) -> None:
        super().__init__(link.hub.limits)
        self.link = link
        self.last = -1
        self.leaving = False
        """Whether the runtime has said which calls were the last ones here."""
        self.out.append(frames.PREFACE)

    @property
    def takes_calls(self) -> bool:
        """Whether another stream can be opened."""
        return not (self.closed or self.leaving) and max(self.last + 2, self.link.client.last) <= frames.LAST_STREAM

    def open(self, half: Half) -> Half:
        """A stream for the call of a client's half: with its number, or with the next one that is still allowed."""
        self.last = max(half.id, self.last + 2)
        made = self.streams[self.last] = Half(self, self.last, half.call)
        return made

    def opposite(self) -> Connection | None:
        return self.link.client

    def opening(self, stream: int, headers: Headers, *, end: bool) -> None:
        self._check_closed(stream)

    def relayed(self, half: Half, headers: Headers, *, end: bool) -> None:
        if end:
            half.call.code = code_of(headers.grpc_status)

    def was_reset(self, half: Half, error: int) -> None:
        if half.other is not None:
            if half.call.code is None:
                half.call.code = code_of_reset(error)
            half.other.reset(error)
        elif half.sink is not None:
            half.sink.reset(error)

    def peer_settings(self) -> None:
        if self is self.link.runtime:
            told = _carried(self, self.limits)
            streams = min(
                self.peer.get(frames.MAX_CONCURRENT_STREAMS, self.limits.max_streams), self.limits.max_streams
            )
            self.link.client.tell({**told, frames.MAX_CONCURRENT_STREAMS: streams})

    def peer_leaves(self, last: int, error: int, debug: bytes) -> None:
        """Passed on, with the client's stream in place of ours; calls that the runtime will not do are given back."""
        if last == frames.LAST_STREAM:
            if self is self.link.runtime and self.link.client.leaving is None:
                self.link.client.warned = True
                self.link.client.out.append(frames.goaway(last, error, debug))
            return
        self.leaving = True
        refused = [half for half in self.streams.values() if half.id > last]
        client = self.link.client
        if self is self.link.runtime:
            told = client.last
            first = min((half.other.id for half in refused if half.other is not None), default=0)
            kept = [half for half in client.streams.values() if half.other is None or half.other not in refused]
            if first and all(half.id < first for half in kept):
                told = max(first - 2, 0)
            self.link.leave(told, error, debug)
        for half in refused:
            half.discard()
            self.forget_reset(half, frames.REFUSED_STREAM)

    def lost(self) -> None:
        link = self.link
        if self is link.runtime:
            link.runtime = None
            if link.client.warned:
                link.leave()
        elif self in link.older:
            link.older.remove(self)
        for half in list(self.streams.values()):
            del self.streams[half.id]
            if half.sink is not None:
                half.sink.lost()
            elif half.other is not None and not half.received_end:
                half.other.fail(grpc.StatusCode.UNAVAILABLE, "the runtime's connection is gone")


def away(error: OSError) -> str:
    """What a call is told that cannot reach the runtime."""
    return f"the container runtime cannot be reached: {error.strerror or error}"


def _carried(source: Connection, limits: Limits) -> dict[int, int]:
    """What the other side is told of one side's settings."""
    listed = min(source.peer.get(frames.MAX_HEADER_LIST_SIZE, limits.max_header_bytes), limits.max_header_bytes)
    return {
        frames.INITIAL_WINDOW_SIZE: source.initial_window,
        frames.MAX_FRAME_SIZE: min(source.largest, limits.max_frame_bytes),
        frames.MAX_HEADER_LIST_SIZE: listed,
    }
