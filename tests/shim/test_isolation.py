"""Cgroup files by profile: in the call that creates a container, and never lost by a later one."""

from __future__ import annotations

import errno
from collections.abc import AsyncIterator, Mapping
from dataclasses import replace
from pathlib import Path

import grpc
import pytest

from qrm.cpuset import CPUSet
from qrm.demo import fake_cgroups
from qrm.demo.fake_runtime import FakeRuntime
from qrm.demo.kubelet import KubeletClient
from qrm.demo.pods import ContainerSpec, Pod, container_resources
from qrm.enforcement.isolation import kernel
from qrm.wire import cri_pb2 as cri
from tests.support import MIB, UnderTest, dedicated, pod, refused, under_test, until

RECLAIMED = "reclaimed_cores"
PROFILES = """
[upkeep]
drift_seconds = 3600
[profiles.careful]
cpu_weight = 50
cpu_idle = false
cpu_burst_percent = 50
memory_high = "150%"
memory_low = "16Mi"
io_weight = 70
"""


@pytest.fixture
async def under(tmp_path: Path) -> AsyncIterator[UnderTest]:
    async with under_test(tmp_path, more=PROFILES) as made:
        yield made


def careful(name: str, millis: int = 500, *, level: str = RECLAIMED) -> Pod:
    """A pod with a quota and a memory limit that names the profile `careful`."""
    spec = ContainerSpec("c0", cpu_request=millis, cpu_limit=millis, memory_limit=64 * MIB)
    said = {"katalyst.kubewharf.io/qos_level": level, "qrm.io/profile": "careful"}
    return Pod(name, (spec,), annotations=said)


def file(under: UnderTest, container: str, name: str) -> str:
    return (under.fake.cgroup_of(container) / name).read_text().strip()


def created(under: UnderTest) -> dict[str, str]:
    """`unified` of the last creation."""
    return dict(under.fake.calls_of("CreateContainer")[-1].message.config.linux.resources.unified)


async def test_a_reclaimed_container_is_born_idle(under: UnderTest) -> None:
    """Its files come with its creation; the weight, which an idle cgroup refuses, does not."""
    running = await under.kubelet.start_pod(pod("batch", level=RECLAIMED))
    assert created(under) == {"cpu.idle": "1", "io.weight": "default 10"}
    assert file(under, running.containers["c0"], "cpu.idle") == "1"


@pytest.mark.parametrize("level", ["", "dedicated_cores", "system_cores"])
async def test_nobody_elses_files_are_touched(under: UnderTest, level: str) -> None:
    """Online pods differ by what they request."""
    await under.kubelet.start_pod(dedicated("db", 1) if level == "dedicated_cores" else pod("web", level=level))
    assert created(under) == {}


async def test_a_pod_may_name_a_profile(under: UnderTest) -> None:
    """What the profile leaves out is as for the level; shares are of the request, in whole pages."""
    await under.kubelet.start_pod(careful("batch"))
    assert created(under) == {
        "cpu.idle": "0",
        "cpu.weight": "50",
        "cpu.max.burst": "25000",
        "memory.high": str(96 * MIB),
        "memory.low": str(16 * MIB),
        "io.weight": "default 70",
    }


async def test_without_a_quota_there_is_no_burst(under: UnderTest) -> None:
    """Dedicated CPUs have none, whatever kubelet asked for."""
    wanted = dedicated("db", 2)
    await under.kubelet.start_pod(replace(wanted, annotations={**wanted.annotations, "qrm.io/profile": "careful"}))
    assert created(under)["cpu.max.burst"] == "0"


async def test_who_ran_before_qrm_keeps_what_he_has(under: UnderTest) -> None:
    """A container that was adopted is none that qrm placed."""
    async with KubeletClient(under.fake.endpoint) as direct:
        running = await direct.start_pod(pod("stranger", level=RECLAIMED))
    await under.node.upkeep.cycle()
    assert under.record(running.containers["c0"]).mark == "adopted"
    assert await under.node.isolation.cycle() == ""
    assert file(under, running.containers["c0"], "cpu.idle") == "0"


async def test_an_unknown_profile_is_refused_before_there_is_a_sandbox(under: UnderTest) -> None:
    """The message names those that there are."""
    wanted = pod("batch", annotations={"qrm.io/profile": "carefull"})
    text = await refused(under.kubelet.run_pod(wanted))
    assert text == "INVALID_ARGUMENT: qrm: qrm.io/profile is 'carefull', allowed: careful"
    assert under.fake.calls_of("RunPodSandbox") == []


