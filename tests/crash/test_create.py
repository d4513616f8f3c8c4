"""kill -9 while a dedicated pod is created beside a shared one that has to make room."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import grpc
import pytest

from qrm.ledger.record import CPU

from .scene import Scene, prepare
from .world import Point, World, unavailable

POINTS = [Point(step, "before") for step in ("read", "plan", "record", "shrink", "forward", "commit")]
POINTS += [Point("commit", "after")]
"""After a step is before the next one: nothing happens between them. And nothing grows in a creation."""
RECORDED = POINTS[3:]
"""From here on the plan is durable."""


async def again(scene: Scene) -> None:
    """kubelet's next try: the same attempt, or the next one where the list shows that there is a container."""
    kubelet = scene.node.kubelet
    there = [each for each in await kubelet.containers() if each.pod_sandbox_id == scene.sandbox_id]
    if there:
        # It is taken in although nobody has heard of it, and is among what is held.
        lines = await scene.node.agreed()
        assert len(lines[there[0].id].allocations[CPU].exclusive) == 2
        # A kubelet whose list is older than the container tries the same attempt, and must not change anything by it.
        with pytest.raises(grpc.aio.AioRpcError, match="is reserved for"):
            await scene.create()
    container_id = await scene.create(attempt=len(there))
    await kubelet.start_container(container_id)
    cpus = scene.node.cpus(container_id)
    assert len(cpus) == 2
    await scene.agreed(cpus)
    await scene.ended(scene.running(container_id))


async def give_up(scene: Scene) -> None:
    """The pod is deleted before kubelet comes to try again."""
    kubelet = scene.node.kubelet
    await kubelet.stop_pod(scene.sandbox_id)
    await kubelet.remove_pod(scene.sandbox_id)
    await scene.ended()


Next = Callable[[Scene], Awaitable[None]]


@pytest.fixture(params=[again, give_up])
def go_on(request: pytest.FixtureRequest) -> Next:
    """What happens once qrm is back."""
    chosen: Next = request.param
    return chosen


@pytest.mark.parametrize("point", POINTS, ids=str)
async def test_killed_at_a_step(node: World, point: Point, go_on: Next) -> None:
    """Wherever a creation breaks off, nothing is held twice, and its CPUs are the pod's or everybody's again."""
    scene = await prepare(node, point)
    node.arm()
    await unavailable(scene.create())
    await node.crashed()
    assert scene.is_recorded() == (point in RECORDED)
    await node.start()
    await go_on(scene)


@pytest.mark.parametrize("done", [False, True], ids=["undone", "done"])
@pytest.mark.parametrize("method", ["UpdateContainerResources", "CreateContainer"])
async def test_killed_while_the_runtime_works(node: World, method: str, done: bool, go_on: Next) -> None:
    """Whether the runtime has shrunk the other, or made the container, is found out where its answer was not heard."""
    scene = await prepare(node)
    await node.killed_during(scene.create(), method, done=done)
    await node.start()
    await go_on(scene)


@pytest.mark.parametrize("step", ["shrink", "commit"])
async def test_the_pod_vanishes(node: World, step: str) -> None:
    """What was reserved for a pod that nobody has stopped is free once kubelet's list does not show it."""
    scene = await prepare(node, Point(step, "before"))
    node.arm()
    await unavailable(scene.create())
    await node.crashed()
    await node.start()
    await node.direct.remove_pod(scene.sandbox_id)
    await node.kubelet.pods()
    await scene.ended()


async def test_made_when_qrm_is_back_already(node: World) -> None:
    """A creation that the runtime carries out late finds its CPUs still kept, and is taken in from the next list."""
    scene = await prepare(node)
    await node.killed_during(scene.create(), "CreateContainer", done=False)
    await node.start()
    assert scene.is_recorded()
    node.fake.store.create(node.fake.calls_of("CreateContainer")[-1].message)
    assert len(scene.shared_cpus()) == 4
    await again(scene)


@pytest.mark.parametrize("step", ["forward", "commit"])
async def test_a_restart_of_the_container_is_killed(node: World, step: str) -> None:
    """A new attempt that breaks off keeps the CPUs that the pod has had from the start."""
    scene = await prepare(node, Point(step, "before"))
    first = (await scene.run()).containers["c0"]
    cpus = node.cpus(first)
    node.fake.exit_container(first, code=1)
    node.arm()
    await unavailable(scene.create(attempt=1))
    await node.crashed()
    await node.start()
    there = [each for each in await node.kubelet.containers() if each.pod_sandbox_id == scene.sandbox_id]
    second = await scene.create(attempt=len(there))
    await node.kubelet.start_container(second)
    assert node.cpus(second) == cpus
    await scene.agreed(cpus)
    await scene.ended(scene.running(second))
