"""The pods that all crashes happen among: one that shares, a bystander with 2 CPUs of its own, one that wants 2."""

from __future__ import annotations

from dataclasses import dataclass

from qrm.cpuset import CPUSet
from qrm.demo.kubelet import RunningPod
from qrm.demo.pods import ContainerSpec, Pod
from tests.support import dedicated, pod

from .world import MACHINE, Point, World


@dataclass(frozen=True)
class Scene:
    """The pods; `wanted` has a sandbox and no container yet."""

    node: World
    free: dict[str, int]
    """Before there was any pod."""
    shared: RunningPod
    other: RunningPod
    own: CPUSet
    """The bystander's CPUs, which it keeps through everything."""
    wanted: Pod
    sandbox_id: str

    @property
    def spec(self) -> ContainerSpec:
        """The wanted pod's only container."""
        return self.wanted.containers[0]

    async def create(self, attempt: int = 0) -> str:
        """Create the wanted container; return its id."""
        return await self.node.kubelet.create_container(self.sandbox_id, self.wanted, self.spec, attempt=attempt)

    async def run(self) -> RunningPod:
        """Create and start it."""
        container_id = await self.create()
        await self.node.kubelet.start_container(container_id)
        return self.running(container_id)

    def running(self, container_id: str) -> RunningPod:
        """The wanted pod with this container."""
        return RunningPod(self.wanted, self.sandbox_id, {self.spec.name: container_id})

    def shared_cpus(self) -> CPUSet:
        """Where the shared container runs."""
        return self.node.cpus(self.shared.containers["c0"])

    def is_recorded(self) -> bool:
        """Whether the ledger's file has a line of the wanted pod."""
        return any(record.key.pod_uid == self.wanted.uid for record in self.node.durable())

    async def agreed(self, wanted: CPUSet) -> None:
        """Ledger, runtime and cgroups agree, and each CPU is with whom it belongs if `wanted` are the wanted pod's."""
        await self.node.agreed()
        assert self.node.cpus(self.other.containers["c0"]) == self.own
        assert self.shared_cpus() == MACHINE - self.own - wanted

    async def ended(self, *wanted: RunningPod) -> None:
        """After the end of the wanted pod, where it is still there, and then of the others, nothing is left."""
        await self.node.end(*wanted)
        await self.agreed(CPUSet())
        await self.node.end(self.shared, self.other)
        await self.node.empty(self.free)


async def prepare(node: World, point: Point | None = None) -> Scene:
    """Start qrm, to die at `point` once it is armed, and the pods."""
    await node.start(point)
    free = await node.free()
    shared = await node.kubelet.start_pod(pod("shared", 500))
    other = await node.kubelet.start_pod(dedicated("other", 2))
    wanted = dedicated("wanted", 2)
    own = node.cpus(other.containers["c0"])
    return Scene(node, free, shared, other, own, wanted, await node.kubelet.run_pod(wanted))
