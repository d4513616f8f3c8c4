"""A client that makes whole calls and a server that answers them, where a test is not about single frames."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from tests.shim.frames import wire
from tests.shim.frames.conversation import settled
from tests.shim.frames.conversations import BEGIN, OK, request
from tests.shim.frames.peer import Peer
from tests.shim.frames.recorder import Heard
from tests.shim.frames.wire import Fields, Frame, message

_STEPS = 1000
"""So many times ten thousand bytes are more than any window here."""

Answer = Callable[[Peer, int], Awaitable[None]]
"""Answers a server's call, given by its number."""


async def echo(server: Peer, call: int) -> None:
    """Answer with what was asked."""
    await server.head(call, BEGIN)
    await server.body(call, bytes(server.call(call).data))
    await server.head(call, OK, end=True)


class Answering:
    """A server that answers each call as soon as it was asked; an async context manager."""

    def __init__(self, server: Peer, answer: Answer = echo) -> None:
        self._server = server
        self._answer = answer
        self._tasks: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Answering:
        self._server.on_frame = self._on_frame
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.on_frame = lambda _: None
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _on_frame(self, frame: Frame) -> None:
        if frame.ends:
            number = self._server.number(frame.stream)
            task = asyncio.create_task(self._run(number))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _run(self, number: int) -> None:
        try:
            await self._answer(self._server, number)
        except AssertionError as error:
            self._server.fail(error)


async def ask(
    client: Peer, path: str, content: bytes, *more: tuple[bytes, bytes], most: int = wire.MAX_WINDOW
) -> Heard:
    """Make a unary call and wait for its end."""
    call = await begin(client, path, *more)
    await client.body(call, message(content), end=True, most=most)
    return await answer_of(client, call)


async def begin(client: Peer, path: str, *more: tuple[bytes, bytes]) -> int:
    """Open a call; returns its number."""
    call = len(client.sent.calls)
    await client.head(call, request(path, *more))
    return call


async def answer_of(client: Peer, call: int) -> Heard:
    """All of a call's answer."""
    stream = client.stream(call)
    await client.until(lambda: stream in client.heard.calls and client.heard.calls[stream].over, f"answer {call}")
    return client.heard.calls[stream]


def heads(heard: Heard) -> list[dict[bytes, bytes]]:
    """The header lists of an answer, without what only HTTP needs."""
    return [{name: value for name, value in fields if name != b"content-type"} for _, fields in heard.heads]


def status(heard: Heard) -> int:
    """The gRPC status of an answer; a reset stream has none."""
    assert heard.ended, f"reset with {heard.reset}"
    return int(dict(heard.heads[-1][1])[b"grpc-status"])


def fields_of(heard: Heard) -> Fields:
    """The header list that a call begins with."""
    return heard.heads[0][1]


async def full_windows(client: Peer, server: Peer) -> tuple[int, int]:
    """What both ends may send on their connections at first."""
    await settled(client, server)
    return client.windows.connection, server.windows.connection


async def windows_are(client: Peer, server: Peer, full: tuple[int, int]) -> None:
    """Assert that both ends may send what they could at first, and not a byte more or less.

    Who receives may give back in steps: so data is sent until it does, which must make the window full again.
    """
    call = await begin(client, "/test.Echo/Windows")
    await server.until(lambda: client_call(server) is not None, "the call")
    far = server.number(client_call(server) or 0)
    await server.head(far, BEGIN)
    for peer, number, whole in ((client, call, full[0]), (server, far, full[1])):
        for _ in range(_STEPS):
            await _round_trip(peer)
            assert peer.windows.connection <= whole
            if peer.windows.connection == whole:
                break
            await peer.body(number, bytes(10_000))
        else:
            raise AssertionError(f"{peer} should have a window of {whole}")
    await client.body(call, b"", end=True)
    await server.head(far, OK, end=True)
    await answer_of(client, call)


def client_call(server: Peer) -> int | None:
    """The stream of the call that windows_are has begun."""
    for stream, call in reversed(server.heard.calls.items()):
        if not call.over and dict(fields_of(call)).get(b":path") == b"/test.Echo/Windows":
            return stream
    return None


async def _round_trip(peer: Peer) -> None:
    count = len(peer.heard.ping_answers)
    await peer.send(Frame(wire.PING, 0, 0, b"windows?"))
    await peer.until(lambda: len(peer.heard.ping_answers) > count, "the answer to a PING")
