"""The units under a systemd that runs: sockets, restarts, signals, the watchdog."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from qrm.demo.fake_runtime import FakeRuntime
from qrm.demo.kubelet import KubeletClient
from qrm.topology.generate import write_sysfs
from tests.support import PATIENCE, TWO_NODES, answering, dedicated, pod, refused, until

from .load import Load
from .systemd import Systemd, systemd

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="namespaces and cgroups need root")

CONFIGURATION = """
runtime.endpoint = "{endpoint}"
metrics.listen = ""
host = {{ sysfs = "{folder}/sys", proc = "{folder}/proc", cgroup = "{folder}/cgroup" }}
"""
HERE = """
# Lower than our own is not for everybody to set.
OOMScoreAdjust={score}
"""
IMPATIENT = """
[Service]
WatchdogSec=5
"""
"""A watchdog that is worth waiting for, and that a process which merely waits for a CPU does not meet."""


@dataclass
class Node:
    """A node that systemd runs qrm on, and the runtime behind it."""

    manager: Systemd
    fake: FakeRuntime
    kubelet: KubeletClient

    async def serves(self, previous: str) -> str:
        """Wait until another process than `previous` is ready; its pid."""
        while True:
            pid = await self.manager.show("MainPID")
            if pid not in ("0", previous) and await self.manager.show("ActiveState") == "active":
                return pid
            await asyncio.sleep(0.05)


@pytest.fixture(scope="module")
async def node(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Node]:
    """Only the socket is started: qrm is, when kubelet connects."""
    folder = tmp_path_factory.mktemp("node")
    write_sysfs(TWO_NODES, folder / "sys")
    score = Path("/proc/self/oom_score_adj").read_text().strip()
    async with FakeRuntime(folder, pod_updates=True) as fake:
        configuration = CONFIGURATION.format(endpoint=fake.endpoint, folder=folder)
        async with systemd(folder, configuration, more=HERE.format(score=score)) as manager:
            await manager.control("start", "qrm.socket")
            async with KubeletClient(f"unix://{manager.socket}", connect=PATIENCE) as kubelet:
                yield Node(manager, fake, kubelet)


async def test_kubelet_starts_it(node: Node) -> None:
    """The first call waits at systemd's socket until qrm is there to take it."""
    assert await node.manager.show("ActiveState") == "inactive"
    assert (await node.kubelet.version()).runtime_name == "fake"
    assert await node.manager.show("ActiveState") == "active"


async def test_no_call_fails_over_restarts(node: Node) -> None:
    """`systemctl restart`, and SIGTERM to all of its processes, with long calls and an event stream under way."""
    node.fake.faults.delay("StopContainer", 1.0)
    load = Load(node.kubelet, lambda name: pod(name, 500), lambda name: dedicated(name, 1), grace=2)
    async with load.running() as tally:
        pid = await node.manager.show("MainPID")
        for command in (["restart", "qrm"], ["restart", "qrm"], ["kill", "--kill-whom=main", "qrm"]):
            await asyncio.sleep(0.5)
            await node.manager.control(*command)
            pid = await node.serves(pid)
        await until(lambda: node.manager.said.count("event=stopped") == 3)
    node.fake.faults.clear()
    assert [str(each) for each in tally.failures] == []
    assert "level=error" not in node.manager.said
    assert "Traceback" not in node.manager.said


async def test_a_restart_does_not_wait_for_long_calls(node: Node) -> None:
    """They go on in a copy of the old process, which `systemctl kill` ends."""
    pods = [await node.kubelet.start_pod(pod(f"long-{number}")) for number in range(2)]
    pid, calls = await node.manager.show("MainPID"), []
    for each in pods:
        hang = node.fake.faults.hang("StopContainer")
        calls.append(asyncio.ensure_future(node.kubelet.stop_container(each.containers["c0"])))
        await hang.entered.wait()
        await node.manager.control("restart", "qrm")
        pid = await node.serves(pid)
        assert not any(call.done() for call in calls)
        if each is pods[0]:
            hang.release()
            await calls.pop()
    await node.manager.control("kill", "qrm")
    assert "UNAVAILABLE" in await refused(calls[0])
    await node.serves(pid)
    node.fake.faults.clear()


async def test_a_process_that_hangs_is_replaced(node: Node) -> None:
    """The watchdog ends it, and calls are answered by another one."""
    node.manager.add("qrm.service", "watchdog", IMPATIENT)
    await node.manager.control("daemon-reload")
    await node.manager.control("restart", "qrm")
    pid, restarts = await node.manager.show("MainPID"), int(await node.manager.show("NRestarts"))
    node.manager.signal(pid, signal.SIGSTOP)
    await node.serves(pid)
    assert int(await node.manager.show("NRestarts")) == restarts + 1
    await answering(node.kubelet)


async def test_nothing_is_left_at_the_end(node: Node) -> None:
    """With socket and service stopped there is no socket, and no process in the unit's cgroup."""
    await node.manager.control("stop", "qrm.socket", "qrm.service")
    assert not node.manager.socket.exists()
    assert await node.manager.show("ActiveState") == "inactive"
    await until(lambda: "qrm.service" not in _cgroups(node.manager))


def _cgroups(manager: Systemd) -> set[str]:
    """The units that processes of the manager are in."""
    found = set()
    for each in Path("/proc").glob("[0-9]*/cgroup"):
        try:
            text = each.read_text()
        except OSError:
            continue
        found |= {line.rpartition("/")[2] for line in text.splitlines() if f"qrm-systemd-{os.getpid()}" in line}
    return found