@pytest.mark.parametrize(("limit", "told"), [('"wbbs": 9', "wbbs"), ('"wbps": 1', "wbps is 1")])
async def test_a_limit_that_the_kernel_would_refuse_is_refused(under: UnderTest, limit: str, told: str) -> None:
    """Before there is a sandbox, with the annotation and the key."""
    wanted = pod("batch", annotations={"qrm.io/io_max": f'{{"/dev/sda": {{{limit}}}}}'})
    text = await refused(under.kubelet.run_pod(wanted))
    assert "qrm.io/io_max is" in text
    assert told in text


async def test_a_disk_that_is_named_twice_is_refused(under: UnderTest) -> None:
    """Of two limits one would count, and nobody has said which."""
    twice = '{"/dev/sda": {"wbps": 9}, "/dev/sda": {}}'
    text = await refused(under.kubelet.start_pod(pod("batch", annotations={"qrm.io/io_max": twice})))
    assert "'/dev/sda' is there twice" in text


async def test_a_name_that_cannot_be_a_files_is_refused_too(under: UnderTest) -> None:
    """A handler that fails would let the container in as kubelet made it."""
    wanted = pod("batch", level=RECLAIMED, annotations={"qrm.io/io_max": f'{{"/dev/{"x" * 300}": {{"wbps": 9}}}}'})
    text = await refused(under.kubelet.start_pod(wanted))
    assert text.startswith("INVALID_ARGUMENT: qrm: qrm.io/io_max: '/dev/xxx")
    assert under.fake.calls_of("CreateContainer") == []


async def test_a_pod_that_vanishes_while_it_is_looked_up_ends_no_round(under: UnderTest) -> None:
    """It was in the list and is gone: that is no failure of the runtime."""
    assert await under.node.context.find_sandbox("gone") is None


async def test_an_idle_container_gives_way_like_any_other(under: UnderTest) -> None:
    """The runtime writes the weight first, which the kernel refuses while a cgroup is idle: not with qrm."""
    batch = await under.kubelet.start_pod(pod("batch", level=RECLAIMED))
    db = await under.kubelet.start_pod(dedicated("db", 3))
    await under.settled()
    container = batch.containers["c0"]
    assert CPUSet.parse(under.kernel_cpus(container)).isdisjoint(under.record(db.containers["c0"]).cpus or CPUSet())
    assert file(under, container, "cpu.idle") == "1"
    under.check()


async def test_kubelets_update_of_an_idle_container_passes(under: UnderTest) -> None:
    """Its memory is taken over, and the container stays idle."""
    batch = await under.kubelet.start_pod(careful("plain"))
    idle = await under.kubelet.start_pod(pod("batch", level=RECLAIMED))
    for running in (batch, idle):
        full = container_resources(running.pod, running.pod.containers[0])
        full.memory_limit_in_bytes = 128 * MIB
        await under.kubelet.update_resources(running.containers["c0"], full)
        assert file(under, running.containers["c0"], "memory.max") == str(128 * MIB)
    assert file(under, idle.containers["c0"], "cpu.idle") == "1"
    assert file(under, batch.containers["c0"], "memory.high") == str(192 * MIB)


@pytest.mark.parametrize("more", ["[profiles.reclaimed_cores]\ncpu_idle = false\n", '[isolation]\ncpu = "off"\n'])
async def test_an_idle_container_gives_way_after_a_change_of_configuration(tmp_path: Path, more: str) -> None:
    """The kernel refuses weights as before, whatever the profile says now."""
    async with FakeRuntime(tmp_path, pod_updates=True) as fake:
        async with under_test(tmp_path, fake=fake) as under:
            batch = await under.kubelet.start_pod(pod("batch", level=RECLAIMED))
        async with under_test(tmp_path, fake=fake, more=more) as under:
            await under.kubelet.start_pod(dedicated("db", 3))
            await under.settled()
            await under.kubelet.update_resources(batch.containers["c0"], cri.LinuxContainerResources(cpu_shares=512))
            under.check()


async def test_a_process_in_a_cgroup_of_its_own_hides_nothing(under: UnderTest) -> None:
    """Such as systemd in a container: its container's cgroup is the one that is unlocked and compared."""
    running = await under.kubelet.start_pod(pod("batch", level=RECLAIMED))
    container = running.containers["c0"]
    for each in under.fake.cgroups.proc.glob("*/cgroup"):
        if container in (text := each.read_text().strip()):
            each.write_text(f"{text}/init.scope\n")
    await under.kubelet.update_resources(container, cri.LinuxContainerResources(cpu_shares=512))
    (under.fake.cgroup_of(container) / "io.weight").write_text("default 500\n")
    assert await under.node.isolation.cycle() == "put back 1 io.weight"
    found = await under.node.processes.cpuset(container)
    assert found is not None
    assert found.path.name == container


