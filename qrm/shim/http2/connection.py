"""One HTTP/2 connection: its frames, its windows, its streams. It knows no sockets; what is to be sent is in `out`.

What a peer sends on a stream goes to the stream's other half, on another connection, or to its sink.
"""

from __future__ import annotations

from typing import Protocol

from qrm.shim.http2 import frames
from qrm.shim.http2.frames import ProtocolError
from qrm.shim.http2.headers import NO_TABLE, HeaderDecoder, Headers
from qrm.shim.http2.limits import Limits
from qrm.shim.http2.stream import Half
from qrm.shim.http2.windows import Granted, widened


_DEFAULTS = {
    frames.INITIAL_WINDOW_SIZE: frames.DEFAULT_WINDOW,
    frames.MAX_FRAME_SIZE: frames.DEFAULT_FRAME,
}
"""Settings that need not be told."""


class Wire(Protocol):
    """The socket under a connection."""

    def write(self, data: bytes) -> None:
        """Send, later if need be."""

    def waiting(self) -> int:
        """Bytes that were not sent yet."""

    def close(self) -> None:
        """Send what is to be sent, for a moment, and close."""

    def read(self, *, on: bool) -> None:
        """Go on reading, or pause."""


class Connection:
    """What both sides have in common."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.wire: Wire | None = None
        self.out: list[bytes | bytearray] = []
        self.streams: dict[int, Half] = {}
        self.blocked: dict[Half, None] = {}
        """Streams with something to send that a window keeps back, the longest waiting first."""
        self.last = 0
        """The highest stream so far."""
        self.send_window = frames.DEFAULT_WINDOW
        self.initial_window = frames.DEFAULT_WINDOW
        self.largest = frames.DEFAULT_FRAME
        """Of the peer: its connection's window, its streams' first windows, its largest frame."""
        self.peer: dict[int, int] = {}
        """The peer's settings."""
        self.told: dict[int, int] = {}
        """Settings that the peer was told."""
        self.paused = False
        """Whether the socket takes nothing more for now."""
        self.closed = False
        self._frame_limit = frames.DEFAULT_FRAME
        self._granted = Granted(frames.DEFAULT_WINDOW, limits.window_bytes, limits.window_bytes * 3 // 4)
        self._decoder = HeaderDecoder(limits.max_header_bytes)
        self._rest = bytearray()
        self._greeted = False
        self._block: tuple[int, int, bytearray] | None = None
        """A header block that is to be continued: stream, flags, what there is of it."""
        self._table_off = False
        self._take = (
            self._on_data,
            self._on_headers,
            self._on_priority,
            self._on_rst_stream,
            self._on_settings,
            self._on_push_promise,
            self._on_ping,
            self._on_goaway,
            self._on_window_update,
            self._on_continuation,
        )

    # What differs between the two sides.

    def opening(self, stream: int, headers: Headers, *, end: bool) -> None:
        """A header block on a stream that is not open. Raises ProtocolError."""
        raise NotImplementedError

    def relayed(self, half: Half, headers: Headers, *, end: bool) -> None:
        """A header block of an open stream is passed on: look at it."""

    def forgotten(self, half: Half) -> None:
        """A stream has ended."""

    def was_reset(self, half: Half, error: int) -> None:
        """The peer has given a stream up, which is forgotten."""
        raise NotImplementedError

    def peer_settings(self) -> None:
        """The peer's settings are in force here: carry on what matters to the other side."""
        raise NotImplementedError

    def peer_leaves(self, last: int, error: int, debug: bytes) -> None:
        """GOAWAY."""
        raise NotImplementedError

    def opposite(self) -> Connection | None:
        """The connection on the other side, if there is one now."""
        raise NotImplementedError

    def pinged_back(self, payload: bytes) -> None:
        """The answer to a PING of ours."""

    def lost(self) -> None:
        """The connection is gone: end all that depends on it."""
        raise NotImplementedError

    # Sending.

    def start(self, settings: dict[int, int]) -> None:
        """Send our first SETTINGS, and the connection's window."""
        self.told = {}
        self.tell(settings)
        increment = self._granted.grant()
        if increment:
            self.out.append(frames.window_update(0, increment))

    def tell(self, settings: dict[int, int]) -> None:
        """Send settings that the peer does not know yet; the first time in any case."""
        news = {name: value for name, value in settings.items() if self.told.get(name, _DEFAULTS.get(name)) != value}
        if not news and self.told:
            return
        before = self.told_window
        self.told = {**self.told, **news}
        self._frame_limit = max(self._frame_limit, self.told.get(frames.MAX_FRAME_SIZE, 0))
        self.out.append(frames.settings(news))
        change = self.told_window - before
        if change:
            for half in list(self.streams.values()):
                if half.sink is not None:
                    half.sink.shifted(change)

    @property
    def told_window(self) -> int:
        """The initial window size that the peer was told."""
        return self.told.get(frames.INITIAL_WINDOW_SIZE, frames.DEFAULT_WINDOW)

    def write_headers(self, stream: int, block: bytes, *, end: bool) -> None:
        """Send a header block."""
        if not self._table_off:
            self._table_off = True
            block = NO_TABLE + block
        self.out.append(frames.header_frames(stream, block, end=end, largest=self.largest))

    def write_reset(self, half: Half, error: int) -> None:
        """Send RST_STREAM and forget the stream."""
        self.out.append(frames.rst_stream(half.id, error))
        self.forget(half)

    def credit(self, count: int) -> None:
        """Bytes that the peer has sent are used up."""
        increment = self._granted.used(count)
        if increment:
            self.out.append(frames.window_update(0, increment))

    def forget(self, half: Half) -> None:
        """A stream has ended."""
        if self.streams.pop(half.id, None) is not None:
            self.forgotten(half)

    def pump(self) -> None:
        """Send what waits, as far as windows allow now; the next time others are first."""
        for half in list(self.blocked):
            if self.send_window <= 0 or self.paused:
                return
            self.blocked.pop(half, None)
            half.pump()

    def flush(self) -> None:
        """Hand `out` to the socket, if there is one already."""
        wire = self.wire
        if wire is None or not self.out:
            return
        data = b"".join(self.out)
        self.out.clear()
        wire.write(data)
        if self.paused and wire.waiting() > 8 * self.limits.buffer_bytes:
            self.close(ProtocolError(frames.ENHANCE_YOUR_CALM, "answers are not read"))

    def close(self, error: ProtocolError | None = None) -> None:
        """End the connection; a peer that broke the protocol is told so."""
        if self.closed:
            return
        self.closed = True
        if error is not None:
            self.out.append(frames.goaway(self.last, error.code, error.reason.encode(errors="replace")[:256]))
        if self.wire is not None:
            if self.out:
                self.wire.write(b"".join(self.out))
            self.wire.close()
        self.out.clear()
        self.lost()

    # Receiving.

    def receive(self, data: bytes) -> None:
        """Take what the socket has read. Raises nothing: a peer's mistake ends its connection."""
        if self.closed:
            return
        try:
            self._parse(data)
        except ProtocolError as error:
            self.close(error)

    def _parse(self, fresh: bytes) -> None:
        rest = self._rest
        data: bytes | bytearray = fresh
        if rest:
            rest += fresh
            data = rest
        position, end = self._preface(data), len(data)
        while end - position >= frames.HEAD:
            high, low, kind, flags, stream = frames.unpack_head(data, position)
            stop = position + frames.HEAD + (high << 8 | low)
            if stop > end:
                if stop - position > frames.HEAD + self._frame_limit:
                    raise ProtocolError(frames.FRAME_SIZE_ERROR, f"frame of {high << 8 | low} bytes")
                break
            if kind == frames.DATA:
                self._on_frame_of_data(flags, stream & frames.LAST_STREAM, data, position, stop)
            else:
                self._on_frame(kind, flags, stream & frames.LAST_STREAM, bytes(data[position + frames.HEAD : stop]))
            if self.closed:
                return
            position = stop
        if data is rest:
            del rest[:position]
        elif position < end:
            rest += data[position:]

    def _preface(self, _data: bytes | bytearray) -> int:
        """Where frames begin."""
        return 0

    def _on_frame_of_data(self, flags: int, stream: int, data: bytes | bytearray, start: int, stop: int) -> None:
        """DATA; mostly passed on as it is."""
        half = self.streams.get(stream)
        size = stop - start - frames.HEAD
        if half is not None and self._block is None and not half.received_end and size <= self._frame_limit:
            other = half.other
            if other is not None and not other.queue and not other.sent_end:
                to = other.connection
                if size <= other.window and size <= to.send_window and size <= to.largest:
                    self._granted.take(size)
                    if self._granted.left < 0:
                        raise ProtocolError(frames.FLOW_CONTROL_ERROR, "more data than the connection's window")
                    other.window -= size
                    to.send_window -= size
                    if stream == other.id:
                        to.out.append(data[start:stop])
                    else:
                        to.out.append(frames.head(size, frames.DATA, flags, other.id))
                        to.out.append(data[start + frames.HEAD : stop])
                    self.credit(size)
                    if flags & frames.END_STREAM:
                        other._ended()
                        half.peer_ended()
                    return
        self._on_frame(frames.DATA, flags, stream, bytes(data[start + frames.HEAD : stop]))

    def _on_frame(self, kind: int, flags: int, stream: int, payload: bytes) -> None:
        if len(payload) > self._frame_limit:
            raise ProtocolError(frames.FRAME_SIZE_ERROR, f"frame of {len(payload)} bytes")
        if self._block is not None and kind != frames.CONTINUATION:
            raise ProtocolError(frames.PROTOCOL_ERROR, "a header block is not continued")
        if not self._greeted and (kind != frames.SETTINGS or flags & frames.ACK):
            raise ProtocolError(frames.PROTOCOL_ERROR, "the first frame is not SETTINGS")
        if kind < len(self._take):
            self._take[kind](flags, stream, payload)
        else:
            self.unknown(kind, flags, stream, payload)

    def unknown(self, kind: int, flags: int, stream: int, payload: bytes) -> None:
        """A frame of a type that HTTP/2 leaves to extensions is passed on with its stream or connection."""
        half = self.streams.get(stream)
        opposite = self.opposite()
        if half is not None and half.other is not None:
            half.other.connection.out.append(frames.frame(kind, flags, half.other.id, payload))
        elif not stream and opposite is not None:
            opposite.out.append(frames.frame(kind, flags, 0, payload))

    def _on_data(self, flags: int, stream: int, payload: bytes) -> None:
        """DATA that is not passed on as it is."""
        half, flow, end = self.streams.get(stream), len(payload), bool(flags & frames.END_STREAM)
        self._granted.take(flow)
        if self._granted.left < 0:
            raise ProtocolError(frames.FLOW_CONTROL_ERROR, "more data than the connection's window")
        if flags & frames.PADDED:
            payload = frames.unpadded(payload)
        if half is None:
            self._check_closed(stream)
        elif half.received_end:
            self._break_off(half, frames.STREAM_CLOSED)
        elif half.other is not None:
            self._relay_data(half, half.other, payload, flow, end=end)
            return
        elif half.sink is not None:
            half.sink.data(payload, flow, end=end)
            if end:
                half.peer_ended()
        self.credit(flow)

    def _relay_data(self, half: Half, other: Half, payload: bytes, flow: int, *, end: bool) -> None:
        """Let DATA wait for the other side's windows, without its padding, which is given back at once."""
        if other.sent_end:
            self.credit(flow)
        else:
            padding = flow - len(payload)
            if padding:
                self.credit(padding)
                if not end:
                    self.out.append(frames.window_update(half.id, padding))
            other.send_data(payload, end=end, sender=self)
        if end:
            half.peer_ended()

    def _check_closed(self, stream: int) -> None:
        """What comes for a stream that has ended is dropped; one that never was is an error."""
        if not stream or stream > self.last or not stream & 1:
            raise ProtocolError(frames.PROTOCOL_ERROR, f"frame on stream {stream}, which was never opened")

    def _break_off(self, half: Half, error: int) -> None:
        """End a stream at both sides whose peer has broken its rules."""
        half.discard()
        self.was_reset(half, error)
        self.write_reset(half, error)

    def _on_headers(self, flags: int, stream: int, payload: bytes) -> None:
        if flags & frames.PADDED:
            payload = frames.unpadded(payload)
        if flags & frames.HAS_PRIORITY:
            if len(payload) < 5:
                raise ProtocolError(frames.FRAME_SIZE_ERROR, "HEADERS shorter than its priority")
            payload = payload[5:]
        if flags & frames.END_HEADERS:
            self._on_block(stream, payload, end=bool(flags & frames.END_STREAM))
        else:
            self._block = (stream, flags, bytearray(payload))

    def _on_continuation(self, flags: int, stream: int, payload: bytes) -> None:
        if self._block is None or self._block[0] != stream:
            raise ProtocolError(frames.PROTOCOL_ERROR, "CONTINUATION of nothing")
        _, first, block = self._block
        block += payload
        if len(block) > self.limits.max_header_bytes:
            raise ProtocolError(frames.ENHANCE_YOUR_CALM, "header block without end")
        if flags & frames.END_HEADERS:
            self._block = None
            self._on_block(stream, bytes(block), end=bool(first & frames.END_STREAM))

    def _on_block(self, stream: int, block: bytes, *, end: bool) -> None:
        headers = self._decoder.decode(block)
        half = self.streams.get(stream)
        if half is None:
            self.opening(stream, headers, end=end)
        elif half.received_end:
            self._break_off(half, frames.STREAM_CLOSED)
        else:
            other = half.other
            if other is not None:
                self.relayed(half, headers, end=end)
                if not other.sent_end:
                    other.send_headers(headers, end=end)
            elif half.sink is not None:
                half.sink.headers(headers, end=end)
            if end:
                half.peer_ended()

    def _on_priority(self, _flags: int, stream: int, payload: bytes) -> None:
        """Nobody heeds it any more (RFC 9113, 5.3.2)."""
        if len(payload) != 5:
            raise ProtocolError(frames.FRAME_SIZE_ERROR, f"PRIORITY of {len(payload)} bytes")
        if not stream:
            raise ProtocolError(frames.PROTOCOL_ERROR, "PRIORITY on stream 0")

    def _on_rst_stream(self, _flags: int, stream: int, payload: bytes) -> None:
        error = frames.word(payload, "RST_STREAM")
        half = self.streams.get(stream)
        if half is None:
            self._check_closed(stream)
            return
        half.discard()
        self.forget_reset(half, error)

    def forget_reset(self, half: Half, error: int) -> None:
        """A stream was given up by the peer."""
        self.was_reset(half, error)
        self.forget(half)

    def _on_settings(self, flags: int, stream: int, payload: bytes) -> None:
        if stream:
            raise ProtocolError(frames.PROTOCOL_ERROR, f"SETTINGS on stream {stream}")
        if flags & frames.ACK:
            if payload:
                raise ProtocolError(frames.FRAME_SIZE_ERROR, "SETTINGS acknowledgement with a payload")
            return
        found = frames.read_settings(payload)
        first, self._greeted = not self._greeted, True
        self.peer |= found
        self.largest = found.get(frames.MAX_FRAME_SIZE, self.largest)
        change = found.get(frames.INITIAL_WINDOW_SIZE, self.initial_window) - self.initial_window
        self.initial_window += change
        for half in self.streams.values() if change else ():
            half.window = widened(half.window, change)
        self.out.append(frames.SETTINGS_ACK)
        if found or first:
            self.peer_settings()
        if change > 0:
            self.pump()

    def _on_push_promise(self, _flags: int, _stream: int, _payload: bytes) -> None:
        raise ProtocolError(frames.PROTOCOL_ERROR, "PUSH_PROMISE, which we do not take")

    def _on_ping(self, flags: int, stream: int, payload: bytes) -> None:
        """Answered here: what it asks is whether this connection lives.

        So a client's pings are never a reason for the runtime to end the connection (grpc's "too many pings"), and
        they are answered while the runtime is away.
        """
        if len(payload) != 8:
            raise ProtocolError(frames.FRAME_SIZE_ERROR, f"PING of {len(payload)} bytes")
        if stream:
            raise ProtocolError(frames.PROTOCOL_ERROR, f"PING on stream {stream}")
        if flags & frames.ACK:
            self.pinged_back(payload)
        else:
            self.out.append(frames.frame(frames.PING, frames.ACK, 0, payload))

    def _on_goaway(self, _flags: int, stream: int, payload: bytes) -> None:
        if stream:
            raise ProtocolError(frames.PROTOCOL_ERROR, f"GOAWAY on stream {stream}")
        self.peer_leaves(*frames.read_goaway(payload))

    def _on_window_update(self, _flags: int, stream: int, payload: bytes) -> None:
        increment = frames.word(payload, "WINDOW_UPDATE") & frames.LARGEST_WINDOW
        if not stream:
            if not increment:
                raise ProtocolError(frames.PROTOCOL_ERROR, "WINDOW_UPDATE of 0")
            self.send_window = widened(self.send_window, increment)
            self.pump()
            return
        half = self.streams.get(stream)
        if half is None:
            self._check_closed(stream)
            return
        if not increment or half.window + increment > frames.LARGEST_WINDOW:
            self._break_off(half, frames.FLOW_CONTROL_ERROR if increment else frames.PROTOCOL_ERROR)
            return
        half.window += increment
        if half.queue:
            half.pump()
        other = half.other
        if other is None:
            half.granted += increment
            return
        passed = max(increment - half.ahead, 0)
        half.ahead -= increment - passed
        if passed and not other.received_end:
            other.connection.out.append(frames.window_update(other.id, passed))
