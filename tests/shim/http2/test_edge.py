"""Real sockets: both event loops, gRPC's own clients, slow readers, and the end of a process."""

from __future__ import annotations

import asyncio
import errno
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import grpc
import grpc.aio
import pytest
import uvloop
from hpack import Encoder

from qrm.demo.fake_runtime import FakeRuntime
from qrm.metrics import Metrics
from qrm.service.sockets import listening
from qrm.shim.exchange import Exchange, Handlers
from qrm.shim.http2 import edge, frames
from qrm.shim.http2.edge import attach, connect
from qrm.shim.http2.link import Link
from qrm.shim.http2.sides import ClientSide, RuntimeSide
from qrm.shim.transport import Limits, Transport
from tests.shim.http2.rig import OK, REPLY, REQUEST, Frame, Reader, data, payload
from tests.support import PATIENCE, until

ECHO = "/test.Echo/Any"
BIG = 16 << 20
Loop = Callable[[], asyncio.AbstractEventLoop]
LOOPS = pytest.mark.parametrize("loop", [asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])


class End:
    """An end of a connection that sends and reads frames as it is told."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, client: bool) -> None:
        self.writer = writer
        self._reader = reader
        self._frames = Reader(preface=not client)
        self._encoder = Encoder()
        first = frames.PREFACE if client else b""
        writer.write(first + frames.settings({}) + frames.SETTINGS_ACK)

    def headers(self, stream: int, fields: list[tuple[bytes, bytes]], *, end: bool = False) -> None:
        block = self._encoder.encode(fields)
        self.writer.write(frames.header_frames(stream, block, end=end, largest=frames.DEFAULT_FRAME))

    async def read(self) -> list[Frame]:
        """What comes next; nothing more after the connection's end."""
        async with asyncio.timeout(PATIENCE):
            return self._frames.read(await self._reader.read(1 << 16))

    async def until(self, kind: int) -> list[Frame]:
        """All frames up to the first of this kind."""
        found: list[Frame] = []
        while not any(frame.kind == kind for frame in found):
            found += await self.read()
        return found

    async def closed(self) -> list[Frame]:
        """All frames up to the connection's end."""
        found: list[Frame] = []
        async with asyncio.timeout(PATIENCE):
            while more := await self._reader.read(1 << 16):
                found += self._frames.read(more)
        return found


