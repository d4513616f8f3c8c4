"""kill -9 while a dedicated pod ends and the shared one gets its CPUs."""

from __future__ import annotations

from contextlib import suppress

import grpc
import pytest

from qrm.cpuset import CPUSet

from .scene import prepare
from .world import Point, World


@pytest.mark.parametrize("by_kubelet", [True, False], ids=["again", "let be"])
@pytest.mark.parametrize("moment", ["before", "after"])
async def test_killed_at_growing(node: World, moment: str, by_kubelet: bool) -> None:
    """What others gain is told to them after a restart, without kubelet having to do anything for it."""
    scene = await prepare(node, Point("grow", moment))
    running = await scene.run()
    node.arm()
    await node.kubelet.stop_container(running.containers["c0"])
    with suppress(grpc.aio.AioRpcError):  # its reply and the others' growth go on side by side
        await node.kubelet.stop_pod(scene.sandbox_id)
    await node.crashed()
    await node.start()
    if by_kubelet:
        await node.end(running)
    await scene.agreed(CPUSet())
    await scene.ended(running)


async def test_killed_while_the_runtime_lets_the_other_grow(node: World) -> None:
    """A push that was carried out, but not confirmed, does no harm when it is repeated."""
    scene = await prepare(node)
    running = await scene.run()
    hang = node.fake.faults.hang("UpdateContainerResources", after=True)
    await node.kubelet.stop_pod(scene.sandbox_id)
    await hang.entered.wait()
    await node.kill()
    await node.start()
    await scene.agreed(CPUSet())
    await scene.ended(running)


@pytest.mark.parametrize("done", [False, True], ids=["undone", "done"])
@pytest.mark.parametrize("method", ["StopContainer", "RemoveContainer", "StopPodSandbox", "RemovePodSandbox"])
async def test_killed_while_the_runtime_works(node: World, method: str, done: bool) -> None:
    """A deletion that breaks off frees nothing too early, and everything once kubelet has repeated it."""
    scene = await prepare(node)
    running = await scene.run()
    cpus = node.cpus(running.containers["c0"])
    await node.killed_during(node.end(running), method, done=done)
    await node.start()
    await node.agreed()
    if method == "StopContainer" or (method, done) == ("StopPodSandbox", False):
        await scene.agreed(cpus)
    await scene.ended(running)


async def test_removed_while_qrm_is_away(node: World) -> None:
    """What has vanished between the end of one qrm and the start of the next is free."""
    scene = await prepare(node)
    running = await scene.run()
    await node.kill()
    await node.direct.end_pod(running)
    await node.start()
    await scene.agreed(CPUSet())
    await scene.ended()


async def test_exited_while_qrm_is_away(node: World) -> None:
    """A container that ended in between keeps its CPUs for its pod, and restarts on them."""
    scene = await prepare(node)
    first = (await scene.run()).containers["c0"]
    cpus = node.cpus(first)
    await node.kill()
    node.fake.exit_container(first, code=1)
    await node.start()
    await scene.agreed(cpus)
    second = await scene.create(attempt=1)
    await node.kubelet.start_container(second)
    assert node.cpus(second) == cpus
    await scene.ended(scene.running(second))
