"""Inside the guest: pods of each kind before qrm and a real containerd, on cgroup v2 with two NUMA nodes.

    python -m tests.guest.inside.pinning

Prints what it finds as NAME=VALUE; test_pinning.py judges. `NAME.cpus` and `NAME.effective` are a container's cgroup
files, `NAME.allowed` is what the kernel says of its process, `NAME.first` what it found itself as it began.
"""

from __future__ import annotations

import asyncio
import json
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import grpc

from qrm.cpuset import CPUSet
from qrm.demo.cgroups import PodCgroups, cgroup_file
from qrm.demo.containerd import PrivateContainerd
from qrm.demo.kubelet import KubeletClient, RunningPod
from qrm.demo.pods import ContainerSpec, Pod, container_resources
from qrm.metrics import Metrics
from qrm.service.node import Node
from qrm.service.serve import running
from qrm.wire import cri_pb2
from tests.support import config, until, wait_ready

LEVEL = "katalyst.kubewharf.io/qos_level"
BOUND = {"katalyst.kubewharf.io/memory_enhancement": '{"numa_binding": "true"}'}
DEDICATED = {LEVEL: "dedicated_cores", **BOUND}
TELL = (
    "/bin/sh",
    "-c",
    'grep Cpus_allowed_list /proc/self/status >/tmp/first; trap "exit 0" TERM; while :; do sleep 9; done',
)
HEAR = ("/bin/sh", "-c", "until test -s /tmp/first; do sleep 1; done; cat /tmp/first")
PATIENCE = 180.0
"""Seconds: the guest is emulated and slow."""


def pod(name: str, millis: int, annotations: Mapping[str, str]) -> Pod:
    """A pod with one container c0; one of its own CPUs is in the Guaranteed class, as it should be."""
    limit = (millis, 64 << 20) if LEVEL in annotations else (0, 0)
    spec = ContainerSpec("c0", millis, limit[0], limit[1], limit[1], command=TELL)
    return Pod(name, (spec,), annotations=annotations)


def say(name: str, value: object) -> None:
    """A finding."""
    print(f"{name}={value}", flush=True)


@dataclass(frozen=True)
class Story:
    """The parts that the acts play with."""

    node: Node
    kubelet: KubeletClient

    async def look(self, name: str, pod: RunningPod) -> None:
        """Say where a pod's container is."""
        for file in ("cpuset.cpus", "cpuset.cpus.effective"):
            say(f"{name}.{file.rpartition('.')[2]}", self.path(pod, file).read_text().strip())
        status = await self.kubelet.container_status(pod.containers["c0"], verbose=True)
        pid = json.loads(status.info["info"])["pid"]
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("Cpus_allowed_list"):
                say(f"{name}.allowed", line.partition(":")[2].strip())

    async def start(self, name: str, wanted: Pod) -> RunningPod:
        """Start a pod, and say where it began and where it is."""
        started = await self.kubelet.start_pod(wanted)
        written = await self.kubelet.exec_sync(started.containers["c0"], HEAR)
        say(f"{name}.first", written.stdout.decode().partition(":")[2].strip())
        await self.look(name, started)
        return started

    async def resize(self, pod: RunningPod, millis: int) -> RunningPod:
        """kubelet's in-place resize of a pod's only container."""
        spec = pod.pod.containers[0]
        spec = replace(spec, cpu_request=millis, cpu_limit=millis if spec.cpu_limit else 0)
        resized = replace(pod.pod, containers=(spec,))
        await self.kubelet.update_resources(pod.containers["c0"], container_resources(resized, spec))
        return replace(pod, pod=resized)

    async def moved(self, pod: RunningPod, cpus: CPUSet) -> None:
        """Wait until a pod's container has `cpus`."""
        await until(lambda: CPUSet.parse(self.path(pod, "cpuset.cpus").read_text()) == cpus, PATIENCE)

    def path(self, pod: RunningPod, file: str) -> Path:
        """A file of the cgroup of a pod's container."""
        found = cgroup_file(f"{pod.pod.cgroup()}/{pod.containers['c0']}", file)
        assert found is not None, f"{pod.pod.name} has no {file}"
        return found

    def held(self, pod: RunningPod) -> CPUSet:
        """A container's CPUs by the ledger."""
        record = self.node.book.ledger.find(pod.containers["c0"])
        assert record is not None
        assert record.cpus is not None
        return record.cpus


async def tell(story: Story) -> None:
    """Everything in turn."""
    kubelet = story.kubelet
    web = await story.start("web", pod("web", 500, {}))
    db = await story.start("db", pod("db", 2000, DEDICATED))
    await story.look("web.beside-db", web)
    bound = await story.start("bound", pod("bound", 1000, BOUND))
    await story.look("web.beside-bound", web)
    try:
        await kubelet.start_pod(pod("rival", 4000, DEDICATED))
    except grpc.aio.AioRpcError as error:
        say("rival.refused", f"{error.code().name}: {error.details()}")

    say("bound.weight", story.path(bound, "cpu.weight").read_text().strip())
    bound = await story.resize(bound, 2000)
    await story.look("bound.resized", bound)
    say("bound.resized.weight", story.path(bound, "cpu.weight").read_text().strip())
    db = await story.resize(db, 3000)
    await story.look("db.resized", db)
    say("db.resized.quota", story.path(db, "cpu.max").read_text().strip())
    for each in (web, db):
        await kubelet.update_resources(each.containers["c0"], cri_pb2.LinuxContainerResources(cpuset_cpus="0-7"))
    await story.look("web.told-all", web)
    await story.look("db.told-all", db)

    for each in (web, db):
        story.path(each, "cpuset.cpus").write_text("0-7")
    for each in (web, db):
        await story.moved(each, story.held(each))
    await story.look("web.repaired", web)
    await story.look("db.repaired", db)
    say("repairs", story.node.metrics.registry.get_sample_value("qrm_drift_repaired_total", {"dimension": "cpuset"}))

    await kubelet.end_pod(db, grace=0)
    await story.moved(web, story.held(web))
    await story.look("web.alone", web)
    await story.look("bound.end", bound)


async def main() -> None:
    """Containerd, qrm, kubelet, and the story; how long each took is for whoever wants to make it faster."""
    begun = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="qrm-") as folder, PodCgroups() as cgroups:
        async with PrivateContainerd(Path("/run/qrm-e2e"), patience=PATIENCE) as containerd:
            say("seconds.containerd", round(time.monotonic() - begun))
            settings = config(Path(folder), containerd.endpoint, more="[upkeep]\ndrift_seconds = 1", layout=None)
            async with running(settings, metrics=Metrics()) as node:
                await wait_ready(node)
                async with KubeletClient(f"unix://{settings.shim.socket}", timeout=120, cgroups=cgroups) as kubelet:
                    await tell(Story(node, kubelet))
            say("seconds.story", round(time.monotonic() - begun))


if __name__ == "__main__":
    asyncio.run(main())
