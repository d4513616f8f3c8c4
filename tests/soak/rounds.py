"""One round of the soak: many pods start, half of their containers end and are made anew, and then all pods go."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import TypeVar

import grpc

from qrm.demo.fake_runtime import FakeRuntime
from qrm.demo.kubelet import KubeletClient, RunningPod
from qrm.demo.pods import Pod

AT_ONCE = 10
"""Pods that kubelet works on at the same time."""
_BETWEEN_CHECKS = 50
"""Pods that are started, restarted or ended before everything is looked at."""
_RELIST = 0.5
_FAILING = 5
"""Creations that the runtime refuses at first; fewer than are under way at once, so that none is struck twice."""

Item = TypeVar("Item")
Result = TypeVar("Result")


@dataclass(frozen=True)
class Round:
    """What a round works with; `check` waits for calm and looks at everything."""

    kubelet: KubeletClient
    fake: FakeRuntime
    check: Callable[[], Awaitable[None]]

    async def run(self, pods: Sequence[Pod]) -> None:
        """From nothing to nothing, with kubelet's relists all the while."""
        async with _relisting(self.kubelet):
            self.fake.faults.fail("CreateContainer", grpc.StatusCode.INTERNAL, "busy", times=_FAILING)
            running = await self._each(pods, self._start)
            restarted = await self._each(running, self._restart)
            await self._each(restarted, self._end)
        assert not self.fake.store.pods
        assert not self.fake.store.containers

    async def _start(self, pod: Pod) -> RunningPod:
        sandbox_id = await self.kubelet.run_pod(pod)
        names = [spec.name for spec in pod.containers]
        return RunningPod(pod, sandbox_id, {name: await self._run(sandbox_id, pod, name, 0) for name in names})

    async def _run(self, sandbox_id: str, pod: Pod, name: str, attempt: int) -> str:
        """One container, tried once more where the runtime refuses it."""
        spec = pod.container(name)
        try:
            container_id = await self.kubelet.create_container(sandbox_id, pod, spec, attempt=attempt)
        except grpc.aio.AioRpcError as error:
            if error.code() is not grpc.StatusCode.INTERNAL:
                raise
            container_id = await self.kubelet.create_container(sandbox_id, pod, spec, attempt=attempt)
        await self.kubelet.start_container(container_id)
        return container_id

    async def _restart(self, running: RunningPod) -> RunningPod:
        """Every second container ends by itself; kubelet sees it, makes it anew and forgets the old one."""
        ended = dict(list(running.containers.items())[::2])
        for container_id in ended.values():
            self.fake.exit_container(container_id, code=1)
        await self.kubelet.containers()
        new = {}
        for name, container_id in ended.items():
            new[name] = await self._run(running.sandbox_id, running.pod, name, 1)
            await self.kubelet.remove_container(container_id)
        return replace(running, containers={**running.containers, **new})

    async def _end(self, running: RunningPod) -> None:
        await self.kubelet.end_pod(running, grace=0)

    async def _each(self, items: Sequence[Item], work: Callable[[Item], Awaitable[Result]]) -> list[Result]:
        slots = asyncio.Semaphore(AT_ONCE)

        async def one(item: Item) -> Result:
            async with slots:
                return await work(item)

        done: list[Result] = []
        for begin in range(0, len(items), _BETWEEN_CHECKS):
            done += await asyncio.gather(*map(one, items[begin : begin + _BETWEEN_CHECKS]))
            await self.check()
        return done


@asynccontextmanager
async def _relisting(kubelet: KubeletClient) -> AsyncIterator[None]:
    async def relist() -> None:
        while True:
            await kubelet.pods()
            await kubelet.containers()
            await asyncio.sleep(_RELIST)

    task = asyncio.create_task(relist())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait([task])
    if not task.cancelled():
        task.result()
