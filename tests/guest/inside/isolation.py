"""Inside the guest: what pods find of their isolation as they begin, with qrm before a real containerd.

    python -m tests.guest.inside.isolation PODS

Prints what it finds as NAME=VALUE; test_isolation.py judges. `NAME.first` is what a container's first command found of
itself, `NAME.exec` what a command found that was run in it later: one line of FILE:VALUE.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from qrm.cli.client import Client
from qrm.config import Config
from qrm.demo.cgroups import PodCgroups, cgroup_file
from qrm.demo.containerd import PrivateContainerd
from qrm.demo.kubelet import KubeletClient, RunningPod
from qrm.demo.pods import ContainerSpec, Pod
from qrm.metrics import Metrics
from qrm.service.node import Node
from qrm.service.reset import reset
from qrm.service.serve import running
from qrm.wire import cri_pb2 as cri
from tests.guest.inside.disks import come, go
from tests.guest.inside.pinning import LEVEL, PATIENCE, say
from tests.support import MIB, config, until, wait_ready

TIMES = 5
"""Containers of a pod, one born after the other."""
RESCTRL = Path("/sys/fs/resctrl")
SETTINGS = """
[upkeep]
drift_seconds = 3
[profiles.reclaimed_cores]
memory_high = "75%"
[profiles.dedicated_cores]
rdt = "dedicated"
[rdt.classes.dedicated]
l3 = "50%"
from_top = true
[network]
rate_mbit = 1000
[io_cost.devices."/dev/nullb0"]
kind = "nvme"
"""
LOOK = """
cd /sys/fs/cgroup
for file in cpu.weight cpu.idle cpu.max memory.high io.weight cpuset.cpus; do
  printf '%s:%s ' $file "$(head -n 1 $file | tr ' ' _)"
done
echo groups:$(cat /proc/self/cpu_resctrl_groups | tr ' ' _)
"""
TELL = ("/bin/sh", "-c", f"({LOOK}) >/tmp/now; mv /tmp/now /tmp/first; trap 'exit 0' TERM; while :; do sleep 9; done")
HEAR = ("/bin/sh", "-c", f"until test -e /tmp/first; do sleep 1; done; cat /tmp/first; {LOOK}")


def pod(name: str, level: str, *, cpus: int = 0) -> Pod:
    """A pod with a network of its own and one container c0."""
    millis = cpus * 1000 or 200
    spec = ContainerSpec("c0", millis, millis if cpus else 0, 64 * MIB, 64 * MIB, command=TELL)
    return Pod(name, (spec,), annotations={LEVEL: level}, host_network=False)


def run(*command: str) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def node_state() -> dict[str, str]:
    """All of the node's own that isolation may change.

    The kernel goes on listing a disk whose cost it was once told, with `enable=0` and `ctrl=auto`: that is nobody's.
    """
    links = sorted(each["ifname"] for each in json.loads(run("ip", "-json", "link")))
    groups = {str(path.parent): path.read_text() for path in sorted(RESCTRL.rglob("schemata"))}
    cgroup = Path("/sys/fs/cgroup")
    return {
        "links": " ".join(name for name in links if not name.startswith("veth")),
        "qdiscs": " ".join(sorted({each["kind"] for each in json.loads(run("tc", "-json", "qdisc"))})),
        "resctrl": json.dumps(groups),
        "qos": " ".join(each for each in (cgroup / "io.cost.qos").read_text().splitlines() if "enable=0" not in each),
        "model": " ".join(each for each in (cgroup / "io.cost.model").read_text().splitlines() if "auto" not in each),
    }


class Story:
    """The parts that the acts play with."""

    def __init__(self, node: Node, kubelet: KubeletClient, settings: Config) -> None:
        self.node = node
        self.kubelet = kubelet
        self.admin = Client(Path(settings.shim.admin_socket))

    async def look(self, name: str, container: str) -> None:
        """Say what a container found as it began, and what a command finds now."""
        said = await self.kubelet.exec_sync(container, HEAR)
        first, now = said.stdout.decode().splitlines()
        say(f"{name}.first", first.strip())
        say(f"{name}.exec", now.strip())

    async def start(self, wanted: Pod) -> RunningPod:
        """Start a pod, and say what its container finds."""
        started = await self.kubelet.start_pod(wanted)
        await self.look(wanted.name, started.containers["c0"])
        return started

    async def again_and_again(self, number: int) -> RunningPod:
        """A pod with one container after the other."""
        name = f"batch{number}"
        (first,) = pod(name, "reclaimed_cores").containers
        specs = tuple(replace(first, name=f"c{turn}") for turn in range(TIMES))
        wanted = replace(pod(name, "reclaimed_cores"), containers=specs)
        started = await self.kubelet.start_pod(wanted)
        for container, container_id in started.containers.items():
            await self.look(f"{name}.{container}", container_id)
        return started

    async def explain(self, started: RunningPod) -> None:
        """Say what `qrm explain` shows of a pod's isolation."""
        told, *_ = await asyncio.to_thread(self.admin.explain, started.pod.uid)
        for fact in told.isolation:
            say(f"{started.pod.name}.explain.{fact.name}", f"{fact.wanted}|{fact.kernel}".replace("\n", ";"))

    def repairs(self) -> dict[str, float]:
        """How much was put back so far, by dimension and cause."""
        samples = (sample for family in self.node.metrics.registry.collect() for sample in family.samples)
        return {
            "/".join(sample.labels.values()): sample.value
            for sample in samples
            if sample.name in ("qrm_isolation_repaired_total", "qrm_drift_repaired_total") and sample.value
        }

    async def calm(self) -> None:
        """Wait until two rounds have put nothing back."""
        before: dict[str, float] | None = None
        async with asyncio.timeout(PATIENCE):
            while before != (now := self.repairs()):
                before = now
                await asyncio.sleep(6)

    async def repaired(self, name: str, cause: str) -> None:
        """Wait until a repair of that cause was counted, and say that it was."""
        before = self.repairs().get(cause, 0)
        await until(lambda: self.repairs().get(cause, 0) > before, PATIENCE)
        say(f"repaired.{name}", cause)


