"""What kubelet asks of a runtime all day, at once: relists, pods, execs, long stops, resizes, images, an event stream.

Nothing waits for a connection and nothing is tried again: every call that fails is written down.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar

import grpc
import grpc.aio

from qrm.demo.kubelet import IMAGE_SERVICE, KubeletClient, RunningPod
from qrm.demo.pods import Pod, container_resources
from qrm.wire import cri_pb2

STUBBORN = ("/bin/sh", "-c", 'trap "" TERM; while :; do sleep 1; done')
"""A container that ends by SIGKILL only, so that StopContainer takes its whole grace period."""

Result = TypeVar("Result")


@dataclass(frozen=True)
class Failure:
    """A call that did not end well."""

    method: str
    code: str
    details: str
    begun: float
    ended: float
    """By the monotonic clock."""

    def __str__(self) -> str:
        return f"{self.method} after {self.ended - self.begun:.3f} s: {self.code}: {self.details[:160]}"


@dataclass
class Tally:
    """What came of the calls."""

    done: Counter[str] = field(default_factory=Counter)
    slowest: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    """Seconds, by method."""
    failures: list[Failure] = field(default_factory=list)
    events: int = 0
    streams: list[str] = field(default_factory=list)
    """How each event stream ended."""

    async def call(self, method: str, call: Awaitable[Result]) -> Result:
        """Wait for a call and write down how it ended; raises its error."""
        begun = time.monotonic()
        try:
            result = await call
        except grpc.aio.AioRpcError as error:
            self.failures.append(Failure(method, error.code().name, error.details() or "", begun, time.monotonic()))
            raise
        self.done[method] += 1
        self.slowest[method] = max(self.slowest[method], time.monotonic() - begun)
        return result


@dataclass
class Load:
    """kubelet's work. `make` makes a pod's spec of a name; `stubborn` one whose container is slow to end."""

    kubelet: KubeletClient
    make: Callable[[str], Pod]
    stubborn: Callable[[str], Pod]
    grace: int
    """Seconds that a stubborn container gets."""
    workers: int = 3
    """Pods that come and go at a time."""
    tally: Tally = field(default_factory=Tally)
    _ending: asyncio.Event = field(default_factory=asyncio.Event)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Tally]:
        """Work while the context is open; then what has been begun is ended, the pods too."""
        loops = [
            self._every(1.0, self._relist),
            self._every(0.02, self._probe),
            self._every(0.5, self._images),
            self._with_pod("long", self._exec),
            self._with_pod("resized", self._resize),
            *(self._pods(f"pod-{number}") for number in range(self.workers)),
            self._stops(),
        ]
        tasks = [asyncio.create_task(each) for each in loops]
        events = asyncio.create_task(self._events())
        try:
            yield self.tally
        finally:
            self._ending.set()
            await asyncio.gather(*tasks)
            await self._sweep()
            events.cancel()
            await asyncio.gather(events, return_exceptions=True)

    async def _every(self, seconds: float, work: Callable[[], Awaitable[object]]) -> None:
        while not self._ending.is_set():
            with suppress(grpc.aio.AioRpcError):
                await work()
            await self._pause(seconds)

    async def _pause(self, seconds: float) -> None:
        try:
            await asyncio.wait_for(self._ending.wait(), seconds)
        except TimeoutError:
            return

    async def _relist(self) -> None:
        await self.tally.call("ListPodSandbox", self.kubelet.pods())
        for each in (await self.tally.call("ListContainers", self.kubelet.containers()))[:5]:
            try:
                await self.tally.call("ContainerStatus", self.kubelet.container_status(each.id))
            except grpc.aio.AioRpcError as error:
                if error.code() is not grpc.StatusCode.NOT_FOUND:
                    raise
                self.tally.failures.pop()  # removed since it was listed

    async def _probe(self) -> None:
        await self.tally.call("Version", self.kubelet.version())

    async def _images(self) -> None:
        await self.tally.call("ImageStatus", self.kubelet.has_image("localhost/nothing:1"))
        await self.tally.call("ListImages", self._image("ListImages", cri_pb2.ListImagesRequest()))

    async def _image(self, method: str, request: cri_pb2.ListImagesRequest) -> object:
        return await self.kubelet.call(method, request, cri_pb2.ListImagesResponse, service=IMAGE_SERVICE)

    async def _pods(self, name: str) -> None:
        for number in itertools.count():
            if self._ending.is_set():
                return
            async with self._pod(self.make(f"{name}-{number}"), grace=0) as running:
                if running is not None:
                    await self._exec(running)

    async def _stops(self) -> None:
        """A long StopContainer, again and again."""
        for number in itertools.count():
            if self._ending.is_set():
                return
            async with self._pod(self.stubborn(f"stubborn-{number}"), grace=self.grace):
                await self._pause(0.1)

    async def _with_pod(self, name: str, work: Callable[[RunningPod], Awaitable[object]]) -> None:
        """The same again and again with a pod that stays; a new one where it could not be started."""
        while not self._ending.is_set():
            async with self._pod(self.make(name), grace=0) as running:
                if running is not None:
                    await self._every(0.2, lambda: work(running))

    async def _exec(self, running: RunningPod) -> None:
        command = ["true"]
        await self.tally.call("ExecSync", self.kubelet.exec_sync(running.containers["c0"], command))

    async def _resize(self, running: RunningPod) -> None:
        resources = container_resources(running.pod, running.pod.containers[0])
        call = self.kubelet.update_resources(running.containers["c0"], resources)
        await self.tally.call("UpdateContainerResources", call)

    @asynccontextmanager
    async def _pod(self, pod: Pod, *, grace: int) -> AsyncIterator[RunningPod | None]:
        """A pod that is ended afterwards; None where it did not come about. Failures are written down, not raised."""
        sandbox_id, containers = "", dict[str, str]()
        running: RunningPod | None = None
        try:
            sandbox_id = await self.tally.call("RunPodSandbox", self.kubelet.run_pod(pod))
            for spec in pod.containers:
                create = self.kubelet.create_container(sandbox_id, pod, spec)
                containers[spec.name] = await self.tally.call("CreateContainer", create)
                start = self.kubelet.start_container(containers[spec.name])
                await self.tally.call("StartContainer", start)
            running = RunningPod(pod, sandbox_id, containers)
        except grpc.aio.AioRpcError:
            await self._pause(0.5)
        with suppress(grpc.aio.AioRpcError):
            yield running
        if sandbox_id:
            await self._end(sandbox_id, containers, grace=grace)

    async def _end(self, sandbox_id: str, containers: dict[str, str], *, grace: int) -> None:
        """kubelet's way to end a pod; each step again until it has worked, as kubelet's next sync would."""
        for container_id in containers.values():
            await self._until_done("StopContainer", partial(self.kubelet.stop_container, container_id, grace=grace))
        await self._until_done("StopPodSandbox", partial(self.kubelet.stop_pod, sandbox_id))
        for container_id in containers.values():
            await self._until_done("RemoveContainer", partial(self.kubelet.remove_container, container_id))
        await self._until_done("RemovePodSandbox", partial(self.kubelet.remove_pod, sandbox_id))

    async def _sweep(self) -> None:
        """End what was begun by calls that failed, as kubelet's garbage collection does."""
        for each in await self.kubelet.pods():
            await self._until_done("StopPodSandbox", partial(self.kubelet.stop_pod, each.id))
            await self._until_done("RemovePodSandbox", partial(self.kubelet.remove_pod, each.id))

    async def _until_done(self, method: str, call: Callable[[], Awaitable[object]]) -> None:
        for _ in range(60):
            try:
                await self.tally.call(method, call())
            except grpc.aio.AioRpcError:
                await asyncio.sleep(0.5)
            else:
                return
        raise AssertionError(f"{method} does not work any more: {self.tally.failures[-1]}")

    async def _events(self) -> None:
        """The event stream, opened again whenever it ends."""
        while True:
            try:
                async for _ in self.kubelet.events():
                    self.tally.events += 1
            except grpc.aio.AioRpcError as error:
                if error.code() is grpc.StatusCode.UNIMPLEMENTED:
                    return  # containerd before 1.7
                self.tally.streams.append(f"{error.code().name}: {error.details()}")
            else:
                self.tally.streams.append("end")
            await asyncio.sleep(0.05)
