"""The gRPC side of the fake runtime: which method is what, and the way of one call through record, faults and store."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from typing import Any, NamedTuple

import grpc
from google.protobuf.message import Message

from qrm.demo.fake_echo import SERVICE as ECHO_SERVICE
from qrm.demo.fake_echo import Echo
from qrm.demo.fake_faults import Context, Faults
from qrm.demo.fake_records import IMAGE_ID
from qrm.demo.fake_store import Refusal, Store
from qrm.demo.kubelet import IMAGE_SERVICE, RUNTIME_SERVICE
from qrm.wire import cri_pb2

_EVENTS = {
    "CreateContainer": cri_pb2.CONTAINER_CREATED_EVENT,
    "StartContainer": cri_pb2.CONTAINER_STARTED_EVENT,
    "StopContainer": cri_pb2.CONTAINER_STOPPED_EVENT,
    "RemoveContainer": cri_pb2.CONTAINER_DELETED_EVENT,
}


class Call(NamedTuple):
    """One call that reached the runtime: the last part of its path, and what it carried."""

    method: str
    message: Any
    """The request, of the method's own type."""


class _Method(NamedTuple):
    request: type[Message]
    answer: Callable[[Any], Message]


class Service(grpc.GenericRpcHandler):
    """All that listens on the fake runtime's socket."""

    def __init__(self, store: Store, faults: Faults, echo: Echo, calls: list[Call], *, pod_updates: bool) -> None:
        self._faults = faults
        self._echo = echo
        self._calls = calls
        self._watching: set[asyncio.Queue[cri_pb2.ContainerEventResponse]] = set()
        self._methods = {
            **{f"/{RUNTIME_SERVICE}/{name}": method for name, method in _runtime_methods(store).items()},
            **{f"/{IMAGE_SERVICE}/{name}": method for name, method in _image_methods().items()},
        }
        if not pod_updates:
            del self._methods[f"/{RUNTIME_SERVICE}/UpdatePodSandboxResources"]

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler[bytes, bytes] | None:
        """gRPC asks this for every call."""
        path = handler_call_details.method
        service, _, name = path.strip("/").partition("/")
        if service == ECHO_SERVICE:
            return self._echo.handler(name)
        method = self._methods.get(path)
        if path == f"/{RUNTIME_SERVICE}/GetContainerEvents":
            return grpc.unary_stream_rpc_method_handler(self._events)
        if method is None:
            return grpc.unary_unary_rpc_method_handler(_refusing(service, name))
        return grpc.unary_unary_rpc_method_handler(self._serving(name, method))

    def _serving(self, name: str, method: _Method) -> Callable[[bytes, Context], Any]:
        async def serve(data: bytes, context: Context) -> bytes:
            request = method.request.FromString(data)
            self._calls.append(Call(name, request))
            if self._faults.takes_late(name):
                await _when_given_up(lambda: method.answer(request))
            await self._faults.strike(name, context, after=False)
            try:
                reply = method.answer(request)
            except Refusal as refusal:
                await context.abort(refusal.code, refusal.message)
            if name in _EVENTS:
                self._tell(name, getattr(reply, "container_id", "") or getattr(request, "container_id", ""))
            await self._faults.strike(name, context, after=True)
            return reply.SerializeToString()

        return serve

    def _tell(self, method: str, container_id: str) -> None:
        event = cri_pb2.ContainerEventResponse(
            container_id=container_id, container_event_type=_EVENTS[method], created_at=time.time_ns()
        )
        for each in self._watching:
            each.put_nowait(event)

    async def _events(self, _: bytes, _context: Context) -> AsyncIterator[bytes]:
        """GetContainerEvents, as long as the client listens. What happens to containers by itself is not told."""
        told = asyncio.Queue[cri_pb2.ContainerEventResponse]()
        self._watching.add(told)
        try:
            while True:
                yield (await told.get()).SerializeToString()
        finally:
            self._watching.discard(told)


