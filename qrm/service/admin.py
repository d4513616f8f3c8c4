"""The admin socket: a gRPC server of its own whose messages are the structs of `api` as JSON."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

import grpc
import grpc.aio
import msgspec
import structlog

from qrm import __version__
from qrm.allocator import BadRequest, Quantities
from qrm.enforcement.channel import CallError
from qrm.ledger.record import CPU, Record
from qrm.service import api, views
from qrm.service.doctor import examine
from qrm.service.node import Node
from qrm.service.planning import what_if
from qrm.service.sockets import private_directory, private_name, publish
from qrm.upkeep.isolation import wanted_files

log = structlog.get_logger(__name__)

Context = grpc.aio.ServicerContext[bytes, bytes]
Answer = TypeVar("Answer")

_PATIENCE = 2.0
"""Seconds that a status waits for the runtime."""


class Admin:
    """What the qrm command may ask. Every method takes the request's JSON and returns a struct."""

    def __init__(self, node: Node, give_way: Callable[[Path], None]) -> None:
        self._node = node
        self._give_way = give_way

    async def status(self, _: bytes) -> api.Status:
        """The service at a glance."""
        node = self._node
        by_level, unmanaged, adopted = views.counts(node.book)
        quantities = node.book.quantities().get(CPU, Quantities({}, {}))
        return api.Status(
            version=__version__,
            started=node.started,
            socket=node.config.shim.socket,
            runtime=f"{node.config.runtime.endpoint} ({await self._runtime()})",
            ready=node.context.ready.is_set(),
            containers=by_level,
            unmanaged=unmanaged,
            adopted=adopted,
            pushes_due=sum(1 for _ in node.book.due()),
            pools={name: str(cpus) for name, cpus in quantities.pools.items()},
            free={str(numa): free for numa, free in quantities.free.items()},
            allocatable={str(numa): amount for numa, amount in quantities.allocatable.items()},
            ledger=f"{node.book.ledger.path}, {len(node.book.ledger)} lines",
        )

    async def topology(self, _: bytes) -> api.Topology:
        """The machine and who holds it."""
        node = self._node
        return views.topology(node.planner.machine, node.book, node.book.quantities().get(CPU))

    async def pods(self, _: bytes) -> list[api.Container]:
        """All containers in the ledger."""
        return [views.container(record) for record in views.containers(self._node.book)]

    async def explain(self, request: bytes) -> list[api.Explanation]:
        """The containers that a text such as `ns/pod`, `pod/container`, a uid or an id names."""
        wanted = msgspec.json.decode(request, type=str)
        found = []
        for record in views.containers(self._node.book):
            if wanted in _names(record.request.pod.namespace, record.request.pod.name, record.key.container) or (
                wanted and (record.key.pod_uid == wanted or record.container_id.startswith(wanted))
            ):
                seen = await self._node.processes.cpuset(record.container_id) if record.running else None
                plugins = await self._node.crew.held(record.key)
                isolation = await self._isolation(record) if record.running else []
                found.append(views.explanation(record, seen=seen, plugins=plugins, isolation=isolation))
        if not found:
            raise BadRequest(f"no pod or container {wanted!r} in the ledger", hint="qrm pods lists them")
        return found

    async def _isolation(self, record: Record) -> list[api.Fact]:
        """The container's cgroup files, then what its pod has."""
        files = self._node.files
        found = await files.values(record.container_id, wanted_files(record, files))
        of_pod = await self._node.enforcer.explain(record.sandbox_id)
        return [
            *(api.Fact(name, wanted, wanted if agrees else now) for name, (wanted, now, agrees) in found.items()),
            *(api.Fact(fact.name, fact.wanted, fact.kernel) for fact in of_pod),
        ]

    async def plan(self, request: bytes) -> api.PlanReply:
        """What would happen to a pod."""
        node = self._node
        return what_if(node.book, msgspec.json.decode(request, type=api.PlanRequest), node.defaults())

    async def doctor(self, _: bytes) -> api.Doctor:
        """Each feature: on, off or degraded, and why."""
        return await examine(self._node)

    async def give_way(self, request: bytes) -> int:
        """Let another process take over; its pid, whose end is not waited for."""
        self._give_way(Path(msgspec.json.decode(request, type=api.GiveWay).socket))
        return os.getpid()

    async def _runtime(self) -> str:
        try:
            async with asyncio.timeout(_PATIENCE):
                version = await self._node.runtime.version()
        except TimeoutError:
            return f"no answer within {_PATIENCE:g} s"
        except CallError as error:
            return f"does not answer: {error.code.name}"
        return f"{version.runtime_name} {version.runtime_version}"


class _Methods(grpc.GenericRpcHandler):
    def __init__(self, admin: Admin) -> None:
        names = ("status", "topology", "pods", "explain", "plan", "doctor", "give_way")
        self._methods = {api.PREFIX + name: _json(getattr(admin, name)) for name in names}

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler[bytes, bytes] | None:
        method = self._methods.get(handler_call_details.method)
        return None if method is None else grpc.unary_unary_rpc_method_handler(method)


def _json(method: Callable[[bytes], Awaitable[Any]]) -> Callable[[bytes, Context], Awaitable[bytes]]:
    async def answer(request: bytes, context: Context) -> bytes:
        try:
            return msgspec.json.encode(await method(request))
        except (BadRequest, msgspec.MsgspecError) as error:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
        except Exception as error:
            log.exception("admin call failed")
            await context.abort(grpc.StatusCode.INTERNAL, f"{error!r}; the service's log has more")

    return answer


@asynccontextmanager
async def admin_socket(node: Node, give_way: Callable[[Path], None]) -> AsyncIterator[None]:
    """Serve the admin API on the configured socket while the context is open.

    `give_way` is called for another process that wants to take over, with where it listens; raises BadRequest.
    """
    public = Path(node.config.shim.admin_socket)
    private_directory(public.parent)
    server = grpc.aio.server()
    server.add_generic_rpc_handlers((_Methods(Admin(node, give_way)),))
    private = private_name(public)
    server.add_insecure_port(f"unix:{private}")
    await server.start()
    publish(private, public)
    try:
        yield
    finally:
        await server.stop(None)


def _names(namespace: str, pod: str, container: str) -> tuple[str, ...]:
    return pod, f"{namespace}/{pod}", f"{pod}/{container}", f"{namespace}/{pod}/{container}"
