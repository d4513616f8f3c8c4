"""The private containerd itself: its start and end, crashes, and what it leaves."""

from __future__ import annotations

from pathlib import Path

import grpc
import psutil
import pytest

from qrm.demo.cgroups import PodCgroups, cgroup_file
from qrm.demo.containerd import PrivateContainerd, missing_tools
from qrm.demo.image import IMAGE
from qrm.demo.kubelet import KubeletClient, RunningPod
from qrm.demo.pods import ContainerSpec, Pod
from qrm.errors import QrmError
from qrm.wire import cri_pb2
from tests.support import answering

POD = (ContainerSpec("main", cpu_request=100),)


@pytest.mark.containerd
async def test_it_leaves_nothing_behind(containerd_folder: Path, pod_cgroups: PodCgroups) -> None:
    async with PrivateContainerd(containerd_folder) as containerd:
        assert containerd.pid
        process = psutil.Process(containerd.pid)
        async with KubeletClient(containerd.endpoint, cgroups=pod_cgroups) as kubelet:
            assert await kubelet.has_image(IMAGE)
            assert not await kubelet.has_image("localhost/other:1")
            running = await kubelet.start_pod(Pod("web", POD))
    assert not process.is_running()
    assert containerd.pid is None
    assert not is_there(containerd_folder)
    assert traces(containerd_folder, running, pod_cgroups) == []


@pytest.mark.containerd
async def test_containers_outlive_a_restart_and_a_crash(containerd_folder: Path, pod_cgroups: PodCgroups) -> None:
    async with (
        PrivateContainerd(containerd_folder) as containerd,
        KubeletClient(containerd.endpoint, cgroups=pod_cgroups) as kubelet,
    ):
        running = await kubelet.start_pod(Pod("web", POD))
        await containerd.restart()
        await answering(kubelet)
        await containerd.kill()
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await kubelet.version()
        assert caught.value.code() == grpc.StatusCode.UNAVAILABLE
        await containerd.start()
        await answering(kubelet)
        (container,) = await kubelet.containers()
        assert (container.id, container.state) == (running.containers["main"], cri_pb2.CONTAINER_RUNNING)
        await kubelet.end_pod(running)


@pytest.mark.containerd
async def test_a_crash_leaves_nothing_behind_either(containerd_folder: Path, pod_cgroups: PodCgroups) -> None:
    async with PrivateContainerd(containerd_folder) as containerd:
        async with KubeletClient(containerd.endpoint, cgroups=pod_cgroups) as kubelet:
            running = await kubelet.start_pod(Pod("web", POD))
        await containerd.kill()
        assert traces(containerd_folder, running, pod_cgroups) != []
    assert traces(containerd_folder, running, pod_cgroups) == []


@pytest.mark.containerd
async def test_the_next_one_clears_up_after_one_that_died(containerd_folder: Path, pod_cgroups: PodCgroups) -> None:
    died = PrivateContainerd(containerd_folder)
    await died.__aenter__()
    async with KubeletClient(died.endpoint, cgroups=pod_cgroups) as kubelet:
        running = await kubelet.start_pod(Pod("web", POD))
    await died.kill()
    async with PrivateContainerd(containerd_folder) as containerd, KubeletClient(containerd.endpoint) as kubelet:
        assert await kubelet.pods() == []
        assert traces(containerd_folder, running, pod_cgroups) == []


@pytest.mark.containerd
async def test_pods_can_have_a_network_of_their_own(containerd_folder: Path, pod_cgroups: PodCgroups) -> None:
    if missing := missing_tools(pod_network=True):
        pytest.skip(f"not installed: {', '.join(missing)}")
    before = set(psutil.net_if_addrs())
    async with (
        PrivateContainerd(containerd_folder, pod_subnet="10.231.77.0/24") as containerd,
        KubeletClient(containerd.endpoint, cgroups=pod_cgroups) as kubelet,
    ):
        running = await kubelet.start_pod(Pod("web", POD, host_network=False))
        shown = await kubelet.exec_sync(running.containers["main"], ["ip", "-4", "addr", "show", "eth0"])
        assert b"10.231.77." in shown.stdout
        assert len(set(psutil.net_if_addrs()) - before) == 1
    assert set(psutil.net_if_addrs()) == before


@pytest.mark.containerd
async def test_a_start_that_fails_shows_the_log(containerd_folder: Path) -> None:
    async with PrivateContainerd(containerd_folder) as containerd:
        await containerd.stop()
        (containerd_folder / "config.toml").write_text("version = [\n")
        with pytest.raises(QrmError, match=r"(?s)containerd ended with exit code 1.*toml"):
            await containerd.start()
    assert not is_there(containerd_folder)


@pytest.mark.containerd
async def test_a_folder_with_other_files_is_not_touched(containerd_folder: Path, tmp_path: Path) -> None:
    (tmp_path / "letter").write_text("dear")
    with pytest.raises(QrmError, match="holds other files"):
        async with PrivateContainerd(tmp_path):
            pass
    assert (tmp_path / "letter").read_text() == "dear"


@pytest.mark.containerd
async def test_a_folder_too_long_for_a_socket_is_refused(containerd_folder: Path, tmp_path: Path) -> None:
    with pytest.raises(QrmError, match="too long for a socket"):
        async with PrivateContainerd(tmp_path / ("x" * 100)):
            pass


def test_missing_tools_are_named_by_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("qrm.demo.containerd_config.search_path", lambda _: str(tmp_path))
    monkeypatch.setattr("qrm.demo.containerd_config.BUSYBOX", tmp_path / "busybox")
    monkeypatch.setattr("qrm.demo.containerd_config.CNI_PLUGINS", tmp_path)
    assert missing_tools() == ["busybox-static", "containerd", "mount", "runc", "util-linux"]
    assert "containernetworking-plugins" in missing_tools(pod_network=True)


async def test_without_its_tools_nothing_starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("qrm.demo.containerd.missing_tools", lambda **_: ["runc"])
    with pytest.raises(QrmError, match="apt install runc"):
        async with PrivateContainerd(tmp_path / "x"):
            pass


def is_there(path: Path) -> bool:
    return path.exists()


def traces(folder: Path, running: RunningPod, cgroups: PodCgroups) -> list[str]:
    """What there is of a containerd and one of its pods on the machine."""
    found = [each.mountpoint for each in psutil.disk_partitions(all=True) if str(folder) in each.mountpoint]
    # The shims of a containerd know it by its socket; init may take its time to bury them.
    for process in psutil.process_iter(["cmdline", "status"]):
        if process.info["status"] != psutil.STATUS_ZOMBIE:
            found += [each for each in process.info["cmdline"] or () if each == f"{folder}/containerd.sock"]
    containers = (running.sandbox_id, *running.containers.values())
    cgroup = running.pod.cgroup(cgroups.cgroup_root)
    return found + [each for each in containers if cgroup_file(f"{cgroup}/{each}", "cgroup.procs")]
