"""Calls that end otherwise than well: cancelled, late, reset, and cut off with their connection."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.shim.frames import wire
from tests.shim.frames.answering import Answering, answer_of, ask, begin, fields_of, full_windows, status, windows_are
from tests.shim.frames.conversations import BEGIN, OK
from tests.shim.frames.holding import CHANGE, FREE, PASS, WAIT, Hands
from tests.shim.frames.peer import Peer
from tests.shim.frames.roads import Road, through
from tests.shim.frames.wire import message
from tests.support import until

UNAVAILABLE, DEADLINE_EXCEEDED = 14, 4


async def hold(client: Peer, path: str = WAIT, *more: tuple[bytes, bytes]) -> int:
    """Begin a call and ask all of it; returns its number."""
    call = await begin(client, path, *more)
    await client.body(call, message(b"held"), end=True)
    return call


async def test_a_cancelled_call_cancels_its_handler(tmp_path: Path) -> None:
    """The runtime never hears of it, and the connection goes on."""
    hands = Hands()
    async with through(tmp_path, hands.all()) as road:
        client, server = await road.connect()
        async with Answering(server):
            call = await hold(client)
            await until(lambda: hands.waiting == 1)
            await client.send(wire.reset(client.stream(call), wire.CANCEL))
            await until(lambda: hands.cancelled == 1)
            assert status(await ask(client, PASS, b"?")) == 0
        assert all(call.reset is not None or call.data == message(b"?") for call in server.heard.calls.values())


async def test_cancelled_before_its_message_was_whole(tmp_path: Path) -> None:
    """No handler is asked, and every window is what it was."""
    hands = Hands()
    async with through(tmp_path, hands.all()) as road:
        client, server = await road.connect()
        full = await full_windows(client, server)
        for _ in range(20):
            call = await begin(client, CHANGE)
            await client.body(call, message(b"x" * 30_000)[:-1])
            await client.send(wire.reset(client.stream(call), wire.CANCEL))
        async with Answering(server):
            assert status(await ask(client, FREE, b"?")) == 0
            assert not hands.seen
        await windows_are(client, server, full)


async def test_cancelled_at_the_runtime(tmp_path: Path) -> None:
    """A cancellation that comes after the handler has let the call through reaches runtime and handler."""
    hands = Hands()
    async with through(tmp_path, hands.all()) as road:
        client, server = await road.connect()
        call = await hold(client, PASS)
        await server.until(lambda: bool(server.heard.calls) and server.call(0).ended, "the call")
        await client.send(wire.reset(client.stream(call), wire.CANCEL))
        await server.until(lambda: server.call(0).reset == wire.CANCEL, "the reset")
        await until(lambda: hands.cancelled + len(hands.errors) == 1)


CODES = {
    wire.REFUSED_STREAM: {14},
    wire.CANCEL: {1},
    wire.INTERNAL_ERROR: {13},
    wire.NO_ERROR: {13, 2},
    0xB: {8},
    0xC: {7},
}
"""gRPC's status for what a stream was reset with (PROTOCOL-HTTP2.md, "Errors")."""


@pytest.mark.parametrize("code", CODES)
@pytest.mark.parametrize("after", range(3))
async def test_reset_by_the_runtime(tmp_path: Path, code: int, after: int) -> None:
    """At any frame of its answer, a held call that the runtime resets ends for the handler, and for kubelet."""
    hands = Hands()

    async def answer(server: Peer, call: int) -> None:
        if after > 0:
            await server.head(call, BEGIN)
        if after > 1:
            await server.body(call, message(b"half")[:-1])
        await server.send(wire.reset(server.stream(call), code))

    async with through(tmp_path, hands.all()) as road:
        client, server = await road.connect()
        async with Answering(server, answer):
            heard = await answer_of(client, await hold(client, PASS))
        assert hands.errors[0].code.value[0] in CODES[code]
        assert heard.reset == code or status(heard) in CODES[code]
        async with Answering(server):
            assert status(await ask(client, PASS, b"?")) == 0


