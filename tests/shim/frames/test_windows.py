"""Flow control over any number of calls: nothing that is added or taken away is lost."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import pytest

from tests.shim.frames import wire
from tests.shim.frames.answering import Answering, answer_of, ask, begin, full_windows, status, windows_are
from tests.shim.frames.conversations import BEGIN
from tests.shim.frames.holding import CHANGE, FREE, OWN, PASS, REFUSE, Hands
from tests.shim.frames.peer import Manners, Peer
from tests.shim.frames.roads import through
from tests.shim.frames.wire import message

TINY = Manners(settings={wire.INITIAL_WINDOW: 64})
LEFT, CALLS = 100, 400
"""Bytes of the connections' windows, and so many calls that less than a byte lost in each is more than that."""


async def narrow(peer: Peer, other: Peer, left: int) -> None:
    """Use up what `other` takes on its connection but for a few bytes, on a call that never ends."""
    if peer.client:
        await begin(peer, FREE)
        await other.until(lambda: bool(other.heard.calls), "the call")
    else:
        await peer.head(0, BEGIN)
    room = other.judge.windows.connection - left
    await other.send(wire.window_update(other.stream(0), room))
    await peer.body(0, bytes(room))
    await other.until(lambda: len(other.call(0).data) == room, "what uses up the window")


@pytest.mark.parametrize("sizes", [(20, 500, 10, 400), (500, 20, 300, 5), (0, 1, 1, 0)])
async def test_any_number_of_held_calls_through_a_minimal_window(tmp_path: Path, sizes: tuple[int, ...]) -> None:
    """Requests and replies that grow and shrink under way never stall, and leave the windows as they were."""
    asked, sent, answered, got = sizes
    hands = Hands(request=b"s" * sent, reply=b"g" * got)

    async def answer(server: Peer, call: int) -> None:
        await server.head(call, ((b":status", b"200"), (b"content-type", b"application/grpc")))
        await server.body(call, message(b"a" * answered))
        await server.head(call, ((b"grpc-status", b"0"),), end=True)

    async with through(tmp_path, hands.all()) as road:
        client, server = await road.connect(TINY, TINY)
        full = await full_windows(client, server)
        for peer, other in ((client, server), (server, client)):
            other.manners = Manners(grants=None)
            await narrow(peer, other, LEFT)
            other.manners = TINY
        async with Answering(server, answer):
            for _ in range(CALLS):
                assert (await ask(client, CHANGE, b"q" * asked)).data == message(hands.reply)
        assert (client.judge.windows.connection, server.judge.windows.connection) == (LEFT, LEFT)
        for peer in (client, server):
            await peer.send(wire.settings({wire.INITIAL_WINDOW: wire.WINDOW}), wire.window_update(0, wire.WINDOW))
            peer.manners = Manners()
        await windows_are(client, server, full)


@pytest.mark.parametrize("seed", range(3))
async def test_windows_are_conserved_whatever_happens(tmp_path: Path, seed: int) -> None:
    """Passed, changed, refused, answered, cancelled at any point, eight at a time: the sum stays what it was."""
    chance = random.Random(seed)  # noqa: S311 - a test's
    hands = Hands(request=b"s" * 3000, reply=b"g" * 2000)
    async with through(tmp_path, hands.all()) as road:
        client, server = await road.connect(Manners(grants=777), Manners(grants=333))
        full = await full_windows(client, server)
        async with Answering(server):
            for _ in range(30):
                calls = [await _some(client, chance) for _ in range(8)]
                await asyncio.gather(*(_finish(client, call, chance) for call in calls))
        await windows_are(client, server, full)


async def _some(client: Peer, chance: random.Random) -> int:
    return await begin(client, chance.choice((PASS, CHANGE, REFUSE, OWN, FREE)))


async def _finish(client: Peer, call: int, chance: random.Random) -> None:
    content = message(b"q" * chance.choice((0, 10, 5000, 40_000)))
    pad = chance.choice((None, None, 0, 200))
    if chance.random() < 0.3:
        await client.body(call, content[: chance.randrange(len(content) + 1)], pad=pad)
        await client.send(wire.reset(client.stream(call), wire.CANCEL))
        return
    await client.body(call, content, end=True, pad=pad, most=chance.choice((100, 9000)))
    if chance.random() < 0.2:
        await client.send(wire.reset(client.stream(call), wire.CANCEL))
        return
    assert status(await answer_of(client, call)) in {0, 8}


async def test_a_held_message_needs_no_more_window_than_there_is(tmp_path: Path) -> None:
    """A message of many times the window is collected, and sent to a runtime whose window is small."""
    hands = Hands()
    async with through(tmp_path, hands.all()) as road:
        client, server = await road.connect(TINY, Manners(settings={wire.INITIAL_WINDOW: 1000}))
        async with Answering(server):
            for path in (PASS, CHANGE):
                assert status(await ask(client, path, b"q" * 300_000)) == 0
        assert server.call(0).data == message(b"q" * 300_000)


async def test_a_window_that_shrinks_holds_for_what_is_under_way(tmp_path: Path) -> None:
    """The runtime's acknowledged settings are kept to, though kubelet has not read of them yet, and nothing is lost."""
    async with through(tmp_path) as road:
        client, server = await road.connect(server=Manners(grants=None))
        full = await full_windows(client, server)
        await begin(client, FREE)
        await server.until(lambda: bool(server.heard.calls), "the call")
        client.pause()
        await server.send(wire.settings({wire.INITIAL_WINDOW: 1000}))
        await server.until(lambda: not server.judge.pending, "the acknowledgement")
        await client.body(0, b"q" * 5000, end=True)
        await server.until(lambda: len(server.call(0).data) == 1000, "what the window lets through")
        for step in (1, 999, 3000):
            await server.send(wire.window_update(server.stream(0), step))
            await server.until(lambda: server.judge.windows.of(1) == 0, "what the window lets through then")
        assert server.call(0).data == b"q" * 5000
        assert server.call(0).ended
        client.resume()
        await server.send(wire.window_update(0, 5000))
        await server.head(0, ((b":status", b"200"), (b"grpc-status", b"0")), end=True)
        server.manners = Manners()
        await windows_are(client, server, full)