@asynccontextmanager
async def raw(folder: Path, limits: Limits | None = None) -> AsyncIterator[tuple[Transport, End, asyncio.Queue[End]]]:
    """A transport, a client of it, and the runtime's ends of its connections."""
    ends: asyncio.Queue[End] = asyncio.Queue()
    made: list[End] = []

    def accepted(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        made.append(End(reader, writer, client=False))
        ends.put_nowait(made[-1])

    runtime = await asyncio.start_unix_server(accepted, folder / "runtime.sock")
    transport = Transport(folder / "runtime.sock", {}, Metrics(), limits or Limits())
    await transport.listen(listening(folder / "qrm.sock"))
    client = End(*await asyncio.open_unix_connection(folder / "qrm.sock"), client=True)
    try:
        yield transport, client, ends
    finally:
        await transport.close()
        runtime.close()
        for end in (client, *made):
            end.writer.close()
            with suppress(ConnectionError):
                await end.writer.wait_closed()


def run(loop: Loop, work: Awaitable[None]) -> None:
    """Run a test on one of the event loops."""

    async def main() -> None:
        await work

    with asyncio.Runner(loop_factory=loop) as runner:
        runner.run(main())


@LOOPS
def test_a_call_passes_over_real_sockets(tmp_path: Path, loop: Loop) -> None:
    """On asyncio's own loop and on uvloop, one byte at a time."""

    async def work() -> None:
        async with raw(tmp_path) as (transport, client, ends):
            client.headers(1, REQUEST)
            for byte in data(1, b"ask", end=True):
                client.writer.write(bytes((byte,)))
                await asyncio.sleep(0)
            runtime = await ends.get()
            assert payload(await runtime.until(frames.DATA)) == b"ask"
            assert (transport.connections, transport.streams) == (1, 1)
            runtime.headers(1, REPLY)
            runtime.writer.write(data(1, b"told"))
            runtime.headers(1, OK, end=True)
            assert payload(await client.until(frames.DATA)) == b"told"
            client.writer.close()
            assert not [frame for frame in await runtime.closed() if frame.kind == frames.DATA]
            while transport.connections:
                await asyncio.sleep(0.01)

    run(loop, work())


@LOOPS
def test_a_runtime_that_does_not_read_stops_the_client(tmp_path: Path, loop: Loop) -> None:
    """Whatever windows it has granted: our memory holds a little, the client's socket the rest."""
    limits = Limits(window_bytes=1 << 20, buffer_bytes=1 << 20)

    async def work() -> None:
        async with raw(tmp_path, limits) as (_, client, ends):
            client.headers(1, REQUEST)
            runtime = await ends.get()
            runtime.writer.write(frames.window_update(0, 1 << 30) + frames.window_update(1, 1 << 30))
            await runtime.until(frames.HEADERS)
            sent = took = granted = 0
            read: asyncio.Task[list[Frame]] | None = None
            for _ in range(1000):  # it keeps to the connection's window, which it is granted anew for what has left
                client.writer.write(data(1, bytes(16384)))
                sent += 16384
                try:
                    async with asyncio.timeout(0.3):
                        await client.writer.drain()
                        while sent - granted > 900_000:
                            read = read or asyncio.ensure_future(client.read())
                            got, read = await asyncio.shield(read), None
                            granted += sum(
                                int.from_bytes(frame.payload) for frame in got if frame.kind == frames.WINDOW_UPDATE
                            )
                except TimeoutError:
                    break
            else:
                pytest.fail("16 MiB were taken that nobody reads")
            assert sent < 6 << 20
            while took < sent:
                took += len(payload(await runtime.read()))
            assert took == sent
            if read is not None:
                await read

    run(loop, work())


@LOOPS
@pytest.mark.parametrize("half", [False, True])
def test_a_runtime_that_ends_without_having_read_lets_the_client_go_on(tmp_path: Path, loop: Loop, half: bool) -> None:
    """A containerd that hangs and is killed then, or closes only its own side: kubelet's next call goes to the next."""

    async def work() -> None:
        async with raw(tmp_path, Limits(buffer_bytes=64 << 10)) as (transport, client, ends):
            client.headers(1, REQUEST)
            runtime = await ends.get()
            runtime.writer.write(frames.window_update(0, 1 << 30) + frames.window_update(1, 1 << 30))
            await runtime.until(frames.HEADERS)
            await held_up(client, data(1, bytes(16384)))
            if half:
                runtime.writer.write_eof()
            else:
                runtime.writer.transport.abort()
            await until(lambda: not transport.streams)
            client.headers(3, REQUEST, end=True)
            async with asyncio.timeout(20):
                await (await ends.get()).until(frames.HEADERS)

    run(loop, work())


async def held_up(sender: End, piece: bytes) -> None:
    """Send until nothing is taken any more; what could not be written is left to the sender's socket."""
    for _ in range(100):
        sender.writer.write(piece)
        try:
            async with asyncio.timeout(0.3):
                await sender.writer.drain()
        except TimeoutError:
            return
    pytest.fail("everything was taken, though nobody reads")


@LOOPS
def test_answers_that_nobody_reads_cost_the_connection(tmp_path: Path, loop: Loop) -> None:
    """A client that pings without end and reads nothing is closed, and others are not."""

    async def work() -> None:
        async with raw(tmp_path, Limits(buffer_bytes=64 << 10)) as (transport, client, _):
            other = End(*await asyncio.open_unix_connection(tmp_path / "qrm.sock"), client=True)
            ping = frames.frame(frames.PING, 0, 0, bytes(8)) * 1000

            async def floods() -> None:
                while True:
                    client.writer.write(ping)
                    await client.writer.drain()

            with pytest.raises(ConnectionError):
                await asyncio.wait_for(floods(), PATIENCE)
            other.writer.write(frames.frame(frames.PING, 0, 0, bytes(8)))
            await other.until(frames.PING)
            assert transport.connections == 1
            other.writer.close()
            await other.writer.wait_closed()

    run(loop, work())


@LOOPS
def test_the_client_closes_first(tmp_path: Path, loop: Loop) -> None:
    """One that still writes when it has been sent everything is not cut off before it has read that."""

    async def work() -> None:
        running = asyncio.get_running_loop()
        async with raw(tmp_path) as (transport, _, _ends):
            with socket.socket(socket.AF_UNIX) as other:
                other.setblocking(False)
                await running.sock_connect(other, str(tmp_path / "qrm.sock"))
                await until(lambda: transport.connections == 2)
                draining = asyncio.ensure_future(transport.drain(0.1))
                while await running.sock_recv(other, 1 << 16):
                    pass
                other.send(frames.PREFACE)
                other.send(frames.settings({}))
            await draining

    run(loop, work())


@LOOPS
@pytest.mark.parametrize("patient", [True, False])
def test_draining_lets_calls_end(tmp_path: Path, loop: Loop, patient: bool) -> None:
    """Two GOAWAYs around a PING; a call that does not end in time is cut off, and the answer is that it was."""

    async def work() -> None:
        async with raw(tmp_path) as (transport, client, ends):
            client.headers(1, REQUEST, end=True)
            runtime = await ends.get()
            await runtime.until(frames.HEADERS)
            waiting = socket.socket(socket.AF_UNIX)
            waiting.connect(str(tmp_path / "qrm.sock"))
            draining = asyncio.ensure_future(transport.drain(20 if patient else 0.1))
            got = await client.until(frames.PING)
            (ping,) = (frame for frame in got if frame.kind == frames.PING)
            client.writer.write(frames.frame(frames.PING, frames.ACK, 0, ping.payload))
            assert waiting.recv(9), "who waited was taken in"
            waiting.close()
            if patient:
                await client.until(frames.GOAWAY)
                runtime.headers(1, [*REPLY, *OK], end=True)
            last = await client.closed()
            assert any(frame.end for frame in last) is patient
            assert await draining is patient
            assert transport.connections == 0
            with pytest.raises(ConnectionRefusedError):
                await asyncio.open_unix_connection(tmp_path / "qrm.sock")

    run(loop, work())


@LOOPS
def test_without_descriptors_clients_wait(tmp_path: Path, loop: Loop) -> None:
    """The process does not spin meanwhile, and takes them later."""

    class Short(socket.socket):
        tries = 0

        def accept(self) -> tuple[socket.socket, object]:
            Short.tries += 1
            if Short.tries == 1:
                raise OSError(errno.EMFILE, "Too many open files")
            return super().accept()

    async def work() -> None:
        async with raw(tmp_path) as (transport, client, _):
            await client.until(frames.SETTINGS)
            short = Short(fileno=listening(tmp_path / "short.sock").detach())
            await transport.listen(short)
            late = End(*await asyncio.open_unix_connection(tmp_path / "short.sock"), client=True)
            await late.until(frames.SETTINGS)
            assert Short.tries <= 4
            late.writer.close()
            await late.writer.wait_closed()

    run(loop, work())


@LOOPS
def test_who_stops_without_descriptors_tries_no_more(
    tmp_path: Path, loop: Loop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next try would be on a socket that is closed by then."""
    monkeypatch.setattr(edge, "_PAUSE", 0.05)

    class Never(socket.socket):
        tries = 0

        def accept(self) -> tuple[socket.socket, object]:
            Never.tries += 1
            raise OSError(errno.EMFILE, "Too many open files")

    async def work() -> None:
        troubles: list[object] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: troubles.append(context))
        transport = Transport(tmp_path / "runtime.sock", {}, Metrics())
        await transport.listen(Never(fileno=listening(tmp_path / "qrm.sock").detach()))
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(str(tmp_path / "qrm.sock"))
            await until(lambda: Never.tries > 0)
            transport.stop_accepting()
            tries = Never.tries
            await asyncio.sleep(0.2)
        assert Never.tries == tries
        assert not troubles

    run(loop, work())


@LOOPS
@pytest.mark.parametrize("side", [ClientSide, RuntimeSide])
def test_a_connection_that_ends_before_it_has_its_socket_closes_that_once(
    tmp_path: Path, loop: Loop, side: Callable[[Link], ClientSide | RuntimeSide]
) -> None:
    """A second close would hit whoever has the descriptor's number by then: another client, the ledger's file."""

    async def work() -> None:
        with listening(tmp_path / "runtime.sock"):
            transport = Transport(tmp_path / "runtime.sock", {}, Metrics())
            link = Link(transport)
            ended = side(link)
            ended.close()
            made = connect(tmp_path / "runtime.sock")
            await attach(made, ended, link)
            assert made.fileno() == -1

    run(loop, work())


# gRPC's own clients and servers, which need pytest's event loop.


@asynccontextmanager
async def through(fake: FakeRuntime, public: Path, handlers: Handlers) -> AsyncIterator[Transport]:
    """A transport in front of the fake runtime."""
    transport = Transport(Path(fake.endpoint.removeprefix("unix://")), handlers, Metrics())
    await transport.listen(listening(public))
    try:
        yield transport
    finally:
        await transport.close()


def channel(public: Path) -> grpc.aio.Channel:
    return grpc.aio.insecure_channel(
        f"unix://{public}",
        options=[
            ("grpc.max_receive_message_length", 2 * BIG),
            ("grpc.max_send_message_length", 2 * BIG),
            ("grpc.use_local_subchannel_pool", 1),
        ],
    )


async def same(exchange: Exchange) -> bytes:
    """A handler that changes nothing, but makes all anew."""
    return bytes(bytearray(await exchange.forward(bytes(bytearray(exchange.request)))))


@pytest.mark.parametrize("compression", [grpc.Compression.NoCompression, grpc.Compression.Gzip])
@pytest.mark.parametrize("held", [True, False])
async def test_messages_of_16_mib_come_through(tmp_path: Path, held: bool, compression: grpc.Compression) -> None:
    """Held and passed, plain and compressed, several at a time."""
    message = bytes(range(256)) * (BIG >> 8)
    async with (
        FakeRuntime(tmp_path) as fake,
        through(fake, tmp_path / "qrm.sock", {ECHO: same} if held else {}),
        channel(tmp_path / "qrm.sock") as client,
    ):
        ask: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = client.unary_unary(ECHO)
        calls = [ask(message, compression=compression, timeout=60) for _ in range(2)]
        assert [await call for call in calls] == [message] * 2


@pytest.mark.parametrize("held", [True, False])
async def test_a_successor_takes_over_without_a_call_being_lost(tmp_path: Path, held: bool) -> None:
    """Under load, time and again: the new one has the name, the old one drains."""
    public = tmp_path / "qrm.sock"
    handlers = {ECHO: same} if held else {}
    done = 0
    stopping = False

    async def calls(client: grpc.aio.Channel) -> None:
        nonlocal done
        ask: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = client.unary_unary(ECHO)
        while not stopping:
            assert await ask(b"x" * 100, timeout=PATIENCE) == b"x" * 100
            done += 1

    async with FakeRuntime(tmp_path) as fake, channel(public) as client:
        runtime = Path(fake.endpoint.removeprefix("unix://"))
        transport = Transport(runtime, handlers, Metrics())
        await transport.listen(listening(public))
        callers = [asyncio.create_task(calls(client)) for _ in range(8)]
        for _ in range(5):
            before = done
            await until(lambda before=before: done > before + 20)  # type: ignore[misc]
            old, transport = transport, Transport(runtime, handlers, Metrics())
            await transport.listen(listening(public))
            assert await old.drain(PATIENCE)
        stopping = True
        await asyncio.gather(*callers)
        await transport.close()


async def test_a_client_that_says_nonsense_makes_few_metrics(tmp_path: Path) -> None:
    """Names that are none, and more of them than there can be methods, are counted as one."""
    metrics = Metrics()
    async with FakeRuntime(tmp_path) as fake:
        transport = Transport(Path(fake.endpoint.removeprefix("unix://")), {}, metrics)
        await transport.listen(listening(tmp_path / "qrm.sock"))
        async with channel(tmp_path / "qrm.sock") as client:
            odd = [f"/odd/{number}/x" for number in range(100)]
            for path in [*odd, *(f"/a.B/Method{number}" for number in range(200))]:
                ask: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = client.unary_unary(path)
                with pytest.raises(grpc.aio.AioRpcError):
                    await ask(b"")
        await transport.close()
    methods = {sample.labels["method"] for metric in metrics.calls.collect() for sample in metric.samples}
    assert "other" in methods
    assert len(methods) <= 129
