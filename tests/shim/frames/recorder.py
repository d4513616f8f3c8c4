"""What one end of a connection sent or heard, stream by stream."""

from __future__ import annotations

from dataclasses import dataclass, field

import hpack

from tests.shim.frames import wire
from tests.shim.frames.wire import Fields, Frame


@dataclass
class Heard:
    """One direction of one stream. How its bytes were cut into frames, and their padding, is no part of it."""

    heads: list[tuple[int, Fields]] = field(default_factory=list)
    """Each header list, and how many bytes of data came before it."""
    data: bytearray = field(default_factory=bytearray)
    ended: bool = False
    reset: int | None = None

    @property
    def progress(self) -> tuple[int, int, bool, int | None]:
        """As much of it as is compared often."""
        return len(self.heads), len(self.data), self.ended, self.reset

    @property
    def over(self) -> bool:
        """Whether nothing more may come."""
        return self.ended or self.reset is not None


@dataclass
class Recorder:
    """One direction of a connection."""

    calls: dict[int, Heard] = field(default_factory=dict)
    """By the number of the stream, in the order in which they were opened."""
    goaways: list[tuple[int, int, bytes]] = field(default_factory=list)
    """The last stream, the code, and what is said besides."""
    pings: list[bytes] = field(default_factory=list)
    ping_answers: list[bytes] = field(default_factory=list)
    settings: dict[int, int] = field(default_factory=dict)
    """The latest value of each."""
    settings_answers: int = 0
    extensions: list[Frame] = field(default_factory=list)
    """Frames of unknown types."""
    decoder: hpack.Decoder = field(default_factory=lambda: hpack.Decoder(max_header_list_size=1 << 24))
    _block: bytearray = field(default_factory=bytearray)
    _block_ends: bool = False

    def see(self, frame: Frame) -> None:
        """Take note of a frame."""
        match frame.kind:
            case wire.HEADERS:
                self._block[:] = frame.content
                self._block_ends = frame.ends
                self._block_done(frame)
            case wire.CONTINUATION:
                self._block += frame.content
                self._block_done(frame)
            case wire.DATA:
                call = self.calls[frame.stream]
                call.data += frame.content
                call.ended |= frame.ends
            case wire.RST_STREAM:
                self.calls.setdefault(frame.stream, Heard()).reset = frame.number
            case _:
                self._see_other(frame)

    def _block_done(self, frame: Frame) -> None:
        if frame.flags & wire.END_HEADERS:
            fields = tuple(
                (bytes(name), bytes(value)) for name, value in self.decoder.decode(bytes(self._block), raw=True)
            )
            call = self.calls.setdefault(frame.stream, Heard())
            call.heads.append((len(call.data), fields))
            call.ended |= self._block_ends

    def _see_other(self, frame: Frame) -> None:
        match frame.kind:
            case wire.SETTINGS if frame.acknowledges:
                self.settings_answers += 1
            case wire.SETTINGS:
                self.settings |= wire.read_settings(frame)
            case wire.PING:
                (self.ping_answers if frame.acknowledges else self.pings).append(frame.payload)
            case wire.GOAWAY:
                last, code = (int.from_bytes(frame.payload[at : at + 4], "big") for at in (0, 4))
                self.goaways.append((last, code, frame.payload[8:]))
            case kind if kind > wire.CONTINUATION:
                self.extensions.append(frame)
