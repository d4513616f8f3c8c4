"""Inside the guest: CPUs, memory, hugepages and bandwidth of the same pods, before qrm and a real containerd.

    python -m tests.guest.inside.together

Prints what it finds as NAME=VALUE; test_together.py judges. Of a container, `NAME.first.` is what its own first command
saw, `NAME.now.` what its cgroup and the kernel say at that moment, `NAME.plan.` what `qrm plan` said before there was
one, and `NAME.explain.` what `qrm explain` says.
"""

from __future__ import annotations

import asyncio
import json
import tempfile
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import grpc

from qrm.cli.client import Client
from qrm.cli.manifest import read_manifest
from qrm.config import Config
from qrm.cpuset import NodeSet
from qrm.demo.cgroups import PodCgroups
from qrm.demo.containerd import PrivateContainerd
from qrm.demo.kubelet import KubeletClient, RunningPod
from qrm.demo.pods import ContainerSpec, Pod
from qrm.metrics import Metrics
from qrm.service import api
from qrm.service.serve import running
from tests.guest.inside.pinning import BOUND, DEDICATED, LEVEL, PATIENCE, Story, say
from tests.support import MIB, config, until

ALLOCATORS = """
[upkeep]
drift_seconds = 1
[allocators.cpu]
[allocators.memory]
[allocators.nic.nics.left]
namespace = "elsewhere"
speed = 25000
node = 0
[allocators.nic.nics.right]
namespace = "elsewhere"
speed = 10000
node = 1
"""
"""The guest has no NIC; those in a network namespace that qrm does not see are taken on trust.

The one on node 0 is so fast that node 1 is never better for its bandwidth.
"""
RESTRICTED = """
[topology]
policy = "restricted"
"""
HUGEPAGES = "hugepages-2Mi"
PAGES = 32
"""On each NUMA node, of 2 MiB."""
MEMORY, HUGE, NET = 512 * MIB, PAGES * 2 * MIB, 3000
BANDWIDTH = "resource.katalyst.kubewharf.io/net_bandwidth"
ALONE = {LEVEL: "dedicated_cores", **dict.fromkeys(BOUND, '{"numa_binding": "true", "numa_exclusive": "true"}')}
_SCRIPT = """
grep -E '^(Cpus|Mems)_allowed_list' /proc/self/status >/tmp/first
env | grep ^QRM_ >>/tmp/first
touch /tmp/told
trap 'exit 0' TERM
while :; do sleep 9; done
"""
TELL = ("/bin/sh", "-c", _SCRIPT)
HEAR = ("/bin/sh", "-c", "until test -e /tmp/told; do sleep 1; done; cat /tmp/first")


def pod(name: str, spec: ContainerSpec, annotations: Mapping[str, str], declared: Mapping[str, int]) -> Pod:
    """A pod with one container, and in its annotation what CRI does not carry."""
    said = {"qrm.io/resources": json.dumps({spec.name: {key: str(value) for key, value in declared.items()}})}
    return Pod(name, (spec,), annotations={**annotations, **(said if declared else {})})


def whole(cpus: int, memory: int) -> ContainerSpec:
    """A container in the Guaranteed class."""
    return ContainerSpec("c0", cpus * 1000, cpus * 1000, memory, memory, command=TELL)


def all_of_it(name: str, *, huge: int = HUGE) -> Pod:
    """The pod of this story: 2 CPUs, 512 MiB, all hugepages of a NUMA node, 3 Gbit/s."""
    declared = {BANDWIDTH: NET, **({HUGEPAGES: huge} if huge else {})}
    return pod(name, whole(2, MEMORY), DEDICATED, declared)


