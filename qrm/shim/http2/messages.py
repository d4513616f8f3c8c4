"""gRPC's length-prefixed messages (grpc/grpc, doc/PROTOCOL-HTTP2.md), and compressed ones."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from struct import Struct

_PREFIX = Struct(">BL")
PREFIX = _PREFIX.size
"""Bytes before each message: whether it is compressed, and its length."""

_SMALL, _GATHERED = 4 << 10, 64 << 10
"""Bytes below which a part is put together with what comes next, and up to which it is worth it."""
_GZIP = 16 + zlib.MAX_WBITS
"""zlib's word for gzip's own header and trailer."""


class Unreadable(Exception):
    """A message that is too large, or compressed in a way that we do not know."""


Parts = Sequence[bytes]
"""Bytes that belong together and are not copied to be so."""


class Collector:
    """Takes the bytes of a stream and finds the first message in them, however they are cut.

    A reply may have megabytes: its parts are kept as they come and put together once.
    """

    __slots__ = ("_limit", "_parts", "_whole", "size")

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._parts: list[bytes | bytearray] = []
        self._whole = 0
        self.size = 0
        """Bytes that came in."""

    def add(self, part: bytes) -> bool:
        """Take the next bytes; whether the first message is there as a whole.

        Raises:
            Unreadable: it is larger than the limit. What has come in is kept.
        """
        self.size += len(part)
        last = self._parts[-1] if self._parts else None
        if isinstance(last, bytearray) and len(last) + len(part) <= _GATHERED:
            last += part
        else:
            # Single bytes shall not cost an object each.
            self._parts.append(bytearray(part) if len(part) < _SMALL else part)
        if not self._whole and self.size >= PREFIX:
            self._whole = PREFIX + _PREFIX.unpack(b"".join(self._parts)[:PREFIX])[1]
        if self._whole > PREFIX + self._limit:
            raise Unreadable(f"message of {self._whole - PREFIX} bytes")
        return 0 < self._whole <= self.size

    def taken(self) -> Parts:
        """All that came in."""
        return [bytes(part) if isinstance(part, bytearray) else part for part in self._parts]

    def first(self) -> Parts:
        """The first message with its prefix; only once `add` has said that it is there."""
        return (b"".join(self._parts)[: self._whole],) if self.beyond else self.taken()

    @property
    def beyond(self) -> int:
        """Bytes that came in after the first message."""
        return self.size - self._whole


def wrapped(message: bytes) -> Parts:
    """A message with its prefix, not compressed; a large one is not copied for that."""
    prefix = _PREFIX.pack(0, len(message))
    return (prefix, message) if len(message) > _GATHERED else (prefix + message,)


def unwrapped(wire: Parts, encoding: bytes | None, limit: int) -> bytes:
    """The message in what `wrapped` made, or a peer that uses the given grpc-encoding.

    Raises:
        Unreadable: compressed otherwise than by gzip, damaged, or of more than `limit` bytes.
    """
    if len(wire[0]) < PREFIX:
        wire = [b"".join(wire)]
    body = b"".join((memoryview(wire[0])[PREFIX:], *wire[1:]))
    if not wire[0][0]:
        return body
    if encoding != b"gzip":
        raise Unreadable(f"compressed by {encoding!r}")
    unpacker = zlib.decompressobj(_GZIP)
    try:
        message = unpacker.decompress(body, limit + 1)
    except zlib.error as error:
        raise Unreadable(str(error)) from None
    if len(message) > limit or not unpacker.eof:
        raise Unreadable(f"more than {limit} bytes when unpacked, or not all of it")
    if unpacker.unused_data:  # further members, which other unpackers put together with the first
        raise Unreadable("compressed in several parts")
    return message