async def test_a_deadline_bounds_the_handler(tmp_path: Path) -> None:
    """kubelet gets DEADLINE_EXCEEDED though the handler goes on waiting, and the handler is cancelled."""
    hands = Hands()
    async with through(tmp_path, hands.all()) as road:
        client, server = await road.connect()
        heard = await answer_of(client, await hold(client, WAIT, (b"grpc-timeout", b"1S")))
        assert status(heard) == DEADLINE_EXCEEDED
        await until(lambda: hands.cancelled == 1)
        async with Answering(server):
            assert status(await ask(client, PASS, b"?")) == 0
        assert len(server.heard.calls) == 1


async def test_a_deadline_bounds_the_runtime(tmp_path: Path) -> None:
    """A runtime that does not answer a held call in time is told to stop, and kubelet gets a status."""
    async with through(tmp_path, Hands().all()) as road:
        client, server = await road.connect()
        heard = await answer_of(client, await hold(client, PASS, (b"grpc-timeout", b"1S")))
        assert status(heard) == DEADLINE_EXCEEDED
        await server.until(lambda: server.call(0).reset == wire.CANCEL, "the reset")


@pytest.mark.parametrize(
    ("said", "seconds"),
    [(b"1H", 3600), (b"2M", 120), (b"90S", 90), (b"120000m", 120), (b"99999999u", 100), (b"99999999n", 0.1)],
)
async def test_what_is_left_of_the_deadline_goes_on(tmp_path: Path, said: bytes, seconds: float) -> None:
    """In any of gRPC's units; the handler is told too."""
    hands = Hands()
    async with through(tmp_path, hands.all()) as road:
        client, server = await road.connect()
        async with Answering(server):
            heard = await answer_of(client, await hold(client, PASS, (b"grpc-timeout", said)))
        if status(heard) == DEADLINE_EXCEEDED and seconds < 1:
            return  # a busy machine
        left = dict(fields_of(server.call(0)))[b"grpc-timeout"]
        units = {b"H": 3600.0, b"M": 60.0, b"S": 1.0, b"m": 1e-3, b"u": 1e-6, b"n": 1e-9}
        assert 0 < int(left[:-1]) * units[left[-1:]] <= seconds
        assert len(left) <= 9
        told = hands.seen[0].seconds_left
        assert told is not None
        assert 0 < told <= seconds


@pytest.mark.parametrize("said", [b"", b"5", b"m", b"-5S", b"1.5S", b"5x", b"123456789S", b"\xff"])
async def test_a_deadline_that_is_none(tmp_path: Path, said: bytes) -> None:
    """The runtime, or a status, tells kubelet; nothing hangs or ends besides."""
    async with through(tmp_path, Hands().all()) as road:
        client, server = await road.connect()
        async with Answering(server):
            assert (await answer_of(client, await hold(client, PASS, (b"grpc-timeout", said)))).over
            assert status(await ask(client, PASS, b"?")) == 0


async def test_kubelet_breaks_off(tmp_path: Path) -> None:
    """Handlers are cancelled and the runtime's connection ends; other connections go on."""
    hands = Hands()
    async with through(tmp_path, hands.all()) as road:
        client, server = await road.connect()
        other, far = await road.connect()
        await hold(client)
        await hold(client, FREE)
        await until(lambda: hands.waiting == 1)
        await client.close()
        await server.until(lambda: server.closed or any(call.reset is not None for call in server.heard.calls.values()))
        await until(lambda: server.closed)
        await until(lambda: hands.cancelled == 1)
        async with Answering(far):
            assert status(await ask(other, PASS, b"?")) == 0


@pytest.mark.parametrize("half", [True, False])
async def test_the_runtime_breaks_off(tmp_path: Path, half: bool) -> None:
    """What was with the runtime ends as UNAVAILABLE, in the middle of an answer too; what was not goes elsewhere."""
    hands = Hands()
    async with through(tmp_path, hands.all()) as road:
        client, server = await road.connect()
        other, far = await road.connect()
        waiting, *calls = [await hold(client, path) for path in (WAIT, PASS, FREE)]
        await server.until(lambda: len(server.heard.calls) == 2 and server.call(1).ended, "both calls")
        if half:
            for call in (0, 1):
                await server.head(call, BEGIN)
                await server.body(call, message(b"half")[:-1])
        await server.close()
        for call in calls:
            await _ends_unavailable(client, call)
        await until(lambda: len(hands.errors) + hands.cancelled >= 1)
        await _goes_elsewhere(road, hands, client, waiting)
        async with Answering(far):
            assert status(await ask(other, PASS, b"?")) == 0


