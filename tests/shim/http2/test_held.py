"""Held calls: collected, handled, answered, and both sides' windows right afterwards."""

from __future__ import annotations

import asyncio
import gzip
import struct
from collections.abc import AsyncIterator, Awaitable, Callable

import grpc
import pytest

from qrm.enforcement.channel import CallError
from qrm.shim.exchange import Exchange, Handler
from qrm.shim.http2 import frames
from qrm.shim.http2.limits import Limits
from tests.shim.http2.rig import HELD, OK, REPLY, REQUEST, Frame, Rig, data, framed, payload, request
from tests.support import until

INITIAL = frames.INITIAL_WINDOW_SIZE


class Handling:
    """A handler that does what a test gives it to do, and remembers."""

    def __init__(self) -> None:
        self.seen: list[Exchange] = []
        self.errors: list[BaseException] = []
        self.does: Callable[[Exchange], Awaitable[bytes]] = lambda exchange: exchange.forward(exchange.request)

    async def __call__(self, exchange: Exchange) -> bytes:
        self.seen.append(exchange)
        try:
            return await self.does(exchange)
        except BaseException as error:
            self.errors.append(error)
            raise


@pytest.fixture
async def handling() -> Handling:
    return Handling()


def made(handler: Handler, limits: Limits | None = None, settings: dict[int, int] | None = None) -> Rig:
    return Rig(limits=limits or Limits(), handlers={HELD: handler}, settings=settings or {})


async def begun(rig: Rig) -> list[Frame]:
    """What the runtime has got, once the handler has asked it."""
    await until(lambda: any(frame.kind == frames.HEADERS for frame in rig.runtime.got))
    return rig.runtime.take()


async def ended(rig: Rig) -> list[Frame]:
    """What kubelet has got, once all handlers have ended."""
    await until(lambda: not rig.tasks)
    return rig.kubelet.take()


def answer(rig: Rig, stream: int, message: bytes = b"done") -> None:
    """The runtime's reply."""
    runtime = rig.runtime
    rig.say(
        runtime, runtime.headers(stream, REPLY), data(stream, framed(message)), runtime.headers(stream, OK, end=True)
    )


async def test_a_handler_changes_request_and_reply(handling: Handling) -> None:
    """Each message is what the other side gets, with the headers and trailers that came, known here or not."""

    async def changes(exchange: Exchange) -> bytes:
        return b"<" + await exchange.forward(exchange.request + b"!") + b">"

    handling.does = changes
    rig = made(handling)
    fields = request(HELD, (b"traceparent", b"00-4b"), (b"blob-bin", b"AAE"), (b"content-length", b"8"))
    rig.say(rig.kubelet, rig.kubelet.headers(1, fields), data(1, framed(b"ask"), end=True))
    headers, body = await begun(rig)
    assert headers.fields == [field for field in fields if field[0] != b"content-length"]
    assert (body.payload, body.end) == (framed(b"ask!"), True)
    last = [*OK, (b"future", b"\xff"), (b"grpc-status-details-bin", b"CAU")]
    runtime = rig.runtime
    first = [*REPLY, (b"early", b"1")]
    rig.say(runtime, runtime.headers(1, first), data(1, framed(b"told")), runtime.headers(1, last, end=True))
    headers, body, trailers = await ended(rig)
    assert (headers.fields, body.payload, trailers.fields) == (first, framed(b"<told>"), last)
    (seen,) = handling.seen
    assert (seen.method, seen.request, seen.seconds_left) == (HELD.decode(), b"ask", None)
    assert seen.metadata == (("traceparent", "00-4b"), ("blob-bin", b"\x00\x01"))
    assert [call.code for call in rig.ended_calls] == [grpc.StatusCode.OK]
    assert not rig.link.client.streams
    assert not rig.runtime.connection.streams


async def test_a_refusal_never_reaches_the_runtime(handling: Handling) -> None:
    """Trailers-only, the message percent-encoded, trailing metadata as fields."""

    async def refuses(_: Exchange) -> bytes:
        raise CallError(grpc.StatusCode.RESOURCE_EXHAUSTED, "no 100% fit: é", (("x-bin", b"\x00"),))

    handling.does = refuses
    rig = made(handling)
    rig.say(rig.kubelet, rig.kubelet.headers(1, request()), data(1, framed(b"ask"), end=True))
    (refusal,) = await ended(rig)
    assert refusal.end
    assert refusal.fields == [
        (b":status", b"200"),
        (b"content-type", b"application/grpc"),
        (b"grpc-status", b"8"),
        (b"grpc-message", b"no 100%25 fit: %C3%A9"),
        (b"x-bin", b"AA"),
    ]
    assert not rig.runtime.take()
    assert [call.code for call in rig.ended_calls] == [grpc.StatusCode.RESOURCE_EXHAUSTED]


