"""Update, start, status and lists: what kubelet asks for is done, on our CPUs, and shown as it asked."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import grpc
import pytest

from qrm.cpuset import CPUSet
from qrm.demo.pods import ContainerSpec, Pod, container_resources, pod_resources
from qrm.wire import cri_pb2 as cri
from tests.support import MIB, UnderTest, dedicated, pod, refused, until


def asking(pod: Pod, millis: int) -> tuple[Pod, cri.LinuxContainerResources]:
    """The pod with its first container at `millis`, and what kubelet then sends for that container."""
    first = ContainerSpec(pod.containers[0].name, cpu_request=millis, cpu_limit=millis, memory_limit=64 * MIB)
    changed = Pod(pod.name, (first, *pod.containers[1:]), uid=pod.uid, annotations=pod.annotations)
    return changed, container_resources(changed, first)


def sent(under: UnderTest) -> Sequence[cri.UpdateContainerResourcesRequest]:
    return [call.message for call in under.fake.calls_of("UpdateContainerResources")]


async def test_kubelets_own_cpuset_is_a_request_and_not_the_truth(under: UnderTest) -> None:
    """What the static CPU manager sends is answered with success and our cpuset stays."""
    running = await under.kubelet.start_pod(dedicated("db", 2))
    container = running.containers["c0"]
    cpus = under.ledger_cpus(container)
    await under.kubelet.update_resources(container, cri.LinuxContainerResources(cpuset_cpus="0-7"))
    assert under.kernel_cpus(container) == cpus
    assert sent(under)[-1].linux.cpuset_cpus == cpus


async def test_an_update_of_memory_keeps_cpuset_and_takes_no_quota_on(under: UnderTest) -> None:
    """kubelet's memory reaches the runtime; its quota does not reach CPUs that nobody shares."""
    running = await under.kubelet.start_pod(dedicated("db", 2))
    container = running.containers["c0"]
    full = container_resources(running.pod, running.pod.containers[0])
    full.memory_limit_in_bytes = 128 * MIB
    await under.kubelet.update_resources(container, full)
    (message,) = sent(under)
    assert message.linux.memory_limit_in_bytes == 128 * MIB
    assert message.linux.cpu_quota == -1
    assert message.linux.cpuset_cpus == under.ledger_cpus(container)
    asked = cri.LinuxContainerResources.FromString(under.record(container).asked)
    assert (asked.cpu_quota, asked.memory_limit_in_bytes) == (200_000, 128 * MIB)


async def test_a_resize_grows_and_shrinks_in_place(under: UnderTest) -> None:
    """2 to 4 to 2 CPUs: others give way first and get back what is left, and the container stays near where it was."""
    shared = await under.kubelet.start_pod(pod("web"))
    running = await under.kubelet.start_pod(dedicated("db", 2))
    container = running.containers["c0"]
    first = under.record(container).cpus or CPUSet()

    bigger, resources = asking(running.pod, 4000)
    await under.kubelet.update_pod_resources(running.sandbox_id, pod_resources(bigger))
    await under.kubelet.update_resources(container, resources)
    await under.settled()
    under.check()
    grown = under.record(container).cpus or CPUSet()
    assert len(grown) == 4
    assert first < grown
    assert CPUSet.parse(under.kernel_cpus(shared.containers["c0"])).isdisjoint(grown)

    smaller, resources = asking(running.pod, 2000)
    await under.kubelet.update_resources(container, resources)
    await under.kubelet.update_pod_resources(running.sandbox_id, pod_resources(smaller))
    await under.settled()
    under.check()
    assert len(under.record(container).cpus or ()) == 2
    assert len(CPUSet.parse(under.kernel_cpus(shared.containers["c0"]))) == 6


async def test_a_resize_that_does_not_fit_changes_nothing(under: UnderTest) -> None:
    """The caller is told, the runtime hears nothing, and the old allocation stands."""
    running = await under.kubelet.start_pod(dedicated("db", 2))
    container = running.containers["c0"]
    before = under.record(container)
    _, resources = asking(running.pod, 8000)
    text = await refused(under.kubelet.update_resources(container, resources))
    assert text.startswith("RESOURCE_EXHAUSTED: qrm: cpu: asked 8")
    assert sent(under) == []
    assert under.record(container) == before


