"""The two runtimes that must answer alike."""

from __future__ import annotations

import json
import os
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from qrm.cpuset import CPUSet
from qrm.demo.cgroups import PodCgroups, cgroup_file
from qrm.demo.containerd import PrivateContainerd, missing_tools
from qrm.demo.fake_runtime import FakeRuntime
from qrm.demo.kubelet import KubeletClient

CGROUP_ROOT = f"/qrm-test-{os.getpid()}"


@dataclass(frozen=True)
class Runtime:
    """A runtime under test: kubelet's connection to it, the CPUs that it has, and which containerd it is or is like."""

    kubelet: KubeletClient
    cpus: CPUSet
    release: tuple[int, int]
    fake: FakeRuntime | None

    async def info(self, container_id: str) -> Any:
        """The runtime's own record of a container."""
        return json.loads((await self.kubelet.container_status(container_id, verbose=True)).info["info"])

    async def cgroup_value(self, container_id: str, name: str) -> str | None:
        """What a file of the container's cgroup says; None where there is no such cgroup or file."""
        cgroup = (await self.info(container_id))["runtimeSpec"]["linux"]["cgroupsPath"]
        path = self.fake.cgroups.path(cgroup) / name if self.fake else cgroup_file(cgroup, name)
        return path.read_text().strip() if path and path.exists() else None


@pytest.fixture
def containerd_folder() -> Path:
    """Where a private containerd may live; skips the test where it cannot run."""
    if os.geteuid() != 0:
        pytest.skip("containerd needs root")
    if missing := missing_tools():
        pytest.skip(f"not installed: {', '.join(missing)}")
    return Path(f"/run/qrm-test-{os.getpid()}")


@pytest.fixture
def pod_cgroups(containerd_folder: Path) -> Iterator[PodCgroups]:
    with PodCgroups(CGROUP_ROOT) as cgroups:
        yield cgroups


@pytest.fixture
async def fake(tmp_path: Path) -> AsyncIterator[FakeRuntime]:
    async with FakeRuntime(tmp_path) as runtime:
        yield runtime


@pytest.fixture(params=["fake 1.6", "fake 1.7", "fake 2.1", pytest.param("containerd", marks=pytest.mark.containerd)])
async def runtime(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Runtime]:
    name, _, release = request.param.partition(" ")
    if name == "fake":
        async with (
            FakeRuntime(tmp_path, release=release_of(release)) as fake,
            KubeletClient(fake.endpoint) as kubelet,
        ):
            yield Runtime(kubelet, CPUSet(range(8)), release_of(release), fake)
    else:
        with PodCgroups(CGROUP_ROOT) as cgroups:
            async with (
                PrivateContainerd(request.getfixturevalue("containerd_folder")) as containerd,
                KubeletClient(containerd.endpoint, cgroups=cgroups) as kubelet,
            ):
                version = (await kubelet.version()).runtime_version
                yield Runtime(kubelet, CPUSet(os.sched_getaffinity(0)), release_of(version), None)


def release_of(version: str) -> tuple[int, int]:
    """(1, 6) for 1.6.20."""
    major, minor = version.split(".")[:2]
    return int(major), int(minor)
