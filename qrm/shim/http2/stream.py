"""A stream as it exists on one connection, its other half on the other one, and what waits to be sent on it."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Protocol

import grpc

from qrm.shim.http2 import frames
from qrm.shim.http2.frames import ProtocolError
from qrm.shim.http2.headers import Headers
from qrm.shim.http2.messages import Parts
from qrm.shim.http2.status import trailers, trailers_only

if TYPE_CHECKING:
    from qrm.shim.http2.room import Room
    from qrm.shim.http2.sending import Sending

_SMALL, _GATHERED = 4 << 10, 64 << 10
"""Bytes below which what waits is put together with what comes next, and up to which: a peer that sends single bytes
shall not make us keep an object for each."""
_AT_ONCE = 128 << 10
"""Bytes that are given to the socket at a time: larger pieces cost more than they save."""
_NOTHING: Mapping[Room, int] = MappingProxyType({})
_MOST_WAITING = 256
"""Items in a queue after which a peer that sends header blocks, which no window holds back, has gone too far."""


class Call:
    """What is counted of a call."""

    __slots__ = ("code", "path", "started")

    def __init__(self, path: bytes, started: float) -> None:
        self.path = path
        self.started = started
        self.code: grpc.StatusCode | None = None
        """How it ended; None where nobody has said."""


class Sink(Protocol):
    """Takes what a peer sends on a stream that is not passed on."""

    def headers(self, headers: Headers, /, *, end: bool) -> None:
        """A header block."""

    def data(self, payload: bytes, flow: int, *, end: bool) -> None:
        """DATA without its padding; `flow` is what it took of the stream's window."""

    def reset(self, error: int, /) -> None:
        """The peer gave the stream up; nothing can be sent on it any more."""

    def lost(self) -> None:
        """The connection is gone."""

    def shifted(self, change: int) -> None:
        """The peer was told another initial window size."""


class _Waiting:
    """Something to be sent once windows allow."""

    __slots__ = ("data", "end", "headers", "sender", "sent")

    def __init__(
        self, data: bytes | bytearray, *, end: bool, headers: Headers | None = None, sender: Sending | None = None
    ) -> None:
        self.data = data
        self.sent = 0
        """How much of it has left."""
        self.headers = headers
        """Instead of data."""
        self.sender = sender
        """Whose connection window is given back as the data leaves; None where that is done."""
        self.end = end

    @property
    def size(self) -> int:
        return len(self.data) - self.sent

    def add(self, data: bytes, sender: Sending | None, *, end: bool) -> bool:
        """Take what comes next in too; whether that is worthwhile."""
        if self.headers is not None or self.sender is not sender or len(self.data) + len(data) > _GATHERED:
            return False
        if len(data) > _SMALL and len(self.data) > _SMALL:
            return False
        if not isinstance(self.data, bytearray):
            self.data = bytearray(self.data)
        self.data += data
        self.end = end
        return True