async def test_a_resize_that_the_runtime_refuses_is_undone(under: UnderTest) -> None:
    """The runtime's error reaches kubelet, and the ledger says what is really the case."""
    running = await under.kubelet.start_pod(dedicated("db", 2))
    container = running.containers["c0"]
    before = under.record(container)
    under.fake.faults.fail("UpdateContainerResources", grpc.StatusCode.UNKNOWN, "cgroup is on fire")
    _, resources = asking(running.pod, 4000)
    text = await refused(under.kubelet.update_resources(container, resources))
    assert text == "UNKNOWN: cgroup is on fire"
    after = under.record(container)
    assert (after.cpus, after.request, after.asked) == (before.cpus, before.request, before.asked)
    await under.settled()
    under.check()


async def test_a_resize_without_an_answer_is_put_right(under: UnderTest) -> None:
    """After a lost reply the container's cpuset is told again, so that ledger and cgroup agree."""
    running = await under.kubelet.start_pod(dedicated("db", 2))
    under.fake.faults.drop("UpdateContainerResources", after=True)
    _, resources = asking(running.pod, 4000)
    text = await refused(under.kubelet.update_resources(running.containers["c0"], resources))
    assert text.startswith("UNAVAILABLE")
    await under.settled()
    assert len(under.record(running.containers["c0"]).cpus or ()) == 4
    under.check()


async def test_containers_of_others_pass(under: UnderTest) -> None:
    """An id that is not in the ledger is the runtime's business alone."""
    text = await refused(under.kubelet.update_resources("nobody", cri.LinuxContainerResources(cpu_shares=5)))
    assert text.startswith("NOT_FOUND")
    assert sent(under)[-1].linux == cri.LinuxContainerResources(cpu_shares=5)


async def test_start_and_update_of_a_container_do_not_overlap(under: UnderTest) -> None:
    """containerd loses an update in the middle of a start: ours waits until the start is over."""
    shared = pod("web")
    sandbox = await under.kubelet.run_pod(shared)
    container = await under.kubelet.create_container(sandbox, shared, shared.containers[0])
    hang = under.fake.faults.hang("StartContainer")
    starting = asyncio.create_task(under.kubelet.start_container(container))
    await hang.entered.wait()
    creating = asyncio.create_task(under.kubelet.start_pod(dedicated("db", 3)))
    await asyncio.sleep(0.2)
    assert sent(under) == []
    assert under.fake.calls_of("CreateContainer")[1:] == []
    hang.release()
    await starting
    await creating
    await under.settled()
    under.check()


async def test_a_change_before_the_start_is_in_force_at_the_first_instruction(under: UnderTest) -> None:
    """Between create and start others took CPUs: the container is born without them."""
    shared = pod("web")
    sandbox = await under.kubelet.run_pod(shared)
    container = await under.kubelet.create_container(sandbox, shared, shared.containers[0])
    new = await under.kubelet.start_pod(dedicated("db", 3))
    await under.kubelet.start_container(container)
    born = CPUSet.parse(under.kernel_cpus(container))
    assert born.isdisjoint(under.record(new.containers["c0"]).cpus or CPUSet())


async def test_a_failed_start_leaves_the_cpus_to_the_pod(under: UnderTest) -> None:
    """kubelet makes the next attempt, which gets the same set."""
    asked = dedicated("db", 3)
    sandbox = await under.kubelet.run_pod(asked)
    first = await under.kubelet.create_container(sandbox, asked, asked.containers[0])
    cpus = under.ledger_cpus(first)
    under.fake.faults.fail("StartContainer", grpc.StatusCode.UNKNOWN, "no such file")
    await refused(under.kubelet.start_container(first))
    assert not under.record(first).running
    second = await under.kubelet.create_container(sandbox, asked, asked.containers[0], attempt=1)
    assert under.ledger_cpus(second) == cpus


async def test_kubelet_sees_its_own_numbers(under: UnderTest) -> None:
    """ContainerStatus shows quota and cpuset as asked, also after a resize, and the rest as the runtime has it."""
    running = await under.kubelet.start_pod(dedicated("db", 2))
    container = running.containers["c0"]
    shown = (await under.kubelet.container_status(container)).status.resources.linux
    assert (shown.cpu_quota, shown.cpuset_cpus, shown.cpu_shares) == (200_000, "", 2048)
    _, resources = asking(running.pod, 1000)
    await under.kubelet.update_resources(container, resources)
    shown = (await under.kubelet.container_status(container)).status.resources.linux
    assert (shown.cpu_quota, shown.cpuset_cpus, shown.cpu_shares) == (100_000, "", 1024)
    assert under.fake.calls_of("ContainerStatus")


