"""What is said in the test-bed: every way to use a connection that gRPC has, and some that it does not."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import chain

from tests.shim.frames import wire
from tests.shim.frames.conversation import (
    CLIENT,
    SERVER,
    Body,
    Conversation,
    GoAway,
    Head,
    Ping,
    Raw,
    Reset,
    Settings,
    Step,
)
from tests.shim.frames.peer import Manners
from tests.shim.frames.wire import Fields, Frame, message

MIB = 1 << 20
BEGIN: Fields = ((b":status", b"200"), (b"content-type", b"application/grpc"))
OK: Fields = ((b"grpc-status", b"0"), (b"grpc-message", b""))
NO_METHOD: Fields = (*BEGIN, (b"grpc-status", b"12"), (b"grpc-message", b"unknown method Sing%20%C3%A4"))


def request(path: str = "/test.Echo/Any", *more: tuple[bytes, bytes]) -> Fields:
    """The header list of a call, as grpc-go makes it."""
    return (
        (b":method", b"POST"),
        (b":scheme", b"http"),
        (b":path", path.encode()),
        (b":authority", b"localhost"),
        (b"content-type", b"application/grpc"),
        (b"user-agent", b"grpc-go/1.72.2"),
        (b"te", b"trailers"),
        *more,
    )


def unary(call: int, asked: bytes = b"ask", answer: bytes = b"answer", *more: tuple[bytes, bytes]) -> list[Step]:
    """A call with one message each way."""
    return [
        Head(CLIENT, call, request(f"/test.Echo/Call{call}", *more)),
        Body(CLIENT, call, message(asked), end=True),
        Head(SERVER, call, (*BEGIN, *more)),
        Body(SERVER, call, message(answer)),
        Head(SERVER, call, (*OK, *more), end=True),
    ]


def refused(call: int) -> list[Step]:
    """A call that is answered with trailers only."""
    return [
        Head(CLIENT, call, request("/test.Nobody/Sing")),
        Body(CLIENT, call, message(b""), end=True),
        Head(SERVER, call, NO_METHOD, end=True),
    ]


def zipped(*calls: list[Step]) -> list[Step]:
    """Calls whose steps take turns; their calls must be numbered in the order in which they are given."""
    longest = max(map(len, calls))
    turns = ([steps[turn] for steps in calls if turn < len(steps)] for turn in range(longest))
    return list(chain.from_iterable(turns))


def _padded() -> list[Step]:
    return [
        Head(CLIENT, 0, request(), pad=255, priority=True),
        Body(CLIENT, 0, message(b"x" * 100), pad=0),
        Body(CLIENT, 0, message(b"y" * 1000), pad=255, most=7),
        Body(CLIENT, 0, b"", pad=10, end=True),
        Head(SERVER, 0, BEGIN, pad=3, cut=(0, 2, 1)),
        Body(SERVER, 0, message(b"z" * 70_000), pad=200),
        Body(SERVER, 0, b"", pad=0),
        Head(SERVER, 0, OK, end=True, pad=1),
    ]


def _continued() -> list[Step]:
    long = (b"long", b"y" * 8192)
    first = Head(CLIENT, 0, request("/test.Echo/Any", long), cut=(0, 1, 1, 0, 50), end=False)
    more = unary(1, b"", b"", (b"blob-bin", bytes(range(256))), (b"empty", b""))
    return [
        first,
        Body(CLIENT, 0, message(b""), end=True),
        *more,
        Head(SERVER, 0, (*BEGIN, long), cut=(5,) * 20),
        Head(SERVER, 0, (*OK, long), end=True, cut=(0,)),
    ]


def _settings() -> list[Step]:
    """Windows up, down and below zero, frames and header tables of other sizes, while calls are under way."""
    steps: list[Step] = [
        Head(CLIENT, 0, request()),
        Body(CLIENT, 0, message(b"x" * 60_000)),
        Settings(SERVER, {wire.INITIAL_WINDOW: 1000}),
        Settings(CLIENT, {wire.INITIAL_WINDOW: 10, wire.HEADER_TABLE_SIZE: 0}),
        *_later(unary(0, b"tiny windows"), 1),
        Settings(SERVER, {wire.INITIAL_WINDOW: 1 << 20, wire.MAX_FRAME: 1 << 20, wire.HEADER_TABLE_SIZE: 8192}),
        Settings(CLIENT, {wire.INITIAL_WINDOW: 1 << 20, wire.MAX_FRAME: (1 << 24) - 1, wire.HEADER_TABLE_SIZE: 65536}),
        *_later(unary(0, b"y" * 50_000, b"z" * 50_000), 2),
        Settings(CLIENT, {wire.HEADER_TABLE_SIZE: 100, wire.MAX_FRAME: 16384}),
        Settings(SERVER, {wire.HEADER_TABLE_SIZE: 0, wire.MAX_FRAME: 16384, 0xFFFF: 7}),
        *_later(unary(0, b"y" * 50_000, b"z" * 50_000), 3),
        Body(CLIENT, 0, message(b"x" * 100_000), end=True),
        Head(SERVER, 0, BEGIN),
        Head(SERVER, 0, OK, end=True),
    ]
    return steps


def _negative() -> list[Step]:
    """The server's window falls below zero under a call that has used it, and rises again."""
    return [
        Head(CLIENT, 0, request()),
        Body(CLIENT, 0, bytes(40_000)),
        Settings(SERVER, {wire.INITIAL_WINDOW: 0}),
        Raw(SERVER, 0, wire.window_update(0, 30_000)),
        *_later(unary(0, b"", b"b"), 1)[:1],
        Raw(SERVER, 0, wire.window_update(0, 20_000)),
        Settings(SERVER, {wire.INITIAL_WINDOW: 5}),
        Body(CLIENT, 0, bytes(10_000), end=True),
        Head(SERVER, 0, BEGIN),
        Head(SERVER, 0, OK, end=True),
        Body(CLIENT, 1, b"12345", end=True),
        Head(SERVER, 1, NO_METHOD, end=True),
    ]


