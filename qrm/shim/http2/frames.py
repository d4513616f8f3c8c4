"""Frames: their numbers, their bytes, and what makes one wrong (RFC 9113, sections 4 to 7)."""

from __future__ import annotations

from struct import Struct

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
"""What a client sends first (RFC 9113, 3.4)."""

DATA, HEADERS, PRIORITY, RST_STREAM, SETTINGS, PUSH_PROMISE, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = range(10)
"""Frame types (RFC 9113, 6)."""

END_STREAM, ACK, END_HEADERS, PADDED, HAS_PRIORITY = 0x1, 0x1, 0x4, 0x8, 0x20
"""Flags."""

NO_ERROR, PROTOCOL_ERROR, INTERNAL_ERROR, FLOW_CONTROL_ERROR = 0x0, 0x1, 0x2, 0x3
STREAM_CLOSED, FRAME_SIZE_ERROR, REFUSED_STREAM, CANCEL = 0x5, 0x6, 0x7, 0x8
COMPRESSION_ERROR, ENHANCE_YOUR_CALM, INADEQUATE_SECURITY = 0x9, 0xB, 0xC
"""Error codes (RFC 9113, 7)."""

HEADER_TABLE_SIZE, ENABLE_PUSH, MAX_CONCURRENT_STREAMS, INITIAL_WINDOW_SIZE, MAX_FRAME_SIZE, MAX_HEADER_LIST_SIZE = (
    range(1, 7)
)
"""Settings (RFC 9113, 6.5.2)."""

DEFAULT_WINDOW = 65_535
"""Of a connection and of a stream, before anything else is said (RFC 9113, 6.9.2)."""
DEFAULT_FRAME = 16_384
"""Bytes of payload that every peer takes, and the least that SETTINGS may say (RFC 9113, 4.2)."""
LARGEST_FRAME = (1 << 24) - 1
LARGEST_WINDOW = (1 << 31) - 1
LAST_STREAM = (1 << 31) - 1
"""The highest stream identifier."""

HEAD = 9
"""Bytes of a frame's header."""
PRIORITY_SIZE, PING_SIZE = 5, 8
"""Bytes of payload."""

_HEAD = Struct(">HBBBL")
unpack_head = _HEAD.unpack_from
"""(length >> 8, length & 255, type, flags, stream) at an offset; the stream's top bit is to be ignored."""
_SETTING = Struct(">HL")
_WORD = Struct(">L")
_TWO = Struct(">LL")


class ProtocolError(Exception):
    """A peer broke the protocol such that its connection has to end."""

    def __init__(self, code: int, reason: str) -> None:
        super().__init__(reason)
        self.code = code
        self.reason = reason


def head(length: int, kind: int, flags: int, stream: int) -> bytes:
    """A frame's header."""
    return _HEAD.pack(length >> 8, length & 0xFF, kind, flags, stream)


def frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    """A whole frame."""
    return head(len(payload), kind, flags, stream) + payload


def header_frames(stream: int, block: bytes, *, end: bool, largest: int) -> bytes:
    """HEADERS, and CONTINUATION where the block is longer than the peer's largest frame."""
    flags = END_STREAM if end else 0
    if len(block) <= largest:
        return head(len(block), HEADERS, flags | END_HEADERS, stream) + block
    made = [frame(HEADERS, flags, stream, block[:largest])]
    for start in range(largest, len(block), largest):
        last = start + largest >= len(block)
        made.append(frame(CONTINUATION, END_HEADERS if last else 0, stream, block[start : start + largest]))
    return b"".join(made)


def settings(values: dict[int, int]) -> bytes:
    """A SETTINGS frame."""
    return frame(SETTINGS, 0, 0, b"".join(_SETTING.pack(name, value) for name, value in values.items()))


SETTINGS_ACK = frame(SETTINGS, ACK, 0, b"")


def window_update(stream: int, increment: int) -> bytes:
    """WINDOW_UPDATE of a stream, or of the connection for 0."""
    return _HEAD.pack(0, 4, WINDOW_UPDATE, 0, stream) + _WORD.pack(increment)


def rst_stream(stream: int, code: int) -> bytes:
    """RST_STREAM."""
    return _HEAD.pack(0, 4, RST_STREAM, 0, stream) + _WORD.pack(code)


def goaway(last_stream: int, code: int, debug: bytes = b"") -> bytes:
    """GOAWAY."""
    return frame(GOAWAY, 0, 0, _TWO.pack(last_stream, code) + debug)


def word(payload: bytes, what: str) -> int:
    """The number that is all of the payload, of RST_STREAM or WINDOW_UPDATE. Raises ProtocolError."""
    if len(payload) != _WORD.size:
        raise ProtocolError(FRAME_SIZE_ERROR, f"{what} of {len(payload)} bytes")
    return int(_WORD.unpack(payload)[0])


def read_goaway(payload: bytes) -> tuple[int, int, bytes]:
    """Last stream, code, debug data. Raises ProtocolError."""
    if len(payload) < _TWO.size:
        raise ProtocolError(FRAME_SIZE_ERROR, f"GOAWAY of {len(payload)} bytes")
    last, code = _TWO.unpack_from(payload)
    return last & LAST_STREAM, code, payload[_TWO.size :]


def read_settings(payload: bytes) -> dict[int, int]:
    """The settings by number, unknown ones too. Raises ProtocolError for a value out of its range."""
    if len(payload) % _SETTING.size:
        raise ProtocolError(FRAME_SIZE_ERROR, f"SETTINGS of {len(payload)} bytes")
    found = dict(_SETTING.iter_unpack(payload))
    if found.get(ENABLE_PUSH, 0) > 1:
        raise ProtocolError(PROTOCOL_ERROR, f"ENABLE_PUSH {found[ENABLE_PUSH]}")
    if found.get(INITIAL_WINDOW_SIZE, 0) > LARGEST_WINDOW:
        raise ProtocolError(FLOW_CONTROL_ERROR, f"INITIAL_WINDOW_SIZE {found[INITIAL_WINDOW_SIZE]}")
    if not DEFAULT_FRAME <= found.get(MAX_FRAME_SIZE, DEFAULT_FRAME) <= LARGEST_FRAME:
        raise ProtocolError(PROTOCOL_ERROR, f"MAX_FRAME_SIZE {found[MAX_FRAME_SIZE]}")
    return found


def unpadded(payload: bytes) -> bytes:
    """The payload of a PADDED frame without its padding. Raises ProtocolError where there is more than there is."""
    if not payload or payload[0] >= len(payload):
        raise ProtocolError(PROTOCOL_ERROR, "padding longer than the frame")
    return payload[1 : len(payload) - payload[0]]
