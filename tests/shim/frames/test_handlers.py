"""With interception on: what a handler passes, changes, answers or refuses is what both ends get."""

from __future__ import annotations

import asyncio
from pathlib import Path

import grpc
import pytest

from tests.shim.frames import wire
from tests.shim.frames.answering import (
    Answering,
    answer_of,
    ask,
    begin,
    fields_of,
    full_windows,
    heads,
    status,
    windows_are,
)
from tests.shim.frames.conversations import BEGIN, MIB, NO_METHOD, request
from tests.shim.frames.holding import BREAK, CHANGE, DETAILS, FREE, OWN, PASS, REFUSE, WAIT, Hands
from tests.shim.frames.peer import Manners, Peer
from tests.shim.frames.roads import through
from tests.shim.frames.wire import message

SIZES = [0, 1, 100, 16384, 65535, 65536, MIB, 16 * MIB - 5, 16 * MIB]
MORE = (
    (b"traceparent", b"00-4bf9"),
    (b"blob-bin", b"AP8"),
    (b"x-long", b"y" * 8192),
    (b"twice", b"1"),
    (b"twice", b"2"),
)


@pytest.mark.parametrize("size", SIZES)
async def test_a_held_message_of_any_size_arrives(tmp_path: Path, size: int) -> None:
    """The handler sees the message whole, and so do runtime and kubelet, with all metadata."""
    hands, content = Hands(), bytes(range(256)) * (size // 256) + b"z" * (size % 256)
    async with through(tmp_path, hands.all()) as road:
        client, server = await road.connect()
        async with Answering(server):
            heard = await ask(client, PASS, content, *MORE)
        assert hands.seen[0].request == hands.replies[0] == content
        assert server.call(0).data == heard.data == message(content)
        assert status(heard) == 0
        assert [field for field in fields_of(server.call(0)) if field in MORE] == list(MORE)
        assert set(request(PASS, *MORE)) <= set(fields_of(server.call(0)))


@pytest.mark.parametrize(("asked", "sent"), [(0, 300_000), (300_000, 0), (300_000, 299_999), (5, 6), (6, 5)])
async def test_changed_messages_go_on(tmp_path: Path, asked: int, sent: int) -> None:
    """Longer and shorter than they were, and every window is what it was before."""
    hands = Hands(request=b"r" * sent, reply=b"R" * (sent * 2))
    async with through(tmp_path, hands.all()) as road:
        client, server = await road.connect()
        full = await full_windows(client, server)
        async with Answering(server):
            for _ in range(5):
                heard = await ask(client, CHANGE, b"a" * asked)
                assert heard.data == message(hands.reply)
        assert all(call.data == message(hands.request) for call in server.heard.calls.values())
        await windows_are(client, server, full)


async def test_a_refusal_never_reaches_the_runtime(tmp_path: Path) -> None:
    """It is one header list with status, text and metadata; other calls on the connection know nothing of it."""
    hands = Hands()
    async with through(tmp_path, hands.all()) as road:
        client, server = await road.connect()
        async with Answering(server):
            for turn in range(3):
                heard = await ask(client, REFUSE, b"too much", *MORE)
                assert len(heard.heads) == 1
                assert not heard.data
                said = heads(heard)[0]
                assert said[b":status"] == b"200"
                assert said[b"grpc-status"] == b"8"
                assert said[b"grpc-message"].decode() == DETAILS.replace("%", "%25").replace("ä", "%C3%A4").replace(
                    "\n", "%0A"
                )
                assert said[b"reason"] == b"no CPUs"
                assert said[b"grpc-status-details-bin"].rstrip(b"=") == b"CAX/"
                assert dict(heard.heads[0][1])[b"content-type"].startswith(b"application/grpc")
                assert (await ask(client, FREE, b"%d" % turn)).data == message(b"%d" % turn)
        assert len(server.heard.calls) == 3


async def test_a_handler_may_answer_by_itself(tmp_path: Path) -> None:
    """Its reply is a whole answer, and the runtime hears nothing."""
    hands = Hands(reply=b"own" * 40_000)
    async with through(tmp_path, hands.all()) as road:
        client, server = await road.connect()
        heard = await ask(client, OWN, b"?")
        assert heard.data == message(hands.reply)
        assert status(heard) == 0
        assert len(heard.heads) == 2
        assert not server.heard.calls


async def test_a_mistake_in_a_handler_ends_its_call_only(tmp_path: Path) -> None:
    """The call gets a status, and the next one is served."""
    async with through(tmp_path, Hands().all()) as road:
        client, server = await road.connect()
        async with Answering(server):
            assert status(await ask(client, BREAK, b"?")) in {2, 13}
            assert status(await ask(client, PASS, b"?")) == 0


async def test_what_is_held_delays_nothing_else(tmp_path: Path) -> None:
    """Calls that came later overtake, and the held ones arrive when their handlers let them."""
    hands = Hands()
    async with through(tmp_path, hands.all()) as road:
        client, server = await road.connect()
        async with Answering(server):
            held = [await begin(client, WAIT, (b"number", b"%d" % each)) for each in range(10)]
            for call in held:
                await client.body(call, message(b"held %d" % call), end=True)
            for turn in range(50):
                assert status(await ask(client, FREE, b"%d" % turn)) == 0
            assert hands.waiting == 10
            assert len(server.heard.calls) == 50
            hands.go.set()
            for call in held:
                assert (await answer_of(client, call)).data == message(b"held %d" % call)
        numbers = sorted(dict(fields_of(call)).get(b"number", b"") for call in server.heard.calls.values())
        assert numbers[-10:] == [b"%d" % each for each in range(10)]


async def test_the_runtimes_own_refusal_passes(tmp_path: Path) -> None:
    """Status, text, details and metadata of a call that was let through are the runtime's own."""
    said = (
        *NO_METHOD[:2],
        (b"grpc-status", b"5"),
        (b"grpc-message", b"no %C3%A4"),
        (b"grpc-status-details-bin", b"CAX/"),
    )
    hands = Hands()

    async def refuse(server: Peer, call: int) -> None:
        await server.head(call, (*said, (b"x-more", b"y" * 8192)), end=True)

    async with through(tmp_path, hands.all()) as road:
        client, server = await road.connect()
        async with Answering(server, refuse):
            heard = await ask(client, PASS, b"?")
        got = dict(heard.heads[-1][1])
        assert heard.ended
        assert {name: got[name] for name, _ in said[2:]} == dict(said[2:])
        assert got[b"x-more"] == b"y" * 8192
        assert hands.errors[0].code is grpc.StatusCode.NOT_FOUND
        assert hands.errors[0].details == "no ä"
        assert ("grpc-status-details-bin", b"\x08\x05\xff") in hands.errors[0].trailing


@pytest.mark.parametrize("path", [PASS, CHANGE])
async def test_metadata_of_the_reply_passes(tmp_path: Path, path: str) -> None:
    """What the runtime says before and after its message is said to kubelet, whatever the handler does with it."""

    async def answer(server: Peer, call: int) -> None:
        await server.head(call, (*BEGIN, (b"early", b"1"), (b"early-bin", b"AP8")))
        await server.body(call, message(b"reply"))
        await server.head(call, ((b"grpc-status", b"0"), (b"late", b"2"), (b"late-bin", b"AP8")), end=True)

    async with through(tmp_path, Hands().all()) as road:
        client, server = await road.connect()
        async with Answering(server, answer):
            first, last = heads(await ask(client, path, b"?"))
    assert (first[b"early"], first[b"early-bin"]) == (b"1", b"AP8")
    assert (last[b"late"], last[b"late-bin"]) == (b"2", b"AP8")
    assert last[b"grpc-status"] == b"0"


async def test_many_connections_know_nothing_of_each_other(tmp_path: Path) -> None:
    """Each has a connection of its own to the runtime, with its own streams and tables."""
    hands = Hands()
    async with through(tmp_path, hands.all()) as road:
        pairs = [await road.connect(Manners(settings={wire.HEADER_TABLE_SIZE: size})) for size in (0, 100, 4096, 65536)]

        async def talk(number: int, client: Peer, server: Peer) -> None:
            async with Answering(server):
                for turn in range(20):
                    path = PASS if turn % 2 else FREE
                    heard = await ask(client, path, b"%d" % number, (b"turn", b"%d" % turn))
                    assert heard.data == message(b"%d" % number)
            assert len(server.heard.calls) == 20

        await asyncio.gather(*(talk(number, *pair) for number, pair in enumerate(pairs)))