def _later(steps: list[Step], by: int) -> list[Step]:
    return [replace(step, call=step.call + by) if isinstance(step, Head | Body) else step for step in steps]


def resets() -> Iterator[tuple[str, Conversation]]:
    """A call reset after each of its frames by either side, with a call before, beside and after it."""
    whole: list[Step] = [
        Head(CLIENT, 1, request(), cut=(10,)),
        Body(CLIENT, 1, message(b"one")),
        Body(CLIENT, 1, message(b"two"), end=True),
        Head(SERVER, 1, BEGIN),
        Body(SERVER, 1, message(b"three")),
        Body(SERVER, 1, message(b"four"), pad=5),
    ]
    beside = unary(0)
    for side, code in ((CLIENT, wire.CANCEL), (SERVER, wire.REFUSED_STREAM), (SERVER, wire.NO_ERROR)):
        for after in range(1, len(whole) + 1):
            steps = [*beside[:3], *whole[:after], Reset(side, 1, code), *beside[3:], *unary(2)]
            yield f"reset with {code} by the {side} after {after}", Conversation(steps)
    answered = [*whole[:2], Head(SERVER, 1, NO_METHOD, end=True), Reset(SERVER, 1, wire.NO_ERROR)]
    yield "answered before all was asked", Conversation([*beside[:3], *answered, *beside[3:], *unary(2)])
    half = [*whole[:1], Head(SERVER, 1, NO_METHOD, end=True), *whole[1:3]]
    yield "asked on after the answer", Conversation([*beside[:3], *half, *beside[3:], *unary(2)])


def _farewells() -> dict[str, Conversation]:
    late = unary(2)
    said = GoAway(SERVER, None, debug=b"soon")
    return {
        "server says goodbye twice": Conversation(
            [*zipped(unary(0), unary(1))[:6], said, GoAway(SERVER, 1), *zipped(unary(0), unary(1))[6:]]
        ),
        "client says goodbye": Conversation([*unary(0)[:3], GoAway(CLIENT, None, debug=b"\xff\x00"), *unary(0)[3:]]),
        "server says goodbye in anger": Conversation([*unary(0), GoAway(SERVER, 0, wire.INTERNAL_ERROR, b"x" * 200)]),
        "a call after the first goodbye": Conversation([*unary(0), *unary(1), said, *late]),
    }


