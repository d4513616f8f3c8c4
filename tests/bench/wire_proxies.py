"""`python -m tests.bench.wire_proxies KIND SOCKET RUNTIME`: one of the proxies that are compared, until SIGTERM.

KIND is `frames`, the shim's transport, or `messages`, what it would be on grpc.aio: a server and a channel that carry
messages as bytes. Both have the same handlers. `bytes` copies what it reads from one socket to the other and looks at
nothing: what is left of a proxy in Python that does no work. All run on uvloop.
"""

from __future__ import annotations

import asyncio
import signal
import socket
import sys
from pathlib import Path
from typing import cast

import grpc
import grpc.aio
import uvloop

from qrm.enforcement.channel import Metadata, open_channel, pairs
from qrm.metrics import Metrics
from qrm.shim.exchange import Exchange, Handler, Handlers
from qrm.shim.transport import Transport
from tests.bench.wire_calls import CREATE, LIST_SEEN

_LIMIT = 16 << 20
_HOP_BY_HOP = ("grpc-timeout", "grpc-encoding", "grpc-accept-encoding", "content-type", "user-agent", "te")

Context = grpc.aio.ServicerContext[bytes, bytes]


async def _change(exchange: Exchange) -> bytes:
    """Forward another message: a field more that nobody knows."""
    return await exchange.forward(exchange.request + b"\xf8\x07\x01")


async def _see(exchange: Exchange) -> bytes:
    """Forward as it is, and have the reply."""
    return await exchange.forward(exchange.request)


HANDLERS: Handlers = {CREATE: _change, LIST_SEEN: _see}


class _Messages(grpc.GenericRpcHandler):
    """A proxy of messages: a call of one request where there is a handler, streams both ways for all others."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self._channel = channel

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler[bytes, bytes]:
        method = handler_call_details.method
        handler = HANDLERS.get(method)

        async def hold(request: bytes, context: Context) -> bytes:
            assert handler is not None
            return await self._hold(method, handler, request, context)

        async def relay(request: bytes, context: Context) -> None:
            await self._relay(method, request, context)

        if handler is not None:
            return grpc.unary_unary_rpc_method_handler(hold)
        return grpc.unary_stream_rpc_method_handler(relay)  # all calls of CRI have one request

    async def _hold(self, method: str, handler: Handler, request: bytes, context: Context) -> bytes:
        metadata = _forwarded(context)

        async def forward(message: bytes) -> bytes:
            ask: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = self._channel.unary_unary(method)
            call = ask(message, metadata=metadata, timeout=context.time_remaining())
            reply: bytes = await call
            await context.send_initial_metadata(pairs(await call.initial_metadata()))
            context.set_trailing_metadata(pairs(await call.trailing_metadata()))
            return reply

        return await handler(Exchange(method, request, metadata, context.time_remaining(), forward))

    async def _relay(self, method: str, request: bytes, context: Context) -> None:
        ask: grpc.aio.UnaryStreamMultiCallable[bytes, bytes] = self._channel.unary_stream(method)
        call = ask(request, metadata=_forwarded(context), timeout=context.time_remaining())
        await context.send_initial_metadata(pairs(await call.initial_metadata()))
        async for reply in call:
            await context.write(reply)
        context.set_trailing_metadata(pairs(await call.trailing_metadata()))


def _forwarded(context: Context) -> Metadata:
    return tuple((key, value) for key, value in pairs(context.invocation_metadata()) if key not in _HOP_BY_HOP)


async def _frames(path: Path, runtime: Path, stopping: asyncio.Event) -> None:
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.setblocking(False)
    listener.bind(str(path))
    listener.listen(128)
    transport = Transport(runtime, HANDLERS, Metrics())
    await transport.listen(listener)
    await stopping.wait()
    await transport.close()


async def _messages(path: Path, runtime: Path, stopping: asyncio.Event) -> None:
    async with open_channel(f"unix://{runtime}", _LIMIT) as channel:
        server = grpc.aio.server(options=[("grpc.max_receive_message_length", _LIMIT)])
        server.add_generic_rpc_handlers((_Messages(channel),))
        server.add_insecure_port(f"unix:{path}")
        await server.start()
        await stopping.wait()
        await server.stop(None)


class _Pipe(asyncio.Protocol):
    """One socket of two, whose bytes go to the other."""

    def __init__(self) -> None:
        self.other: _Pipe | None = None
        self.transport: asyncio.Transport | None = None
        self._early = bytearray()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)  # uvloop's is none by its type
        if self._early:
            self.transport.write(self._early)

    def data_received(self, data: bytes) -> None:
        assert self.other is not None
        self.other.write(data)

    def write(self, data: bytes) -> None:
        if self.transport is not None:
            self.transport.write(data)
        else:
            self._early += data

    def connection_lost(self, exc: Exception | None) -> None:
        if self.other is not None and self.other.transport is not None:
            self.other.transport.close()


async def _bytes(path: Path, runtime: Path, stopping: asyncio.Event) -> None:
    loop, dialling = asyncio.get_running_loop(), set[asyncio.Task[object]]()

    def accepted() -> _Pipe:
        near, far = _Pipe(), _Pipe()
        near.other, far.other = far, near
        dialling.add(loop.create_task(loop.create_unix_connection(lambda: far, str(runtime))))
        return near

    async with await loop.create_unix_server(accepted, path):
        await stopping.wait()


async def main(kind: str, path: str, runtime: str) -> None:
    """Serve."""
    stopping = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopping.set)
    await {"frames": _frames, "messages": _messages, "bytes": _bytes}[kind](Path(path), Path(runtime), stopping)


if __name__ == "__main__":
    uvloop.run(main(*sys.argv[1:]))