async def test_a_disk_that_goes_holds_up_no_update(under: UnderTest, monkeypatch: pytest.MonkeyPatch) -> None:
    """With each update the runtime writes all that it keeps, and the kernel refuses a limit for a disk that is gone."""
    running = await under.kubelet.start_pod(pod("batch", level=RECLAIMED))
    kept = under.fake.store.containers[running.containers["c0"]].resources.unified
    apply = under.fake.cgroups.apply

    def refuse(cgroup: str, resources: cri.LinuxContainerResources) -> None:
        if resources.unified.get("io.max"):
            raise fake_cgroups.CgroupRefusal("write io.max: no such device")
        apply(cgroup, resources)

    monkeypatch.setattr(under.fake.cgroups, "apply", refuse)
    kept["io.max"] = "8:0 rbps=max wbps=9 riops=max wiops=max"
    await under.kubelet.start_pod(dedicated("db", 3))
    await under.settled()
    under.check()
    kept = under.fake.store.containers[running.containers["c0"]].resources.unified
    assert kept["io.max"] == ""
    kept["io.max"] = "8:0 rbps=max wbps=9 riops=max wiops=max"
    put = under.node.files.put

    def late(resources: cri.LinuxContainerResources, files: Mapping[str, str]) -> None:
        """As if the disk were there until now."""
        put(resources, {**files, "io.max": kept["io.max"]})

    monkeypatch.setattr(under.node.files, "put", late)
    await under.kubelet.update_resources(running.containers["c0"], cri.LinuxContainerResources(cpu_shares=512))
    assert file(under, running.containers["c0"], "cpu.idle") == "1"


async def test_a_runtime_that_does_not_answer_is_asked_nothing_about_disks(under: UnderTest) -> None:
    """Who waits for a push would wait for as long again."""
    await under.kubelet.start_pod(pod("web"))
    await under.node.upkeep.cycle()  # which finds its process
    under.fake.faults.fail("UpdateContainerResources", grpc.StatusCode.UNAVAILABLE, "away", times=None)
    before = len(under.fake.calls_of("ContainerStatus"))
    await refused(under.kubelet.start_pod(dedicated("db", 3)))
    assert len(under.fake.calls_of("ContainerStatus")) == before
    under.fake.faults.clear()
    await under.settled()


async def test_after_an_update_that_failed_it_is_idle_again(under: UnderTest) -> None:
    """What was lifted for the update is put back where the runtime did not get that far."""
    idle = await under.kubelet.start_pod(pod("batch", level=RECLAIMED))
    under.fake.faults.fail("UpdateContainerResources", grpc.StatusCode.UNKNOWN, "cgroup is on fire")
    await refused(under.kubelet.update_resources(idle.containers["c0"], cri.LinuxContainerResources(cpu_shares=512)))
    assert file(under, idle.containers["c0"], "cpu.idle") == "1"


async def test_a_container_that_is_idle_no_more_is_not_made_so_again(under: UnderTest) -> None:
    """An update brings the weight of its profile by now, with all that comes before a weight."""
    container = (await under.kubelet.start_pod(careful("batch"))).containers["c0"]
    (under.fake.cgroup_of(container) / "cpu.idle").write_text("1\n")
    await under.kubelet.update_resources(container, cri.LinuxContainerResources(cpu_shares=512))
    assert (file(under, container, "cpu.idle"), file(under, container, "cpu.weight")) == ("0", "50")