def manifest(wanted: Pod) -> api.PlanRequest:
    """A pod as somebody would give it to `qrm plan`."""
    containers = []
    for each in wanted.containers:
        limits = {"cpu": f"{each.cpu_limit}m", "memory": str(each.memory_limit)} if each.cpu_limit else {}
        requests = {"cpu": f"{each.cpu}m", "memory": str(each.memory)}
        containers.append({"name": each.name, "resources": {"requests": requests, "limits": limits}})
    metadata = {"name": wanted.name, "annotations": wanted.annotations}
    return read_manifest(json.dumps({"metadata": metadata, "spec": {"containers": containers}}).encode(), wanted.name)


def set_hugepages() -> None:
    """Set hugepages aside on each NUMA node, and say how many the kernel could find."""
    for node in sorted(Path("/sys/devices/system/node").glob("node[0-9]")):
        file = node / "hugepages/hugepages-2048kB/nr_hugepages"
        file.write_text(str(PAGES))
        say(f"{node.name}.hugepages", file.read_text().strip())


@dataclass(frozen=True)
class Together(Story):
    """A story about more than CPUs."""

    admin: Client

    async def plan(self, name: str, wanted: Pod) -> None:
        """Say what `qrm plan` answers about a pod."""
        reply = await asyncio.to_thread(self.admin.plan, manifest(wanted))
        say(f"{name}.plan.fits", reply.fits)
        say(f"{name}.plan.refusal", reply.refusal)
        for told in reply.containers:
            self.tell_explained(f"{name}.plan", told)

    async def explain(self, name: str, pod: RunningPod) -> None:
        """Say what `qrm explain` answers about a pod's container."""
        told, *_ = await asyncio.to_thread(self.admin.explain, f"{pod.pod.namespace}/{pod.pod.name}")
        self.tell_explained(f"{name}.explain", told)
        say(f"{name}.explain.applied", told.applied)
        say(f"{name}.explain.kernel", told.kernel)

    @staticmethod
    def tell_explained(name: str, told: api.Explanation) -> None:
        """Say what `qrm plan` and `qrm explain` have in common."""
        say(f"{name}.cpus", told.container.cpus)
        say(f"{name}.mems", told.mems)
        say(f"{name}.nic", told.devices.get(BANDWIDTH, ""))
        for resource, why in told.why.items():
            say(f"{name}.why.{resource}", why)

    async def look(self, name: str, pod: RunningPod) -> None:
        """Say where a pod's container and its memory are."""
        for file in ("cpuset.cpus", "cpuset.cpus.effective", "cpuset.mems", "cpuset.mems.effective"):
            say(f"{name}.now.{file.removeprefix('cpuset.')}", self.path(pod, file).read_text().strip())
        status = await self.kubelet.container_status(pod.containers["c0"], verbose=True)
        pid = json.loads(status.info["info"])["pid"]
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if "_allowed_list:" in line:
                self.tell_allowed(f"{name}.now", line)

    @staticmethod
    def tell_allowed(name: str, line: str) -> None:
        """Say a line such as `Mems_allowed_list: 0-1` of /proc/PID/status."""
        key, _, value = line.partition(":")
        say(f"{name}.{key.partition('_')[0].lower()}.allowed", value.strip())

    async def start(self, name: str, wanted: Pod) -> RunningPod:
        """Plan and start a pod, and say what its first command saw, where it is, and what qrm explains."""
        await self.plan(name, wanted)
        started = await self.kubelet.start_pod(wanted)
        written = await self.kubelet.exec_sync(started.containers["c0"], HEAR)
        for line in written.stdout.decode().splitlines():
            if line.startswith("QRM_"):
                say(f"{name}.first.{line.partition('=')[0]}", line.partition("=")[2])
            else:
                self.tell_allowed(f"{name}.first", line)
        await self.look(name, started)
        await self.explain(name, started)
        return started

    def repairs(self) -> float:
        """How often memory nodes were put back."""
        registry = self.node.metrics.registry
        return registry.get_sample_value("qrm_drift_repaired_total", {"dimension": "mems"}) or 0.0

    async def settled(self, pod: RunningPod) -> None:
        """Wait until a pod's container has the memory nodes, and the CPUs, that the ledger says."""

        def agree() -> bool:
            record = self.node.book.ledger.find(pod.containers["c0"])
            assert record is not None
            mems = NodeSet.parse(self.path(pod, "cpuset.mems").read_text())
            return mems == record.mems == record.applied_mems and not record.push_due

        await until(agree, PATIENCE)