@pytest.mark.parametrize("trailers_only", [True, False])
async def test_the_runtimes_error_passes_byte_by_byte(handling: Handling, trailers_only: bool) -> None:
    """Also where its spelling is not ours; the handler gets it decoded."""
    rig = made(handling)
    rig.say(rig.kubelet, rig.kubelet.headers(1, request()), data(1, framed(b"ask"), end=True))
    await begun(rig)
    last = [(b"grpc-status", b"05"), (b"grpc-message", b"odd%2dspelling%"), (b"grpc-status-details-bin", b"CAUSAA==")]
    sent = [[*REPLY, *last]] if trailers_only else [[*REPLY, (b"a", b"b")], last]
    for number, fields in enumerate(sent):
        rig.say(rig.runtime, rig.runtime.headers(1, fields, end=number == len(sent) - 1))
    got = await ended(rig)
    assert [frame.fields for frame in got] == sent
    (error,) = handling.errors
    assert isinstance(error, CallError)
    assert (error.code, error.details) == (grpc.StatusCode.NOT_FOUND, "odd-spelling%")
    assert dict(error.trailing)["grpc-status-details-bin"] == b"\x08\x05\x12\x00"


async def test_a_handler_may_forward_again(handling: Handling) -> None:
    """Each time is a stream of its own at the runtime; the last answer's metadata is kubelet's."""

    async def twice(exchange: Exchange) -> bytes:
        with pytest.raises(CallError):
            await exchange.forward(b"first")
        return await exchange.forward(b"second")

    handling.does = twice
    rig = made(handling)
    rig.say(rig.kubelet, rig.kubelet.headers(1, request()), data(1, framed(b"ask"), end=True))
    await begun(rig)
    rig.say(rig.runtime, rig.runtime.headers(1, [*REPLY, (b"grpc-status", b"14")], end=True))
    headers, body = await begun(rig)
    assert (headers.stream, body.payload) == (3, framed(b"second"))
    answer(rig, 3)
    assert payload(await ended(rig)) == framed(b"done")


async def test_a_held_call_delays_no_other_and_keeps_numbers_in_order(handling: Handling) -> None:
    """Younger calls pass meanwhile; the runtime sees rising numbers, and both sides their own."""
    gate = asyncio.Event()

    async def waits(exchange: Exchange) -> bytes:
        await gate.wait()
        return await exchange.forward(exchange.request)

    handling.does = waits
    rig = made(handling)
    rig.say(rig.kubelet, rig.kubelet.headers(1, request()), data(1, framed(b"ask"), end=True))
    rig.say(rig.kubelet, rig.kubelet.headers(3, REQUEST), rig.kubelet.headers(5, REQUEST))
    assert [frame.stream for frame in rig.runtime.take(frames.HEADERS)] == [3, 5]
    gate.set()
    headers, _ = await begun(rig)
    assert headers.stream == 7
    rig.say(rig.kubelet, rig.kubelet.headers(7, REQUEST), data(7, b"x"), data(5, b"y"))
    assert [frame.stream for frame in rig.runtime.take()] == [9, 9, 5]
    answer(rig, 7)
    assert {frame.stream for frame in await ended(rig)} == {1}
    rig.say(
        rig.runtime, rig.runtime.headers(9, REPLY), data(9, b"z"), frames.window_update(9, 5), frames.rst_stream(9, 0)
    )
    assert {frame.stream for frame in rig.kubelet.take(0, 1, 3, 8)} == {7}


def windows(rig: Rig, stream: int, *, to_runtime: bool) -> int:
    """What a side was granted on a stream by WINDOW_UPDATE since the last time."""
    peer = rig.runtime if to_runtime else rig.kubelet
    taken = [frame for frame in peer.got if frame.kind == frames.WINDOW_UPDATE and frame.stream == stream]
    peer.got = [frame for frame in peer.got if frame not in taken]
    return sum(int(struct.unpack(">L", frame.payload)[0]) for frame in taken)


