"""Whether what comes over a connection keeps to RFC 9113: what a transport must never get wrong."""

from __future__ import annotations

from dataclasses import dataclass, field

from tests.shim.frames import wire
from tests.shim.frames.recorder import Recorder
from tests.shim.frames.wire import Frame


@dataclass
class Windows:
    """Flow control in one direction: what its sender may still send, in bytes."""

    connection: int = wire.WINDOW
    streams: dict[int, int] = field(default_factory=dict)
    initial: int = wire.WINDOW

    def of(self, stream: int) -> int:
        """A stream's window."""
        return self.streams.setdefault(stream, self.initial)

    def sent(self, frame: Frame) -> None:
        """DATA has gone."""
        self.connection -= len(frame.payload)
        self.streams[frame.stream] = self.of(frame.stream) - len(frame.payload)

    def granted(self, stream: int, amount: int) -> None:
        """A WINDOW_UPDATE has come."""
        if stream == 0:
            self.connection += amount
        else:
            self.streams[stream] = self.of(stream) + amount

    def begin_with(self, initial: int) -> None:
        """INITIAL_WINDOW_SIZE has changed: streams that are open keep what they have used."""
        for stream in self.streams:
            self.streams[stream] += initial - self.initial
        self.initial = initial


@dataclass
class Judge:
    """Watches what the end with `heard` is sent; raises AssertionError at the first frame that is against the rules.

    A value of ours that makes things wider holds from when it is sent, one that makes them narrower from when it is
    acknowledged.
    """

    heard: Recorder
    sent: Recorder
    sender_is_client: bool
    windows: Windows = field(default_factory=Windows)
    """What we let the sender send."""
    pending: list[dict[int, int]] = field(default_factory=list)
    """Settings that we sent and that are not acknowledged."""
    _ours: dict[int, int] = field(default_factory=wire.DEFAULTS.copy)
    _block_of: int = 0
    _begun: bool = False
    _last: int = 0

    def we_sent(self, frame: Frame) -> None:
        """What we send changes what we may get."""
        if frame.kind == wire.WINDOW_UPDATE:
            self.windows.granted(frame.stream, frame.number)
        elif frame.kind == wire.SETTINGS and not frame.acknowledges:
            values = wire.read_settings(frame)
            self.pending.append(values)
            self.heard.decoder.max_allowed_table_size = self._limit(wire.HEADER_TABLE_SIZE)
            self.windows.begin_with(self._limit(wire.INITIAL_WINDOW))

    def check(self, frame: Frame) -> None:
        """Judge a frame before the recorder sees it."""
        told = f"type {frame.kind} flags {frame.flags:#x} stream {frame.stream} with {len(frame.payload)} bytes"
        assert self._begun or (frame.kind == wire.SETTINGS and not frame.acknowledges), f"SETTINGS come first: {told}"
        self._begun = True
        assert len(frame.payload) <= self._limit(wire.MAX_FRAME), f"longer than we allow: {told}"
        in_block = frame.kind == wire.CONTINUATION and frame.stream == self._block_of
        assert in_block == bool(self._block_of), f"a header block of stream {self._block_of} is not finished: {told}"
        if frame.kind in {wire.HEADERS, wire.CONTINUATION}:
            self._block_of = 0 if frame.flags & wire.END_HEADERS else frame.stream
        self._check_stream(frame, told)
        if frame.kind == wire.DATA:
            self.windows.sent(frame)
            assert self.windows.connection >= 0, f"beyond the connection's window: {told}"
            assert self.windows.of(frame.stream) >= 0, f"beyond the stream's window: {told}"
        elif frame.kind == wire.SETTINGS and frame.acknowledges:
            assert self.pending, "an acknowledgement of settings that we did not send"
            self._ours |= self.pending.pop(0)
            self.heard.decoder.max_allowed_table_size = self._limit(wire.HEADER_TABLE_SIZE)
            self.windows.begin_with(self._limit(wire.INITIAL_WINDOW))

    def _check_stream(self, frame: Frame, told: str) -> None:
        connection_only = frame.kind in {wire.SETTINGS, wire.PING, wire.GOAWAY}
        stream_only = frame.kind in {wire.DATA, wire.HEADERS, wire.PRIORITY, wire.RST_STREAM, wire.CONTINUATION}
        assert not (connection_only and frame.stream), f"for the connection only: {told}"
        assert not (stream_only and not frame.stream), f"for a stream only: {told}"
        if frame.kind == wire.HEADERS and self.sender_is_client and frame.stream > self._last:
            assert frame.stream % 2, f"a client's streams are odd: {told}"
            self._last = frame.stream
            return
        if frame.kind in {wire.DATA, wire.HEADERS, wire.RST_STREAM, wire.WINDOW_UPDATE} and frame.stream:
            opened = self.heard.calls if self.sender_is_client else self.sent.calls
            assert frame.stream in opened, f"no such stream is open: {told}"
        if frame.kind in {wire.DATA, wire.HEADERS}:
            call = self.heard.calls.get(frame.stream)
            assert call is None or not call.over, f"after the end of its stream: {told}"
            assert call is not None or frame.kind == wire.HEADERS, f"before HEADERS: {told}"
        if frame.kind == wire.WINDOW_UPDATE:
            assert 0 < frame.number <= wire.MAX_WINDOW, f"no increment: {told}"

    def _limit(self, name: int) -> int:
        """The widest value of a setting that the sender may believe."""
        return max(values.get(name, self._ours[name]) for values in ({}, *self.pending))
