"""A pod's life on real cgroups: created, resized, killed, removed, and what others have of it."""

from __future__ import annotations

import asyncio
import os
import signal
from dataclasses import replace

import grpc
import pytest

from qrm.cpuset import CPUSet
from qrm.demo.kubelet import RunningPod
from qrm.demo.pods import container_resources, sandbox_config
from qrm.enforcement.runtime import SERVICE
from qrm.ledger.record import Mark
from qrm.wire import cri_pb2
from tests.support import PATIENCE, refused, until

from .site import Site, dedicated, shared

pytestmark = pytest.mark.containerd


async def test_a_shared_pod_runs_on_the_pool(site: Site) -> None:
    """Its cgroup names the pool's CPUs, all of the machine's as long as nobody has any for himself."""
    pod = await site.kubelet.start_pod(shared("web"))
    assert site.cpus(pod) == site.machine
    assert await site.first_words(pod.containers["c0"]) == site.machine


async def test_others_have_left_before_the_first_instruction(site: Site) -> None:
    """A dedicated container finds its CPUs empty, and itself on them, from its first instruction on."""
    web = await site.kubelet.start_pod(shared("web"))
    wanted = dedicated("db")
    sandbox_id = await site.kubelet.run_pod(wanted)
    when_passed_on: list[CPUSet] = []
    site.metrics.look = lambda: when_passed_on.append(site.cpus(web))
    container_id = await site.kubelet.create_container(sandbox_id, wanted, wanted.containers[0])
    db = RunningPod(wanted, sandbox_id, {"c0": container_id})
    assert site.file(db, "cpuset.cpus") is None
    (left,) = when_passed_on
    assert len(left) == len(site.machine) - 1
    assert await site.allowed(web.containers["c0"]) == left
    await site.kubelet.start_container(container_id)
    assert await site.first_words(container_id) == site.machine - left
    assert site.cpus(db) == site.machine - left
    assert site.cpus(web) == left


async def test_text_that_is_not_utf_8_hides_nobody(site: Site) -> None:
    """containerd lists a pod from before with such an annotation: it is adopted, and others are placed beside it."""
    await site.stop()
    old = shared("old")
    site.cgroups.ensure(old)
    config = sandbox_config(replace(old, annotations={"note": "MARK"}), cgroup_root=site.cgroups.cgroup_root)
    request = cri_pb2.RunPodSandboxRequest(config=config)
    async with grpc.aio.insecure_channel(site.containerd.endpoint) as channel:
        call: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(SERVICE + "RunPodSandbox")
        raw = await call(request.SerializeToString().replace(b"MARK", b"caf\xe9"))
    sandbox_id = cri_pb2.RunPodSandboxResponse.FromString(raw).pod_sandbox_id
    container_id = await site.direct.create_container(sandbox_id, old, old.containers[0])
    await site.direct.start_container(container_id)
    await site.start()
    adopted = site.node.book.ledger.find(container_id)
    assert adopted is not None
    assert adopted.mark is Mark.ADOPTED
    db = await site.kubelet.start_pod(dedicated("db"))
    assert await site.allowed(container_id) == site.machine - site.cpus(db)
    await site.direct.stop_pod(sandbox_id)
    await site.direct.remove_pod(sandbox_id)  # the site's own list of what is left would not be readable


async def test_a_removed_pod_gives_its_cpus_back(site: Site) -> None:
    """What a dedicated pod had is its neighbour's again."""
    web = await site.kubelet.start_pod(shared("web"))
    db = await site.kubelet.start_pod(dedicated("db"))
    assert site.cpus(web) != site.machine
    await site.kubelet.end_pod(db, grace=0)
    await site.has(web, site.machine)
    assert await site.allowed(web.containers["c0"]) == site.machine
    await site.kubelet.end_pod(web, grace=0)
    await until(lambda: len(site.node.book.ledger) == 0)


async def test_a_killed_container_restarts_on_its_cpus(site: Site) -> None:
    """While it is dead nobody else gets them: they are reserved for its pod."""
    web = await site.kubelet.start_pod(shared("web"))
    db = await site.kubelet.start_pod(dedicated("db"))
    cpus, (first,) = site.cpus(db), db.containers.values()
    os.kill((await site.info(first))["pid"], signal.SIGKILL)
    await exited(site, first)
    assert "RESOURCE_EXHAUSTED" in await refused(site.kubelet.start_pod(dedicated("rival")))
    second = await site.kubelet.create_container(db.sandbox_id, db.pod, db.pod.containers[0], attempt=1)
    await site.kubelet.start_container(second)
    assert await site.first_words(second) == cpus
    assert site.cpus(web) == site.machine - cpus


async def test_kubelets_cpuset_is_put_back(site: Site) -> None:
    """kubelet's CPU manager sends all CPUs to everybody after its restart: nobody moves."""
    web = await site.kubelet.start_pod(shared("web"))
    db = await site.kubelet.start_pod(dedicated("db"))
    before = site.cpus(web), site.cpus(db)
    for pod in (web, db):
        told = cri_pb2.LinuxContainerResources(cpuset_cpus=str(site.machine))
        await site.kubelet.update_resources(pod.containers["c0"], told)
        assert (site.cpus(web), site.cpus(db)) == before


