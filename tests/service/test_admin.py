"""The admin socket: what the qrm command is told."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, TypeVar

import grpc
import grpc.aio
import msgspec
import pytest

from qrm.cpuset import CPUSet
from qrm.demo.fake_runtime import FakeRuntime
from qrm.demo.kubelet import KubeletClient
from qrm.errors import RuntimeUnreachable
from qrm.service import api
from qrm.service.reset import reset
from qrm.service.sockets import AlreadyRunning
from qrm.wire import cri_pb2 as cri
from tests.support import UnderTest, dedicated, pod, refused, under_test, until

Answer = TypeVar("Answer")


@pytest.fixture
async def under(tmp_path: Path) -> AsyncIterator[UnderTest]:
    async with under_test(tmp_path, more="[upkeep]\ndrift_seconds = 3600\n") as made:
        yield made


async def ask(under: UnderTest, method: str, kind: type[Answer], request: Any = None) -> Answer:
    async with grpc.aio.insecure_channel(f"unix://{under.config.shim.admin_socket}") as channel:
        call: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(api.PREFIX + method)
        return msgspec.json.decode(await call(msgspec.json.encode(request)), type=kind)


async def test_status_counts_what_runs(under: UnderTest) -> None:
    """Levels, pools, free CPUs and the runtime's name are there."""
    await under.kubelet.start_pod(dedicated("db", 3))
    await under.kubelet.start_pod(pod("web"))
    await under.settled()
    status = await ask(under, "status", api.Status)
    assert status.containers == {"dedicated_cores": 1, "shared_cores": 1}
    assert (status.ready, status.unmanaged, status.adopted, status.pushes_due) == (True, 0, 0, 0)
    assert "share" in status.pools
    assert sum(status.allocatable.values()) == 8000
    assert "containerd" in status.runtime or "fake" in status.runtime


async def test_status_says_when_the_runtime_is_away(under: UnderTest) -> None:
    """A status is given all the same."""
    await under.fake.stop()
    assert "does not answer" in (await ask(under, "status", api.Status)).runtime
    doctor = await ask(under, "doctor", api.Doctor)
    assert {feature.name: feature.state for feature in doctor.features}["runtime"] == "degraded"
    await under.fake.start()


async def test_pods_lists_every_container_in_the_ledger(under: UnderTest) -> None:
    """One line a container, with what it holds and how it is."""
    running = await under.kubelet.start_pod(dedicated("db", 2, count=2))
    under.fake.exit_container(running.containers["c1"])
    await under.kubelet.containers()
    first, second = await ask(under, "pods", list[api.Container])
    assert (first.pod, first.container, first.qos, first.pool) == ("default/db", "c0", "dedicated_cores", "dedicated")
    assert (first.exclusive, first.request, first.state, second.state) == (True, 2000, "running", "exited")


async def test_explain_says_what_was_asked_offered_chosen_and_is_in_the_kernel(under: UnderTest) -> None:
    """By pod, namespace/pod, pod/container, uid or the beginning of an id."""
    said = {"katalyst.kubewharf.io/memory_enhancement": '{"numa_binding":"true"}'}
    running = await under.kubelet.start_pod(dedicated("db", 2, annotations=said))
    container = running.containers["c0"]
    for name in ("db", "default/db", "db/c0", "default/db/c0", running.pod.uid, container[:12]):
        (told,) = await ask(under, "explain", list[api.Explanation], name)
        assert told.container.id == container
    assert told.asked["cpu_quota"] == "200000"
    assert told.annotations == {"qos_level": "dedicated_cores", "numa_binding": "true"}
    assert told.hints["cpu"][0].preferred
    assert told.why["cpu"]
    assert told.kernel == told.applied == told.container.cpus
    assert container in told.cgroup


