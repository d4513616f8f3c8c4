"""gRPC's length-prefixed messages (grpc/grpc, doc/PROTOCOL-HTTP2.md), and compressed ones."""

from __future__ import annotations

import zlib
from struct import Struct

_PREFIX = Struct(">BL")
PREFIX = _PREFIX.size
"""Bytes before each message: whether it is compressed, and its length."""

_GZIP = 16 + zlib.MAX_WBITS
"""zlib's word for gzip's own header and trailer."""


class Unreadable(Exception):
    """A message that is too large, or compressed in a way that we do not know."""


class Collector:
    """Takes the bytes of a stream and finds the first message in them, however they are cut."""

    __slots__ = ("_limit", "_taken", "_whole")

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._taken = bytearray()
        self._whole = 0

    @property
    def size(self) -> int:
        """Bytes that came in."""
        return len(self._taken)

    def add(self, part: bytes) -> bool:
        """Take the next bytes; whether the first message is there as a whole.

        Raises:
            Unreadable: it is larger than the limit. What has come in is kept.
        """
        self._taken += part
        if not self._whole and self.size >= PREFIX:
            self._whole = PREFIX + _PREFIX.unpack_from(self._taken)[1]
        if self._whole > PREFIX + self._limit:
            raise Unreadable(f"message of {self._whole - PREFIX} bytes")
        return 0 < self._whole <= self.size

    def taken(self) -> bytes:
        """All bytes that came in."""
        return bytes(self._taken)

    def first(self) -> bytes:
        """The first message with its prefix; only once `add` has said that it is there."""
        return bytes(self._taken[: self._whole])


def wrapped(message: bytes) -> bytes:
    """A message with its prefix, not compressed."""
    return _PREFIX.pack(0, len(message)) + message


def unwrapped(wire: bytes, encoding: bytes | None, limit: int) -> bytes:
    """The message in what `wrapped` made, or a peer that uses the given grpc-encoding.

    Raises:
        Unreadable: compressed otherwise than by gzip, damaged, or of more than `limit` bytes.
    """
    if not wire[0]:
        return wire[PREFIX:]
    if encoding != b"gzip":
        raise Unreadable(f"compressed by {encoding!r}")
    unpacker = zlib.decompressobj(_GZIP)
    try:
        message = unpacker.decompress(wire[PREFIX:], limit + 1)
    except zlib.error as error:
        raise Unreadable(str(error)) from None
    if len(message) > limit or not unpacker.eof:
        raise Unreadable(f"more than {limit} bytes when unpacked, or not all of it")
    return message