@pytest.mark.parametrize("initial", [0, 1, 65535])
async def test_a_tiny_window_holds_nobody_up(handling: Handling, initial: int) -> None:
    """A MiB each way comes through with windows of nothing: we grant what we collect, and heed what we are granted."""
    big = bytes(range(256)) * 4096
    rig = made(handling, settings={INITIAL: initial})
    rig.say(rig.runtime, frames.settings({INITIAL: initial}))
    rig.say(rig.kubelet, rig.kubelet.headers(1, request()))
    wire, window, position = framed(big), initial, 0
    while position < len(wire):
        window += windows(rig, 1, to_runtime=False)
        size = min(window, 16384, len(wire) - position)
        assert size > 0
        rig.say(rig.kubelet, data(1, wire[position : position + size], end=position + size == len(wire)))
        window, position = window - size, position + size
    await until(lambda: any(frame.kind == frames.HEADERS for frame in rig.runtime.got))
    heard = b""
    while len(heard) < len(wire):
        got = rig.runtime.take()
        heard += payload(got)
        rig.say(rig.runtime, frames.window_update(1, 10_000), frames.window_update(0, 10_000))
    assert heard == wire
    rig.runtime.got, position, window = [], 0, initial
    rig.say(rig.runtime, rig.runtime.headers(1, REPLY))
    extra = 1 << 20 if initial < 32768 else 0  # granted when the call began, and taken away with what was read above
    window += extra
    while position < len(wire):
        window += windows(rig, 1, to_runtime=True)
        size = min(window, 16384, len(wire) - position)
        assert size > 0
        rig.say(rig.runtime, data(1, wire[position : position + size]))
        window, position = window - size, position + size
    rig.say(rig.runtime, rig.runtime.headers(1, OK, end=True))
    await until(lambda: not rig.tasks)
    heard = b""
    while len(heard) < len(wire):
        heard += payload(rig.kubelet.take())
        rig.say(rig.kubelet, frames.window_update(1, 10_000), frames.window_update(0, 10_000))
    assert heard == wire


async def test_a_request_above_the_limit_passes_unseen(handling: Handling) -> None:
    """With what was collected, and with the windows that both sides have granted each other from there on."""
    rig = made(handling, Limits(max_message_bytes=50_000))
    wire = framed(b"x" * 100_000)
    rig.say(rig.runtime, frames.settings({INITIAL: 30_000}))
    rig.kubelet.take()
    rig.say(rig.kubelet, rig.kubelet.headers(1, request()), frames.window_update(1, 777))
    granted = windows(rig, 1, to_runtime=False)
    assert granted > 0
    rig.say(rig.kubelet, data(1, wire[:4]), data(1, wire[4:16000]))
    kinds = [frame.kind for frame in rig.runtime.got if frame.stream == 1]
    assert kinds.index(frames.HEADERS) < kinds.index(frames.WINDOW_UPDATE), "a stream that is not open has no window"
    assert windows(rig, 1, to_runtime=True) == 777, "kubelet's for the reply"
    headers, *bodies = rig.runtime.take()
    assert headers.fields == request()
    assert payload(bodies) == wire[:16000]
    rig.say(rig.kubelet, *[data(1, wire[each : each + 16000]) for each in range(16000, 96000, 16000)])
    assert len(payload(rig.runtime.take())) == 14_000
    rig.say(rig.runtime, frames.window_update(1, granted))
    assert windows(rig, 1, to_runtime=False) == 0, "it was granted that before"
    rig.say(rig.runtime, frames.window_update(1, 5))
    assert windows(rig, 1, to_runtime=False) == 5
    rig.say(rig.kubelet, data(1, wire[96000:], end=True))
    assert payload(rig.runtime.take()) == wire[30_000 : frames.DEFAULT_WINDOW]
    rig.say(rig.runtime, frames.window_update(0, 1 << 20))
    assert payload(rig.runtime.take()) == wire[frames.DEFAULT_WINDOW :]
    assert not handling.seen