async def test_a_burst_follows_its_quota(under: UnderTest) -> None:
    """Down as well as up: it may never exceed the quota."""
    running = await under.kubelet.start_pod(careful("batch"))
    container = running.containers["c0"]
    for quota in (20_000, 80_000):
        await under.kubelet.update_resources(container, cri.LinuxContainerResources(cpu_quota=quota))
        assert file(under, container, "cpu.max.burst") == str(quota // 2)
        assert file(under, container, "cpu.max").split()[0] == str(quota)


async def test_kubelet_does_not_see_what_it_did_not_ask_for(under: UnderTest) -> None:
    """ContainerStatus shows kubelet's own numbers."""
    running = await under.kubelet.start_pod(careful("batch"))
    shown = (await under.kubelet.container_status(running.containers["c0"])).status.resources.linux
    assert dict(shown.unified) == {}


async def test_what_is_off_is_not_touched(tmp_path: Path) -> None:
    """Each controller has its own mode."""
    async with under_test(tmp_path, more='[isolation]\ncpu = "off"\nio = "off"\n') as under:
        await under.kubelet.start_pod(pod("batch", level=RECLAIMED))
        assert created(under) == {}


@pytest.mark.parametrize("mode", ["auto", "required"])
async def test_a_kernel_without_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: str) -> None:
    """The weight stands in for cpu.idle; a pod whose profile says what cannot be is refused where that is required."""
    for name in ("cpu.idle", "cpu.max.burst"):
        monkeypatch.delitem(fake_cgroups.KERNEL_DEFAULTS, name)
    more = f'[isolation]\ncpu = "{mode}"\n[profiles.spiky]\ncpu_burst_percent = 10\n'
    async with under_test(tmp_path, more=more) as under:
        await under.kubelet.start_pod(pod("batch", level=RECLAIMED))
        assert created(under) == {"cpu.weight": "1", "io.weight": "default 10"}
        spiky = pod("spiky", annotations={"qrm.io/profile": "spiky"})
        if mode == "auto":
            await under.kubelet.start_pod(spiky)
            assert created(under) == {}
        else:
            text = await refused(under.kubelet.start_pod(spiky))
            assert text.startswith("FAILED_PRECONDITION: qrm: cpu.max.burst cannot be set")
            assert not any(record.request.pod.name == "spiky" for record in under.node.book.ledger)


async def test_what_the_kernel_refuses_is_not_said_to_be_put_back(
    under: UnderTest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A round in which every write fails has done nothing."""
    running = await under.kubelet.start_pod(pod("batch", level=RECLAIMED))
    (under.fake.cgroup_of(running.containers["c0"]) / "io.weight").write_text("default 500\n")

    def refuse(path: Path, value: str, *, old: str | None = None) -> None:
        raise kernel.KernelError(path, value, errno.EINVAL)

    monkeypatch.setattr(kernel, "write", refuse)
    assert await under.node.isolation.cycle() == ""


async def test_a_file_that_cannot_be_read_ends_no_round(under: UnderTest) -> None:
    """The other containers are put right."""
    first, second = [await under.kubelet.start_pod(pod(name, level=RECLAIMED)) for name in ("batch", "other")]
    unreadable = under.fake.cgroup_of(first.containers["c0"]) / "io.weight"
    unreadable.unlink()
    unreadable.mkdir()
    (under.fake.cgroup_of(second.containers["c0"]) / "io.weight").write_text("default 500\n")
    assert await under.node.isolation.cycle() == "put back 1 io.weight"


async def test_a_file_that_cannot_be_read_fails_no_call(under: UnderTest, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the runtime has done is not reported as failed: neither kubelet's update nor one of ours."""
    container = (await under.kubelet.start_pod(pod("web"))).containers["c0"]

    def refuse(path: Path) -> str | None:
        raise kernel.KernelError(path, "reading it", errno.EIO)

    monkeypatch.setattr(kernel, "read", refuse)
    await under.kubelet.update_resources(container, cri.LinuxContainerResources(cpu_quota=20_000))
    assert file(under, container, "cpu.max").split()[0] == "20000"
    await under.kubelet.start_pod(dedicated("db", 3))
    await under.settled()
    under.check()


async def test_drift_is_put_back_and_counted(tmp_path: Path) -> None:
    """A foreign write is undone within a round, counted by file, and the steady state writes nothing."""
    async with under_test(tmp_path, more="[upkeep]\ndrift_seconds = 0.1\n") as under:
        running = await under.kubelet.start_pod(pod("batch", level=RECLAIMED))
        container = running.containers["c0"]

        def counted(name: str) -> float:
            found = under.node.metrics.registry.get_sample_value(
                "qrm_isolation_repaired_total", {"dimension": "cgroup", "cause": name}
            )
            return found or 0.0

        assert await under.node.isolation.cycle() == ""
        (under.fake.cgroup_of(container) / "io.weight").write_text("default 500\n")
        await until(lambda: file(under, container, "io.weight") == "default 10")
        await until(lambda: counted("io.weight") == 1)
        (under.fake.cgroup_of(container) / "cpu.idle").write_text("0\n")
        await until(lambda: file(under, container, "cpu.idle") == "1")
        before = {
            name: (under.fake.cgroup_of(container) / name).stat().st_mtime_ns for name in ("cpu.idle", "io.weight")
        }
        for _ in range(3):
            assert await under.node.isolation.cycle() == ""
        assert before == {name: (under.fake.cgroup_of(container) / name).stat().st_mtime_ns for name in before}
