"""Header blocks out of HEADERS and CONTINUATION (RFC 9113, 6.2 and 6.10)."""

from __future__ import annotations

from qrm.shim.http2 import frames
from qrm.shim.http2.frames import ProtocolError

_PER_FRAME = 32
"""Bytes that a CONTINUATION counts beside its payload, or there could be any number of empty ones; as many as a field
of a header list counts beside its name and value (RFC 9113, 6.5.2)."""

Block = tuple[bytes, bool]
"""A whole block, and whether the stream ends with it."""


class Blocks:
    """Puts together what one connection sends, where nothing may come between the frames of a block."""

    __slots__ = ("_block", "_end", "_limit", "_size", "open")

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._block = bytearray()
        self._size = 0
        self._end = False
        self.open: int | None = None
        """The stream whose block is not complete."""

    def first(self, flags: int, stream: int, payload: bytes) -> Block | None:
        """HEADERS; the block if that is all of it. Raises ProtocolError."""
        if flags & frames.PADDED:
            payload = frames.unpadded(payload)
        if flags & frames.HAS_PRIORITY:
            if len(payload) < frames.PRIORITY_SIZE:
                raise ProtocolError(frames.FRAME_SIZE_ERROR, "HEADERS shorter than its priority")
            payload = payload[frames.PRIORITY_SIZE :]
        end = bool(flags & frames.END_STREAM)
        if flags & frames.END_HEADERS:
            return payload, end
        self.open, self._block, self._end = stream, bytearray(payload), end
        self._size = len(payload)
        return None

    def more(self, flags: int, stream: int, payload: bytes) -> Block | None:
        """CONTINUATION; the block if it is complete now. Raises ProtocolError."""
        if self.open is None or self.open != stream:
            raise ProtocolError(frames.PROTOCOL_ERROR, "CONTINUATION of nothing")
        self._block += payload
        self._size += len(payload) + _PER_FRAME
        if self._size > self._limit:
            raise ProtocolError(frames.ENHANCE_YOUR_CALM, "header block without end")
        if not flags & frames.END_HEADERS:
            return None
        self.open = None
        return bytes(self._block), self._end
