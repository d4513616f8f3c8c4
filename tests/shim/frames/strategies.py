"""Things to send that a peer should not: frames at random, and conversations that were tampered with."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache

import hpack
from hypothesis import strategies as st

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
from tests.shim.frames.conversations import BEGIN, OK, conversations, request
from tests.shim.frames.holding import CHANGE, FREE, OWN, PASS, REFUSE, WAIT
from tests.shim.frames.recording import recorded
from tests.shim.frames.wire import Frame, message

PATHS = (PASS, CHANGE, REFUSE, OWN, WAIT, FREE)
_SOME = 400
"""Frames of a conversation that are used at most."""


@dataclass(frozen=True)
class Script:
    """What both sides send, piece by piece in one order, without regard to what the other says."""

    pieces: Sequence[tuple[str, bytes]]
    ends: str
    """Who breaks off at the end."""


def scripts() -> st.SearchStrategy[Script]:
    """Any script."""
    pieces = st.one_of(_at_random(), _tampered())
    return st.builds(Script, pieces, st.sampled_from((CLIENT, SERVER)))


def _at_random() -> st.SearchStrategy[list[tuple[str, bytes]]]:
    begun = st.sampled_from(([], [(CLIENT, wire.settings({}).pack()), (SERVER, wire.settings({}).pack())]))
    frames = st.lists(st.tuples(st.sampled_from((CLIENT, CLIENT, SERVER)), _frames()), max_size=30)
    return st.tuples(begun, frames).map(lambda both: [*both[0], *both[1]])


def _frames() -> st.SearchStrategy[bytes]:
    return st.one_of(_plausible(), _plausible(), _odd()).map(Frame.pack)


def _odd() -> st.SearchStrategy[Frame]:
    return st.builds(Frame, st.integers(0, 12), st.integers(0, 255), st.integers(0, 9), st.binary(max_size=40))


def _plausible() -> st.SearchStrategy[Frame]:
    """Frames that are right by themselves, whatever was sent before."""
    streams, numbers = st.sampled_from((1, 1, 1, 3, 3, 5, 7)), st.integers(0, wire.MAX_WINDOW)
    values = st.sampled_from((0, 1, 100, 16384, 65535, 1 << 20, wire.MAX_WINDOW, (1 << 32) - 1))
    amounts = st.sampled_from((1, 100, 65535, 1 << 20, wire.MAX_WINDOW))
    ends = st.sampled_from((0, wire.END_STREAM))
    whole = st.sampled_from((wire.END_HEADERS, wire.END_HEADERS, wire.END_HEADERS | wire.END_STREAM, 0))
    return st.one_of(
        st.builds(Frame, st.just(wire.HEADERS), whole, streams, _blocks()),
        st.builds(Frame, st.just(wire.DATA), ends, streams, _contents()),
        st.builds(Frame, st.just(wire.CONTINUATION), st.sampled_from((0, wire.END_HEADERS)), streams, _blocks()),
        st.builds(wire.reset, streams, st.integers(0, 20)),
        st.builds(wire.window_update, st.sampled_from((0, 0, 1, 3)), amounts),
        st.dictionaries(st.integers(0, 9), values, max_size=4).map(wire.settings),
        st.sampled_from((0, wire.ACK)).map(lambda flags: Frame(wire.SETTINGS, flags, 0, b"")),
        st.builds(Frame, st.just(wire.PING), ends, st.just(0), st.binary(min_size=8, max_size=8)),
        st.builds(wire.goaway, numbers, st.integers(0, 20), st.binary(max_size=9)),
        st.builds(Frame, st.just(wire.PRIORITY), st.just(0), streams, st.binary(min_size=5, max_size=5)),
    )


def _blocks() -> st.SearchStrategy[bytes]:
    """Header blocks: of calls and answers, with and without entries in tables, and noise."""
    lists = [*(request(path, *more) for path in PATHS for more in ((), _ODD_FIELDS)), BEGIN, OK, (*BEGIN, *OK)]
    made = [hpack.Encoder().encode(list(fields), huffman=squeeze) for fields in lists for squeeze in (True, False)]
    return st.one_of(st.sampled_from(made), st.sampled_from(made), st.just(b""), st.binary(max_size=30))


_ODD_FIELDS = ((b"grpc-timeout", b"20m"), (b"grpc-encoding", b"gzip"), (b"x-bin", b"AP8"), (b"long", b"y" * 5000))


def _contents() -> st.SearchStrategy[bytes]:
    return st.one_of(
        st.sampled_from(
            (message(b""), message(b"hello"), message(b"x" * 15_000), b"", message(b"no", compressed=True))
        ),
        st.binary(max_size=40),
    )


@cache
def _conversations() -> list[list[tuple[str, bytes]]]:
    """Frames of all conversations, which the next step takes apart."""
    talks = {**conversations(), **recorded()}
    return [list(_packed(talk))[:_SOME] for talk in talks.values()]


def _packed(talk: Conversation) -> Iterator[tuple[str, bytes]]:
    encoders = {CLIENT: hpack.Encoder(), SERVER: hpack.Encoder()}
    yield CLIENT, wire.settings(talk.client.settings).pack()
    yield SERVER, wire.settings(talk.server.settings).pack()
    for step in talk.steps:
        for frame in _of_step(step, encoders[step.side]):
            yield step.side, frame.pack()


def _of_step(step: Step, encoder: hpack.Encoder) -> list[Frame]:
    match step:
        case Head(call=call, fields=fields):
            paths = tuple((name, PATHS[call % 6].encode() if name == b":path" else value) for name, value in fields)
            return wire.headers(2 * call + 1, encoder.encode(list(paths)), end=step.end, pad=step.pad, cut=step.cut)
        case Body(call=call, content=content):
            return [wire.data(2 * call + 1, content[:5000], end=step.end, pad=step.pad)]
        case Reset():
            return [wire.reset(2 * step.call + 1, step.code)]
        case Settings():
            return [wire.settings(step.values)]
        case Ping():
            return [Frame(wire.PING, 0, 0, step.payload)]
        case GoAway():
            return [wire.goaway(wire.MAX_WINDOW, step.code, step.debug)]
        case Raw():
            return [step.frame._replace(stream=0 if step.call is None else 2 * step.call + 1)]


@st.composite
def _tampered(draw: st.DrawFn) -> list[tuple[str, bytes]]:
    """A conversation whose frames were dropped, doubled, swapped or cut, and whose bytes were changed."""
    pieces = list(draw(st.sampled_from(_conversations())))
    for _ in range(draw(st.integers(0, 4))):
        at = draw(st.integers(0, len(pieces) - 1))
        side, content = pieces[at]
        spot = draw(st.integers(0, max(min(len(content), 60) - 1, 0)))
        match draw(st.sampled_from(("drop", "double", "swap", "cut", "change", "change", "change", "insert", "other"))):
            case "drop" if len(pieces) > 1:
                del pieces[at]
            case "double":
                pieces.insert(at, pieces[at])
            case "swap":
                other = draw(st.integers(0, len(pieces) - 1))
                pieces[at], pieces[other] = pieces[other], pieces[at]
            case "cut":
                pieces[at] = side, content[:spot]
            case "change" if content:
                changed = bytearray(content)
                changed[spot] = draw(st.integers(0, 255))
                pieces[at] = side, bytes(changed)
            case "insert":
                pieces.insert(at, (side, draw(_frames())))
            case "other":
                pieces[at] = (SERVER if side == CLIENT else CLIENT), content
    return pieces