async def test_a_reply_above_the_limit_passes_unseen(handling: Handling) -> None:
    """kubelet gets it whole; the handler learns that it does not know the outcome, and its answer is not asked for."""
    rig = made(handling, Limits(max_message_bytes=1000), {INITIAL: 100})
    rig.say(rig.kubelet, rig.kubelet.headers(1, request()), data(1, framed(b"ask"), end=True))
    await until(lambda: bool(handling.seen) and bool(rig.runtime.got))
    granted = windows(rig, 1, to_runtime=True)
    wire = framed(b"y" * 5000)
    rig.say(rig.runtime, rig.runtime.headers(1, REPLY), data(1, wire[:3000]))
    rig.say(rig.kubelet, frames.window_update(1, granted))
    assert windows(rig, 1, to_runtime=True) == 0, "it was granted that before"
    rig.say(rig.kubelet, frames.window_update(1, 5))
    assert windows(rig, 1, to_runtime=True) == 5
    rig.say(rig.runtime, data(1, wire[3000:]), rig.runtime.headers(1, OK, end=True))
    headers, *bodies, trailers = await ended(rig)
    assert (headers.fields, payload(bodies), trailers.fields) == (REPLY, wire, OK)
    (error,) = handling.errors
    assert isinstance(error, CallError)
    assert not error.outcome_known
    assert [call.code for call in rig.ended_calls] == [grpc.StatusCode.OK]


@pytest.mark.parametrize("apart", [True, False])
async def test_a_reply_of_two_messages_passes_unseen(handling: Handling, apart: bool) -> None:
    """However they are cut: a unary call has one, and what this is kubelet may judge."""
    rig = made(handling)
    rig.say(rig.kubelet, rig.kubelet.headers(1, request()), data(1, framed(b"ask"), end=True))
    await begun(rig)
    both = (framed(b"one"), framed(b"two"))
    pieces = [data(1, each) for each in both] if apart else [data(1, b"".join(both))]
    rig.say(rig.runtime, rig.runtime.headers(1, REPLY), *pieces, rig.runtime.headers(1, OK, end=True))
    assert payload(await ended(rig)) == b"".join(both)
    (error,) = handling.errors
    assert isinstance(error, CallError)
    assert not error.outcome_known


async def test_nothing_is_no_second_message(handling: Handling) -> None:
    """Frames without data, or with nothing but padding, may come anywhere in a reply."""
    rig = made(handling)
    rig.say(rig.kubelet, rig.kubelet.headers(1, request()), data(1, b""), data(1, framed(b"ask"), end=True))
    await begun(rig)
    rig.say(rig.runtime, rig.runtime.headers(1, REPLY), data(1, b"", pad=9), data(1, framed(b"told")))
    rig.say(rig.runtime, data(1, b""), data(1, b"", pad=9), rig.runtime.headers(1, OK, end=True))
    assert payload(await ended(rig)) == framed(b"told")
    assert not handling.errors


async def test_gzip_is_unpacked_and_left_packed_where_nothing_changes(handling: Handling) -> None:
    """The handler sees plain messages; what it does not change goes on as it came."""
    packed = [struct.pack(">BL", 1, len(each)) + each for each in (gzip.compress(b"ask"), gzip.compress(b"told"))]
    for change in (False, True):

        async def changes(exchange: Exchange, change: bool = change) -> bytes:
            reply = await exchange.forward(exchange.request + b"!" if change else exchange.request)
            return reply + b"?" if change else reply

        handling.does = changes
        rig = made(handling)
        encoding = (b"grpc-encoding", b"gzip")
        rig.say(rig.kubelet, rig.kubelet.headers(1, request(HELD, encoding)), data(1, packed[0], end=True))
        _, body = await begun(rig)
        assert body.payload == (framed(b"ask!") if change else packed[0])
        rig.say(rig.runtime, rig.runtime.headers(1, [*REPLY, encoding]), data(1, packed[1]))
        rig.say(rig.runtime, rig.runtime.headers(1, OK, end=True))
        assert payload(await ended(rig)) == (framed(b"told?") if change else packed[1])


@pytest.mark.parametrize(
    ("sent", "end"),
    [
        (b"", True),
        (struct.pack(">BL", 0, 5) + b"cut", True),
        (struct.pack(">BL", 1, 3) + b"abc", False),
        (struct.pack(">BL", 1, 3) + b"abc", True),
    ],
    ids=["no message", "half a message", "unknown compression", "unknown compression at the end"],
)
async def test_what_cannot_be_read_is_the_runtimes_to_judge(handling: Handling, sent: bytes, end: bool) -> None:
    """It passes as it came, its end as well."""
    rig = made(handling)
    fields = request(HELD, (b"grpc-encoding", b"snappy"))
    rig.say(rig.kubelet, rig.kubelet.headers(1, fields), data(1, sent, end=end))
    headers, *bodies = rig.runtime.take()
    assert (headers.fields, payload(bodies)) == (fields, sent)
    assert [headers, *bodies][-1].end is end
    rig.say(rig.runtime, rig.runtime.headers(1, [*REPLY, (b"grpc-status", b"13")], end=True))
    assert dict(rig.kubelet.take()[0].fields)[b"grpc-status"] == b"13"
    assert not handling.seen


