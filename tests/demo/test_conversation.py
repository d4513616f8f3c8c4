"""One conversation with two runtimes: what the fake answers is what containerd answers."""

from __future__ import annotations

from collections.abc import Awaitable

import grpc
import pytest

from qrm.demo.kubelet import KubeletClient
from qrm.demo.pods import ContainerSpec, Pod, container_resources
from qrm.wire import cri_pb2

from .conftest import Runtime

MAIN = ContainerSpec("main", cpu_request=500, cpu_limit=1000, memory_limit=64 << 20)
SIDE = ContainerSpec("side")
CREATED, RUNNING, EXITED = cri_pb2.CONTAINER_CREATED, cri_pb2.CONTAINER_RUNNING, cri_pb2.CONTAINER_EXITED


async def refusal(call: Awaitable[object]) -> tuple[grpc.StatusCode, str]:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    return caught.value.code(), caught.value.details() or ""


async def state(kubelet: KubeletClient, container_id: str) -> cri_pb2.ContainerState:
    return (await kubelet.container_status(container_id)).status.state


def only_cpus(cpus: str) -> cri_pb2.LinuxContainerResources:
    return cri_pb2.LinuxContainerResources(cpuset_cpus=cpus)


async def test_a_container_goes_through_its_states(runtime: Runtime) -> None:
    kubelet, pod = runtime.kubelet, Pod("web", (MAIN,))
    sandbox = await kubelet.run_pod(pod)
    container = await kubelet.create_container(sandbox, pod, MAIN)
    assert await state(kubelet, container) == CREATED
    assert (await runtime.info(container))["pid"] == 0
    assert await runtime.cgroup_value(container, "cgroup.procs") is None

    await kubelet.start_container(container)
    assert await state(kubelet, container) == RUNNING
    pid = (await runtime.info(container))["pid"]
    assert str(pid) in (await runtime.cgroup_value(container, "cgroup.procs") or "").split()

    await kubelet.stop_container(container, grace=10)
    status = (await kubelet.container_status(container)).status
    assert (status.state, status.exit_code, status.reason) == (EXITED, 0, "Completed")
    assert 0 < status.created_at <= status.started_at <= status.finished_at
    assert (await runtime.info(container))["pid"] == 0
    assert await runtime.cgroup_value(container, "cgroup.procs") is None

    await kubelet.remove_container(container)
    assert await kubelet.containers() == []


async def test_a_killed_container_says_so(runtime: Runtime) -> None:
    running = await runtime.kubelet.start_pod(Pod("web", (MAIN,)))
    await runtime.kubelet.stop_container(running.containers["main"], grace=0)
    status = (await runtime.kubelet.container_status(running.containers["main"])).status
    assert (status.exit_code, status.reason) == (137, "Error")


async def test_stopping_and_removing_are_idempotent(runtime: Runtime) -> None:
    kubelet = runtime.kubelet
    running = await kubelet.start_pod(Pod("web", (MAIN,)))
    container = running.containers["main"]
    for _ in range(2):
        await kubelet.stop_container(container)
    for _ in range(2):
        await kubelet.remove_container(container)
    for _ in range(2):
        await kubelet.stop_pod(running.sandbox_id)
    for _ in range(2):
        await kubelet.remove_pod(running.sandbox_id)
    assert await kubelet.pods() == []


async def test_a_created_container_is_not_ended_by_a_stop(runtime: Runtime) -> None:
    pod = Pod("web", (MAIN,))
    sandbox = await runtime.kubelet.run_pod(pod)
    container = await runtime.kubelet.create_container(sandbox, pod, MAIN)
    await runtime.kubelet.stop_container(container)
    assert await state(runtime.kubelet, container) == CREATED