def conversations() -> dict[str, Conversation]:
    """All of them but the largest, by what they are about."""
    tiny = {wire.INITIAL_WINDOW: 1}
    big = Manners(settings={wire.INITIAL_WINDOW: 4 * MIB, wire.MAX_FRAME: MIB}, widen=8 * MIB)
    many = [unary(call, b"q" * call, b"a" * 100 * call) for call in range(40)]
    events = [Body(SERVER, 0, message(b"event %d" % number)) for number in range(300)]
    stream = [*unary(0)[:3], *events, Head(SERVER, 0, OK, end=True)]
    chat = [Body(side, 0, message(b"%d" % turn)) for turn in range(40) for side in (CLIENT, SERVER)]
    return {
        "unary": Conversation(unary(0)),
        "one after the other": Conversation([*unary(0), *refused(1), *unary(2), *unary(3, b"", b"")]),
        "interleaved": Conversation(zipped(*many)),
        "interleaved, nobody waits": Conversation(zipped(*many), abreast=True),
        "refused by trailers only": Conversation(refused(0)),
        "no message at all": Conversation(
            [Head(CLIENT, 0, request(), end=True), Head(SERVER, 0, BEGIN), Head(SERVER, 0, OK, end=True)]
        ),
        "empty frames": Conversation(
            [
                *unary(0)[:1],
                *((Body(CLIENT, 0),) * 3),
                Body(CLIENT, 0, end=True),
                *unary(0)[2:3],
                *((Body(SERVER, 0),) * 3),
                Body(SERVER, 0, end=True),
            ]
        ),
        "padding and priority": Conversation(_padded()),
        "continuation": Conversation(_continued()),
        "settings in mid-flight": Conversation(_settings()),
        "negative window": Conversation(_negative(), server=Manners(grants=None)),
        "windows of one byte": Conversation(
            zipped(unary(0, b"q" * 200, b"a" * 300), unary(1, b"Q" * 200, b"A" * 300)),
            Manners(settings=tiny),
            Manners(settings=tiny),
            abreast=True,
        ),
        "grants in drops": Conversation(
            unary(0, b"q" * 150_000, b"a" * 150_000), Manners(grants=999), Manners(grants=77)
        ),
        "large frames": Conversation(unary(0, b"q" * 3 * MIB, b"a" * 3 * MIB), big, big),
        "byte by byte": Conversation(
            [*zipped(unary(0), refused(1)), *_later(_padded()[:4], 2), Head(SERVER, 2, NO_METHOD, end=True)],
            Manners(piece=1),
            Manners(piece=1),
        ),
        "metadata of 8 KiB, and binary": Conversation(
            [*unary(0, b"", b"", (b"x-long", b"y" * 8192)), *unary(1, b"", b"", (b"x-bin", bytes(range(256)) * 4))]
        ),
        "unknown frames": Conversation(
            [
                *unary(0)[:2],
                Raw(CLIENT, None, Frame(0x77, 0xFF, 0, b"hello")),
                Raw(CLIENT, 0, Frame(0x10, 0, 0, b"")),
                Raw(SERVER, 0, Frame(0xFE, 3, 0, b"z" * 16384)),
                Raw(SERVER, None, Frame(0x0C, 0, 0, b"")),
                *unary(0)[2:],
            ]
        ),
        "priority frames": Conversation(
            [*unary(0)[:1], Raw(CLIENT, 0, Frame(wire.PRIORITY, 0, 0, bytes(5))), *unary(0)[1:], *unary(1)]
        ),
        "pings": Conversation(
            [Ping(CLIENT, b"12345678"), *unary(0)[:3], Ping(SERVER, bytes(8)), Ping(CLIENT, b"\xff" * 8), *unary(0)[3:]]
        ),
        "a long server stream": Conversation(stream),
        "a chat": Conversation(
            [*unary(0)[:1], Head(SERVER, 0, BEGIN), *chat, Body(CLIENT, 0, end=True), *unary(0)[4:]]
        ),
        **_farewells(),
        **dict(resets()),
    }


def sixteen_mib() -> Conversation:
    """The largest messages that kubelet and containerd let each other send."""
    return Conversation(unary(0, bytes(range(256)) * (16 * MIB // 256), b"a" * 16 * MIB))