async def test_an_exit_is_learned_from_the_list(under: UnderTest) -> None:
    """No call tells of a container that ends by itself; kubelet's next list does."""
    running = await under.kubelet.start_pod(dedicated("db", 2))
    under.fake.exit_container(running.containers["c0"])
    assert under.record(running.containers["c0"]).running
    await under.kubelet.containers()
    assert not under.record(running.containers["c0"]).running


async def test_filtered_lists_say_nothing_about_what_they_leave_out(under: UnderTest) -> None:
    """A list of one pod's containers is no news of the others'."""
    running = await under.kubelet.start_pod(dedicated("db", 2))
    await under.kubelet.containers(cri.ContainerFilter(pod_sandbox_id="other"))
    await under.kubelet.pods(cri.PodSandboxFilter(id="other"))
    assert under.record(running.containers["c0"]).running


async def test_a_pod_that_vanished_frees_its_cpus(under: UnderTest) -> None:
    """What the runtime has lost, by whatever way, is free after the next lists."""
    running = await under.kubelet.start_pod(dedicated("db", 4))
    under.fake.hide(running.sandbox_id)
    under.fake.hide(running.containers["c0"])
    await under.kubelet.containers()
    await under.kubelet.pods()
    assert len(under.node.book.ledger) == 0


async def test_a_sandbox_that_is_not_ready_frees_its_cpus_once_nothing_runs_in_it(under: UnderTest) -> None:
    """qrm has missed the stop of a finished pod: kubelet's lists are enough, and a running container is waited for."""
    running = await under.kubelet.start_pod(dedicated("db", 4))
    under.fake.store.pods[running.sandbox_id].pid = 0
    await under.kubelet.pods()
    assert len(under.node.book.ledger) == 2
    under.fake.exit_container(running.containers["c0"])
    await under.kubelet.containers()
    await under.kubelet.pods()
    assert len(under.node.book.ledger) == 0


async def test_a_container_left_out_of_one_list_is_not_lost(under: UnderTest) -> None:
    """A runtime that lies once does no harm: the CPUs stayed the pod's, and the container is live again."""
    running = await under.kubelet.start_pod(dedicated("db", 4))
    container = running.containers["c0"]
    under.fake.hide(container)
    await under.kubelet.containers()
    assert not under.record(container).running
    assert "asked 4" in await refused(under.kubelet.start_pod(dedicated("rival", 4)))
    under.fake.show(container)
    await under.kubelet.containers()
    assert under.record(container).running


async def test_lists_with_nothing_new_are_not_read_twice(under: UnderTest) -> None:
    """kubelet lists each second: an unchanged reply costs a comparison of bytes, and a changed ledger a second look."""
    await under.kubelet.start_pod(pod("web"))
    await under.settled()
    await under.kubelet.containers()
    looked: list[object] = []
    judge = under.node.observer.judge_containers
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(under.node.observer, "judge_containers", lambda *given: looked.append(judge(*given)))
        await under.kubelet.containers()
        await under.kubelet.containers()
        assert looked == []
        await under.kubelet.start_pod(pod("other"))
        await under.kubelet.containers()
        assert len(looked) == 1


async def test_a_stopped_container_is_not_forgotten_before_its_pod(under: UnderTest) -> None:
    """RestartAllContainers stops and removes a container and makes it anew in the same sandbox: same CPUs."""
    asked = dedicated("db", 3)
    running = await under.kubelet.start_pod(asked)
    cpus = under.ledger_cpus(running.containers["c0"])
    await under.kubelet.stop_container(running.containers["c0"])
    await under.kubelet.remove_container(running.containers["c0"])
    await under.kubelet.start_pod(dedicated("rival", 3))
    again = await under.kubelet.create_container(running.sandbox_id, asked, asked.containers[0], attempt=1)
    assert under.ledger_cpus(again) == cpus
    await until(lambda: under.record(again).running)
