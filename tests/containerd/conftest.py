"""One containerd for all tests here, and a new qrm before it for each."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from qrm.demo.cgroups import PodCgroups
from qrm.demo.containerd import PrivateContainerd, missing_tools
from qrm.demo.kubelet import KubeletClient

from .site import Site


@pytest.fixture(scope="package")
async def containerd() -> AsyncIterator[PrivateContainerd]:
    """A containerd of our own; skips the tests where it cannot run."""
    if os.geteuid() != 0:
        pytest.skip("containerd needs root")
    if missing := missing_tools():
        pytest.skip(f"not installed: {', '.join(missing)}")
    if len(os.sched_getaffinity(0)) < 2:
        pytest.skip("one CPU cannot be divided")
    async with PrivateContainerd(Path(f"/run/qrm-e2e-{os.getpid()}")) as running:
        yield running


@pytest.fixture
async def site(containerd: PrivateContainerd, tmp_path: Path) -> AsyncIterator[Site]:
    """A node without pods, on which qrm runs."""
    with PodCgroups(f"/qrm-e2e-{os.getpid()}") as cgroups:
        async with KubeletClient(containerd.endpoint, cgroups=cgroups) as direct:
            made = Site(tmp_path, containerd, cgroups, direct)
            try:
                await made.start()
                yield made
            finally:
                await made.stop()
                for pod in await direct.pods():
                    await direct.stop_pod(pod.id)
                    await direct.remove_pod(pod.id)