async def tell_placing(story: Together) -> tuple[RunningPod, RunningPod]:
    """Everything goes to one node together, then to the other; at last no node has everything. Returns web and db."""
    web = await story.start("web", pod("web", ContainerSpec("c0", 500, command=TELL), {}, {}))
    db = await story.start("db", all_of_it("db"))
    await story.plan("modest", all_of_it("modest", huge=0))
    twin = await story.start("twin", all_of_it("twin"))
    await story.plan("third", all_of_it("third"))
    await story.kubelet.end_pod(twin, grace=0)
    there = {**DEDICATED, "katalyst.kubewharf.io/numa_ids": "1"}
    await story.kubelet.start_pod(pod("busy", whole(1, 64 * MIB), there, {BANDWIDTH: 7000}))
    await story.plan("apart", all_of_it("apart"))
    return web, db


async def tell_restricted(story: Together, web: RunningPod, db: RunningPod) -> None:
    """Apart is refused; what somebody writes is undone; who wants a node alone gets it, also from who runs already."""
    await story.look("web.restarted", web)
    await story.look("db.restarted", db)
    await story.plan("rival", all_of_it("rival"))
    try:
        await story.kubelet.start_pod(all_of_it("rival"))
    except grpc.aio.AioRpcError as error:
        say("rival.refused", f"{error.code().name}: {error.details()}")

    story.path(web, "cpuset.mems").write_text("1")
    story.path(db, "cpuset.mems").write_text("0-1")
    await until(lambda: story.repairs() >= 2, PATIENCE)
    for each in (web, db):
        await story.settled(each)
    await story.look("web.repaired", web)
    await story.look("db.repaired", db)
    say("repairs", story.repairs())

    await story.kubelet.end_pod(db, grace=0)
    solo = await story.start("solo", pod("solo", whole(1, 64 * MIB), ALONE, {}))
    await story.settled(web)
    await story.look("web.beside-solo", web)
    await story.explain("web.beside-solo", web)
    await story.kubelet.end_pod(solo, grace=0)
    await story.settled(web)
    await story.look("web.alone", web)
    say("repairs.end", story.repairs())


async def main() -> None:
    """Containerd, kubelet, qrm under one policy and then under another, and the story."""
    begun = time.monotonic()
    set_hugepages()
    with tempfile.TemporaryDirectory(prefix="qrm-") as folder, PodCgroups() as cgroups:
        async with PrivateContainerd(Path("/run/qrm-e2e"), patience=PATIENCE) as containerd:
            say("seconds.containerd", round(time.monotonic() - begun))
            usual = config(Path(folder), containerd.endpoint, more=ALLOCATORS, layout=None)
            restricted = config(Path(folder), containerd.endpoint, more=ALLOCATORS + RESTRICTED, layout=None)
            async with telling(usual, cgroups) as story:
                web, db = await tell_placing(story)
            say("seconds.placing", round(time.monotonic() - begun))
            async with telling(restricted, cgroups) as story:
                await tell_restricted(story, web, db)
            say("seconds.story", round(time.monotonic() - begun))


@asynccontextmanager
async def telling(settings: Config, cgroups: PodCgroups) -> AsyncIterator[Together]:
    """A node with these settings, kubelet's connection to it, and the qrm command's."""
    async with running(settings, metrics=Metrics()) as node:
        async with asyncio.timeout(PATIENCE):
            await node.context.ready.wait()
        async with KubeletClient(f"unix://{settings.shim.socket}", timeout=120, cgroups=cgroups) as kubelet:
            yield Together(node, kubelet, Client(Path(settings.shim.admin_socket), timeout=PATIENCE))


if __name__ == "__main__":
    asyncio.run(main())