async def _goes_elsewhere(road: Road, hands: Hands, client: Peer, call: int) -> None:
    """Let a call go on that was still held: another connection to the runtime takes it."""
    hands.go.set()
    async with Answering(await road.server()):
        assert status(await answer_of(client, call)) == 0


async def _ends_unavailable(client: Peer, call: int) -> None:
    """Wait until a call has ended in a way that grpc-go takes for UNAVAILABLE, or has lost its connection."""

    def ended() -> bool:
        return client.closed or client.call(call).over

    await client.until(ended, f"the end of call {call}")
    heard = client.call(call)
    if heard.ended:
        assert status(heard) == UNAVAILABLE
    elif heard.reset is not None:
        assert heard.reset == wire.REFUSED_STREAM, "another reset is not UNAVAILABLE to a client"
    else:
        assert client.closed


async def test_without_a_runtime_calls_fail_at_once_and_later_work(tmp_path: Path) -> None:
    """UNAVAILABLE while nobody listens, held or not; a connection made afterwards works."""
    hands = Hands()
    async with through(tmp_path, hands.all()) as road:
        (tmp_path / "server.sock").rename(tmp_path / "away.sock")
        client = await road.client()
        for path in (FREE, PASS, FREE):
            if client.closed:
                client = await road.client()
            call = await begin(client, path)
            await client.body(call, message(b"?"), end=True)
            await _ends_unavailable(client, call)
        (tmp_path / "away.sock").rename(tmp_path / "server.sock")
        client, server = await road.connect()
        async with Answering(server):
            assert status(await ask(client, PASS, b"?")) == 0


async def test_a_goodbye_of_the_runtime_ends_nothing_that_runs(tmp_path: Path) -> None:
    """Held and other calls that it still works on are answered; one that it has not seen goes elsewhere."""
    hands = Hands()
    async with through(tmp_path, hands.all()) as road:
        client, server = await road.connect()
        waiting = await hold(client)
        await until(lambda: hands.waiting == 1)
        held = [await hold(client, path) for path in (PASS, FREE)]
        await server.until(lambda: len(server.heard.calls) == 2 and server.call(1).ended, "both calls")
        await server.send(wire.goaway(max(server.heard.calls), wire.NO_ERROR))
        await client.until(lambda: bool(client.heard.goaways), "a goodbye")
        for call in (0, 1):
            await server.head(call, BEGIN)
            await server.body(call, message(b"late"))
            await server.head(call, OK, end=True)
        for call in held:
            assert (await answer_of(client, call)).data == message(b"late")
        await _goes_elsewhere(road, hands, client, waiting)


async def test_a_drain_finishes_what_runs(tmp_path: Path) -> None:
    """After stop_accepting and drain, calls that run are answered, the client is told goodbye, and all ends."""
    hands = Hands()
    async with through(tmp_path, hands.all()) as road:
        assert road.transport is not None
        client, server = await road.connect()
        calls = [await hold(client, path) for path in (WAIT, FREE)]
        await until(lambda: hands.waiting == 1)
        await server.until(lambda: bool(server.heard.calls) and server.call(0).ended, "the call")
        road.transport.stop_accepting()
        draining = asyncio.create_task(road.transport.drain(20))
        await client.until(lambda: bool(client.heard.goaways), "a goodbye")
        assert client.heard.goaways[0][1] == wire.NO_ERROR
        async with Answering(server):
            hands.go.set()
            await server.head(0, BEGIN)
            await server.body(0, message(b"held"))
            await server.head(0, OK, end=True)
            for call in calls:
                heard = await answer_of(client, call)
                assert heard.data == message(b"held")
                assert status(heard) == 0
        assert await draining
        await until(lambda: client.closed and server.closed)


async def test_a_drain_has_a_bound(tmp_path: Path) -> None:
    """What does not end in time is broken off, and drain says so."""
    async with through(tmp_path, Hands().all()) as road:
        assert road.transport is not None
        client, server = await road.connect()
        await hold(client, FREE)
        await server.until(lambda: bool(server.heard.calls) and server.call(0).ended, "the call")
        road.transport.stop_accepting()
        assert not await road.transport.drain(0.2)
        await road.transport.close()
        await until(lambda: client.closed and server.closed)
