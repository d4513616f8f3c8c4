"""A held call's message in every shape in which it may come, and those that are none."""

from __future__ import annotations

import gzip
import zlib
from pathlib import Path

import pytest

from qrm.shim.transport import Limits
from tests.shim.frames import wire
from tests.shim.frames.answering import Answering, answer_of, ask, begin, fields_of, full_windows, status, windows_are
from tests.shim.frames.conversations import BEGIN, MIB, OK, request
from tests.shim.frames.holding import CHANGE, FREE, PASS, Hands
from tests.shim.frames.peer import Manners, Peer
from tests.shim.frames.roads import through
from tests.shim.frames.wire import message

CONTENT = b"hello"
GZIP = (b"grpc-encoding", b"gzip")


@pytest.mark.parametrize("cut", range(1, len(message(CONTENT)) + 1))
@pytest.mark.parametrize("pad", [None, 0, 77])
async def test_cut_anywhere(tmp_path: Path, cut: int, pad: int | None) -> None:
    """A message in frames of any size, its end with the last of them or in one of its own, padded or not."""
    hands = Hands()
    async with through(tmp_path, hands.all()) as road:
        client, server = await road.connect()
        full = await full_windows(client, server)
        async with Answering(server):
            for alone in (False, True):
                call = await begin(client, PASS)
                await client.body(call, message(CONTENT), most=cut, end=not alone, pad=pad)
                if alone:
                    await client.body(call, b"", end=True, pad=pad)
                assert (await answer_of(client, call)).data == message(CONTENT)
        assert [bytes(call.data) for call in server.heard.calls.values()] == [message(CONTENT)] * 2
        await windows_are(client, server, full)


async def test_one_byte_at_a_time(tmp_path: Path) -> None:
    """Both ends write single bytes, and let each other send single bytes."""
    slow = Manners(settings={wire.INITIAL_WINDOW: 1}, piece=1)
    async with through(tmp_path, Hands(b"changed", b"reply").all()) as road:
        client, server = await road.connect(slow, slow)
        async with Answering(server):
            heard = await ask(client, CHANGE, CONTENT)
        assert heard.data == message(b"reply")
        assert server.call(0).data == message(b"changed")


async def test_a_compressed_message_is_understood(tmp_path: Path) -> None:
    """The handler sees what is in it, and the runtime can read what goes on."""
    hands = Hands(request=b"changed" * 100)
    squeezed = gzip.compress(CONTENT * 1000)
    async with through(tmp_path, hands.all()) as road:
        client, server = await road.connect()

        async def answer(server: Peer, call: int) -> None:
            await server.head(call, BEGIN)
            await server.body(call, message(b"fine"))
            await server.head(call, OK, end=True)

        async with Answering(server, answer):
            for path in (PASS, CHANGE):
                call = await begin(client, path, GZIP)
                await client.body(call, message(squeezed, compressed=True), end=True)
                assert status(await answer_of(client, call)) == 0
        assert [each.request for each in hands.seen] == [CONTENT * 1000] * 2
        assert [plain(server, call) for call in (0, 1)] == [CONTENT * 1000, hands.request]
        assert hands.replies == [b"fine"] * 2


def plain(server: Peer, call: int) -> bytes:
    """A call's message, by what its header list says of its encoding."""
    heard = server.call(call)
    squeezed, content = heard.data[0], bytes(heard.data[5:])
    assert int.from_bytes(heard.data[1:5], "big") == len(content)
    if not squeezed:
        return content
    assert dict(fields_of(heard))[b"grpc-encoding"] == b"gzip"
    return gzip.decompress(content)


async def test_a_compressed_reply_is_understood(tmp_path: Path) -> None:
    """The handler sees what is in it, and kubelet can read what it gets."""
    hands, squeezed = Hands(), gzip.compress(b"reply" * 1000)

    async def answer(server: Peer, call: int) -> None:
        await server.head(call, (*BEGIN, GZIP))
        await server.body(call, message(squeezed, compressed=True))
        await server.head(call, OK, end=True)

    async with through(tmp_path, hands.all()) as road:
        client, server = await road.connect()
        async with Answering(server, answer):
            heard = await ask(client, PASS, b"?", (b"grpc-accept-encoding", b"identity,gzip"))
        assert hands.replies == [b"reply" * 1000]
        content = bytes(heard.data[5:])
        assert (gzip.decompress(content) if heard.data[0] else content) == b"reply" * 1000
        assert not heard.data[0] or dict(fields_of(heard))[b"grpc-encoding"] == b"gzip"