async def test_explain_of_nobody_is_a_clear_error(under: UnderTest) -> None:
    """The name is quoted and the remedy named; an empty name is nobody too."""
    assert "no pod or container 'x' in the ledger (qrm pods" in await refused(
        ask(under, "explain", list[api.Explanation], "x")
    )
    await under.kubelet.start_pod(pod("web"))
    assert "INVALID_ARGUMENT" in await refused(ask(under, "explain", list[api.Explanation], ""))
    assert "INVALID_ARGUMENT" in await refused(ask(under, "explain", list[api.Explanation], 3))


async def test_a_plan_tells_what_would_happen_and_does_nothing(under: UnderTest) -> None:
    """The set it would get, who would give way, and then everything is as before."""
    await under.kubelet.start_pod(pod("web"))
    before = list(under.node.book.ledger)
    said = {"katalyst.kubewharf.io/qos_level": "dedicated_cores"}
    plan = await ask(under, "plan", api.PlanReply, api.PlanRequest(said, {"a": 2000, "b": 1000}))
    assert plan.fits
    assert [len(CPUSet.parse(each.container.cpus)) for each in plan.containers] == [2, 1]
    (change,) = plan.changes
    assert (change.pod, change.before) == ("default/web", "0-7")
    assert len(CPUSet.parse(change.after)) == 5
    assert list(under.node.book.ledger) == before
    real = await under.kubelet.start_pod(dedicated("db", 3))
    assert under.record(real.containers["c0"]).cpus is not None


async def test_a_plan_that_does_not_fit_says_why(under: UnderTest) -> None:
    """The refusal is the one that kubelet would get."""
    said = {"katalyst.kubewharf.io/qos_level": "dedicated_cores"}
    plan = await ask(under, "plan", api.PlanReply, api.PlanRequest(said, {"a": 8000}))
    assert not plan.fits
    assert "asked 8" in plan.refusal
    bad = await ask(under, "plan", api.PlanReply, api.PlanRequest({"katalyst.kubewharf.io/qos_level": "x"}, {"a": 1}))
    assert "katalyst.kubewharf.io/qos_level" in bad.refusal


async def test_topology_names_the_holder_of_each_cpu(under: UnderTest) -> None:
    """Dedicated CPUs with their pod, the others with their pools."""
    running = await under.kubelet.start_pod(dedicated("db", 3))
    topology = await ask(under, "topology", api.Topology)
    held = {cpu.id for cpu in topology.cpus if cpu.pod == "default/db"}
    assert CPUSet(held) == under.record(running.containers["c0"]).cpus
    assert {cpu.pool for cpu in topology.cpus if cpu.id in held} == {"dedicated"}
    assert all("share" in cpu.pool for cpu in topology.cpus if cpu.id not in held)
    assert [node.cpus for node in topology.nodes] == ["0-3", "4-7"]


async def test_doctor_sees_kubelets_static_cpu_manager(under: UnderTest) -> None:
    """A kubelet that sends cpusets of its own is named as a trouble, with the remedy."""
    running = await under.kubelet.start_pod(pod("web"))
    await under.kubelet.update_resources(running.containers["c0"], cri.LinuxContainerResources(cpuset_cpus="0"))
    doctor = await ask(under, "doctor", api.Doctor)
    feature = {feature.name: feature for feature in doctor.features}["sole owner of cpusets"]
    assert feature.state == "degraded"
    assert "cpuManagerPolicy: none" in feature.why


async def test_reset_gives_everything_back(tmp_path: Path) -> None:
    """Every container has all CPUs, kubelet's quota and the kernel's defaults again, ledger and sockets are gone."""
    async with FakeRuntime(tmp_path, pod_updates=True) as fake:
        async with under_test(tmp_path, fake=fake, more="[allocators.cpu]\n[allocators.memory]\n") as under:
            shared = await under.kubelet.start_pod(pod("web"))
            new = await under.kubelet.start_pod(dedicated("db", 3))
            batch = await under.kubelet.start_pod(pod("batch", level="reclaimed_cores"))
            assert (fake.cgroup_of(new.containers["c0"]) / "cpuset.mems").read_text().strip() == "0"
            with pytest.raises(AlreadyRunning):
                await reset(under.config)
            await under.settled()
        report = await reset(under.config)
        assert (report.containers, report.failed) == (3, [])
        for name, value in (("cpu.idle", "0"), ("io.weight", "default 100")):
            assert (fake.cgroup_of(batch.containers["c0"]) / name).read_text().strip() == value
        for container in (running.containers["c0"] for running in (shared, new, batch)):
            assert (fake.cgroup_of(container) / "cpuset.cpus").read_text().strip() == "0-7"
            assert (fake.cgroup_of(container) / "cpuset.mems").read_text().strip() == "0-1"
        assert (fake.cgroup_of(new.containers["c0"]) / "cpu.max").read_text().split()[0] == "300000"
        assert list((tmp_path / "run").iterdir()) == []
        assert list((tmp_path / "state").iterdir()) == []
        again = await reset(under.config)
        assert again.failed == []