async def test_stopping_a_pod_kills_its_containers(runtime: Runtime) -> None:
    kubelet = runtime.kubelet
    running = await kubelet.start_pod(Pod("web", (MAIN, SIDE)))
    await kubelet.stop_pod(running.sandbox_id)
    assert (await kubelet.pod_status(running.sandbox_id)).status.state == cri_pb2.SANDBOX_NOTREADY
    for container in running.containers.values():
        status = (await kubelet.container_status(container)).status
        assert (status.state, status.exit_code) == (EXITED, 137)
    await kubelet.remove_pod(running.sandbox_id)
    assert (await kubelet.pods(), await kubelet.containers()) == ([], [])


async def test_an_update_of_a_running_container_reaches_its_cgroup(runtime: Runtime) -> None:
    running = await runtime.kubelet.start_pod(Pod("web", (MAIN,)))
    container, last = running.containers["main"], str(runtime.cpus - runtime.cpus.lowest(len(runtime.cpus) - 1))
    await runtime.kubelet.update_resources(container, only_cpus(last))
    assert await runtime.cgroup_value(container, "cpuset.cpus") == last
    cpu = (await runtime.info(container))["runtimeSpec"]["linux"]["resources"]["cpu"]
    assert cpu == {"shares": 512, "quota": 100000, "period": 100000, "cpus": last}


async def test_an_update_before_the_start_holds_from_the_start(runtime: Runtime) -> None:
    kubelet, pod = runtime.kubelet, Pod("web", (MAIN,))
    first = str(runtime.cpus.lowest())
    container = await kubelet.create_container(await kubelet.run_pod(pod), pod, MAIN)
    await kubelet.update_resources(container, only_cpus(first))
    await kubelet.start_container(container)
    assert await runtime.cgroup_value(container, "cpuset.cpus") == first


async def test_an_update_of_an_ended_container_is_only_noted(runtime: Runtime) -> None:
    running = await runtime.kubelet.start_pod(Pod("web", (MAIN,)))
    container, first = running.containers["main"], str(runtime.cpus.lowest())
    await runtime.kubelet.stop_container(container)
    await runtime.kubelet.update_resources(container, only_cpus(first))
    assert (await runtime.kubelet.container_status(container)).status.resources.linux.cpuset_cpus == first


async def test_zero_and_empty_mean_unchanged(runtime: Runtime) -> None:
    kubelet = runtime.kubelet
    running = await kubelet.start_pod(Pod("web", (MAIN,)))
    container, first = running.containers["main"], str(runtime.cpus.lowest())
    await kubelet.update_resources(container, only_cpus(first))
    await kubelet.update_resources(container, cri_pb2.LinuxContainerResources(cpu_shares=256, oom_score_adj=5))
    expected = container_resources(running.pod, MAIN)
    expected.MergeFrom(cri_pb2.LinuxContainerResources(cpu_shares=256, cpuset_cpus=first))
    expected.memory_swap_limit_in_bytes = expected.memory_limit_in_bytes
    assert (await kubelet.container_status(container)).status.resources.linux == expected
    assert await runtime.cgroup_value(container, "cpuset.cpus") == first


async def test_a_cpuset_that_is_none_is_refused_and_forgotten(runtime: Runtime) -> None:
    kubelet = runtime.kubelet
    running = await kubelet.start_pod(Pod("web", (MAIN,)))
    container, first = running.containers["main"], str(runtime.cpus.lowest())
    await kubelet.update_resources(container, only_cpus(first))
    code, message = await refusal(kubelet.update_resources(container, only_cpus("zero")))
    assert code == grpc.StatusCode.UNKNOWN
    assert message.startswith("failed to update resources: ")
    assert (await kubelet.container_status(container)).status.resources.linux.cpuset_cpus == first