async def tell_drift(story: Story, batch: RunningPod) -> None:
    """What systemd, people and tools do to a node, and that it is put back."""

    def write(name: str, value: str) -> None:
        path = cgroup_file(f"{batch.pod.cgroup()}/{batch.containers['c0']}", name)
        assert path is not None
        path.write_text(value)

    await story.calm()  # whatever was still to be put right after the last pod
    before = story.repairs()
    await asyncio.sleep(8)
    say("steady", story.repairs() == before)
    for name, value, cause in (
        ("memory.high", "max", "cgroup/memory.high"),
        ("io.weight", "default 100", "cgroup/io.weight"),
        ("cpu.idle", "0", "cgroup/cpu.idle"),
        ("cpuset.cpus", "0-7", "cpuset"),
    ):
        write(name, value)
        await story.repaired(name, cause)
    (RESCTRL / "qrm-reclaimed" / "schemata").write_text("L3:0=fffff;1=fffff\n")
    await story.repaired("schemata", "rdt/schemata")
    (RESCTRL / "qrm-reclaimed").rmdir()
    await story.repaired("group", "rdt/group")
    await until(lambda: "put back" not in str(story.repairs()), PATIENCE)
    for device in (each["ifname"] for each in json.loads(run("ip", "-json", "link")) if each["ifname"][:4] == "veth"):
        subprocess.run(["tc", "qdisc", "del", "dev", device, "clsact"], check=False, capture_output=True)
    before = story.repairs()
    await until(
        lambda: any(story.repairs().get(key, 0) > before.get(key, 0) for key in network(story.repairs())), PATIENCE
    )
    say("repaired.qdisc", " ".join(network(story.repairs())))
    number = Path("/sys/block/nullb0/dev").read_text().strip()
    Path("/sys/fs/cgroup/io.cost.qos").write_text(f"{number} enable=0\n")
    await story.repaired("io.cost", "io_cost/qos")
    await story.calm()
    await story.look("batch.repaired", batch.containers["c0"])
    before = story.repairs()
    await asyncio.sleep(8)
    say("steady.again", story.repairs() == before)