async def test_an_encoding_that_we_do_not_know_passes(tmp_path: Path) -> None:
    """What we cannot read goes to the runtime as it is."""
    squeezed = message(zlib.compress(CONTENT), compressed=True)
    async with through(tmp_path, Hands().all()) as road:
        client, server = await road.connect()
        async with Answering(server):
            call = await begin(client, CHANGE, (b"grpc-encoding", b"deflate"))
            await client.body(call, squeezed, end=True)
            assert (await answer_of(client, call)).data == squeezed
        assert server.call(0).data == squeezed


async def test_a_bomb_does_not_burst(tmp_path: Path) -> None:
    """A small message that would become very large is passed on or refused, not unpacked; others go on."""
    bomb = message(gzip.compress(bytes(48 * MIB)), compressed=True)
    hands = Hands()
    async with through(tmp_path, hands.all()) as road:
        client, server = await road.connect()
        async with Answering(server):
            call = await begin(client, CHANGE, GZIP)
            await client.body(call, bomb, end=True)
            heard = await answer_of(client, call)
            assert not hands.seen
            assert status(heard) == 8 or server.call(0).data == bomb
            assert status(await ask(client, PASS, b"?")) == 0


@pytest.mark.parametrize("ending", [True, False])
async def test_a_message_beyond_the_limit(tmp_path: Path, ending: bool) -> None:
    """It passes untouched or is refused, by no handler; the connection's windows are what they were."""
    hands = Hands()
    async with through(tmp_path, hands.all(), Limits(max_message_bytes=1000)) as road:
        client, server = await road.connect()
        full = await full_windows(client, server)
        async with Answering(server):
            for size in (1000, 1001, 200_000):
                call = await begin(client, CHANGE)
                await client.body(call, message(b"b" * size), end=ending)
                if not ending:
                    await client.body(call, b"", end=True)
                heard = await answer_of(client, call)
                if size > 1000:
                    refused = heard.ended and len(heard.heads) == 1 and status(heard) == 8
                    assert refused or heard.data == message(b"b" * size)
            assert [each.request for each in hands.seen] == [b"b" * 1000]
            assert status(await ask(client, FREE, b"?")) == 0
        await windows_are(client, server, full)


MALFORMED = {
    "nothing at all": b"",
    "half a prefix": b"\0\0\0",
    "less than it says": message(b"abcdef")[:-1],
    "a flag that is none": b"\x05" + message(b"one")[1:],
    "compressed by its flag only": message(b"one", compressed=True),
    "longer than there is memory": b"\0\xff\xff\xff\xff" + b"x" * 100,
}


@pytest.mark.parametrize("name", MALFORMED)
async def test_what_is_no_message_is_the_runtimes_to_refuse(tmp_path: Path, name: str) -> None:
    """It goes on untouched, or gets a status; the handler is not asked, and the call ends."""
    hands, content = Hands(), MALFORMED[name]
    async with through(tmp_path, hands.all()) as road:
        client, server = await road.connect()
        full = await full_windows(client, server)
        async with Answering(server):
            for more in ((), (GZIP,)):
                call = await begin(client, CHANGE, *more)
                await client.body(call, content, end=True)
                heard = await answer_of(client, call)
                if heard.data != content or len(heard.heads) == 1:
                    assert status(heard) > 0
            assert not hands.seen
            assert status(await ask(client, PASS, b"?")) == 0
        await windows_are(client, server, full)


async def test_headers_alone_are_no_message(tmp_path: Path) -> None:
    """A call that ends with its header list goes on, or gets a status."""
    hands = Hands()
    async with through(tmp_path, hands.all()) as road:
        client, server = await road.connect()
        async with Answering(server):
            await client.head(0, request(CHANGE), end=True)
            assert (await answer_of(client, 0)).over
            assert status(await ask(client, PASS, b"?")) == 0
        assert len(hands.seen) == 1


@pytest.mark.parametrize("more", [b"x", message(b"two"), bytes(300_000)])
@pytest.mark.parametrize("together", [True, False])
async def test_what_comes_after_the_message_is_not_waited_for(tmp_path: Path, more: bytes, together: bool) -> None:
    """A unary call has one: the rest is dropped as gRPC's servers do, or goes on with it, and windows stay whole."""
    hands = Hands()
    async with through(tmp_path, hands.all()) as road:
        client, server = await road.connect()
        full = await full_windows(client, server)
        async with Answering(server):
            call = await begin(client, PASS)
            if together:
                await client.body(call, message(b"one") + more, end=True)
            else:
                await client.body(call, message(b"one"))
                await client.body(call, more, end=True)
            assert (await answer_of(client, call)).data[:8] == message(b"one")
        await windows_are(client, server, full)