async def test_a_container_that_cannot_start_has_exited(runtime: Runtime) -> None:
    kubelet, pod = runtime.kubelet, Pod("web", (MAIN,))
    container = await kubelet.create_container(await kubelet.run_pod(pod), pod, MAIN)
    await kubelet.update_resources(container, only_cpus("zero"))
    code, message = await refusal(kubelet.start_container(container))
    assert code == grpc.StatusCode.UNKNOWN
    assert message.startswith("failed to create containerd task: ")
    status = (await kubelet.container_status(container)).status
    assert (status.state, status.exit_code, status.reason) == (EXITED, 128, "StartError")


async def test_unknown_ids(runtime: Runtime) -> None:
    kubelet, pod = runtime.kubelet, Pod("web", (MAIN,))
    missing = "f" * 64
    for call, text in [
        (kubelet.container_status(missing), f'an error occurred when try to find container "{missing}": not found'),
        (kubelet.start_container(missing), f'an error occurred when try to find container "{missing}": not found'),
        (kubelet.update_resources(missing, only_cpus("0")), "failed to find container"),
        (kubelet.exec_sync(missing, ["true"]), "failed to exec in container: failed to find container"),
        (kubelet.pod_status(missing), "an error occurred when try to find sandbox"),
        (kubelet.create_container(missing, pod, MAIN), f'failed to find sandbox id "{missing}": not found'),
    ]:
        code, message = await refusal(call)
        assert (code, message[: len(text)]) == (grpc.StatusCode.NOT_FOUND, text)
    await kubelet.remove_container(missing)
    await kubelet.remove_pod(missing)


async def test_a_container_in_a_stopped_pod(runtime: Runtime) -> None:
    kubelet, pod = runtime.kubelet, Pod("web", (MAIN,))
    sandbox = await kubelet.run_pod(pod)
    await kubelet.stop_pod(sandbox)
    if runtime.release >= (2, 0):
        await kubelet.create_container(sandbox, pod, MAIN)
    else:
        code, _ = await refusal(kubelet.create_container(sandbox, pod, MAIN))
        assert code == grpc.StatusCode.NOT_FOUND


async def test_stopping_what_is_unknown(runtime: Runtime) -> None:
    for call in (runtime.kubelet.stop_container, runtime.kubelet.stop_pod):
        if runtime.release >= (1, 7):
            await call("f" * 64)
        else:
            assert (await refusal(call("f" * 64)))[0] == grpc.StatusCode.NOT_FOUND


async def test_names_are_reserved(runtime: Runtime) -> None:
    kubelet, pod = runtime.kubelet, Pod("web", (MAIN,))
    version_2 = runtime.release >= (2, 0)
    code = grpc.StatusCode.FAILED_PRECONDITION if version_2 else grpc.StatusCode.UNKNOWN
    advice = "; check if another CreateContainer request is in progress" if version_2 else ""
    running = await kubelet.start_pod(pod)
    name = f"web_default_{pod.uid}_0"
    assert await refusal(kubelet.run_pod(pod)) == (
        code,
        f'failed to reserve sandbox name "{name}": name "{name}" is reserved for "{running.sandbox_id}"',
    )
    name, owner = f"main_web_default_{pod.uid}_0", running.containers["main"]
    assert await refusal(kubelet.create_container(running.sandbox_id, pod, MAIN)) == (
        code,
        f'failed to reserve container name "{name}"{advice}: name "{name}" is reserved for "{owner}"',
    )
    assert await kubelet.create_container(running.sandbox_id, pod, MAIN, attempt=1)


async def test_a_container_starts_once(runtime: Runtime) -> None:
    running = await runtime.kubelet.start_pod(Pod("web", (MAIN,)))
    container = running.containers["main"]
    text = f'failed to set starting state for container "{container}": container is in '
    assert await refusal(runtime.kubelet.start_container(container)) == (
        grpc.StatusCode.UNKNOWN,
        f"{text}CONTAINER_RUNNING state",
    )
    await runtime.kubelet.stop_container(container)
    assert await refusal(runtime.kubelet.start_container(container)) == (
        grpc.StatusCode.UNKNOWN,
        f"{text}CONTAINER_EXITED state",
    )