class Half:
    """One stream on one connection."""

    __slots__ = (
        "ahead",
        "call",
        "connection",
        "granted",
        "headers_sent",
        "id",
        "kept",
        "other",
        "queue",
        "received_end",
        "reset_after",
        "sent_end",
        "sink",
        "window",
    )

    def __init__(self, connection: Sending, number: int, call: Call) -> None:
        self.connection = connection
        self.id = number
        self.call = call
        self.other: Half | None = None
        """Where everything goes that the peer sends; None while that is the sink's."""
        self.sink: Sink | None = None
        self.window = connection.initial_window
        """What the peer lets us send."""
        self.granted = 0
        """What the peer has added to the window without the other half's peer being told."""
        self.ahead = 0
        """What the other half's peer was granted before this one's peer has: its next updates are not passed on."""
        self.queue: deque[_Waiting] = deque()
        self.received_end = False
        self.sent_end = False
        self.headers_sent = False
        self.reset_after: int | None = None
        """RST_STREAM to be sent after the queue."""
        self.kept: Mapping[Room, int] = _NOTHING
        """What a client's call has in memory of its messages."""

    @property
    def closed(self) -> bool:
        """Whether the connection has forgotten it."""
        return self.connection.streams.get(self.id) is not self

    def pass_to(self, other: Half) -> None:
        """From now on what either peer sends goes to the other, window updates too.

        What was granted on behalf of a peer before is settled: neither may end up with more than the other gave.
        """
        self.other, other.other = other, self
        self.sink = other.sink = None
        for one, opposite in ((self, other), (other, self)):
            due = one.granted - one.ahead
            one.granted, one.ahead = 0, max(-due, 0)
            if due > 0 and not opposite.received_end:
                opposite.connection.out.append(frames.window_update(opposite.id, due))

    def widen(self, increment: int) -> None:
        """The peer takes more; the other half's peer is told, who may send as much more."""
        self.window += increment
        other = self.other
        if other is None:
            self.granted += increment
        else:
            passed = max(increment - self.ahead, 0)
            self.ahead -= increment - passed
            if passed and not other.received_end:
                other.connection.out.append(frames.window_update(other.id, passed))
        if self.queue:
            self.pump()

    def send_headers(self, headers: Headers, *, end: bool) -> None:
        """Send a header block after all that was to be sent before. Raises ProtocolError where too much waits."""
        if not headers.informational:
            self.headers_sent = True
        if self.queue:
            if len(self.queue) > _MOST_WAITING and not end:
                raise ProtocolError(frames.ENHANCE_YOUR_CALM, "headers without end")
            self.queue.append(_Waiting(b"", headers=headers, end=end))
            return
        self.connection.write_headers(self.id, headers.block, end=end)
        if end:
            self.all_sent()

    def send_data(self, data: bytes, *, end: bool, sender: Sending | None = None) -> None:
        """Send bytes as fast as the peer lets us; `sender`'s window is given back as they leave."""
        if not self.queue or not self.queue[-1].add(data, sender, end=end):
            self.queue.append(_Waiting(data, sender=sender, end=end))
        self.pump()

    def send_parts(self, parts: Parts, *, end: bool) -> None:
        """As `send_data`, for bytes in several parts."""
        *first, last = parts or (b"",)
        for part in first:
            self.send_data(part, end=False)
        self.send_data(last, end=end)

    def pump(self) -> None:
        """Send what windows allow of what waits."""
        queue, connection = self.queue, self.connection
        while queue:
            waiting = queue[0]
            if waiting.headers is not None:
                connection.write_headers(self.id, waiting.headers.block, end=waiting.end)
            elif not self._send_some(waiting):
                connection.blocked[self] = None
                return
            queue.popleft()
            if waiting.end:
                self.all_sent()
        connection.blocked.pop(self, None)
        if self.reset_after is not None and not self.closed:
            connection.write_reset(self, self.reset_after)

    def _send_some(self, waiting: _Waiting) -> bool:
        """Send of one item; whether all of it is sent."""
        connection = self.connection
        unflushed = 0
        while True:
            size = waiting.size
            count = max(min(size, self.window, connection.send_window, connection.largest), 0)
            if (size and not count) or connection.paused or connection.closed:
                return False
            start, waiting.sent = waiting.sent, waiting.sent + count
            flags = frames.END_STREAM if waiting.end and count == size else 0
            connection.out += (frames.head(count, frames.DATA, flags, self.id), waiting.data[start : waiting.sent])
            self.window -= count
            connection.send_window -= count
            if waiting.sender is not None:
                waiting.sender.credit(count)
            if count == size:
                return True
            unflushed += count
            if unflushed > _AT_ONCE:
                connection.flush()
                unflushed = 0

    def reset(self, error: int, *, after: bool = False) -> None:
        """End the stream at its peer, at once or after what waits for it."""
        if self.closed:
            return
        if after and self.queue:
            self.reset_after = error
            return
        self.discard()
        self.connection.write_reset(self, error)

    def discard(self) -> None:
        """Throw away what waits."""
        for waiting in self.queue:
            if waiting.sender is not None:
                waiting.sender.credit(waiting.size)
        self.queue.clear()
        self.connection.blocked.pop(self, None)

    def fail(self, code: grpc.StatusCode, details: str) -> None:
        """End the call at the client with a status of ours, after what the runtime has said so far."""
        if self.closed or self.sent_end:
            return
        self.call.code = code
        self.finish(Headers(trailers(code, details) if self.headers_sent else trailers_only(code, details)))

    def finish(self, last: Headers) -> None:
        """Send the last headers; a client that has more to say is told to keep it (RFC 9113, 8.1)."""
        self.send_headers(last, end=True)
        if self.queue:
            self.reset_after = frames.NO_ERROR
        elif not self.closed:
            self.connection.write_reset(self, frames.NO_ERROR)

    def peer_ended(self) -> None:
        """The peer has said all."""
        self.received_end = True
        if self.sent_end:
            self.connection.forget(self)

    def all_sent(self) -> None:
        """We have said all."""
        self.sent_end = True
        if self.received_end:
            self.connection.forget(self)
