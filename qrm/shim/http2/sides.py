"""The two sides of a link: the connection that kubelet has made, and ours to the runtime."""

from __future__ import annotations

import contextlib
import time
from collections import deque
from typing import TYPE_CHECKING

import grpc

from qrm.shim.http2 import frames
from qrm.shim.http2.connection import Connection
from qrm.shim.http2.frames import ProtocolError
from qrm.shim.http2.headers import Headers
from qrm.shim.http2.limits import Limits
from qrm.shim.http2.status import code_of, code_of_reset
from qrm.shim.http2.stream import Call, Half

if TYPE_CHECKING:
    from qrm.shim.http2.link import Link

DRAINING = b"qrm-bye\x00"
"""Payload of the PING whose answer says that the client has seen our first GOAWAY."""

_REMEMBERED = 256
"""Streams whose late header blocks are expected. A client knows of our RST_STREAM after a round trip; and a request
has no trailers in gRPC."""


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
        self._given_up: deque[int] = deque(maxlen=_REMEMBERED)
        """Streams that we ended, or never took, the latest last."""
        self.start(
            {
                frames.MAX_CONCURRENT_STREAMS: self.limits.max_streams,
                frames.MAX_HEADER_LIST_SIZE: self.limits.max_header_bytes,
            }
        )

    def preface(self, data: bytes | bytearray) -> int:
        """Take the client's preface, as much of it as is there."""
        expected = self._expected
        if not expected:
            return 0
        here = bytes(data[: len(expected)])
        if not expected.startswith(here):
            raise ProtocolError(frames.PROTOCOL_ERROR, "not HTTP/2")
        self._expected = expected[len(here) :]
        return len(here)

    @property
    def peers_last(self) -> int:
        """Calls up to this one have begun."""
        return self.last

    def opposite(self) -> Connection | None:
        """The runtime's connection for new calls."""
        return self.link.runtime

    def opening(self, stream: int, headers: Headers, *, end: bool) -> None:
        """A call begins."""
        if not stream & 1:
            raise ProtocolError(frames.PROTOCOL_ERROR, f"HEADERS on stream {stream}")
        if stream <= self.last:
            if stream not in self._given_up:
                raise ProtocolError(frames.STREAM_CLOSED, f"HEADERS on stream {stream}, which has ended or was skipped")
            return
        self.last = stream
        if self.leaving is not None and stream > self.leaving:
            self._given_up.append(stream)  # the client knows that it has to begin that one elsewhere
            return
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
            self.link.hold(half, headers, handler)

    def write_reset(self, half: Half, error: int) -> None:
        """Send RST_STREAM; what the client has sent on the stream before it hears of that is no mistake."""
        self._given_up.append(half.id)
        super().write_reset(half, error)

    def forgotten(self, half: Half) -> None:
        """A call has ended."""
        for room, size in half.kept.items() if half.kept else ():
            room.release(size)
        self.link.hub.ended(half.call)

    def was_reset(self, half: Half, error: int) -> None:
        """kubelet does not want the answer any more: nor does the runtime have to go on."""
        if half.call.code is None:
            half.call.code = grpc.StatusCode.CANCELLED
        if half.sink is not None:
            half.sink.reset(error)
        elif half.other is not None:
            half.other.reset(error)

    def peer_settings(self) -> None:
        """They are the runtime's to heed; with the first ones, it is dialled."""
        runtime = self.link.runtime
        if runtime is not None:
            runtime.tell(carried(self, self.limits))
        else:
            with contextlib.suppress(OSError):  # the first call tries again, and says so
                self.link.reach()

    def peer_leaves(self, last: int, error: int, debug: bytes) -> None:
        """Passed on: the streams that it names are those of a server, of which there are none."""
        if self.link.runtime is not None:
            self.link.runtime.out.append(frames.goaway(last, error, debug))

    def pinged_back(self, payload: bytes) -> None:
        """After the answer to our own one, no new call is on its way."""
        if payload == DRAINING:
            self.link.leave()

    def lost(self) -> None:
        """kubelet has gone, and with it all its calls."""
        for half in list(self.streams.values()):
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

    @property
    def peers_last(self) -> int:
        """We take no streams of the runtime's."""
        return 0

    def opposite(self) -> Connection | None:
        """kubelet's connection."""
        return self.link.client

    def opening(self, stream: int, _headers: Headers, *, end: bool) -> None:  # noqa: ARG002
        """Only clients open streams."""
        self.check_closed(stream)

    def relayed(self, half: Half, headers: Headers, *, end: bool) -> None:
        """The last headers have the status."""
        if end:
            half.call.code = code_of(headers.grpc_status)

    def was_reset(self, half: Half, error: int) -> None:
        """The runtime has given a call up: so it is for kubelet, with the same error."""
        if half.other is not None:
            if half.call.code is None:
                half.call.code = code_of_reset(error)
            half.other.reset(error, after=half.received_end)
        elif half.sink is not None:
            half.sink.reset(error)

    def peer_settings(self) -> None:
        """They are kubelet's to heed, as far as we can keep them."""
        if self is self.link.runtime:
            told = carried(self, self.limits)
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
            self.forget_reset(half, frames.REFUSED_STREAM)

    def lost(self) -> None:
        """Calls that are not complete are UNAVAILABLE; kubelet's connection stays for those to come."""
        link = self.link
        if self is link.runtime:
            link.runtime = None
            if link.client.warned:
                link.leave()
        elif self in link.older:
            link.older.remove(self)
        for half in list(self.streams.values()):
            client, sink = half.other, half.sink
            half.discard()
            self.forget(half)
            if client is not None:
                client.other = None
            if sink is not None:
                sink.lost()
            elif client is not None and not half.received_end:
                client.fail(grpc.StatusCode.UNAVAILABLE, "the connection to the container runtime broke")
            elif client is not None and not client.received_end:
                client.reset(frames.NO_ERROR, after=True)
        link.throttle()  # kubelet is not to wait for a socket that will never take anything again


def carried(source: Connection, limits: Limits) -> dict[int, int]:
    """What the other side is told of one side's settings."""
    listed = min(source.peer.get(frames.MAX_HEADER_LIST_SIZE, limits.max_header_bytes), limits.max_header_bytes)
    return {
        frames.INITIAL_WINDOW_SIZE: source.initial_window,
        frames.MAX_FRAME_SIZE: source.largest,
        frames.MAX_HEADER_LIST_SIZE: listed,
    }