async def test_lists_can_be_filtered(runtime: Runtime) -> None:
    kubelet = runtime.kubelet
    one = await kubelet.start_pod(Pod("one", (MAIN, SIDE)))
    two = await kubelet.start_pod(Pod("two", (MAIN,), labels={"app": "db"}))
    await kubelet.stop_container(one.containers["side"], grace=0)

    async def ids(**criteria: object) -> set[str]:
        return {each.id for each in await kubelet.containers(cri_pb2.ContainerFilter(**criteria))}  # type: ignore[arg-type]

    everything = {*one.containers.values(), *two.containers.values()}
    assert {each.id for each in await kubelet.containers()} == everything
    assert await ids(id=two.containers["main"]) == {two.containers["main"]}
    assert await ids(pod_sandbox_id=one.sandbox_id) == set(one.containers.values())
    assert await ids(state=cri_pb2.ContainerStateValue(state=EXITED)) == {one.containers["side"]}
    assert await ids(state=cri_pb2.ContainerStateValue(state=CREATED)) == set()
    assert await ids(label_selector={"io.kubernetes.container.name": "side"}) == {one.containers["side"]}

    databases = await kubelet.pods(cri_pb2.PodSandboxFilter(label_selector={"app": "db"}))
    assert [each.id for each in databases] == [two.sandbox_id]
    await kubelet.stop_pod(two.sandbox_id)
    ready = cri_pb2.PodSandboxFilter(state=cri_pb2.PodSandboxStateValue(state=cri_pb2.SANDBOX_READY))
    assert [each.id for each in await kubelet.pods(ready)] == [one.sandbox_id]


async def test_what_was_asked_is_kept(runtime: Runtime) -> None:
    kubelet = runtime.kubelet
    pod = Pod("web", (MAIN,), annotations={"katalyst.kubewharf.io/qos_level": "dedicated_cores"})
    running = await kubelet.start_pod(pod)
    container = running.containers["main"]
    (listed,) = await kubelet.containers()
    status = (await kubelet.container_status(container)).status
    assert listed.annotations == status.annotations
    assert status.annotations["io.kubernetes.container.restartCount"] == "0"
    assert listed.labels == status.labels
    assert status.labels["io.kubernetes.container.name"] == "main"
    assert (listed.pod_sandbox_id, listed.metadata.name) == (running.sandbox_id, "main")
    assert status.image_ref == listed.image_ref != ""
    info = await runtime.info(container)
    assert info["sandboxID"] == running.sandbox_id
    assert info["config"]["metadata"] == {"name": "main"}
    assert info["config"]["linux"]["resources"]["cpu_shares"] == 512

    (sandbox,) = await kubelet.pods()
    assert sandbox.annotations["katalyst.kubewharf.io/qos_level"] == "dedicated_cores"
    assert (await kubelet.pod_status(running.sandbox_id)).status.annotations == sandbox.annotations


async def test_methods_that_are_not_there(runtime: Runtime) -> None:
    kubelet, request = runtime.kubelet, cri_pb2.StatusRequest()
    unimplemented = grpc.StatusCode.UNIMPLEMENTED
    code, _ = await refusal(kubelet.call("Nope", request, cri_pb2.StatusResponse))
    assert code == unimplemented
    code, _ = await refusal(kubelet.call("Nope", request, cri_pb2.StatusResponse, service="no.such.Service"))
    assert code == unimplemented


async def test_a_whole_pod_comes_and_goes(runtime: Runtime) -> None:
    kubelet = runtime.kubelet
    assert (await kubelet.version()).runtime_api_version == "v1"
    running = await kubelet.start_pod(Pod("web", (MAIN, SIDE)))
    assert (await kubelet.exec_sync(running.containers["main"], ["true"])).exit_code == 0
    await kubelet.end_pod(running)
    assert (await kubelet.pods(), await kubelet.containers()) == ([], [])
