"""The sending half of a connection: what is to be sent, and how much of it the peer allows."""

from __future__ import annotations

from typing import Protocol

import structlog

from qrm.shim.http2 import frames
from qrm.shim.http2.frames import ProtocolError
from qrm.shim.http2.headers import NO_TABLE
from qrm.shim.http2.limits import Limits
from qrm.shim.http2.stream import Half
from qrm.shim.http2.windows import Granted, widened

log = structlog.get_logger(__name__)

_DEFAULTS = {
    frames.INITIAL_WINDOW_SIZE: frames.DEFAULT_WINDOW,
    frames.MAX_FRAME_SIZE: frames.DEFAULT_FRAME,
}
"""Settings that need not be told."""
_LARGE = 16 << 10
"""Bytes that are not copied to be put together with others."""
_UNREAD = 8
"""How many times its share of memory may be full of answers that a peer does not read."""


Bytes = bytes | bytearray | memoryview


class Wire(Protocol):
    """The socket under a connection."""

    def write(self, *pieces: Bytes) -> None:
        """Send, later if need be."""

    def waiting(self) -> int:
        """Bytes that were not sent yet."""

    def close(self, *, at_once: bool) -> None:
        """Close, at once or after what is to be sent, for which there is a moment."""

    def read(self, *, on: bool) -> None:
        """Go on reading, or pause."""


class Sending:
    """One connection, as far as it is written to. It knows no sockets: what is to be sent is in `out`."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.wire: Wire | None = None
        self.out: list[Bytes] = []
        self.streams: dict[int, Half] = {}
        self.blocked: dict[Half, None] = {}
        """Streams with something to send that a window keeps back, the longest waiting first."""
        self.send_window = frames.DEFAULT_WINDOW
        self.initial_window = frames.DEFAULT_WINDOW
        self.largest = frames.DEFAULT_FRAME
        """Of the peer: its connection's window, its streams' first windows, its largest frame as far as we use it."""
        self.peer: dict[int, int] = {}
        """The peer's settings."""
        self.told: dict[int, int] = {}
        """Settings that the peer was told."""
        self.paused = False
        """Whether the socket takes nothing more for now."""
        self.closed = False
        self.frame_limit = frames.DEFAULT_FRAME
        self.window_limit = frames.DEFAULT_WINDOW
        """The largest frame, and the largest first window of a stream, that the peer was ever allowed."""
        self.granted = Granted(frames.DEFAULT_WINDOW, limits.window_bytes, limits.window_bytes * 3 // 4)
        self._table_off = False

    def forgotten(self, half: Half) -> None:
        """A stream has ended."""

    def lost(self) -> None:
        """The connection is gone: end all that depends on it."""
        raise NotImplementedError

    @property
    def peers_last(self) -> int:
        """The highest stream that the peer has opened."""
        raise NotImplementedError

    @property
    def told_window(self) -> int:
        """The initial window size that the peer was told."""
        return self.told.get(frames.INITIAL_WINDOW_SIZE, frames.DEFAULT_WINDOW)

    def start(self, settings: dict[int, int]) -> None:
        """Send our first SETTINGS, and the connection's window."""
        self.tell(settings)
        increment = self.granted.grant()
        if increment:
            self.out.append(frames.window_update(0, increment))

    def tell(self, settings: dict[int, int]) -> None:
        """Send settings that the peer does not know yet; the first time in any case."""
        news = {name: value for name, value in settings.items() if self.told.get(name, _DEFAULTS.get(name)) != value}
        if not news and self.told:
            return
        before = self.told_window
        self.told |= news
        self.frame_limit = max(self.frame_limit, self.told.get(frames.MAX_FRAME_SIZE, 0))
        self.window_limit = max(self.window_limit, self.told_window)
        self.out.append(frames.settings(news))
        change = self.told_window - before
        if change:
            for half in list(self.streams.values()):
                if half.sink is not None:
                    half.sink.shifted(change)

    def heed(self, settings: dict[int, int]) -> None:
        """Take the peer's settings, and acknowledge them. Raises ProtocolError where a window becomes too large."""
        self.peer |= settings
        self.largest = min(settings.get(frames.MAX_FRAME_SIZE, self.largest), self.limits.max_frame_bytes)
        change = settings.get(frames.INITIAL_WINDOW_SIZE, self.initial_window) - self.initial_window
        self.initial_window += change
        for half in self.streams.values() if change else ():
            half.window = widened(half.window, change)
        self.out.append(frames.SETTINGS_ACK)
        if change > 0:
            self.pump()

    def widen(self, increment: int) -> None:
        """The peer takes more on the connection. Raises ProtocolError where that is too much."""
        self.send_window = widened(self.send_window, increment)
        self.pump()

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
        self.granted.used(count)
        increment = self.granted.due()
        if increment:
            self.out.append(frames.window_update(0, increment))

    def forget(self, half: Half) -> None:
        """A stream has ended."""
        if self.streams.pop(half.id, None) is not None:
            self.forgotten(half)
            # Calls are too many to leave the circles that they stand in to the garbage collector.
            half.other = half.sink = None

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
        large = any(len(piece) > _LARGE for piece in self.out)
        wire.write(*(self.out if large else (b"".join(self.out),)))
        self.out.clear()
        if self.paused and wire.waiting() > _UNREAD * self.limits.buffer_bytes:
            log.warning("connection given up", reason="its peer does not read answers", bytes=wire.waiting())
            self.close(at_once=True)

    def close(self, error: ProtocolError | None = None, *, at_once: bool = False) -> None:
        """End the connection; a peer that broke the protocol is told so, where there is time."""
        if self.closed:
            return
        self.closed = True
        if error is not None:
            log.warning("connection given up", reason=error.reason, code=error.code)
            self.out.append(frames.goaway(self.peers_last, error.code, error.reason.encode(errors="replace")))
        if self.wire is not None:
            if self.out:
                self.wire.write(b"".join(self.out))
            self.wire.close(at_once=at_once)
        self.lost()
        self.out.clear()
