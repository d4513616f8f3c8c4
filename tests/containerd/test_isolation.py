"""Cgroup files by profile on this machine's own cgroups, of whichever version they are."""

from __future__ import annotations

from pathlib import Path

import pytest

from qrm.demo.cgroups import cgroup_file
from qrm.demo.kubelet import RunningPod
from qrm.demo.pods import ContainerSpec, Pod, container_resources
from qrm.service.reset import reset
from qrm.upkeep.isolation import wanted_files
from tests.support import MIB, until

from .site import TELL, Site, dedicated, shared

pytestmark = pytest.mark.containerd


def reclaimed(name: str) -> Pod:
    """A pod with a quota and a limit, whose idle CPU is lent."""
    spec = ContainerSpec("c0", 200, 400, 64 * MIB, 64 * MIB, command=TELL)
    return Pod(name, (spec,), annotations={"katalyst.kubewharf.io/qos_level": "reclaimed_cores"})


def value(site: Site, pod: RunningPod, name: str) -> str:
    path = site.file(pod, name)
    assert path is not None, f"this machine has no {name}"
    return path.read_text().strip()


def all_values(site: Site, pod: RunningPod) -> dict[str, str]:
    """Every file of a container's cgroups that can be set, in every hierarchy."""
    found = {}
    for name in (
        "cpu.shares",
        "memory.limit_in_bytes",
        "cpuset.cpus",
        "blkio.throttle.write_bps_device",
        "memory.high",
    ):
        known = cgroup_file(f"{pod.pod.cgroup(site.cgroups.cgroup_root)}/{pod.containers['c0']}", name)
        for path in sorted(known.parent.iterdir()) if known else []:
            if path.is_file() and path.stat().st_mode & 0o200 and path.stat().st_mode & 0o400:
                found[str(path)] = _read(path)
    return found


def _read(path: Path) -> str:
    counts = ("usage", "procs", "tasks", "peak", "max_usage", "stat", "pressure", "numa")
    try:
        return "" if any(word in path.name for word in counts) else path.read_text()
    except OSError:
        return ""


async def test_a_reclaimed_container_is_idle_and_stays_so(site: Site) -> None:
    """From its start, over what qrm tells it when others come, and over kubelet's own update."""
    batch = await site.kubelet.start_pod(reclaimed("batch"))
    assert value(site, batch, "cpu.idle") == "1"
    await site.kubelet.start_pod(dedicated("db"))
    await site.has(batch, site.cpus(batch) & site.machine)
    assert len(site.cpus(batch)) == len(site.machine) - 1
    assert value(site, batch, "cpu.idle") == "1"
    resources = container_resources(batch.pod, batch.pod.containers[0])
    resources.memory_limit_in_bytes = 96 * MIB
    await site.kubelet.update_resources(batch.containers["c0"], resources)
    assert value(site, batch, "cpu.idle") == "1"
    limit = site.file(batch, "memory.max") or site.file(batch, "memory.limit_in_bytes")
    assert limit is not None
    assert limit.read_text().strip() == str(96 * MIB)


async def test_a_foreign_write_is_put_back(site: Site) -> None:
    """Within a round of upkeep."""
    batch = await site.kubelet.start_pod(reclaimed("batch"))
    path = site.file(batch, "cpu.idle")
    assert path is not None
    path.write_text("0")
    await until(lambda: value(site, batch, "cpu.idle") == "1")


async def test_explain_shows_the_files(site: Site) -> None:
    """What the profile says, and what the kernel has."""
    batch = await site.kubelet.start_pod(reclaimed("batch"))
    record = site.node.book.ledger.find(batch.containers["c0"])
    assert record is not None
    files = wanted_files(record, site.node.files)
    assert (await site.node.files.values(record.container_id, files))["cpu.idle"] == ("1", "1", True)


async def test_reset_leaves_every_file_as_without_qrm(site: Site) -> None:
    """The same pods, made by containerd alone, have the same in each of their files."""
    pods = (shared("web"), dedicated("db"), reclaimed("batch"))
    with_qrm = [await site.kubelet.start_pod(each) for each in pods]
    await site.stop()
    report = await reset(site.config)
    assert (report.containers, report.failed) == (3, [])
    after = [all_values(site, each) for each in with_qrm]
    for each in with_qrm:
        await site.direct.end_pod(each, grace=0)
    without = [await site.direct.start_pod(each) for each in pods]
    for had, found in zip(after, [all_values(site, each) for each in without], strict=True):
        assert len(found) > 20
        assert list(had.values()) == list(found.values())
