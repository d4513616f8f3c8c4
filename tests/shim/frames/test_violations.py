"""Who breaks the protocol loses its connection; all others go on."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import hpack
import pytest

from tests.shim.frames import wire
from tests.shim.frames.answering import Answering, answer_of, ask, begin, fields_of, status
from tests.shim.frames.conversations import request
from tests.shim.frames.holding import FREE, PASS, WAIT, Hands
from tests.shim.frames.peer import Peer
from tests.shim.frames.roads import Road, through
from tests.shim.frames.wire import Fields, Frame, message
from tests.support import PATIENCE, until

_UNAVAILABLE, _STREAM_CLOSED = 14, 5
BLOCK = hpack.Encoder().encode(list(request(FREE)))

BY_ANYBODY = {
    "a frame that is too long": Frame(wire.DATA, 0, 1, bytes(16385)).pack(),
    "padding longer than its frame": Frame(wire.DATA, wire.PADDED, 1, b"\x05abcd").pack(),
    "a padded frame without anything": Frame(wire.DATA, wire.PADDED, 1, b"").pack(),
    "headers padded beyond their frame": Frame(wire.HEADERS, wire.PADDED | wire.END_HEADERS, 3, b"\xff\x82").pack(),
    "priority that is cut off": Frame(wire.HEADERS, wire.PRIORITIZED | wire.END_HEADERS, 3, b"\0\0").pack(),
    "data on the connection": Frame(wire.DATA, 0, 0, b"x").pack(),
    "headers on the connection": Frame(wire.HEADERS, wire.END_HEADERS, 0, BLOCK).pack(),
    "data on a stream that nobody opened": Frame(wire.DATA, 0, 99, b"x").pack(),
    "a reset of a stream that nobody opened": wire.reset(99, wire.CANCEL).pack(),
    "a reset of the connection": wire.reset(0, wire.CANCEL).pack(),
    "a reset of three bytes": Frame(wire.RST_STREAM, 0, 1, b"\0\0\0").pack(),
    "settings of five bytes": Frame(wire.SETTINGS, 0, 0, b"\0\4\0\0\0").pack(),
    "settings for a stream": Frame(wire.SETTINGS, 0, 1, b"").pack(),
    "an answer to settings that says something": Frame(wire.SETTINGS, wire.ACK, 0, bytes(6)).pack(),
    "a window beyond what is allowed": wire.settings({wire.INITIAL_WINDOW: 1 << 31}).pack(),
    "frames smaller than allowed": wire.settings({wire.MAX_FRAME: 16383}).pack(),
    "a ping of seven bytes": Frame(wire.PING, 0, 0, b"1234567").pack(),
    "a ping for a stream": Frame(wire.PING, 0, 1, b"12345678").pack(),
    "a goodbye for a stream": wire.goaway(0, 0)._replace(stream=1).pack(),
    "a short goodbye": Frame(wire.GOAWAY, 0, 0, b"\0\0\0\0").pack(),
    "a window update of three bytes": Frame(wire.WINDOW_UPDATE, 0, 0, b"\0\0\1").pack(),
    "a window update of nothing": wire.window_update(0, 0).pack(),
    "a window of more than two gigabytes": wire.window_update(0, wire.MAX_WINDOW).pack(),
    "a header table index of nothing": Frame(wire.HEADERS, wire.END_HEADERS, 3, b"\x80").pack(),
    "a header table index beyond its end": Frame(wire.HEADERS, wire.END_HEADERS, 3, b"\xff\xff\xff\x0f").pack(),
    "a header that is cut off": Frame(wire.HEADERS, wire.END_HEADERS, 3, BLOCK[:-3]).pack(),
    "a header table that is too large": Frame(wire.HEADERS, wire.END_HEADERS, 3, b"\x3f\xe1\xff\x07" + BLOCK).pack(),
    "a continuation of nothing": Frame(wire.CONTINUATION, wire.END_HEADERS, 1, b"").pack(),
    "another frame inside a header block": Frame(wire.HEADERS, 0, 3, BLOCK).pack() + Frame(6, 0, 0, bytes(8)).pack(),
    "a continuation of another stream": Frame(wire.HEADERS, 0, 3, BLOCK).pack() + Frame(9, 4, 5, b"").pack(),
}
BY_CLIENTS = {
    "an even stream": wire.headers(4, BLOCK)[0].pack(),
    "a push": Frame(wire.PUSH_PROMISE, wire.END_HEADERS, 1, b"\0\0\0\2" + BLOCK).pack(),
}


@pytest.mark.parametrize("name", [*BY_ANYBODY, *BY_CLIENTS])
async def test_a_client_that_breaks_the_protocol(tmp_path: Path, name: str) -> None:
    """Its connection ends at both sides, and its handlers with it; another client's calls go on."""
    async with broken(tmp_path) as scene:
        await scene.client.write({**BY_ANYBODY, **BY_CLIENTS}[name])
        async with asyncio.timeout(PATIENCE):
            while not (scene.client.closed and scene.server.closed):
                await asyncio.sleep(0.005)
        assert scene.client.heard.goaways[-1][1] != wire.NO_ERROR, "a connection that ends for an error says so first"
        await until(lambda: scene.hands.cancelled == 1)


