"""A call that is held: its request collected, its handler run, the reply sent."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import grpc
import structlog

from qrm.enforcement.channel import CallError
from qrm.shim.exchange import Exchange, Handler
from qrm.shim.http2.forward import Forwarded, Intake, forward
from qrm.shim.http2.headers import Headers
from qrm.shim.http2.messages import Collector, Parts, Unreadable, unwrapped, wrapped
from qrm.shim.http2.status import GRPC, metadata, read_timeout, trailers, trailers_only
from qrm.shim.http2.stream import Half

if TYPE_CHECKING:
    from qrm.shim.http2.link import Link

log = structlog.get_logger(__name__)


class Held:
    """Takes what the client sends on the call's stream, as its sink.

    The first message begins the handler, whether the client has said that it was all or not; what comes after it is
    dropped, as gRPC servers do for unary calls. A call without a message, or with one that cannot be read, passes to
    the runtime as it is, to be judged there.
    """

    def __init__(self, link: Link, half: Half, headers: Headers, handler: Handler) -> None:
        self.link = link
        self.half = half
        self.request = headers
        self.passed = False
        """Whether the call goes past its handler."""
        self.last: Forwarded | None = None
        """The runtime's latest answer."""
        self.wire: Parts = ()
        """The message as the client sent it, and what the handler got of it."""
        self.message = b""
        self.deadline: float | None = None
        """When the client gives up, by the loop's clock."""
        self._handler = handler
        self._collector: Collector | None = Collector(link.hub.limits.max_message_bytes)
        self._intake = Intake(half)
        self._task: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None

    def begin(self) -> None:
        """Take the stream over."""
        self.half.sink = self
        seconds = read_timeout(self.request.get(b"grpc-timeout"))
        if seconds is not None:
            loop = asyncio.get_running_loop()
            self.deadline = loop.time() + seconds
            self._timer = loop.call_at(self.deadline, self._expire)
        self.link.requests.enter(self)
        if self.half.received_end:
            self._release(end=True)
        else:
            self.regrant()

    # As a sink.

    def headers(self, _headers: Headers, *, end: bool) -> None:
        """The client's trailers, which gRPC has none of: the end."""
        if end and self._collector is not None:
            self._release(end=True)

    def data(self, payload: bytes, flow: int, *, end: bool) -> None:
        """More of the request."""
        collector = self._collector
        if collector is None:
            return
        self._intake.take(flow)
        try:
            if collector.add(payload):
                self._run(collector.first())
                return
        except Unreadable as error:
            log.info("passed on unseen", method=self.request.path.decode("latin-1"), reason=str(error))
            self._release(end=end)
            return
        if end:
            self._release(end=True)
        else:
            self._intake.use(flow)
            self.regrant()

    def reset(self, _error: int) -> None:
        """The client does not wait any more."""
        self._stop()

    def lost(self) -> None:
        """Nor does it here."""
        self._stop()

    def shifted(self, change: int) -> None:
        """As Sink."""
        self._intake.shift(change)
        if self._collector is not None:
            self.regrant()

    def regrant(self) -> None:
        """Let the client send more, if there is room."""
        room = self.link.requests
        if room.grants(self):
            self._intake.grant()
            room.granted(self, self._intake.extra)

    # The handler's side.

    def _run(self, wire: Parts) -> None:
        self.wire = wire
        self.message = unwrapped(wire, self.request.get(b"grpc-encoding"), self.link.hub.limits.max_message_bytes)
        self.link.requests.keep(self.half, sum(map(len, wire)), len(self.message) if wire[0][0] else 0)
        self._collected()
        self._task = asyncio.get_running_loop().create_task(self._handle())
        self.link.hub.running(self._task)

    async def _handle(self) -> None:
        path, now = self.request.path.decode("latin-1"), asyncio.get_running_loop().time()
        left = None if self.deadline is None else max(self.deadline - now, 0.0)
        exchange = Exchange(path, self.message, metadata(self.request), left, self._forward)
        try:
            reply = await self._handler(exchange)
        except CallError as error:
            self._refuse(error)
        except asyncio.CancelledError:
            self._fail(grpc.StatusCode.CANCELLED, "")
            raise
        except Exception:
            log.exception("handler failed", method=path)
            self._fail(grpc.StatusCode.INTERNAL, "qrm: a handler failed; see its log")
        else:
            self._answer(reply)
        finally:
            self._stop()
            self.link.flush()

    async def _forward(self, message: bytes) -> bytes:
        self.last = None
        self.last = await forward(self, self.wire if message is self.message else wrapped(message))
        if self.last.error is not None:
            raise self.last.error
        return self.last.message

    def _answer(self, reply: bytes) -> None:
        half, last = self.half, self.last
        if self.passed or half.closed:
            return
        half.call.code = grpc.StatusCode.OK
        if last is None:
            half.send_headers(Headers([(b":status", b"200"), GRPC]), end=False)
            half.send_parts(wrapped(reply), end=False)
            half.finish(Headers(trailers(grpc.StatusCode.OK, "")))
            return
        unchanged = reply is last.message
        if last.initial is not None:
            half.send_headers(last.initial if unchanged else _any_length(last.initial), end=False)
        half.send_parts(last.wire if unchanged else wrapped(reply), end=False)
        half.finish(last.trailers)

    def _refuse(self, error: CallError) -> None:
        half, last = self.half, self.last
        if self.passed or half.closed:
            return
        half.call.code = error.code
        if last is None or last.error is not error or last.trailers.grpc_status is None:
            half.finish(Headers(trailers_only(error.code, error.details, error.trailing)))
            return
        if last.initial is not None:
            half.send_headers(_any_length(last.initial), end=False)
        half.finish(last.trailers)

    def _fail(self, code: grpc.StatusCode, details: str) -> None:
        if not self.passed:
            self.half.fail(code, details)

    def _expire(self) -> None:
        """The client's time is up: it is told so, and all that was done for it is given up."""
        self._fail(grpc.StatusCode.DEADLINE_EXCEEDED, "Deadline Exceeded")
        self._stop()
        self.link.flush()

    # Ways out.

    def _release(self, *, end: bool) -> None:
        """Let the call pass, with what was collected of it."""
        collector = self._collector
        taken = collector.taken() if collector is not None else ()
        self.link.requests.keep(self.half, sum(map(len, taken)))
        self._stop()
        self.passed = True
        other = self.link.relay(self.half, self.request, end=end and not taken, ahead=self._intake.extra)
        if other is not None and taken:
            other.send_parts(taken, end=end)

    def pass_reply(self) -> None:
        """The reply goes past the handler: what the runtime sends from now on is the client's."""
        self.passed = True
        self._stop_timer()

    def _collected(self) -> None:
        """Collecting has ended: others may begin."""
        if self._collector is None:
            return
        self._collector = None
        self.link.requests.leave(self)

    def _stop(self) -> None:
        self._collected()
        self._stop_timer()
        if self._task is not None and self._task is not asyncio.current_task():
            self._task.cancel()

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


def _any_length(headers: Headers) -> Headers:
    """Without a length that need not be true any more."""
    return headers if headers.get(b"content-length") is None else Headers(headers.without(b"content-length"))
