"""One HTTP/2 connection: what its peer sends.

On a stream that goes to the stream's other half, on another connection, or to its sink.
"""

from __future__ import annotations

from qrm.shim.http2 import frames
from qrm.shim.http2.blocks import Blocks
from qrm.shim.http2.frames import ProtocolError
from qrm.shim.http2.headers import HeaderDecoder, Headers
from qrm.shim.http2.limits import Limits
from qrm.shim.http2.run import Run
from qrm.shim.http2.sending import Sending
from qrm.shim.http2.stream import Half


class Connection(Sending):
    """What kubelet's and the runtime's have in common."""

    def __init__(self, limits: Limits) -> None:
        super().__init__(limits)
        self.last = 0
        """The highest stream so far."""
        self._decoder = HeaderDecoder(limits.max_header_bytes)
        self._rest = bytearray()
        self._greeted = False
        self._blocks = Blocks(limits.max_header_bytes)
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

    def opening(self, stream: int, headers: Headers, /, *, end: bool) -> None:
        """A header block on a stream that is not open. Raises ProtocolError."""
        raise NotImplementedError

    def relayed(self, half: Half, headers: Headers, *, end: bool) -> None:
        """A header block of an open stream is passed on: look at it."""

    def was_reset(self, half: Half, error: int) -> None:
        """The peer has given a stream up, or has to."""
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

    def preface(self, _data: bytes | bytearray) -> int:
        """Where frames begin. Raises ProtocolError."""
        return 0

    # Frames.

    def receive(self, data: bytes) -> None:
        """Take what the socket has read. A peer's mistake raises nothing, but ends its connection."""
        if self.closed:
            return
        try:
            self._parse(data)
        except ProtocolError as error:
            self.close(error)

    def _parse(self, fresh: bytes) -> None:
        position = self._completed(fresh) if self._rest else self.preface(fresh)
        position = self._frames(fresh, position)
        if position < len(fresh):
            self._rest += memoryview(fresh)[position:]

    def _completed(self, fresh: bytes) -> int:
        """Take the frame that the reads before have cut; where the next one begins."""
        rest, taken = self._rest, 0
        while missing := self._missing(rest):
            part = fresh[taken : taken + missing]
            if not part:
                return taken
            rest += part
            taken += len(part)
        frame = bytes(rest)
        rest.clear()
        self._frames(frame, 0)
        return taken

    def _missing(self, rest: bytearray) -> int:
        """Bytes that a frame lacks, as far as they can be told by now."""
        if len(rest) < frames.HEAD:
            return frames.HEAD - len(rest)
        high, low, *_ = frames.unpack_head(rest)
        return frames.HEAD + self._sized(high, low) - len(rest)

    def _sized(self, high: int, low: int) -> int:
        size = high << 8 | low
        if size > self.frame_limit:
            raise ProtocolError(frames.FRAME_SIZE_ERROR, f"frame of {size} bytes")
        return size

    def _frames(self, data: bytes, position: int) -> int:
        """Take the whole frames from `position` on; where the first one begins that is cut."""
        end = len(data)
        run = Run(data)
        try:
            while end - position >= frames.HEAD and not self.closed:
                high, low, kind, flags, stream = frames.unpack_head(data, position)
                size = self._sized(high, low)
                stop = position + frames.HEAD + size
                if stop > end:
                    break
                stream &= frames.LAST_STREAM
                other = None if kind else self._passed(flags, stream, size)
                if other is not None and other.id == stream:
                    run.take(other.connection, position)
                    if size and not flags:
                        stop += self._alike(data, position, stop, other)
                else:
                    run.end(position)
                    self._one(other, kind, flags, stream, data[position + frames.HEAD : stop])
                position = stop
        finally:
            run.end(position)
        return position

    def _alike(self, data: bytes, first: int, position: int, other: Half) -> int:
        """Pass on what follows a frame of DATA and has the same header, as far as windows allow; its size in bytes.

        A long message is many frames of one size.
        """
        head, step, to = data[first : first + frames.HEAD], position - first, other.connection
        size = step - frames.HEAD
        most = min((len(data) - position) // step, min(other.window, to.send_window, self.granted.left) // size)
        count = 0
        while count < most and data.startswith(head, position):
            position += step
            count += 1
        if count:
            self._account(other, count * size)
        return count * step

    def _one(self, other: Half | None, kind: int, flags: int, stream: int, payload: bytes) -> None:
        """A frame that does not go on as it is; with `other`, it goes there with another number."""
        if other is None:
            self._on_frame(kind, flags, stream, payload)
        else:
            other.connection.out += (frames.head(len(payload), frames.DATA, flags, other.id), payload)

    def _passed(self, flags: int, stream: int, size: int) -> Half | None:
        """Account for a frame of DATA that goes on as it is; the half that it goes to, None where it has to wait."""
        half = self.streams.get(stream)
        if half is None or half.received_end or flags & frames.PADDED or self._blocks.open is not None:
            return None
        other = half.other
        if other is None or other.queue or other.sent_end:
            return None
        to = other.connection
        if size > other.window or size > to.send_window or size > to.largest:
            return None
        self._account(other, size)
        if flags & frames.END_STREAM:
            other.all_sent()
            half.peer_ended()
        return other

    def _account(self, other: Half, size: int) -> None:
        """Bytes of DATA go on at once."""
        self._take_flow(size)
        other.window -= size
        other.connection.send_window -= size
        self.credit(size)

    def _on_frame(self, kind: int, flags: int, stream: int, payload: bytes) -> None:
        if self._blocks.open is not None and kind != frames.CONTINUATION:
            raise ProtocolError(frames.PROTOCOL_ERROR, "a header block is not continued")
        if not self._greeted and (kind != frames.SETTINGS or flags & frames.ACK):
            raise ProtocolError(frames.PROTOCOL_ERROR, "the first frame is not SETTINGS")
        if kind < len(self._take):
            self._take[kind](flags, stream, payload)
        else:
            self._on_unknown(kind, flags, stream, payload)

    def _on_unknown(self, kind: int, flags: int, stream: int, payload: bytes) -> None:
        """A frame of a type that HTTP/2 leaves to extensions is passed on with its stream or connection."""
        half = self.streams.get(stream)
        opposite = self.opposite()
        if half is not None and half.other is not None:
            half.other.connection.out.append(frames.frame(kind, flags, half.other.id, payload))
        elif not stream and opposite is not None:
            opposite.out.append(frames.frame(kind, flags, 0, payload))

    # DATA.

    def _take_flow(self, size: int) -> None:
        self.granted.take(size)
        if self.granted.left < 0:
            raise ProtocolError(frames.FLOW_CONTROL_ERROR, "more data than the connection's window")

    def _on_data(self, flags: int, stream: int, payload: bytes) -> None:
        """DATA that is not passed on as it is."""
        half, flow, end = self.streams.get(stream), len(payload), bool(flags & frames.END_STREAM)
        self._take_flow(flow)
        if flags & frames.PADDED:
            payload = frames.unpadded(payload)
        if half is None:
            self.check_closed(stream)
        elif half.received_end:
            self._break_off(half, frames.STREAM_CLOSED)
        elif half.other is not None and not half.other.sent_end:
            self._relay_data(half, half.other, payload, flow, end=end)
            return
        else:
            if half.sink is not None:
                half.sink.data(payload, flow, end=end)
            if end:
                half.peer_ended()
        self.credit(flow)

    def _relay_data(self, half: Half, other: Half, payload: bytes, flow: int, *, end: bool) -> None:
        """Let DATA wait for the other side's windows, without its padding, which is given back at once."""
        padding = flow - len(payload)
        if padding:
            self.credit(padding)
            if not end:
                self.out.append(frames.window_update(half.id, padding))
        if payload or end:
            other.send_data(payload, end=end, sender=self)
        if end:
            half.peer_ended()

    def check_closed(self, stream: int) -> None:
        """What comes for a stream that has ended is dropped; one that never was is an error."""
        if not stream & 1 or stream > self.last:
            raise ProtocolError(frames.PROTOCOL_ERROR, f"frame on stream {stream}, which was never opened")

    def _break_off(self, half: Half, error: int) -> None:
        """End a stream at both sides whose peer has broken its rules."""
        half.discard()
        self.was_reset(half, error)
        self.write_reset(half, error)

    # Header blocks.

    def _on_headers(self, flags: int, stream: int, payload: bytes) -> None:
        block = self._blocks.first(flags, stream, payload)
        if block is not None:
            self._on_block(stream, *block)

    def _on_continuation(self, flags: int, stream: int, payload: bytes) -> None:
        block = self._blocks.more(flags, stream, payload)
        if block is not None:
            self._on_block(stream, *block)

    def _on_block(self, stream: int, block: bytes, end: bool) -> None:
        headers = self._decoder.decode(block)
        half = self.streams.get(stream)
        if half is None:
            self.opening(stream, headers, end=end)
            return
        if half.received_end:
            self._break_off(half, frames.STREAM_CLOSED)
            return
        other = half.other
        if other is not None:
            self.relayed(half, headers, end=end)
            if not other.sent_end:
                other.send_headers(headers, end=end)
        elif half.sink is not None:
            half.sink.headers(headers, end=end)
        if end:
            half.peer_ended()

    # The others.

    def _on_priority(self, _flags: int, stream: int, payload: bytes) -> None:
        """Nobody heeds it any more (RFC 9113, 5.3.2)."""
        if len(payload) != frames.PRIORITY_SIZE:
            raise ProtocolError(frames.FRAME_SIZE_ERROR, f"PRIORITY of {len(payload)} bytes")
        if not stream:
            raise ProtocolError(frames.PROTOCOL_ERROR, "PRIORITY on stream 0")

    def _on_rst_stream(self, _flags: int, stream: int, payload: bytes) -> None:
        error = frames.word(payload, "RST_STREAM")
        half = self.streams.get(stream)
        if half is None:
            self.check_closed(stream)
        else:
            self.forget_reset(half, error)

    def forget_reset(self, half: Half, error: int) -> None:
        """A stream was given up by the peer."""
        half.discard()
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
        self.heed(found)
        if found or first:
            self.peer_settings()

    def _on_push_promise(self, _flags: int, _stream: int, _payload: bytes) -> None:
        raise ProtocolError(frames.PROTOCOL_ERROR, "PUSH_PROMISE, which we do not take")

    def _on_ping(self, flags: int, stream: int, payload: bytes) -> None:
        """Answered here: what it asks is whether this connection lives.

        So a client's pings are never a reason for the runtime to end the connection (grpc's "too many pings"), and
        they are answered while the runtime is away.
        """
        if len(payload) != frames.PING_SIZE:
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
            self.widen(increment)
            return
        half = self.streams.get(stream)
        if half is None:
            self.check_closed(stream)
        elif not increment or half.window + increment > frames.LARGEST_WINDOW:
            self._break_off(half, frames.FLOW_CONTROL_ERROR if increment else frames.PROTOCOL_ERROR)
        else:
            half.widen(increment)