async def test_a_client_that_does_not_end_its_request_is_answered(handling: Handling) -> None:
    """The first message is the call, as for gRPC's servers; the rest is dropped and the stream closed."""
    rig = made(handling)
    rig.say(rig.kubelet, rig.kubelet.headers(1, request()), data(1, framed(b"ask") + b"more"))
    _, body = await begun(rig)
    assert (body.payload, body.end) == (framed(b"ask"), True)
    rig.say(rig.kubelet, data(1, b"and more"))
    answer(rig, 1)
    *_, last, reset = await ended(rig)
    assert (last.fields, last.end) == (OK, True)
    assert (reset.kind, reset.payload) == (frames.RST_STREAM, bytes(4))
    rig.say(rig.kubelet, data(1, b"late"), rig.kubelet.headers(1, [(b"late", b"too")], end=True))
    assert not rig.kubelet.closed, "it had not heard of that yet"


@pytest.mark.parametrize("message", [framed(b"ask"), framed(b"ask")[:-1], b""])
async def test_a_request_may_end_with_trailers(handling: Handling, message: bytes) -> None:
    """gRPC has none there; what they end is a call nevertheless, or none."""
    rig = made(handling)
    rig.say(rig.kubelet, rig.kubelet.headers(1, request()), data(1, message))
    rig.say(rig.kubelet, rig.kubelet.headers(1, [(b"last", b"words")], end=True))
    _, *bodies = await begun(rig)
    assert payload(bodies) == message
    assert len(handling.seen) == (message == framed(b"ask"))
    answer(rig, 1)
    assert (await ended(rig))[-1].fields == OK
    assert not rig.link.client.streams


@pytest.mark.parametrize("asked", [True, False])
async def test_when_kubelet_gives_up_handler_and_runtime_do_too(handling: Handling, asked: bool) -> None:
    """While the handler thinks, and while the runtime works."""
    if not asked:
        handling.does = lambda _: asyncio.get_running_loop().create_future()
    rig = made(handling)
    rig.say(rig.kubelet, rig.kubelet.headers(1, request()), data(1, framed(b"ask"), end=True))
    await until(lambda: bool(handling.seen))
    if asked:
        await begun(rig)
    rig.say(rig.kubelet, frames.rst_stream(1, frames.CANCEL))
    assert not await ended(rig)
    assert isinstance(handling.errors[0], asyncio.CancelledError)
    assert [frame.stream for frame in rig.runtime.take(frames.RST_STREAM)] == ([1] if asked else [])
    assert [call.code for call in rig.ended_calls] == [grpc.StatusCode.CANCELLED]


@pytest.mark.parametrize("complete", [True, False])
async def test_the_deadline_bounds_collecting_and_handling(handling: Handling, complete: bool) -> None:
    """kubelet is told DEADLINE_EXCEEDED, and the handler is cancelled."""
    handling.does = lambda _: asyncio.get_running_loop().create_future()
    rig = made(handling)
    rig.say(rig.kubelet, rig.kubelet.headers(1, request(HELD, (b"grpc-timeout", b"50m"))))
    if complete:
        rig.say(rig.kubelet, data(1, framed(b"ask"), end=True))
    await until(lambda: bool(rig.ended_calls))
    (told, *_) = await ended(rig)
    assert dict(told.fields)[b"grpc-status"] == b"4"
    assert len(handling.errors) == complete


async def test_what_is_left_of_the_deadline_goes_on(handling: Handling) -> None:
    """The handler sees it and the runtime gets it."""
    rig = made(handling)
    fields = request(HELD, (b"grpc-timeout", b"90S"), (b"content-length", b"5"))
    rig.say(rig.kubelet, rig.kubelet.headers(1, fields), data(1, framed(b""), end=True))
    headers, _ = await begun(rig)
    assert [name for name, _ in headers.fields] == [name for name, _ in fields if name != b"content-length"]
    left = dict(headers.fields)[b"grpc-timeout"]
    assert 80_000_000 < int(left[:-1]) < 90_000_000
    assert left[-1:] == b"u"
    assert 80 < (handling.seen[0].seconds_left or 0) < 90
    answer(rig, 1)
    await ended(rig)


