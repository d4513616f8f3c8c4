"""One end of a connection under a test's full control: it sends what it is told, and judges what it gets."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

import hpack

from tests.shim.frames import wire
from tests.shim.frames.judge import Judge, Windows
from tests.shim.frames.recorder import Heard, Recorder
from tests.shim.frames.wire import Fields, Frame
from tests.support import PATIENCE

_READ = 1 << 18


@dataclass(frozen=True, slots=True)
class Manners:
    """What a peer does by itself."""

    settings: Mapping[int, int] = field(default_factory=dict)
    """What it says at first."""
    widen: int = 0
    """By how much it widens the connection's window at first, in bytes."""
    grants: int | None = wire.MAX_WINDOW
    """Bytes in one of the WINDOW_UPDATEs with which it gives back what it got; None gives nothing back."""
    piece: int | None = None
    """Bytes that it writes at once."""


class Peer:
    """A client or a server. It acknowledges SETTINGS and PING, and keeps to the windows that it is given.

    Streams go by the order in which they were opened, from 0, since the same call may have different numbers at both
    ends of a chain.
    """

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, client: bool, manners: Manners
    ) -> None:
        self.client = client
        self.manners = manners
        self.sent, self.heard = Recorder(), Recorder()
        self.sent.decoder.max_allowed_table_size = 1 << 20
        self.judge = Judge(self.heard, self.sent, sender_is_client=not client)
        self.windows = Windows()
        """What we may send."""
        self.encoder = hpack.Encoder()
        self.max_frame = wire.DEFAULTS[wire.MAX_FRAME]
        self.failure: BaseException | None = None
        self.closed = False
        """Whether the other end has closed the connection."""
        self.on_frame: Callable[[Frame], None] = lambda _: None
        """Told of every frame after it was taken note of."""
        self.opposite: Peer | None = None
        """The other end; what goes wrong there is told to who waits here."""
        self._reader, self._writer = reader, writer
        self._waiting: set[asyncio.Future[None]] = set()
        self._reading: asyncio.Task[None] | None = None
        self._writing = asyncio.Lock()
        self._opened: list[int] = []
        self._numbers: dict[int, int] = {}
        self._may_read = asyncio.Event()
        self._may_read.set()

    async def start(self) -> None:
        """Say the first words, and begin to read."""
        if self.client:
            await self.write(wire.PREFACE)
        await self.send(wire.settings(self.manners.settings))
        if self.manners.widen:
            await self.send(wire.window_update(0, self.manners.widen))
        self._reading = asyncio.create_task(self._read())

    async def close(self) -> None:
        """End the connection."""
        self._writer.close()
        if self._reading is not None:
            self._reading.cancel()
            await asyncio.gather(self._reading, return_exceptions=True)
        with suppress(OSError):
            await self._writer.wait_closed()

    @property
    def broken(self) -> bool:
        """Whether nothing can be sent any more."""
        return self._writer.is_closing()

    def pause(self) -> None:
        """Read nothing more from the socket, so that what is sent to us stays where it comes from."""
        self._may_read.clear()

    def resume(self) -> None:
        """Read again."""
        self._may_read.set()

    def stream(self, call: int) -> int:
        """The number of a call's stream; a client's next call is the one that it is about to open."""
        return 2 * call + 1 if self.client else self._opened[call]

    def number(self, stream: int) -> int:
        """The call of a stream that was opened to this server."""
        return self._numbers[stream]

    def call(self, number: int) -> Heard:
        """What was heard of a call; nothing yet, perhaps."""
        return self.heard.calls.get(self.stream(number)) or Heard()

    # What it sends

    async def head(
        self,
        call: int,
        fields: Fields,
        *,
        end: bool = False,
        pad: int | None = None,
        priority: bool = False,
        cut: Sequence[int] = (),
    ) -> None:
        """Send a header list."""
        block = self.encoder.encode(list(fields), huffman=call % 2 == 0)
        await self.send(*wire.headers(self.stream(call), block, end=end, pad=pad, priority=priority, cut=cut))

    async def body(
        self, call: int, content: bytes, *, end: bool = False, pad: int | None = None, most: int = wire.MAX_WINDOW
    ) -> None:
        """Send data, in frames of `most` bytes or what the windows let through."""
        stream, start = self.stream(call), 0
        extra = 0 if pad is None else 1 + pad
        while True:
            if content or extra:
                await self.until(lambda: self._room(stream) > extra or not self._alive(call), f"room on call {call}")
            if not self._alive(call):
                return
            size = max(min(len(content) - start, most, self._room(stream) - extra, self.max_frame - extra), 0)
            last = start + size == len(content)
            frame = wire.data(stream, content[start : start + size], end=end and last, pad=pad)
            await self.send(frame)
            start += size
            if last:
                return

    async def send(self, *frames: Frame) -> None:
        """Send frames as they are, with none between them; DATA once there is room for all of it."""
        for frame in frames:
            if frame.kind == wire.DATA and frame.payload:
                await self._room_for(frame)
            self._note(frame)
        await self.write(b"".join(frame.pack() for frame in frames))

    async def write(self, content: bytes) -> None:
        """Send bytes that need not be frames."""
        piece = self.manners.piece or len(content) or 1
        async with self._writing:
            await self._write(content, piece)

    async def _write(self, content: bytes, piece: int) -> None:
        with suppress(ConnectionError):
            for start in range(0, len(content), piece):
                self._writer.write(content[start : start + piece])
                await self._writer.drain()
                if self.manners.piece:
                    await asyncio.sleep(0)

    def _note(self, frame: Frame) -> None:
        if not self._too_late(frame):
            self.sent.see(frame)
        self.judge.we_sent(frame)
        if frame.kind == wire.DATA:
            self.windows.sent(frame)

    async def _room_for(self, frame: Frame) -> None:
        size = len(frame.payload)
        await self.until(lambda: self._room(frame.stream) >= size, f"room for {size} bytes")

    def _too_late(self, frame: Frame) -> bool:
        """Whether it is a reset of what has ended in both directions, which means nothing and need not arrive."""
        both = (self.sent.calls.get(frame.stream), self.heard.calls.get(frame.stream))
        return frame.kind == wire.RST_STREAM and all(call is not None and call.ended for call in both)

    def _room(self, stream: int) -> int:
        return min(self.windows.connection, self.windows.of(stream))

    def _alive(self, call: int) -> bool:
        own = self.sent.calls.get(self.stream(call))
        return self.call(call).reset is None and (own is None or own.reset is None)

    # What it gets

    async def until(self, condition: Callable[[], bool], what: str = "") -> None:
        """Wait until `condition` holds, looking after each piece that was read.

        Raises AssertionError where something was against the rules, or the connection ended or nothing came instead.
        """
        try:
            async with asyncio.timeout(PATIENCE):
                while not self._holds(condition, what):
                    waiting = asyncio.get_running_loop().create_future()
                    self._waiting.add(waiting)
                    await waiting
        except TimeoutError:
            raise AssertionError(f"{self} waits for {what or 'something'} in vain") from None

    def __str__(self) -> str:
        calls = {number: call.progress for number, call in list(self.heard.calls.items())[-5:]}
        role = "client" if self.client else "server"
        return f"the {role} (has heard {calls}, {self.heard.goaways}; may send {self.windows.connection})"

    def _holds(self, condition: Callable[[], bool], what: str) -> bool:
        for peer in (self, self.opposite):
            if peer is not None and peer.failure is not None:
                raise peer.failure
        if condition():
            return True
        assert not self.closed, f"{self} was cut off before {what or 'what it waits for'}"
        return False

    async def _read(self) -> None:
        buffer = bytearray()
        if not self.client:
            assert await self._reader.readexactly(len(wire.PREFACE)) == wire.PREFACE
        try:
            while True:
                await self._may_read.wait()
                content = await self._reader.read(_READ)
                if not content:
                    break
                await self._may_read.wait()
                buffer += content
                answers: list[Frame] = []
                for frame in wire.take(buffer):
                    self._take(frame, answers)
                if answers:
                    for answer in answers:
                        self._note(answer)
                    await self.write(b"".join(answer.pack() for answer in answers))
                self._wake()
        except ConnectionError:
            pass
        except Exception as error:
            self.fail(error)
        finally:
            self.closed = True
            self._wake()

    def fail(self, error: BaseException) -> None:
        """Something is wrong: tell who waits here or at the other end."""
        self.failure = self.failure or error
        self._wake()

    def _wake(self) -> None:
        everyone = [*self._waiting, *(self.opposite._waiting if self.failure and self.opposite else ())]
        for waiting in everyone:
            if not waiting.done():
                waiting.set_result(None)
        self._waiting.clear()

    def _take(self, frame: Frame, answers: list[Frame]) -> None:
        self.judge.check(frame)
        if not self._too_late(frame):
            self.heard.see(frame)
        if frame.kind in {wire.HEADERS, wire.CONTINUATION} and len(self.heard.calls) > len(self._opened):
            self._numbers[frame.stream] = len(self._opened)
            self._opened.append(frame.stream)
        match frame.kind:
            case wire.SETTINGS if not frame.acknowledges:
                self._obey(wire.read_settings(frame))
                answers.append(Frame(wire.SETTINGS, wire.ACK, 0, b""))
            case wire.PING if not frame.acknowledges:
                answers.append(frame._replace(flags=wire.ACK))
            case wire.WINDOW_UPDATE:
                self.windows.granted(frame.stream, frame.number)
                self._check_windows(frame.stream)
            case wire.DATA if frame.payload and self.manners.grants is not None:
                answers += self.giving_back(frame)
        self.on_frame(frame)

    def giving_back(self, frame: Frame) -> list[Frame]:
        """The WINDOW_UPDATEs for a DATA frame."""
        made = []
        streams = (0,) if frame.ends else (0, frame.stream)
        left, piece = len(frame.payload), self.manners.grants or len(frame.payload)
        while left > 0:
            made += [wire.window_update(stream, min(left, piece)) for stream in streams]
            left -= piece
        return made

    def _obey(self, values: Mapping[int, int]) -> None:
        if wire.HEADER_TABLE_SIZE in values:
            self.encoder.header_table_size = min(values[wire.HEADER_TABLE_SIZE], 1 << 16)
        if wire.INITIAL_WINDOW in values:
            self.windows.begin_with(values[wire.INITIAL_WINDOW])
        self.max_frame = values.get(wire.MAX_FRAME, self.max_frame)

    def _check_windows(self, stream: int) -> None:
        room = self.windows.of(stream) if stream else self.windows.connection
        assert room <= wire.MAX_WINDOW, f"a window of stream {stream} beyond what is allowed"