async def tell_disks(story: Story) -> None:
    """Limits for two disks, of which the one goes that the runtime was told of: an update passes all the same."""
    come("qrmgone", 64)
    come("qrmstays", 64)
    limits = {"/dev/qrmgone": {"riops": 500}, "/dev/qrmstays": {"wbps": 5_000_000}}
    wanted = pod("disks", "shared_cores")
    said = {**wanted.annotations, "qrm.io/io_max": json.dumps(limits)}
    started = await story.kubelet.start_pod(replace(wanted, annotations=said))
    container = started.containers["c0"]
    path = cgroup_file(f"{started.pod.cgroup()}/{container}", "io.max")
    assert path is not None
    say("disks.born", " ".join(sorted(path.read_text().split())))
    go("qrmgone")
    await story.kubelet.update_resources(container, cri.LinuxContainerResources(cpu_shares=700))
    say("disks.updated", " ".join(sorted(path.read_text().split())))
    await story.kubelet.end_pod(started, grace=0)
    go("qrmstays")


def network(causes: Iterable[str]) -> list[str]:
    return sorted(cause for cause in causes if cause.startswith("network/"))


def files_of(started: RunningPod) -> dict[str, str]:
    """The files of a container's cgroup that can be set."""
    path = cgroup_file(f"{started.pod.cgroup()}/{started.containers['c0']}", "cpu.weight")
    assert path is not None
    names = (
        "cpu.weight",
        "cpu.idle",
        "cpu.max",
        "cpu.max.burst",
        "memory.high",
        "memory.low",
        "memory.min",
        "io.weight",
    )
    return {name: (path.parent / name).read_text() for name in (*names, "io.max", "cpuset.cpus.effective")}


async def main(pods_of_batch: int) -> None:
    """Containerd, qrm, kubelet, and the story; then the node without qrm, and the same pods without it."""
    begun = time.monotonic()
    run("mount", "-t", "resctrl", "resctrl", str(RESCTRL))
    run("modprobe", "null_blk")
    if not Path("/sys/kernel/config/nullb").exists():
        run("mount", "-t", "configfs", "configfs", "/sys/kernel/config")
    before = node_state()
    with tempfile.TemporaryDirectory(prefix="qrm-") as folder, PodCgroups() as cgroups:
        where = Path("/run/qrm-e2e")
        async with PrivateContainerd(where, patience=PATIENCE, pod_subnet="10.231.0.0/24") as containerd:
            settings = config(Path(folder), containerd.endpoint, more=SETTINGS, layout=None)
            async with running(settings, metrics=Metrics()) as node:
                await wait_ready(node)
                for name, on, why, failed in node.enforcer.states():
                    say(f"dimension.{name}", f"{on}: {why} {dict(failed)}")
                async with KubeletClient(f"unix://{settings.shim.socket}", timeout=120, cgroups=cgroups) as kubelet:
                    story = Story(node, kubelet, settings)
                    pods = [await story.start(pod("db", "dedicated_cores", cpus=2))]
                    pods.append(await story.start(pod("web", "shared_cores")))
                    pods += [await story.again_and_again(number) for number in range(pods_of_batch)]
                    say("seconds.born", round(time.monotonic() - begun))
                    for each in pods[:3]:
                        await story.explain(each)
                    await tell_drift(story, pods[2])
                    await tell_disks(story)
                    for each in pods[3:]:
                        await kubelet.end_pod(each, grace=0)
            report = await reset(settings)
            say("reset.failed", report.failed)
            say("reset.state", node_state() == before or f"{before} {node_state()}")
            async with KubeletClient(containerd.endpoint, timeout=120, cgroups=cgroups) as direct:
                after = [files_of(each) for each in pods[:3]]
                for each in pods[:3]:
                    await direct.end_pod(each, grace=0)
                alone = [files_of(await direct.start_pod(each.pod)) for each in pods[:3]]
                say("reset.files", after == alone or f"{after} {alone}")
        say("seconds.story", round(time.monotonic() - begun))


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1])))
