"""Conversations of real clients and servers, kept as the frames that they sent.

A file begins with the settings that both ends began with; each line after that is a frame: C or S for who sent it, and
its bytes in hexadecimal. SETTINGS and PING answers and WINDOW_UPDATEs are left out: who holds the conversation again
makes them. `python -m tests.shim.frames.record` makes the files.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from tests.shim.frames import wire
from tests.shim.frames.conversation import CLIENT, SERVER, Conversation, Raw
from tests.shim.frames.peer import Manners
from tests.shim.frames.wire import Frame

FOLDER = Path(__file__).parent / "recorded"
_LETTERS = {"C": CLIENT, "S": SERVER}


@dataclass
class Recording:
    """A connection's frames, as they come."""

    lines: list[tuple[str, Frame]] = field(default_factory=list)
    _buffers: dict[str, bytearray] = field(default_factory=lambda: {"C": bytearray(), "S": bytearray()})
    _preface: int = len(wire.PREFACE)

    def took(self, letter: str, content: bytes) -> None:
        """Bytes have passed."""
        if letter == "C" and self._preface:
            skipped = min(self._preface, len(content))
            self._preface -= skipped
            content = content[skipped:]
        buffer = self._buffers[letter]
        buffer += content
        self.lines += [(letter, frame) for frame in wire.take(buffer)]

    def write(self, path: Path, about: str) -> None:
        """Keep it."""
        kept = [(letter, frame) for letter, frame in self.lines if _is_kept(frame)]
        told = "".join(f"{letter} {frame.pack().hex()}\n" for letter, frame in kept)
        path.write_text(f"# {about}\n{told}")


def recorded() -> dict[str, Conversation]:
    """All recordings, by the names of their files."""
    return {path.stem: _conversation(path.read_text().splitlines()) for path in sorted(FOLDER.glob("*.txt"))}


def _is_kept(frame: Frame) -> bool:
    return not frame.acknowledges and frame.kind != wire.WINDOW_UPDATE


def _conversation(lines: Iterable[str]) -> Conversation:
    frames = [(_LETTERS[line[0]], _frame(line[2:])) for line in lines if not line.startswith("#")]
    begun = {side: next(frame for who, frame in frames if who == side) for side in (CLIENT, SERVER)}
    steps = list(_steps([(side, frame) for side, frame in frames if frame is not begun[side]]))
    client, server = (Manners(settings=wire.read_settings(begun[side]), widen=1 << 20) for side in (CLIENT, SERVER))
    return Conversation(steps, client, server)


def _frame(digits: str) -> Frame:
    (frame,) = wire.take(bytearray.fromhex(digits))
    return frame


def _steps(frames: Iterable[tuple[str, Frame]]) -> Iterator[Raw]:
    calls: dict[int, int] = {}
    for side, frame in frames:
        if frame.kind == wire.HEADERS:
            calls.setdefault(frame.stream, len(calls))
        yield Raw(side, calls[frame.stream] if frame.stream else None, frame)
