"""A connection of kubelet's and the one to the runtime that belongs to it."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Protocol

from qrm.shim.exchange import Handler
from qrm.shim.http2 import frames
from qrm.shim.http2.headers import Headers
from qrm.shim.http2.held import Held
from qrm.shim.http2.limits import Limits
from qrm.shim.http2.room import Room
from qrm.shim.http2.sides import DRAINING, ClientSide, RuntimeSide, carried
from qrm.shim.http2.status import away
from qrm.shim.http2.stream import Call, Half


class Hub(Protocol):
    """What all links share."""

    @property
    def limits(self) -> Limits:
        """What a connection may cost."""

    @property
    def handlers(self) -> Mapping[bytes, Handler]:
        """By path."""

    def dial(self, side: RuntimeSide) -> None:
        """Connect to the runtime. Raises OSError."""

    def running(self, task: asyncio.Task[None]) -> None:
        """A handler has begun."""

    def ended(self, call: Call) -> None:
        """A call is over."""

    def gone(self, link: Link) -> None:
        """A client's connection is closed."""


class Link:
    """kubelet's connection, and the runtime's that goes with it: at most one that takes new calls."""

    def __init__(self, hub: Hub) -> None:
        self.hub = hub
        self.client = ClientSide(self)
        self.runtime: RuntimeSide | None = None
        self.older: list[RuntimeSide] = []
        """Connections on which the runtime takes no new calls, but still has some."""
        self.requests, self.replies = (Room(hub.limits.max_held_bytes) for _ in range(2))
        """For what held calls have in memory."""

    def reach(self) -> RuntimeSide:
        """The connection for a new call, dialled where there is none. Raises OSError where that cannot be done."""
        runtime = self.runtime
        if runtime is not None and runtime.takes_calls:
            return runtime
        side = RuntimeSide(self)
        self.hub.dial(side)
        if runtime is not None:
            self.older.append(runtime)
        self.runtime = side
        side.start({frames.ENABLE_PUSH: 0, **carried(self.client, self.hub.limits)})
        return side

    def relay(self, half: Half, headers: Headers, *, end: bool, ahead: int = 0) -> Half | None:
        """Begin a client's call at the runtime, and pass on what either says; None where it cannot be reached.

        `ahead` is what the client was granted on the runtime's behalf.
        """
        try:
            runtime = self.reach()
        except OSError as error:
            told = away(error)
            half.fail(told.code, told.details)
            return None
        other = runtime.open(half)
        other.ahead = ahead
        other.send_headers(headers, end=end)
        half.pass_to(other)  # which may widen the window of the stream, that has to be open for it
        return other

    def hold(self, half: Half, headers: Headers, handler: Handler) -> None:
        """Begin a client's call here."""
        Held(self, half, headers, handler).begin()

    def flush(self) -> None:
        """Send what is to be sent on all connections."""
        self.client.flush()
        if self.runtime is not None:
            self.runtime.flush()
        for side in list(self.older):
            side.flush()
            if not side.streams:
                side.close()
        if self.client.leaving is not None and not self.client.streams:
            self.client.close()

    def throttle(self) -> None:
        """Read from no side whose data another one does not take for now."""
        runtimes = [*self.older, self.runtime] if self.runtime is not None else list(self.older)
        client = self.client
        if client.wire is not None:
            client.wire.read(on=not any(side.paused for side in runtimes))
        for side in runtimes:
            if side.wire is not None:
                side.wire.read(on=not client.paused)

    def drain(self) -> None:
        """Tell the client to begin no calls any more, and to say when it has heard that."""
        if self.client.leaving is None and not self.client.closed:
            self.client.out.append(frames.goaway(frames.LAST_STREAM, frames.NO_ERROR))
            self.client.out.append(frames.frame(frames.PING, 0, 0, DRAINING))
            self.client.flush()

    def leave(self, last: int | None = None, error: int = frames.NO_ERROR, debug: bytes = b"") -> None:
        """Tell the client which calls were the last ones; the connection ends with them."""
        if self.client.leaving is None and not self.client.closed:
            self.client.leaving = self.client.last if last is None else last
            self.client.out.append(frames.goaway(self.client.leaving, error, debug))
