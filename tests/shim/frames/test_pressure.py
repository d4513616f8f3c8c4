"""Who sends more than the other side takes is made to wait: what the transport keeps in memory has a bound."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import hpack
import pytest

from qrm.shim.transport import Limits
from tests.shim.frames import wire
from tests.shim.frames.answering import Answering, answer_of, ask, begin, status
from tests.shim.frames.conversations import BEGIN, MIB, request
from tests.shim.frames.holding import CHANGE, FREE, PASS, WAIT, Hands
from tests.shim.frames.peer import Manners, Peer
from tests.shim.frames.roads import through
from tests.shim.frames.wire import Frame, message
from tests.support import until

WIDE = Manners(settings={wire.INITIAL_WINDOW: wire.MAX_WINDOW}, widen=wire.MAX_WINDOW - wire.WINDOW, grants=None)
BOUND = 12 * MIB
"""Far more than the buffers of four sockets and of the transport; far less than what is sent."""
MUCH, FLOOD = 32 * MIB, 4 * MIB
_HELD_UP = 1.0
"""Seconds in which nothing is taken after which a sender counts as held up."""


async def pushed(peer: Peer, make: Callable[[], bytes], most: int = MUCH) -> int:
    """Write what `make` gives until no more is taken, or the connection ends; returns the bytes taken."""
    total = 0
    try:
        while total < most:
            content = make()
            async with asyncio.timeout(_HELD_UP):
                await peer.write(content)
                await asyncio.sleep(0)
            if peer.closed or peer.broken:
                break
            total += len(content)
    except TimeoutError:
        pass
    return total


@pytest.mark.parametrize("side", ["client", "server"])
async def test_data_waits_for_who_does_not_read(tmp_path: Path, side: str) -> None:
    """With windows open wide, a sender is held up by the transport, and goes on when the reader does."""
    async with through(tmp_path) as road:
        client, server = await road.connect(WIDE, WIDE)
        await begin(client, FREE)
        await server.until(lambda: bool(server.heard.calls), "the call")
        await server.head(0, BEGIN)
        sender, reader = (client, server) if side == "client" else (server, client)
        reader.pause()
        with suppress(TimeoutError):
            async with asyncio.timeout(2 * _HELD_UP):
                await sender.body(0, bytes(MUCH))
        taken = len(sender.sent.calls[sender.stream(0)].data)
        assert 0 < taken < BOUND
        reader.resume()
        await reader.until(lambda: len(reader.call(0).data) == taken, "what was held up")
        assert not sender.broken


@pytest.mark.parametrize(
    "frame",
    [
        Frame(wire.PING, 0, 0, b"12345678"),
        wire.settings({wire.INITIAL_WINDOW: 1}),
        wire.settings({}),
        Frame(0xFA, 0, 0, bytes(1000)),
    ],
    ids=["ping", "settings", "empty settings", "unknown"],
)
async def test_a_flood_of_small_frames_is_held_up(tmp_path: Path, frame: Frame) -> None:
    """Frames that ask for answers do not pile up answers while the client reads none."""
    async with through(tmp_path, limits=Limits(buffer_bytes=MIB // 8)) as road:
        client, server = await road.connect()
        other, far = await road.connect()
        await begin(client, FREE)
        await server.until(lambda: bool(server.heard.calls), "the call")
        client.pause()
        server.pause()
        many = frame.pack() * 1000
        assert await pushed(client, lambda: many, FLOOD) < FLOOD
        async with Answering(far):
            assert status(await ask(other, FREE, b"?")) == 0


@pytest.mark.parametrize("path", [FREE, PASS, WAIT])
async def test_a_flood_of_calls_that_are_given_up_is_held_up(tmp_path: Path, path: str) -> None:
    """Calls that are opened and reset at once cost no memory for long; a runtime that reads nothing holds them up."""
    hands = Hands()
    async with through(tmp_path, hands.all()) as road:
        client, server = await road.connect()
        other, far = await road.connect()
        server.pause()
        block, streams = hpack.Encoder().encode(list(request(path))), itertools.count(1, 2)

        def hundred() -> bytes:
            return b"".join(_given_up(next(streams), block) for _ in range(100))

        most = 2 * MIB if path == FREE else MIB // 4
        taken = await pushed(client, hundred, most)
        assert taken < most or path != FREE
        async with Answering(far):
            assert status(await ask(other, FREE, b"?")) == 0
        await until(lambda: not hands.waiting)


def _given_up(stream: int, block: bytes) -> bytes:
    parts = (*wire.headers(stream, block), wire.data(stream, message(b"?"), end=True), wire.reset(stream, wire.CANCEL))
    return b"".join(part.pack() for part in parts)


@pytest.mark.parametrize("part", [b"\x00\x01a\x01b" * 3000, b""], ids=["bytes", "frames"])
async def test_an_endless_header_list_ends_the_connection(tmp_path: Path, part: bytes) -> None:
    """A header block has a limit, by its bytes as by the number of its frames."""
    async with through(tmp_path) as road:
        client, server = await road.connect()
        await client.write(Frame(wire.HEADERS, 0, 1, b"").pack())
        more = Frame(wire.CONTINUATION, 0, 1, part).pack() * (1 if part else 1000)
        assert await pushed(client, lambda: more, BOUND) < BOUND
        await until(lambda: client.closed)
        assert not server.heard.calls


async def test_held_messages_have_a_bound_together(tmp_path: Path) -> None:
    """Many calls that are asked without end: the client is not given window for all they would be."""
    limits = Limits(max_message_bytes=MIB, max_held_bytes=2 * MIB)
    async with through(tmp_path, Hands().all(), limits) as road:
        client, _server = await road.connect(Manners(), Manners(grants=None))
        total = 0
        with suppress(TimeoutError):
            for call in range(100):
                await begin(client, CHANGE)
                content = message(bytes(MIB))[:-1]
                async with asyncio.timeout(_HELD_UP):
                    await client.body(call, content)
                total += len(content)
        assert total < BOUND


async def test_slow_calls_hold_up_no_others(tmp_path: Path) -> None:
    """While large held calls wait for their handlers, small ones go through."""
    hands = Hands()
    async with through(tmp_path, hands.all()) as road:
        client, server = await road.connect()
        async with Answering(server):
            held = []
            for _ in range(4):
                call = await begin(client, WAIT)
                await client.body(call, message(b"q" * MIB), end=True)
                held.append(call)
            for _ in range(20):
                assert status(await ask(client, FREE, b"?")) == 0
                assert status(await ask(client, PASS, b"?" * 30_000)) == 0
            hands.go.set()
            for call in held:
                assert len((await answer_of(client, call)).data) == MIB + 5