async def test_a_resize_keeps_the_cpuset(site: Site) -> None:
    """kubelet's new shares and limit reach the cgroup, while the cpuset stays qrm's."""
    web = await site.kubelet.start_pod(shared("web", 100, 200))
    await site.kubelet.start_pod(dedicated("db"))
    before, shares = site.cpus(web), weight(site, web)
    assert site.quota(web) == 20_000
    spec = replace(web.pod.containers[0], cpu_request=300, cpu_limit=400)
    resized = replace(web.pod, containers=(spec,))
    site.cgroups.ensure(resized)
    await site.kubelet.update_resources(web.containers["c0"], container_resources(resized, spec))
    assert site.quota(web) == 40_000
    assert weight(site, web) > shares
    assert site.cpus(web) == before


async def test_a_resize_that_does_not_fit_is_refused(site: Site) -> None:
    """The pod that asks for more than there is keeps what it has, and its neighbour too."""
    web = await site.kubelet.start_pod(shared("web"))
    db = await site.kubelet.start_pod(dedicated("db"))
    before = site.cpus(web), site.cpus(db)
    spec = dedicated("db", len(site.machine)).containers[0]
    wanted = container_resources(replace(db.pod, containers=(spec,)), spec)
    text = await refused(site.kubelet.update_resources(db.containers["c0"], wanted))
    assert text.startswith("RESOURCE_EXHAUSTED: qrm: cpu: asked")
    assert (site.cpus(web), site.cpus(db)) == before


async def test_a_dedicated_pod_is_not_throttled(site: Site) -> None:
    """kubelet's CFS quota does not reach CPUs that nobody else uses, at creation and at an update."""
    db = await site.kubelet.start_pod(dedicated("db"))
    assert container_resources(db.pod, db.pod.containers[0]).cpu_quota == 100_000
    assert site.quota(db) == -1
    await site.kubelet.update_resources(db.containers["c0"], container_resources(db.pod, db.pod.containers[0]))
    assert site.quota(db) == -1


async def test_the_status_is_kubelets(site: Site) -> None:
    """Users see the numbers that they asked for, from runtimes that show any, and containerd's own status otherwise."""
    db = await site.kubelet.start_pod(dedicated("db"))
    shown = (await site.kubelet.container_status(db.containers["c0"])).status
    own = (await site.direct.container_status(db.containers["c0"])).status
    assert own.annotations["qrm.io/allocation"]
    if own.resources.HasField("linux"):
        assert shown.resources.linux.cpuset_cpus == ""
        assert shown.resources.linux.cpu_quota == 100_000
    else:
        assert shown == own


async def test_commands_in_a_container_are_passed_on(site: Site) -> None:
    """ExecSync brings output and exit code, and what it runs is on the container's CPUs."""
    db = await site.kubelet.start_pod(dedicated("db"))
    command = ["/bin/sh", "-c", "grep Cpus_allowed_list /proc/self/status; echo oops >&2; exit 3"]
    reply = await site.kubelet.exec_sync(db.containers["c0"], command)
    assert (reply.stderr, reply.exit_code) == (b"oops\n", 3)
    assert CPUSet.parse(reply.stdout.decode().partition(":")[2]) == site.cpus(db)


async def test_a_pod_that_does_not_fit_is_refused_with_the_numbers(site: Site) -> None:
    """kubelet shows what was asked and what there is; the runtime never hears of the container."""
    wanted = dedicated("huge", len(site.machine))
    sandbox_id = await site.kubelet.run_pod(wanted)
    text = await refused(site.kubelet.create_container(sandbox_id, wanted, wanted.containers[0]))
    assert text.startswith(f"RESOURCE_EXHAUSTED: qrm: cpu: asked {len(site.machine)} CPUs for dedicated_cores")
    assert f"free by NUMA node: 0: {len(site.machine) - 1}" in text
    assert await site.direct.containers() == []


async def test_a_pod_that_contradicts_itself_is_refused(site: Site) -> None:
    """An annotation that makes no sense is told before there is a sandbox."""
    pod = replace(shared("odd"), annotations={"katalyst.kubewharf.io/qos_level": "best_cores"})
    text = await refused(site.kubelet.start_pod(pod))
    assert text.startswith("INVALID_ARGUMENT: qrm: katalyst.kubewharf.io/qos_level is 'best_cores', allowed: ")
    assert await site.direct.pods() == []


async def exited(site: Site, container_id: str) -> None:
    """Let kubelet list until a container is shown to have ended."""
    state: dict[str, int] = {}
    async with asyncio.timeout(PATIENCE):
        while state.get(container_id) != cri_pb2.CONTAINER_EXITED:
            state = {each.id: each.state for each in await site.kubelet.containers()}


def weight(site: Site, pod: RunningPod) -> int:
    """The container's share of CPU time, in the cgroup's own unit."""
    path = site.file(pod, "cpu.shares") or site.file(pod, "cpu.weight")
    assert path is not None
    return int(path.read_text())
