"""A QRM plugin that says what it is told to say, over a real socket."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import grpc
import grpc.aio
from google.protobuf.message import Message

from qrm.wire import plugin_registration_pb2 as registration
from qrm.wire import resource_plugin_pb2 as wire


@dataclass(frozen=True)
class Fails:
    """An answer that is an error."""

    code: grpc.StatusCode
    text: str


HANGS = object()
"""An answer that never comes."""


def info(name: str = "cpu", kind: str = "ResourcePlugin", version: str = "v1alpha1") -> registration.PluginInfo:
    return registration.PluginInfo(type=kind, name=name, supported_versions=[version])


@dataclass
class FakePlugin(grpc.GenericRpcHandler):
    """The plugin; an async context manager that listens on `path` while it is open."""

    path: Path
    answers: dict[str, object] = field(default_factory=dict)
    """By method: a message, bytes, Fails or HANGS; UNIMPLEMENTED without one."""
    calls: list[tuple[str, bytes]] = field(default_factory=list)

    def __post_init__(self) -> None:
        usual = {
            "GetInfo": info(),
            "NotifyRegistrationStatus": registration.RegistrationStatusResponse(),
            "GetResourcePluginOptions": wire.ResourcePluginOptions(with_topology_alignment=True),
        }
        self.answers = {**usual, **self.answers}

    async def __aenter__(self) -> Self:
        self.server = grpc.aio.server()
        self.server.add_generic_rpc_handlers((self,))
        self.server.add_insecure_port(f"unix:{self.path}")
        await self.server.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.server.stop(None)
        self.path.unlink(missing_ok=True)

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler[Any, Any] | None:
        method = handler_call_details.method.rpartition("/")[2]
        if method not in self.answers:
            return None

        async def answer(request: bytes, context: grpc.aio.ServicerContext[Any, Any]) -> bytes:
            self.calls.append((method, request))
            found = self.answers[method]
            if found is HANGS:
                await asyncio.sleep(3600)
            if isinstance(found, Fails):
                await context.abort(found.code, found.text)
            if isinstance(found, Message):
                return found.SerializeToString()
            assert isinstance(found, bytes)
            return found

        return grpc.unary_unary_rpc_method_handler(answer)

    def notices(self) -> list[registration.RegistrationStatus]:
        """What it was told about its registration."""
        return [
            registration.RegistrationStatus.FromString(raw)
            for method, raw in self.calls
            if method == "NotifyRegistrationStatus"
        ]
