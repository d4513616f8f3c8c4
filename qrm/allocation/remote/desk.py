"""The socket on which plugins register themselves, as on kubelet's `kubelet.sock`.

gRPC in Python does not tell who the peer is. So the public socket is an ordinary one, on which the kernel tells; the
bytes of those who may come in go on to the gRPC server, whose own socket is in a folder that nobody else can enter.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path, PurePosixPath
from typing import Any

import grpc
import grpc.aio
import structlog

from qrm.allocation.remote.client import Options
from qrm.allocation.remote.convert import VERSION
from qrm.allocation.remote.errors import PluginError
from qrm.allocation.remote.interview import check_name
from qrm.allocation.remote.sockets import appear, bind_name, peer_uid, vanish
from qrm.errors import QrmError
from qrm.wire import resource_plugin_pb2 as wire

log = structlog.get_logger(__name__)

SERVICE = "resourceplugin.v1alpha1.Registration"

OnRegister = Callable[[str, Path, Options | None], None]
"""Called with the resource, the plugin's socket, and what it says about itself."""

_CHUNK = 1 << 16
_CALLERS = 64
"""Connections at a time; a registration is one short call."""


@asynccontextmanager
async def serve_desk(
    public: Path, allowed: frozenset[int], on_register: OnRegister, *, owner: int | None = None
) -> AsyncIterator[None]:
    """Take registrations on the socket `public` from processes of the uids `allowed`; the file is `owner`'s.

    Raises:
        QrmError: The socket cannot be made.
    """
    room = public.with_name(f".{public.name}.private")
    inner = room / "grpc"
    server = grpc.aio.server()
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, _methods(public, on_register)),))
    try:
        room.mkdir(mode=0o700, parents=True, exist_ok=True)
        room.chmod(0o700)
        inner.unlink(missing_ok=True)
        server.add_insecure_port(f"unix:{inner}")
        await server.start()
        door = _Door(inner, allowed)
        bound = bind_name(public)
        listener = await asyncio.start_unix_server(door.enter, bound)
        mine = appear(bound, public, owner)
    except (RuntimeError, OSError, QrmError) as error:
        await server.stop(None)
        raise QrmError(f"cannot take registrations on {public}: {error}") from error
    try:
        yield
    finally:
        vanish(public, mine)
        listener.close()
        await door.close()
        await server.stop(None)
        inner.unlink(missing_ok=True)
        room.rmdir()


class _Door:
    """Lets connections through to the gRPC server, if they come from the right user."""

    def __init__(self, inner: Path, allowed: frozenset[int]) -> None:
        self._inner = inner
        self._allowed = allowed
        self._inside: set[asyncio.Task[Any] | None] = set()
        self._turned_away: set[int] = set()

    async def enter(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Carry one connection for as long as it lasts."""
        task = asyncio.current_task()
        self._inside.add(task)
        try:
            if self._may(writer):
                await self._carry(reader, writer)
        except asyncio.CancelledError:
            pass
        finally:
            self._inside.discard(task)
            writer.close()

    async def close(self) -> None:
        """End all connections."""
        tasks = [task for task in self._inside if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _may(self, writer: asyncio.StreamWriter) -> bool:
        uid = peer_uid(writer.get_extra_info("socket"))
        if uid not in self._allowed:
            if uid not in self._turned_away:
                self._turned_away.add(uid)
                log.warning("registration turned away", uid=uid, allowed=sorted(self._allowed), next="not logged again")
            return False
        if len(self._inside) > _CALLERS:
            log.warning("registration turned away", uid=uid, connections=len(self._inside))
            return False
        return True

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            inner_reader, inner_writer = await asyncio.open_unix_connection(self._inner)
        except OSError:
            log.exception("registration failed")
            return
        ways = {
            asyncio.ensure_future(_pump(reader, inner_writer)),
            asyncio.ensure_future(_pump(inner_reader, writer)),
        }
        try:
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for way in ways:
                way.cancel()
            await asyncio.gather(*ways, return_exceptions=True)
            inner_writer.close()


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(ConnectionError):
        while chunk := await reader.read(_CHUNK):
            writer.write(chunk)
            await writer.drain()


def _methods(public: Path, on_register: OnRegister) -> dict[str, grpc.RpcMethodHandler[Any, Any]]:
    async def register(message: wire.RegisterRequest, context: grpc.aio.ServicerContext[Any, Any]) -> wire.Empty:
        try:
            endpoint = _endpoint(public, message)
        except PluginError as error:
            log.warning("registration refused", resource=message.resource_name[:80], error=str(error))
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
        # Asking back waits until the plugin has this answer: it may not listen to anything else before.
        options = Options.of(message.options) if message.HasField("options") else None
        on_register(message.resource_name, endpoint, options)
        return wire.Empty()

    return {
        "Register": grpc.unary_unary_rpc_method_handler(
            register,
            request_deserializer=wire.RegisterRequest.FromString,
            response_serializer=wire.Empty.SerializeToString,
        )
    }


def _endpoint(public: Path, message: wire.RegisterRequest) -> Path:
    """The plugin's socket, which is named relative to the folder of ours. Raises PluginError."""
    check_name(message.resource_name)
    if message.version != VERSION:
        raise PluginError(f"version {message.version[:80]!r} is not supported", hint=f"needed: {VERSION}")
    name = PurePosixPath(message.endpoint)
    if not name.name or name.is_absolute() or ".." in name.parts:
        raise PluginError(f"endpoint {message.endpoint[:80]!r} is not the name of a socket in {public.parent}")
    return public.parent / name