@pytest.mark.parametrize("how", ["away", "breaks", "resets", "no message", "no trailers", "not gRPC"])
async def test_every_way_to_fail_is_an_error_that_the_handler_sees(handling: Handling, how: str) -> None:
    """And kubelet with the same code."""
    rig = made(handling)
    if how == "away":
        rig.break_off(rig.runtime)
        rig.away = True
    rig.say(rig.kubelet, rig.kubelet.headers(1, request()), data(1, framed(b"ask"), end=True))
    if how != "away":
        await begun(rig)
    runtime = rig.runtime
    if how == "breaks":
        rig.break_off(runtime)
    elif how == "resets":
        rig.say(runtime, frames.rst_stream(1, frames.REFUSED_STREAM))
    elif how == "no message":
        rig.say(runtime, runtime.headers(1, REPLY), runtime.headers(1, OK, end=True))
    elif how == "no trailers":
        rig.say(runtime, runtime.headers(1, REPLY), data(1, framed(b"x"), end=True))
    elif how == "not gRPC":
        rig.say(runtime, runtime.headers(1, [(b":status", b"503")], end=True))
    *_, told = await ended(rig)
    # What the runtime does say is for kubelet to judge.
    expected = {"no message": b"0", "no trailers": b"2"}.get(how, b"14")
    assert dict(told.fields)[b"grpc-status"] == expected
    assert isinstance(handling.errors[0], CallError)
    assert handling.errors[0].code is not grpc.StatusCode.OK
    assert not rig.runtimes or not rig.runtime.connection.streams


async def test_a_call_that_is_held_while_the_runtime_leaves_goes_to_the_next(handling: Handling) -> None:
    """Its connection takes no more calls: this one is dialled for, and kubelet's connection ends after it."""
    gate = asyncio.Event()

    async def waits(exchange: Exchange) -> bytes:
        await gate.wait()
        return await exchange.forward(exchange.request)

    handling.does = waits
    rig = made(handling)
    rig.say(rig.kubelet, rig.kubelet.headers(1, request()), data(1, framed(b"ask"), end=True))
    rig.say(rig.runtime, frames.goaway(0, 0))
    assert [frames.read_goaway(frame.payload)[0] for frame in rig.kubelet.take(frames.GOAWAY)] == [1]
    gate.set()
    await until(lambda: len(rig.runtimes) == 2)
    await begun(rig)
    rig.say(rig.runtime, frames.settings({}))
    assert rig.runtimes[0].closed
    answer(rig, 1)
    assert payload(await ended(rig)) == framed(b"done")
    assert rig.kubelet.closed


async def test_a_handler_that_breaks_is_an_internal_error(handling: Handling) -> None:
    """Of this call only."""

    async def breaks(_: Exchange) -> bytes:
        raise ValueError

    handling.does = breaks
    rig = made(handling)
    rig.say(rig.kubelet, rig.kubelet.headers(1, request()), data(1, framed(b"ask"), end=True))
    (told,) = await ended(rig)
    assert dict(told.fields)[b"grpc-status"] == b"13"


async def test_collecting_is_bounded_over_all_calls_and_ends_nevertheless(handling: Handling) -> None:
    """Above the bound only the oldest is granted more; when it is answered, the next one is."""
    go = asyncio.Event()

    async def waits(_: Exchange) -> bytes:
        await go.wait()
        return b""

    handling.does = waits
    limits = Limits(max_message_bytes=3 << 20, max_held_bytes=100_000)
    rig = made(handling, limits)
    rig.say(rig.runtime, frames.settings({INITIAL: 1000}))
    rig.kubelet.take()
    wire = framed(b"x" * ((3 << 20) - 5))
    left = {}
    for stream in (1, 3, 5):
        rig.say(rig.kubelet, rig.kubelet.headers(stream, request()))
        left[stream] = [1000 + windows(rig, stream, to_runtime=False), len(wire)]
    order: list[int] = []
    for _ in range(700):
        for stream, (window, rest) in left.items():
            size = min(window, rest, 16384)
            if size:
                rig.say(rig.kubelet, data(stream, wire[len(wire) - rest :][:size], end=size == rest))
            left[stream] = [window - size + windows(rig, stream, to_runtime=False), rest - size]
            if rest and rest == size:
                order.append(stream)
        assert rig.link.requests.taken <= 5 << 20, "one message and a window"
        if len(order) == len(handling.seen) + 1:
            await until(lambda: len(handling.seen) == len(order))
            assert windows(rig, order[-1] + 2, to_runtime=False) == 0, "the message is in memory still"
            go.set()
            await until(lambda: not rig.tasks)
            go.clear()
    assert order == [1, 3, 5], "each complete, whatever the bound, and one after the other"
    assert rig.link.requests.taken == 0


