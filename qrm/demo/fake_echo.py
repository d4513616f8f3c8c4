"""Methods that no CRI has, to see whether something between client and runtime changes what passes.

Every method of the service gives the request's own metadata back: keys that begin with "initial-" as initial metadata,
all others as trailing metadata. Messages are bytes that are not looked at. By the last part of the path:

    Stream     answers with the request, as many times as the metadata `count` says
    Collect    a stream of requests, joined into one answer
    Chat       a stream of requests, each answered at once with itself
    Fail       ends with the status of the metadata `code` (a number), `message` and `grpc-status-details-bin`
    Wait       never answers
    Deadline   answers with the seconds that are left, as text; "none" where there is no deadline
    any other  answers with the request
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable

import grpc

SERVICE = "test.Echo"

Context = grpc.aio.ServicerContext[bytes, bytes]
Metadata = tuple[tuple[str, str | bytes], ...]

_CODES = {code.value[0]: code for code in grpc.StatusCode}
_TRANSPORT_KEYS = ("user-agent", "grpc-accept-encoding")


class Echo:
    """The service. `calls` counts the calls, `cancelled` those that their clients gave up."""

    def __init__(self) -> None:
        self.calls = 0
        self.cancelled = 0

    def handler(self, method: str) -> grpc.RpcMethodHandler[bytes, bytes]:
        """The handler of one method; on the wire a unary call is a stream of one message."""

        async def serve(requests: AsyncIterator[bytes], context: Context) -> None:
            self.calls += 1
            initial = [pair for pair in _own_metadata(context) if pair[0].startswith("initial-")]
            await context.send_initial_metadata(initial)
            context.set_trailing_metadata(_trailing(context))
            try:
                await _ANSWERS.get(method, _chat)(requests, context)
            except asyncio.CancelledError:
                self.cancelled += 1
                raise

        return grpc.stream_stream_rpc_method_handler(serve)


async def _chat(requests: AsyncIterator[bytes], context: Context) -> None:
    async for message in requests:
        await context.write(message)


async def _collect(requests: AsyncIterator[bytes], context: Context) -> None:
    await context.write(b"".join([message async for message in requests]))


async def _stream(requests: AsyncIterator[bytes], context: Context) -> None:
    times = int(dict(_own_metadata(context))["count"])
    async for message in requests:
        for _ in range(times):
            await context.write(message)


async def _fail(_: AsyncIterator[bytes], context: Context) -> None:
    metadata = dict(_own_metadata(context))
    await context.abort(_CODES[int(metadata["code"])], str(metadata.get("message", "")), _trailing(context))


async def _wait(_: AsyncIterator[bytes], __: Context) -> None:
    await asyncio.Event().wait()


async def _deadline(_: AsyncIterator[bytes], context: Context) -> None:
    left = context.time_remaining()
    await context.write(b"none" if left is None else f"{left:.3f}".encode())


_ANSWERS: dict[str, Callable[[AsyncIterator[bytes], Context], Awaitable[None]]] = {
    "Collect": _collect,
    "Deadline": _deadline,
    "Fail": _fail,
    "Stream": _stream,
    "Wait": _wait,
}


def _own_metadata(context: Context) -> Metadata:
    """What the client sent, without what gRPC adds."""
    return tuple((key, value) for key, value in context.invocation_metadata() or () if key not in _TRANSPORT_KEYS)


def _trailing(context: Context) -> Metadata:
    return tuple(pair for pair in _own_metadata(context) if not pair[0].startswith("initial-"))
