"""Conversations as lists of steps, and having one with whatever is between client and server."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from tests.shim.frames import wire
from tests.shim.frames.peer import Manners, Peer
from tests.shim.frames.wire import Fields, Frame

CLIENT, SERVER = "client", "server"


@dataclass(frozen=True, slots=True)
class Head:
    """HEADERS; see wire.headers. Calls are numbered from 0 in the order in which they are opened."""

    side: str
    call: int
    fields: Fields
    end: bool = False
    pad: int | None = None
    priority: bool = False
    cut: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Body:
    """DATA, of as many frames as it takes; at least one."""

    side: str
    call: int
    content: bytes = b""
    end: bool = False
    pad: int | None = None
    most: int = wire.MAX_WINDOW


@dataclass(frozen=True, slots=True)
class Reset:
    """RST_STREAM."""

    side: str
    call: int
    code: int = wire.CANCEL


@dataclass(frozen=True, slots=True)
class Settings:
    """SETTINGS; the step is over when they are acknowledged."""

    side: str
    values: Mapping[int, int]


@dataclass(frozen=True, slots=True)
class Ping:
    """PING; the step is over when it is answered."""

    side: str
    payload: bytes


@dataclass(frozen=True, slots=True)
class GoAway:
    """GOAWAY; `last` is a call, None is all that there may be."""

    side: str
    last: int | None
    code: int = wire.NO_ERROR
    debug: bytes = b""


@dataclass(frozen=True, slots=True)
class Raw:
    """A frame as it is, but for its stream, which is given as a call; None is the connection."""

    side: str
    call: int | None
    frame: Frame


Step = Head | Body | Reset | Settings | Ping | GoAway | Raw


@dataclass(frozen=True)
class Conversation:
    """Steps, and what both ends do besides."""

    steps: Sequence[Step]
    client: Manners = field(default_factory=Manners)
    server: Manners = field(default_factory=Manners)
    abreast: bool = False
    """Whether steps need not wait until the other side has seen the one before."""


@dataclass(frozen=True)
class Side:
    """All that one end has heard in a conversation."""

    calls: tuple[tuple[tuple[tuple[int, Fields], ...], bytes, bool, int | None], ...]
    goaways: tuple[tuple[int, int, bytes], ...]
    """The last stream as the number of calls up to it; -1 for all that there may be."""
    ping_answers: tuple[bytes, ...]
    extensions: tuple[tuple[int, int, int, bytes], ...]


async def hold(conversation: Conversation, client: Peer, server: Peer) -> tuple[Side, Side]:
    """Have a conversation over a new connection; returns what client and server have heard.

    Raises AssertionError where something does not arrive as it was sent, or windows are not what they were before.
    """
    await settled(client, server)
    before = client.windows.connection, server.windows.connection
    for step in conversation.steps:
        me, other = (client, server) if step.side == CLIENT else (server, client)
        await _perform(step, me)
        if not conversation.abreast:
            await _arrives(me, other, f"all of {_told(step)}")
    await settled(client, server)
    for me, other in ((client, server), (server, client)):
        for number, (sent, heard) in enumerate(zip(me.sent.calls.values(), other.heard.calls.values(), strict=True)):
            assert heard == sent, f"call {number} as the {'server' if me is client else 'client'} heard it"
    if conversation.client.grants and conversation.server.grants and not client.closed:
        for peer, was in zip((client, server), before, strict=True):
            await _has_window(peer, was)
    return _side(client), _side(server)


async def settled(client: Peer, server: Peer) -> None:
    """Wait until everything that was sent is heard and all settings are acknowledged."""
    for me, other in ((client, server), (server, client)):
        await _arrives(me, other, "all that was sent")
        await _settings_hold(me)
    if client.heard.goaways:
        return  # who has said goodbye may hang up when all is done
    for peer in (client, server):
        await peer.send(wire.Frame(wire.PING, 0, 0, b"settled?"))
    for peer in (client, server):
        await _pings_are_answered(peer)


async def _arrives(me: Peer, other: Peer, what: str) -> None:
    await other.until(lambda: _delivered(me, other), what)


async def _settings_hold(me: Peer) -> None:
    await me.until(lambda: not me.judge.pending, "the acknowledgement of settings")


async def _pings_are_answered(me: Peer) -> None:
    await me.until(lambda: len(me.heard.ping_answers) >= len(me.sent.pings), "the answer to a PING")


async def _has_window(me: Peer, full: int) -> None:
    """The other end may give back in steps, but never more than it got."""
    await me.until(lambda: me.windows.connection >= full // 2, "the connection's window")
    assert me.windows.connection <= full


async def _perform(step: Step, me: Peer) -> None:
    if not me.client and isinstance(step, Head | Body | Reset):
        await me.until(lambda: len(me.heard.calls) > step.call, f"call {step.call}")
    match step:
        case Head():
            await me.head(step.call, step.fields, end=step.end, pad=step.pad, priority=step.priority, cut=step.cut)
        case Body():
            await me.body(step.call, step.content, end=step.end, pad=step.pad, most=step.most)
        case Reset():
            await me.send(wire.reset(me.stream(step.call), step.code))
        case Settings():
            await me.send(wire.settings(step.values))
            await _settings_hold(me)
        case Ping():
            await me.send(Frame(wire.PING, 0, 0, step.payload))
            await me.until(lambda: step.payload in me.heard.ping_answers, "the answer to a PING")
        case GoAway():
            last = wire.MAX_WINDOW if step.last is None else me.stream(step.last)
            await me.send(wire.goaway(last, step.code, step.debug))
        case Raw():
            await me.send(step.frame._replace(stream=0 if step.call is None else me.stream(step.call)))


def _delivered(me: Peer, other: Peer) -> bool:
    """Whether all calls, and every GOAWAY, are with `other` as `me` sent them."""
    if len(other.heard.goaways) < len(me.sent.goaways) or len(other.heard.calls) < len(me.sent.calls):
        return False
    return all(
        heard.progress == sent.progress
        for sent, heard in zip(me.sent.calls.values(), other.heard.calls.values(), strict=False)
    )


def _side(peer: Peer) -> Side:
    opened = list(peer.sent.calls if peer.client else peer.heard.calls)
    return Side(
        tuple((tuple(c.heads), bytes(c.data), c.ended, c.reset) for c in peer.heard.calls.values()),
        tuple(
            (-1 if last == wire.MAX_WINDOW else sum(stream <= last for stream in opened), code, debug)
            for last, code, debug in peer.heard.goaways
        ),
        tuple(peer.heard.ping_answers),
        tuple(
            (frame.kind, frame.flags, opened.index(frame.stream) if frame.stream else -1, frame.payload)
            for frame in peer.heard.extensions
        ),
    )


def _told(step: Step) -> str:
    told = repr(step)
    return told if len(told) < 200 else told[:200] + "..."
