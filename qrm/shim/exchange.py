"""One intercepted call, as its handler sees it: no transport shows through."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass

import grpc

from qrm.enforcement.channel import CallError, Metadata

Forward = Callable[[bytes], Awaitable[bytes]]


@dataclass(frozen=True, slots=True)
class Exchange:
    """A unary call on its way from kubelet to the runtime."""

    method: str
    """The full path, such as `/runtime.v1.RuntimeService/CreateContainer`."""
    request: bytes
    """The message as it came."""
    metadata: Metadata
    """kubelet's own metadata; the transport passes it on by itself."""
    seconds_left: float | None
    """Until kubelet gives up, as of the call's arrival; None where it waits for ever."""
    forward: Forward
    """Send a message to the runtime and return its reply.

    Raises CallError with the runtime's status unchanged; a handler that lets it through passes it on to kubelet.
    """


Handler = Callable[[Exchange], Awaitable[bytes]]
"""Returns the reply for kubelet, or raises CallError for a refusal or the runtime's own error."""

Handlers = Mapping[str, Handler]
"""By full path."""


async def forward_ending(exchange: Exchange, ended: Callable[[], None]) -> bytes:
    """Forward a stop or a removal, and call `ended` once it is so: done now, or nothing there any more."""
    try:
        reply = await exchange.forward(exchange.request)
    except CallError as error:
        if error.code is grpc.StatusCode.NOT_FOUND:
            ended()
        raise
    ended()
    return reply
