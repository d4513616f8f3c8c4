"""The gRPC server that kubelet talks to, on grpc.aio, carrying messages as bytes.

Nothing here knows a method by name: what has a handler is held for it, everything else is passed on as it comes,
whether this qrm has ever heard of it or not.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator

import grpc
import grpc.aio
import structlog

from qrm.enforcement.channel import CallError, Metadata, channel_options, pairs
from qrm.metrics import Metrics
from qrm.shim.exchange import Exchange, Handler, Handlers

log = structlog.get_logger(__name__)

_HOP_BY_HOP = ("grpc-timeout", "grpc-encoding", "grpc-accept-encoding", "content-type", "user-agent", "te")
"""Metadata that belongs to one connection; each side of the shim makes its own."""

_HALF_CLOSE = 0.05
"""Seconds to wait for a client to say that its first message was all; one that has only one says so with it."""

Context = grpc.aio.ServicerContext[bytes, bytes]
_Call = grpc.aio.UnaryStreamCall[bytes, bytes] | grpc.aio.StreamStreamCall[bytes, bytes]


class Transport(grpc.GenericRpcHandler):
    """Finds what to do with each call by its path."""

    def __init__(self, channel: grpc.aio.Channel, handlers: Handlers, metrics: Metrics) -> None:
        self._channel = channel
        self._handlers = handlers
        self._metrics = metrics

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler[bytes, bytes]:
        """A held unary call where there is a handler, else a stream in both directions, which can carry any call."""
        method = handler_call_details.method
        handler = self._handlers.get(method)
        if handler is None:

            async def relay(_: AsyncIterator[bytes], context: Context) -> None:
                await self._relay(method, context)

            return grpc.stream_stream_rpc_method_handler(relay)

        async def hold(request: bytes, context: Context) -> bytes:
            return await self._hold(method, handler, request, context)

        return grpc.unary_unary_rpc_method_handler(hold)

    async def _hold(self, method: str, handler: Handler, request: bytes, context: Context) -> bytes:
        metadata = _forwarded(context)
        started = time.perf_counter()
        trailing: Metadata = ()

        async def forward(message: bytes) -> bytes:
            nonlocal trailing
            ask: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = self._channel.unary_unary(method)
            call = ask(message, metadata=metadata, timeout=context.time_remaining())
            try:
                reply: bytes = await call
                await context.send_initial_metadata(pairs(await call.initial_metadata()))
                trailing = pairs(await call.trailing_metadata())
            except grpc.aio.AioRpcError as error:
                raise CallError.of(error) from None
            return reply

        code = grpc.StatusCode.OK
        try:
            reply = await handler(Exchange(method, request, metadata, context.time_remaining(), forward))
            context.set_trailing_metadata(trailing)
            return reply
        except CallError as error:
            code = error.code
            await context.abort(error.code, error.details, error.trailing)
        except asyncio.CancelledError:
            code = grpc.StatusCode.CANCELLED
            raise
        finally:
            self._count(method, code, started)

    async def _relay(self, method: str, context: Context) -> None:
        started = time.perf_counter()
        code = grpc.StatusCode.OK
        requests = _Requests(context)
        try:
            call = await self._open(method, requests, context)
            try:
                await context.send_initial_metadata(pairs(await call.initial_metadata()))
                async for reply in call:
                    await context.write(reply)
                context.set_trailing_metadata(pairs(await call.trailing_metadata()))
            finally:
                call.cancel()
        except grpc.aio.AioRpcError as error:
            code = error.code()
            await context.abort(code, error.details() or "", pairs(error.trailing_metadata()))
        except asyncio.CancelledError:
            code = grpc.StatusCode.CANCELLED
            raise
        finally:
            requests.close()
            self._count(method, code, started)

    async def _open(self, method: str, requests: _Requests, context: Context) -> _Call:
        """Begin the call at the runtime.

        grpc.aio reports INTERNAL instead of the runtime's status where that comes before all requests are sent, unless
        there is exactly one: so a call with one request, which is every call of CRI, is begun as such.
        """
        metadata, timeout = _forwarded(context), context.time_remaining()
        only = await requests.only_one()
        if only is not None:
            one: grpc.aio.UnaryStreamMultiCallable[bytes, bytes] = self._channel.unary_stream(method)
            return one(only, metadata=metadata, timeout=timeout)
        many: grpc.aio.StreamStreamMultiCallable[bytes, bytes] = self._channel.stream_stream(method)
        return many(requests.all(), metadata=metadata, timeout=timeout)

    def _count(self, method: str, code: grpc.StatusCode, started: float) -> None:
        name = method.rpartition("/")[2]
        self._metrics.calls.labels(name, code.name).inc()
        self._metrics.call_seconds.labels(name).observe(time.perf_counter() - started)


class _Requests:
    """A client's messages, of which the first is looked at to see whether it is the only one."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._first: bytes | None = None
        self._second: asyncio.Task[bytes | object] | None = None

    async def only_one(self) -> bytes | None:
        """The only message; None where there is none or more, or the client has not said yet that this was all."""
        first = await self._context.read()
        if not isinstance(first, bytes):
            return None
        self._first = first
        self._second = asyncio.ensure_future(self._context.read())
        done, _ = await asyncio.wait({self._second}, timeout=_HALF_CLOSE)
        return first if done and not isinstance(self._second.result(), bytes) else None

    async def all(self) -> AsyncIterator[bytes]:
        """All messages, what was looked at among them."""
        if self._first is None or self._second is None:
            return
        yield self._first
        message: object = await self._second
        while isinstance(message, bytes):
            yield message
            message = await self._context.read()

    def close(self) -> None:
        """Stop reading."""
        if self._second is not None:
            self._second.cancel()


def make_server(
    channel: grpc.aio.Channel, handlers: Handlers, metrics: Metrics, *, max_message_bytes: int
) -> grpc.aio.Server:
    """A server that is not listening yet."""
    options = [
        *channel_options(max_message_bytes),
        # kubelet sends no pings; a client that does is no reason to drop every pod's calls.
        ("grpc.http2.max_ping_strikes", 0),
    ]
    server = grpc.aio.server(options=options)
    server.add_generic_rpc_handlers((Transport(channel, handlers, metrics),))
    return server


def _forwarded(context: Context) -> Metadata:
    return tuple((key, value) for key, value in pairs(context.invocation_metadata()) if key not in _HOP_BY_HOP)
