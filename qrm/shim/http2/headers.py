"""Header blocks: decoded with the peer's table, encoded again without any (RFC 7541).

A block that refers to no dynamic table can be sent at any time, before or after any other, on any connection, or not at
all: so each can be held, dropped or made here without the others noticing.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache

from hpack import Decoder, Encoder, HPACKError, OversizedHeaderListError
from hpack.table import HeaderTable

from qrm.shim.http2.frames import COMPRESSION_ERROR, ENHANCE_YOUR_CALM, ProtocolError

Field = tuple[bytes, bytes]

NO_TABLE = b"\x20"
"""The instruction that an encoder sends first which will use no table (RFC 7541, 6.3: size update to 0). Peers that
lower HEADER_TABLE_SIZE later have nothing to be told any more."""

_REMEMBERED_FIELD = 256
"""Bytes of a name and value up to which their encoding is kept."""
_REMEMBERED_BLOCKS, _REMEMBERED_BLOCK = 256, 1024
"""Blocks of one connection whose decoding is kept, and the longest such in bytes, with a table and without: a few bytes
may name fields of many in a table."""

_encoder = Encoder()
_encoder.header_table_size = 0
_encoder.encode(())  # takes the size update out, which each connection sends by itself


class Headers:
    """A header list, and the parts of it that matter to every call."""

    __slots__ = ("block", "fields", "grpc_status", "informational", "path")

    def __init__(self, fields: Iterable[Field]) -> None:
        self.fields = list(fields)
        self.block = b"".join([_encode(each) for each in self.fields])
        """Encoded without a table."""
        known = dict(self.fields)
        self.path = known.get(b":path", b"")
        self.grpc_status = known.get(b"grpc-status")
        self.informational = known.get(b":status", b"").startswith(b"1")

    def get(self, name: bytes) -> bytes | None:
        """The first value of that name."""
        return next((value for key, value in self.fields if key == name), None)

    def without(self, *names: bytes) -> list[Field]:
        """The fields but those."""
        return [field for field in self.fields if field[0] not in names]


def _encode(field: Field) -> bytes:
    if len(field[0]) + len(field[1]) <= _REMEMBERED_FIELD:
        return _encode_remembered(field)
    return _encoder.encode((field,), huffman=False)


@lru_cache(4096, typed=True)  # hpack marks what must never enter a table by the tuple's type
def _encode_remembered(field: Field) -> bytes:
    return _encoder.encode((field,), huffman=False)


class _CountingTable(HeaderTable):
    """A dynamic table that knows whether it has changed."""

    version = 0

    def add(self, name: bytes, value: bytes) -> None:
        self.version += 1
        super().add(name, value)

    @property
    def maxsize(self) -> int:
        """Bytes that it may have."""
        return super().maxsize

    @maxsize.setter
    def maxsize(self, value: int) -> None:
        self.version += 1
        HeaderTable.maxsize.__set__(self, value)  # type: ignore[attr-defined]


class HeaderDecoder:
    """The decoding side of one connection.

    The same bytes mean the same as long as the table is the same: so they are looked up before they are decoded.
    """

    def __init__(self, max_bytes: int) -> None:
        self._decoder = Decoder(max_header_list_size=max_bytes)
        self._table = self._decoder.header_table = _CountingTable()
        self._known: dict[bytes, Headers] = {}
        self._known_version = 0

    def decode(self, block: bytes) -> Headers:
        """The headers in a whole block. Raises ProtocolError, after which the connection is of no use any more."""
        table = self._table
        if self._known_version == table.version:
            known = self._known.get(block)
            if known is not None:
                return known
        before = table.version
        headers = Headers(self._decoded(block))
        if table.version == before and len(block) <= _REMEMBERED_BLOCK >= len(headers.block):
            if self._known_version != before or len(self._known) >= _REMEMBERED_BLOCKS:
                self._known = {}
                self._known_version = before
            self._known[block] = headers
        return headers

    def _decoded(self, block: bytes) -> Iterable[Field]:
        try:
            return self._decoder.decode(block, raw=True)
        except OversizedHeaderListError as error:
            raise ProtocolError(ENHANCE_YOUR_CALM, str(error)) from None
        except (HPACKError, IndexError, ValueError, TypeError) as error:  # hpack lets some of the latter through
            raise ProtocolError(COMPRESSION_ERROR, str(error)) from None
