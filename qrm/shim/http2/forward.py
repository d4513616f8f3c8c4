"""A held call's way to the runtime and back."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING

import grpc

from qrm.enforcement.channel import CallError
from qrm.shim.http2 import frames
from qrm.shim.http2.frames import ProtocolError
from qrm.shim.http2.headers import Headers
from qrm.shim.http2.messages import Collector, Parts, Unreadable, unwrapped
from qrm.shim.http2.status import away, call_error, code_of_reset, timeout
from qrm.shim.http2.stream import Half
from qrm.shim.http2.windows import Granted

if TYPE_CHECKING:
    from qrm.shim.http2.held import Held

_WINDOW, _LOW = 1 << 20, 32 << 10
"""Bytes that the sender of a collected message may have under way, and those left at which it is told of more. Small
messages so need no WINDOW_UPDATE at all."""


class Intake:
    """The window of a stream whose data ends here."""

    __slots__ = ("_granted", "_half")

    def __init__(self, half: Half) -> None:
        self._half = half
        self._granted = Granted(half.connection.told_window, _WINDOW, _LOW)

    @property
    def extra(self) -> int:
        """Bytes that were granted beyond the initial window."""
        return self._granted.extra

    def take(self, flow: int) -> None:
        """Bytes have come in. Raises ProtocolError for more than the sender may ever have believed to be allowed."""
        granted, sender = self._granted, self._half.connection
        granted.take(flow)
        if granted.left < sender.told_window - sender.window_limit:
            raise ProtocolError(frames.FLOW_CONTROL_ERROR, "more data than the stream's window")

    def use(self, flow: int) -> None:
        """They are put away."""
        self._granted.used(flow)

    def shift(self, change: int) -> None:
        """The sender was told another initial window."""
        self._granted.shift(change)

    def grant(self) -> None:
        """Tell the sender what is due."""
        increment, half = self._granted.due(), self._half
        if increment and not half.received_end:
            half.connection.out.append(frames.window_update(half.id, increment))


@dataclass(frozen=True, slots=True)
class Forwarded:
    """The runtime's whole answer."""

    initial: Headers | None
    """None for trailers-only."""
    wire: Parts
    """The message with its prefix, as it came."""
    message: bytes
    trailers: Headers
    error: CallError | None
    """Of a status other than OK."""


class _Reply:
    """Takes what the runtime sends, as the sink of our stream there."""

    def __init__(self, held: Held, half: Half) -> None:
        self._held = held
        self._half = half
        self._limit = held.link.hub.limits.max_message_bytes
        self._initial: Headers | None = None
        self._collector = Collector(self._limit)
        self._wire: Parts = ()
        self._message = b""
        self._intake = Intake(half)
        self.done: asyncio.Future[Forwarded] = asyncio.get_running_loop().create_future()
        half.sink = self

    def begun(self) -> None:
        """The stream is open at the runtime: only now may its window be granted."""
        self._held.link.replies.enter(self)
        self.regrant()

    def regrant(self) -> None:
        """Let the runtime send more, if there is room."""
        room = self._held.link.replies
        if room.grants(self):
            self._intake.grant()
            room.granted(self, self._intake.extra)

    def over(self) -> None:
        """Nothing more is collected, and so nothing more granted here; others may be."""
        self._held.link.replies.leave(self)

    def headers(self, headers: Headers, *, end: bool) -> None:
        if end:
            self._end(headers)
        elif self._initial is None and not headers.informational:
            self._initial = headers

    def data(self, payload: bytes, flow: int, *, end: bool) -> None:
        self._intake.take(flow)
        try:
            if payload and self._collector.add(payload):
                self._take_message()
        except Unreadable as error:
            self._pass_on(str(error), end=end)
            return
        if end:
            self._end(Headers(()))
        else:
            self._intake.use(flow)
            self.regrant()

    def reset(self, error: int) -> None:
        code = code_of_reset(error)
        self._fail(CallError(code, f"the runtime has reset the stream, with HTTP/2 error {error}"))

    def lost(self) -> None:
        self._fail(CallError(grpc.StatusCode.UNAVAILABLE, "the connection to the container runtime broke"))

    def shifted(self, change: int) -> None:
        self._intake.shift(change)
        self.regrant()

    def _take_message(self) -> None:
        if self._wire:
            raise Unreadable("a second message")
        encoding = self._initial.get(b"grpc-encoding") if self._initial is not None else None
        wire = self._collector.first()
        if self._collector.beyond:
            raise Unreadable("a second message")
        self._message = unwrapped(wire, encoding, self._limit)
        unpacked = len(self._message) if wire[0][0] else 0
        self._held.link.replies.keep(self._held.half, sum(map(len, wire)), unpacked)
        self._wire = wire
        self.over()

    def _end(self, trailers: Headers) -> None:
        self.over()
        error = call_error(trailers)
        if error is None and not self._wire:
            error = CallError(grpc.StatusCode.INTERNAL, "the runtime's reply has no message")
        if not self.done.done():
            self.done.set_result(Forwarded(self._initial, self._wire, self._message, trailers, error))

    def _pass_on(self, reason: str, *, end: bool) -> None:
        """Let the reply go to the client as it is; the handler learns that it does not know the outcome."""
        client, half = self._held.half, self._half
        if client.closed:
            return
        self._held.pass_reply()
        self._held.link.replies.keep(client, self._collector.size)
        self._fail(CallError(grpc.StatusCode.UNAVAILABLE, f"the reply passed to kubelet unseen: {reason}"))
        client.ahead = self._intake.extra
        half.pass_to(client)
        if self._initial is not None:
            client.send_headers(self._initial, end=False)
        client.send_parts(self._collector.taken(), end=end)

    def _fail(self, error: CallError) -> None:
        self.over()
        if not self.done.done():
            self.done.set_exception(error)


async def forward(held: Held, wire: Parts) -> Forwarded:
    """Send a message to the runtime as the held call's, and wait for the whole answer.

    Raises:
        CallError: there is none: the runtime cannot be reached, or has gone, or the client's time is up.
    """
    link = held.link
    request = _request(held)
    try:
        runtime = link.reach()
    except OSError as error:
        raise away(error) from error
    half = runtime.open(held.half)
    reply = _Reply(held, half)
    half.send_headers(request, end=False)
    reply.begun()
    half.send_parts(wire, end=True)
    link.flush()
    try:
        return await reply.done
    finally:
        reply.over()
        if not held.passed and not half.closed:
            half.reset(frames.CANCEL)
            link.flush()


def _request(held: Held) -> Headers:
    """The client's headers with what is left of its time. Raises CallError where nothing is."""
    headers = held.request
    if held.deadline is None:
        return headers if headers.get(b"content-length") is None else Headers(headers.without(b"content-length"))
    left = held.deadline - asyncio.get_running_loop().time()
    if left <= 0:
        raise CallError(grpc.StatusCode.DEADLINE_EXCEEDED, "Deadline Exceeded")
    return Headers(
        (name, timeout(left) if name == b"grpc-timeout" else value)
        for name, value in headers.fields
        if name != b"content-length"
    )