async def _when_given_up(act: Callable[[], object]) -> None:
    """Wait until the client has given up the call, and only then act."""
    try:
        await asyncio.Event().wait()
    except asyncio.CancelledError:
        with suppress(Refusal):
            act()
        raise


def _refusing(service: str, name: str) -> Callable[[bytes, Context], Any]:
    """What grpc-go answers to a method that it does not know."""
    known = service in {RUNTIME_SERVICE, IMAGE_SERVICE}
    message = f"unknown method {name} for service {service}" if known else f"unknown service {service}"

    async def serve(_: bytes, context: Context) -> bytes:
        await context.abort(grpc.StatusCode.UNIMPLEMENTED, message)

    return serve


def _runtime_methods(store: Store) -> dict[str, _Method]:
    return {
        "Version": _Method(cri_pb2.VersionRequest, lambda _: _version(store.release)),
        "Status": _Method(cri_pb2.StatusRequest, _status),
        "RunPodSandbox": _Method(cri_pb2.RunPodSandboxRequest, store.run_pod),
        "StopPodSandbox": _Method(cri_pb2.StopPodSandboxRequest, store.stop_pod),
        "RemovePodSandbox": _Method(cri_pb2.RemovePodSandboxRequest, store.remove_pod),
        "PodSandboxStatus": _Method(cri_pb2.PodSandboxStatusRequest, store.pod_status),
        "ListPodSandbox": _Method(cri_pb2.ListPodSandboxRequest, store.list_pods),
        "UpdatePodSandboxResources": _Method(cri_pb2.UpdatePodSandboxResourcesRequest, store.update_pod),
        "CreateContainer": _Method(cri_pb2.CreateContainerRequest, store.create),
        "StartContainer": _Method(cri_pb2.StartContainerRequest, store.start),
        "StopContainer": _Method(cri_pb2.StopContainerRequest, store.stop),
        "RemoveContainer": _Method(cri_pb2.RemoveContainerRequest, store.remove),
        "UpdateContainerResources": _Method(cri_pb2.UpdateContainerResourcesRequest, store.update),
        "ContainerStatus": _Method(cri_pb2.ContainerStatusRequest, store.status),
        "ListContainers": _Method(cri_pb2.ListContainersRequest, store.list_containers),
        "ExecSync": _Method(cri_pb2.ExecSyncRequest, store.exec_sync),
    }


def _image_methods() -> dict[str, _Method]:
    """Every image is there already, and none is listed."""
    return {
        "ListImages": _Method(cri_pb2.ListImagesRequest, lambda _: cri_pb2.ListImagesResponse()),
        "ImageStatus": _Method(cri_pb2.ImageStatusRequest, _image_status),
        "PullImage": _Method(cri_pb2.PullImageRequest, lambda _: cri_pb2.PullImageResponse(image_ref=IMAGE_ID)),
        "ImageFsInfo": _Method(cri_pb2.ImageFsInfoRequest, lambda _: cri_pb2.ImageFsInfoResponse()),
    }


def _version(release: tuple[int, int]) -> cri_pb2.VersionResponse:
    return cri_pb2.VersionResponse(
        version="0.1.0",
        runtime_name="fake",
        runtime_version=".".join(str(number) for number in release),
        runtime_api_version="v1",
    )


def _status(_: cri_pb2.StatusRequest) -> cri_pb2.StatusResponse:
    conditions = [cri_pb2.RuntimeCondition(type=each, status=True) for each in ("RuntimeReady", "NetworkReady")]
    return cri_pb2.StatusResponse(status=cri_pb2.RuntimeStatus(conditions=conditions))


def _image_status(request: cri_pb2.ImageStatusRequest) -> cri_pb2.ImageStatusResponse:
    return cri_pb2.ImageStatusResponse(image=cri_pb2.Image(id=IMAGE_ID, repo_tags=[request.image.image]))