@pytest.mark.parametrize("side", ["request", "reply"])
async def test_more_than_a_stream_was_granted_ends_the_connection(handling: Handling, side: str) -> None:
    """What a peer was allowed at most, even if it had not heard of a smaller window yet, is no mistake."""
    rig = made(handling, Limits(max_held_bytes=500_000), {INITIAL: 80_000})
    rig.say(rig.runtime, frames.settings({INITIAL: 80_000}))
    rig.say(rig.runtime, frames.settings({INITIAL: 40_000}))
    rig.say(rig.kubelet, frames.settings({INITIAL: 40_000}))
    for stream in (1, 3):
        rig.say(rig.kubelet, rig.kubelet.headers(stream, request()))
        if side == "reply":
            rig.say(rig.kubelet, data(stream, framed(b"ask"), end=True))
            await begun(rig)
            rig.say(rig.runtime, rig.runtime.headers(stream, REPLY))
    peer, wire = rig.kubelet if side == "request" else rig.runtime, framed(bytes(1 << 20))
    rig.say(peer, data(1, wire[:10_000]))  # it is granted all that there is
    rig.say(peer, *[data(3, wire[start : start + 10_000]) for start in range(0, 80_000, 10_000)])
    assert not peer.closed
    rig.say(peer, data(3, b"x"))
    assert peer.closed
    (goaway,) = peer.take(frames.GOAWAY)
    assert struct.unpack(">L", goaway.payload[4:8]) == (frames.FLOW_CONTROL_ERROR,)


async def test_replies_are_bounded_over_all_calls_until_they_are_read(handling: Handling) -> None:
    """The runtime is granted nothing for further ones while kubelet does not take those that it has asked for."""
    rig = made(handling, Limits(max_held_bytes=100_000), {INITIAL: 1000})
    for stream in (1, 3, 5):
        rig.say(rig.kubelet, rig.kubelet.headers(stream, request()), data(stream, framed(b"ask"), end=True))
    await until(lambda: len(rig.runtime.connection.streams) == 3)
    granted = {stream: windows(rig, stream, to_runtime=True) for stream in (1, 3, 5)}
    assert granted[1] > 200_000
    assert not granted[3]
    assert not granted[5]
    wire = framed(b"x" * 200_000)
    rig.say(rig.runtime, rig.runtime.headers(1, REPLY))
    rig.say(rig.runtime, *[data(1, wire[each : each + 16_000]) for each in range(0, len(wire), 16_000)])
    rig.say(rig.runtime, rig.runtime.headers(1, OK, end=True))
    await until(lambda: len(rig.tasks) == 2)
    assert payload(rig.kubelet.take()) == wire[:1000]
    rig.say(rig.runtime, rig.runtime.headers(3, REPLY), data(3, wire[:1000]))
    assert windows(rig, 3, to_runtime=True) == 0
    rig.say(rig.kubelet, frames.window_update(1, 300_000), frames.window_update(0, 300_000))
    assert windows(rig, 3, to_runtime=True) > 200_000
    assert not windows(rig, 5, to_runtime=True)
    rig.break_off(rig.runtime)
    await until(lambda: not rig.tasks)
    rig.kubelet.take()
    assert rig.link.replies.taken == 0


