"""kill -9 while a dedicated container changes its size in place."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, replace

import grpc
import pytest

from qrm.demo.kubelet import RunningPod
from qrm.demo.pods import Pod, container_resources, pod_resources
from qrm.units import MILLIS_PER_CPU

from .scene import Scene, prepare
from .world import Point, World, unavailable


@dataclass(frozen=True)
class Resize:
    """The wanted pod, which runs with `before` CPUs and is to have `after`."""

    scene: Scene
    running: RunningPod
    before: int
    after: int

    async def ask(self, size: int) -> None:
        """The pod's and the container's update, in kubelet's order: the pod first if it grows."""
        kubelet, resized = self.scene.node.kubelet, sized(self.scene.wanted, size)
        if self.after > self.before:
            await kubelet.update_pod_resources(self.scene.sandbox_id, pod_resources(resized))
        (container_id,) = self.running.containers.values()
        await kubelet.update_resources(container_id, container_resources(resized, resized.containers[0]))
        if self.after < self.before:
            await kubelet.update_pod_resources(self.scene.sandbox_id, pod_resources(resized))

    async def has(self, size: int) -> None:
        """The container runs on that many CPUs, and all agree."""
        await self.scene.node.agreed()
        cpus = self.scene.node.cpus(self.running.containers["c0"])
        assert len(cpus) == size
        await self.scene.agreed(cpus)


POINTS = [Point("record", "before"), Point("shrink", "before"), Point("shrink", "after")]
"""Before the first of them nothing has changed yet."""


def sized(pod: Pod, size: int) -> Pod:
    """`pod` with that many CPUs in its container."""
    millis = size * MILLIS_PER_CPU
    return replace(pod, containers=(replace(pod.containers[0], cpu_request=millis, cpu_limit=millis),))


async def begin(node: World, before: int, after: int, point: Point | None = None) -> Resize:
    """All pods run, and the wanted one has `before` CPUs."""
    scene = await prepare(node, point)
    resize = Resize(scene, await scene.run(), 2, before)
    await resize.ask(before)
    await resize.has(before)
    return Resize(scene, resize.running, before, after)


async def again(resize: Resize) -> None:
    """kubelet repeats what it does not know to be done."""
    await resize.ask(resize.after)
    await resize.has(resize.after)
    await resize.scene.ended(resize.running)


async def take_back(resize: Resize) -> None:
    """The user has thought better of it."""
    back = replace(resize, before=resize.after, after=resize.before)
    await back.ask(resize.before)
    await back.has(resize.before)
    await resize.scene.ended(resize.running)


Next = Callable[[Resize], Awaitable[None]]


@pytest.fixture(params=[again, take_back])
def go_on(request: pytest.FixtureRequest) -> Next:
    """What happens once qrm is back."""
    chosen: Next = request.param
    return chosen


@pytest.mark.parametrize("after", [4, 2], ids=["grows", "shrinks"])
@pytest.mark.parametrize("point", POINTS, ids=str)
async def test_killed_at_a_step(node: World, point: Point, after: int, go_on: Next) -> None:
    """Wherever a resize breaks off, nothing is held twice, and a repeated one ends as the first would have."""
    resize = await begin(node, 6 - after, after, point)
    node.arm()
    await unavailable(resize.ask(after))
    await node.crashed()
    await node.start()
    await go_on(resize)


@pytest.mark.parametrize("moment", ["before", "after"])
async def test_killed_at_growing(node: World, moment: str) -> None:
    """What others gain from a container that has shrunk is told to them after a restart."""
    resize = await begin(node, 4, 2, Point("grow", moment))
    node.arm()
    with suppress(grpc.aio.AioRpcError):
        await resize.ask(2)
    await node.crashed()
    await node.start()
    # Growing goes on beside kubelet's calls: one of them may have been too late.
    await resize.ask(2)
    await resize.has(2)
    await resize.scene.ended(resize.running)


@pytest.mark.parametrize("done", [False, True], ids=["undone", "done"])
@pytest.mark.parametrize("after", [4, 2], ids=["grows", "shrinks"])
async def test_killed_while_the_runtime_works(node: World, after: int, done: bool, go_on: Next) -> None:
    """Whether the runtime has changed the first container, the other or the resized one, is made good afterwards."""
    resize = await begin(node, 6 - after, after)
    await node.killed_during(resize.ask(after), "UpdateContainerResources", done=done)
    await node.start()
    await go_on(resize)


async def test_the_pod_is_deleted(node: World) -> None:
    """A pod that ends in the middle of its resize gives back what it had and what it was to have."""
    resize = await begin(node, 2, 4, Point("shrink", "after"))
    node.arm()
    await unavailable(resize.ask(4))
    await node.crashed()
    await node.start()
    await resize.scene.ended(resize.running)