@pytest.mark.parametrize("name", BY_ANYBODY)
async def test_a_runtime_that_breaks_the_protocol(tmp_path: Path, name: str) -> None:
    """The connection on which it does so ends, and what it worked on there; what was held goes elsewhere."""
    async with broken(tmp_path) as scene:
        await scene.server.write(BY_ANYBODY[name])
        await scene.client.until(lambda: scene.client.call(0).over, "the end of what the runtime worked on")
        assert status(scene.client.call(0)) == _UNAVAILABLE
        async with asyncio.timeout(PATIENCE):
            while not scene.server.closed:
                await asyncio.sleep(0.005)
        assert scene.server.heard.goaways[-1][1] != wire.NO_ERROR
        scene.hands.go.set()
        async with Answering(await scene.road.server()):
            assert status(await answer_of(scene.client, 1)) == 0


@dataclass(frozen=True)
class Scene:
    """A client with two calls, of which one is with the runtime and one is held."""

    road: Road
    hands: Hands
    client: Peer
    server: Peer


@asynccontextmanager
async def broken(folder: Path) -> AsyncIterator[Scene]:
    """A scene in which somebody may misbehave; nothing against the rules is passed on, and a bystander is served."""
    hands = Hands()
    async with through(folder, hands.all()) as road:
        other, far = await road.connect()
        client, server = await road.connect()
        await begin(client, FREE)
        waiting = await begin(client, WAIT)
        await client.body(waiting, message(b"?"), end=True)
        await begin(other, PASS)
        await until(lambda: hands.waiting == 1)
        await server.until(lambda: bool(server.heard.calls), "the call")
        yield Scene(road, hands, client, server)
        assert (client.failure, server.failure) == (None, None)
        async with Answering(far):
            await other.body(0, message(b"still"), end=True)
            assert (await answer_of(other, 0)).data == message(b"still")
            assert status(await ask(other, FREE, b"?")) == 0


async def test_data_after_its_end_ends_the_stream_only(tmp_path: Path) -> None:
    """It is reset with STREAM_CLOSED at the client, and given up at the runtime (RFC 9113, 6.1)."""
    async with broken(tmp_path) as scene:
        await scene.client.body(0, b"", end=True)
        await scene.server.until(lambda: scene.server.call(0).ended, "the end")
        await scene.client.write(wire.data(1, b"x").pack())
        await scene.client.until(lambda: scene.client.call(0).reset is not None, "the reset")
        assert scene.client.call(0).reset == _STREAM_CLOSED
        await scene.server.until(lambda: scene.server.call(0).reset is not None, "the reset")


@pytest.mark.parametrize("first", [b"GET / HTTP/1.1\r\n\r\n", wire.PREFACE[:-1] + b"x", bytes(100)])
async def test_who_speaks_something_else(tmp_path: Path, first: bytes) -> None:
    """It is cut off."""
    async with through(tmp_path) as road:
        reader, writer = await asyncio.open_unix_connection(road.entry)
        writer.write(first)
        async with asyncio.timeout(PATIENCE):
            while await reader.read(1 << 16):
                pass
        writer.close()
        road.forget_arrived()
        client, server = await road.connect()
        async with Answering(server):
            assert status(await ask(client, FREE, b"?")) == 0


async def test_malformed_header_lists_are_not_intercepted(tmp_path: Path) -> None:
    """Two paths, or none, or one that is no path: the runtime judges, and nothing ends but the call."""
    lists = [
        (*request(FREE), (b":path", PASS.encode())),
        tuple(field for field in request(FREE) if field[0] != b":path"),
        tuple((name, b"\xff\xfe" if name == b":path" else value) for name, value in request(FREE)),
        (*request(FREE), (b"", b"")),
        ((b"a", b"b"),),
    ]
    async with through(tmp_path, Hands().all()) as road:
        other, far = await road.connect()
        for fields in lists:
            client, server = await road.connect()
            await _said(client, server, fields)
        async with Answering(far):
            assert status(await ask(other, PASS, b"?")) == 0


async def _said(client: Peer, server: Peer, fields: Fields) -> None:
    """Begin a call with `fields`, and wait until something comes of it."""
    await client.head(0, fields, end=True)
    async with asyncio.timeout(PATIENCE):
        while not (client.closed or client.call(0).over or server.heard.calls):
            await asyncio.sleep(0.005)
    assert not server.heard.calls or fields_of(server.call(0)) == fields
