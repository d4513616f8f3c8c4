"""Containers that qrm has not seen come about: from before it was there, or from while it was away."""

from __future__ import annotations

from qrm.cpuset import CPUSet
from qrm.demo.kubelet import RunningPod
from qrm.demo.pods import Pod
from qrm.ledger.record import CPU, Mark
from qrm.wire import cri_pb2
from tests.support import dedicated, pod

from .world import MACHINE, World


async def started_directly(node: World, wanted: Pod, cpuset: str = "") -> RunningPod:
    """`wanted`, made at the runtime itself; its containers have `cpuset`, as kubelet's CPU manager would give it."""
    running = await node.direct.start_pod(wanted)
    if cpuset:
        for container_id in running.containers.values():
            await node.direct.update_resources(container_id, cri_pb2.LinuxContainerResources(cpuset_cpus=cpuset))
    return running


def written(node: World, running: RunningPod) -> str:
    """What cpuset.cpus of a pod's first container says, empty where nobody has set it."""
    return (node.fake.cgroup_of(running.containers["c0"]) / "cpuset.cpus").read_text().strip()


async def test_what_ran_before_is_left_as_it_is(node: World) -> None:
    """At its first start qrm takes note of everything, and changes nothing."""
    wanted = [(pod("plain", 500), ""), (pod("pinned", 500), "0-3"), (dedicated("anywhere", 1), "")]
    pods = [await started_directly(node, each, cpuset) for each, cpuset in wanted]
    before = len(node.fake.calls_of("UpdateContainerResources"))
    await node.start()
    lines = await node.agreed()
    assert {each.mark for each in lines.values()} == {Mark.ADOPTED}
    assert not CPUSet.union(each.allocations[CPU].exclusive for each in lines.values())
    assert [written(node, each) for each in pods] == ["", "0-3", ""]
    assert len(node.fake.calls_of("UpdateContainerResources")) == before
    await node.end(*pods)
    await node.agreed()
    assert node.durable() == []


async def test_a_dedicated_pod_from_before_keeps_its_cpus(node: World) -> None:
    """What kubelet's CPU manager gave a dedicated pod is its own; who ran there too is taken off."""
    plain = await started_directly(node, pod("plain", 500))
    beside = await started_directly(node, pod("beside", 500), "0-3")
    own = await started_directly(node, dedicated("own", 2), "4-5")
    await node.start()
    lines = await node.agreed()
    assert str(lines[own.containers["c0"]].allocations[CPU].exclusive) == "4-5"
    assert [written(node, each) for each in (plain, beside, own)] == ["0-3,6-7", "0-3", "4-5"]


async def test_they_make_room(node: World) -> None:
    """Whoever runs on CPUs that a new dedicated pod gets is taken off them first, and no other is touched."""
    plain = await started_directly(node, pod("plain", 500))
    left, right = [await started_directly(node, pod("pinned", 500), cpus) for cpus in ("0-3", "4-7")]
    await node.start()
    new = await node.kubelet.start_pod(dedicated("new", 2))
    await node.agreed()
    cpus = node.cpus(new.containers["c0"])
    assert node.cpus(plain.containers["c0"]) == MACHINE - cpus
    assert [each for each in (left, right) if CPUSet.parse(written(node, each)) & cpus] == []
    assert (written(node, left) == "0-3") + (written(node, right) == "4-7") == 1
    await node.kill()
    await node.start()
    await node.agreed()
    assert node.cpus(new.containers["c0"]) == cpus
    await node.end(plain, left, right, new)
    await node.agreed()
    assert node.durable() == []


async def test_what_came_while_qrm_was_away(node: World) -> None:
    """A pod from behind qrm's back is taken off the CPUs that are another's."""
    await node.start()
    free = await node.free()
    own = await node.kubelet.start_pod(dedicated("own", 2))
    cpus = node.cpus(own.containers["c0"])
    await node.kill()
    late = await started_directly(node, pod("late", 500))
    assert node.guard.violations
    node.guard.violations.clear()
    await node.start()
    await node.agreed()
    assert node.cpus(late.containers["c0"]) == MACHINE - cpus
    assert node.cpus(own.containers["c0"]) == cpus
    await node.end(own, late)
    await node.empty(free)