async def test_a_reply_that_is_not_collected_any_more_is_granted_nothing(handling: Handling) -> None:
    """There is room once kubelet has given the other call up: the window of one that passes unseen is kubelet's."""
    rig = made(handling, Limits(max_held_bytes=1000), {INITIAL: 1000})
    for stream in (1, 3):
        rig.say(rig.kubelet, rig.kubelet.headers(stream, request()), data(stream, framed(b"ask"), end=True))
    await until(lambda: len(rig.runtime.connection.streams) == 2)
    rig.say(rig.runtime, rig.runtime.headers(1, REPLY), data(1, framed(b"x" * 1000)))
    rig.say(rig.runtime, rig.runtime.headers(3, REPLY), data(3, struct.pack(">BL", 1, 5) + b"?" * 5))
    rig.say(rig.kubelet, frames.rst_stream(1, frames.CANCEL))
    assert windows(rig, 1, to_runtime=True) > 0
    assert windows(rig, 3, to_runtime=True) == 0
    rig.say(rig.kubelet, frames.rst_stream(3, frames.CANCEL))
    await ended(rig)


async def test_an_error_leaves_its_room_at_once(handling: Handling) -> None:
    """To replies that wait for it, however long the handler of the call that has failed goes on."""

    async def goes_on(exchange: Exchange) -> bytes:
        try:
            return await exchange.forward(exchange.request)
        except CallError:
            return await asyncio.Event().wait()  # type: ignore[return-value]

    handling.does = goes_on
    rig = made(handling, Limits(max_held_bytes=1000), {INITIAL: 1000})
    for stream in (1, 3):
        rig.say(rig.kubelet, rig.kubelet.headers(stream, request()), data(stream, framed(b"ask"), end=True))
    await until(lambda: len(rig.runtime.connection.streams) == 2)
    assert windows(rig, 3, to_runtime=True) == 0
    rig.say(rig.runtime, rig.runtime.headers(1, [*REPLY, (b"grpc-status", b"2")], end=True))
    assert windows(rig, 3, to_runtime=True) > 0
    rig.say(rig.kubelet, *[frames.rst_stream(stream, frames.CANCEL) for stream in (1, 3)])
    await ended(rig)


async def test_a_reply_that_nobody_waits_for_any_more_is_not_kept(handling: Handling) -> None:
    """It comes whole before the handler has noticed that kubelet gave up."""
    rig = made(handling)
    rig.say(rig.kubelet, rig.kubelet.headers(1, request()), data(1, framed(b"ask"), end=True))
    await begun(rig)
    rig.say(rig.kubelet, frames.rst_stream(1, frames.CANCEL))
    rig.say(rig.runtime, rig.runtime.headers(1, REPLY), data(1, framed(b"told")))
    await ended(rig)
    assert (rig.link.requests.taken, rig.link.replies.taken) == (0, 0)


async def test_a_reply_is_granted_what_a_smaller_window_takes_away(handling: Handling) -> None:
    """kubelet makes its windows smaller while the reply is collected, which does not need them yet."""
    rig = made(handling, settings={INITIAL: 40_000})
    rig.say(rig.kubelet, rig.kubelet.headers(1, request()), data(1, framed(b"ask"), end=True))
    await begun(rig)
    assert windows(rig, 1, to_runtime=True) == 0
    rig.say(rig.kubelet, frames.settings({INITIAL: 10}))
    assert windows(rig, 1, to_runtime=True) == (1 << 20) - 10


async def test_what_is_unpacked_has_a_bound_over_all_calls(handling: Handling) -> None:
    """Few bytes may stand for many: above the bound they pass unseen, as one message that is too large does."""
    handling.does = lambda _: asyncio.Event().wait()  # type: ignore[assignment, return-value]
    rig = made(handling, Limits(max_held_bytes=3 << 20))
    packed = gzip.compress(bytes(1 << 20))
    fields = request(HELD, (b"grpc-encoding", b"gzip"))
    for stream in (1, 3, 5):
        rig.say(rig.kubelet, rig.kubelet.headers(stream, fields))
        rig.say(rig.kubelet, data(stream, struct.pack(">BL", 1, len(packed)) + packed, end=True))
    await until(lambda: len(handling.seen) == 2)
    assert {frame.stream for frame in rig.runtime.take()} == {5}
    assert rig.link.requests.taken < 3 << 20
    rig.say(rig.kubelet, *[frames.rst_stream(stream, frames.CANCEL) for stream in (1, 3, 5)])
    assert rig.link.requests.taken == 0


@pytest.fixture(autouse=True)
async def _nothing_left(handling: Handling) -> AsyncIterator[None]:
    """No handler goes on after its test."""
    yield
    for task in asyncio.all_tasks():
        if "Held" in repr(task):
            task.cancel()
