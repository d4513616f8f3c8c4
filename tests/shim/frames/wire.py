"""HTTP/2 frames as bytes (RFC 9113, section 4 and 6), so plain that broken ones can be made too."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"

DATA, HEADERS, PRIORITY, RST_STREAM, SETTINGS, PUSH_PROMISE, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = range(10)
"""Types of frames."""
END_STREAM, ACK, END_HEADERS, PADDED, PRIORITIZED = 0x1, 0x1, 0x4, 0x8, 0x20
"""Flags."""
HEADER_TABLE_SIZE, ENABLE_PUSH, MAX_STREAMS, INITIAL_WINDOW, MAX_FRAME, MAX_HEADER_LIST = range(1, 7)
"""Settings."""
DEFAULTS = {HEADER_TABLE_SIZE: 4096, INITIAL_WINDOW: 65535, MAX_FRAME: 16384}
NO_ERROR, PROTOCOL_ERROR, INTERNAL_ERROR, FLOW_CONTROL_ERROR, REFUSED_STREAM, CANCEL = 0, 1, 2, 3, 7, 8
"""Error codes."""
WINDOW = 65535
"""A connection's window at its start, whatever the settings say."""
MAX_WINDOW = (1 << 31) - 1
HEAD = 9
"""Bytes before a frame's payload."""

Fields = tuple[tuple[bytes, bytes], ...]
"""A header list."""


class Frame(NamedTuple):
    """One frame, its payload as it is on the wire."""

    kind: int
    flags: int
    stream: int
    payload: bytes

    def pack(self) -> bytes:
        """What goes over the wire."""
        size = len(self.payload)
        return struct.pack(">BHBBL", size >> 16, size & 0xFFFF, self.kind, self.flags, self.stream) + self.payload

    @property
    def ends(self) -> bool:
        """Whether it is the last of its stream in its direction."""
        return self.kind in {DATA, HEADERS} and bool(self.flags & END_STREAM)

    @property
    def acknowledges(self) -> bool:
        """Whether it answers a SETTINGS or PING."""
        return self.kind in {SETTINGS, PING} and bool(self.flags & ACK)

    @property
    def content(self) -> bytes:
        """The payload without padding and priority; ValueError where the padding is longer than the frame."""
        content = self.payload
        if self.kind in {DATA, HEADERS} and self.flags & PADDED:
            if not content or content[0] >= len(content):
                raise ValueError("more padding than frame")
            content = content[1 : len(content) - content[0]]
        if self.kind == HEADERS and self.flags & PRIORITIZED:
            content = content[5:]
        return content

    @property
    def number(self) -> int:
        """What RST_STREAM and WINDOW_UPDATE carry."""
        return int.from_bytes(self.payload, "big")


def take(buffer: bytearray) -> Iterator[Frame]:
    """The whole frames at the start of `buffer`, which is left with the rest."""
    start = 0
    while len(buffer) - start >= HEAD:
        high, low, kind, flags, stream = struct.unpack_from(">BHBBL", buffer, start)
        end = start + HEAD + (high << 16 | low)
        if len(buffer) < end:
            break
        yield Frame(kind, flags, stream & MAX_WINDOW, bytes(memoryview(buffer)[start + HEAD : end]))
        start = end
    del buffer[:start]


def data(stream: int, content: bytes, *, end: bool = False, pad: int | None = None) -> Frame:
    """A DATA frame; `pad` adds so many bytes, and the one that counts them."""
    payload, flags = _padded(content, pad)
    return Frame(DATA, flags | (END_STREAM if end else 0), stream, payload)


def headers(
    stream: int,
    block: bytes,
    *,
    end: bool = False,
    pad: int | None = None,
    priority: bool = False,
    cut: Sequence[int] = (),
    most: int = DEFAULTS[MAX_FRAME],
) -> list[Frame]:
    """HEADERS and its CONTINUATIONs.

    Args:
        stream: Its number.
        block: An encoded header list.
        end: Whether the stream ends with it.
        pad: As for DATA.
        priority: Whether it carries the old priority fields.
        cut: How many bytes of the block are in each of the first frames; 0 makes an empty one.
        most: Bytes in a frame.
    """
    parts = []
    for size in cut:
        parts.append(block[:size])
        block = block[size:]
    room = most - 261
    while block or not parts:
        parts.append(block[:room])
        block = block[room:]
    first = (struct.pack(">LB", 0x80000000, 15) if priority else b"") + parts[0]
    payload, flags = _padded(first, pad)
    flags |= (END_STREAM if end else 0) | (PRIORITIZED if priority else 0)
    frames = [Frame(HEADERS, flags, stream, payload), *(Frame(CONTINUATION, 0, stream, part) for part in parts[1:])]
    frames[-1] = frames[-1]._replace(flags=frames[-1].flags | END_HEADERS)
    return frames


def settings(values: Mapping[int, int]) -> Frame:
    """A SETTINGS frame."""
    return Frame(SETTINGS, 0, 0, b"".join(struct.pack(">HL", *pair) for pair in values.items()))


def read_settings(frame: Frame) -> dict[int, int]:
    """What a SETTINGS frame says."""
    return dict(struct.iter_unpack(">HL", frame.payload))


def window_update(stream: int, amount: int) -> Frame:
    """A WINDOW_UPDATE frame; stream 0 is the connection."""
    return Frame(WINDOW_UPDATE, 0, stream, amount.to_bytes(4, "big"))


def reset(stream: int, code: int) -> Frame:
    """A RST_STREAM frame."""
    return Frame(RST_STREAM, 0, stream, code.to_bytes(4, "big"))


def goaway(last: int, code: int, debug: bytes = b"") -> Frame:
    """A GOAWAY frame; `last` is the last stream that is still worked on."""
    return Frame(GOAWAY, 0, 0, struct.pack(">LL", last, code) + debug)


def message(content: bytes, *, compressed: bool = False) -> bytes:
    """A gRPC message with its prefix."""
    return struct.pack(">?L", compressed, len(content)) + content


def _padded(content: bytes, pad: int | None) -> tuple[bytes, int]:
    return (content, 0) if pad is None else (bytes([pad]) + content + bytes(pad), PADDED)