async def test_reset_undoes_what_a_changed_profile_has_brought(tmp_path: Path) -> None:
    """The runtime does not know it: the container was made before, and upkeep has written it."""
    more = '[profiles.shared_cores]\nmemory_high = "1Gi"\nio_weight = 300\n'
    async with FakeRuntime(tmp_path, pod_updates=True) as fake:
        async with under_test(tmp_path, fake=fake) as under:
            running = await under.kubelet.start_pod(pod("web"))
        high, weight = (fake.cgroup_of(running.containers["c0"]) / name for name in ("memory.high", "io.weight"))
        async with under_test(tmp_path, fake=fake, more=more) as under:
            await until(lambda: (high.read_text().strip(), weight.read_text().strip()) == (str(1 << 30), "default 300"))
        report = await reset(under.config)
        assert (report.containers, report.failed) == (1, [])
        assert (high.read_text().strip(), weight.read_text().strip()) == ("max", "default 100")


async def test_reset_leaves_an_adopted_containers_files(tmp_path: Path) -> None:
    """They were never ours, whoever had set them before qrm came."""
    theirs = {"memory.high": "41943040", "io.weight": "default 300"}
    written = {"cpu.idle": "1", "cpu.max.burst": "1000"}
    async with FakeRuntime(tmp_path, pod_updates=True) as fake:
        async with KubeletClient(fake.endpoint) as direct:
            running = await direct.start_pod(pod("stranger"))
            container = running.containers["c0"]
            await direct.update_resources(container, cri.LinuxContainerResources(unified=theirs))
        for name, value in written.items():  # of which the runtime does not know
            (fake.cgroup_of(container) / name).write_text(f"{value}\n")
        async with under_test(tmp_path, fake=fake) as under:
            assert under.record(container).mark == "adopted"
        report = await reset(under.config)
        assert (report.containers, report.failed) == (1, [])
        for name, value in {**theirs, **written}.items():
            assert (fake.cgroup_of(container) / name).read_text().strip() == value


async def test_reset_without_a_runtime_changes_nothing(tmp_path: Path) -> None:
    """The ledger is kept for a later try."""
    async with under_test(tmp_path) as under:
        await under.kubelet.start_pod(pod("web"))
        await under.settled()
    with pytest.raises(RuntimeUnreachable):
        await reset(under.config)
    assert (tmp_path / "state/ledger.db").exists()


async def test_a_node_that_was_reset_can_be_taken_over_again(tmp_path: Path) -> None:
    """A new qrm finds its annotations and gives each container what it was promised."""
    async with FakeRuntime(tmp_path, pod_updates=True) as fake:
        async with under_test(tmp_path, fake=fake) as under:
            shared = await under.kubelet.start_pod(pod("web"))
            new = await under.kubelet.start_pod(dedicated("db", 3))
            cpus = under.ledger_cpus(new.containers["c0"])
        await reset(under.config)
        async with under_test(tmp_path, fake=fake) as under:
            await under.settled()
            assert under.kernel_cpus(new.containers["c0"]) == under.ledger_cpus(new.containers["c0"]) == cpus
            assert not under.record(shared.containers["c0"]).cpus & CPUSet.parse(cpus)  # type: ignore[operator]
            under.check()
