"""Gives containers back what they would have without qrm: CPUs, memory nodes, quota, weight and cgroup files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import grpc
import structlog

from qrm.allocator import MEMORY
from qrm.cpuset import NodeSet
from qrm.enforcement.channel import CallError
from qrm.enforcement.isolation import kernel, undo
from qrm.enforcement.isolation.containers import ContainerFiles
from qrm.enforcement.isolation.dimension import NotEnforced
from qrm.enforcement.isolation.knobs import IO_MAX, WEIGHT
from qrm.enforcement.processes import Processes
from qrm.enforcement.runtime import RuntimeClient
from qrm.errors import RuntimeUnreachable
from qrm.ledger.annotation import KEY, Kept, read_annotation
from qrm.topology.machine import Machine
from qrm.wire import cri_pb2 as cri

log = structlog.get_logger(__name__)

_LIVE = (cri.ContainerState.CONTAINER_CREATED, cri.ContainerState.CONTAINER_RUNNING)


@dataclass(frozen=True, slots=True)
class Own:
    """What a container is to get back."""

    asked: cri.LinuxContainerResources
    """kubelet's own numbers."""
    mems: bool
    """Whether its memory nodes were ours."""
    files: Mapping[str, str] = field(default_factory=dict)
    """Its cgroup files, as far as the ledger tells."""
    placed: bool = True
    """False: it ran before qrm, and its cgroup files were never ours."""


class Giver:
    """Undoes what qrm did to containers, one at a time, in a way that the kernel takes."""

    def __init__(self, runtime: RuntimeClient, processes: Processes, files: ContainerFiles, machine: Machine) -> None:
        self._runtime = runtime
        self._processes = processes
        self._files = files
        self._machine = machine
        self._v2 = processes.cgroups.version == 2

    async def give_back(self, asked: Mapping[str, Own]) -> tuple[int, list[str]]:
        """How many containers were given back what is theirs, and what failed; `asked` is by container id.

        Containers are found by the runtime's list and the annotation that it keeps, so this works with the ledger lost.

        Raises:
            RuntimeUnreachable: the runtime does not answer; nothing was changed.
        """
        try:
            containers = await self._runtime.list_containers()
        except CallError as error:
            raise RuntimeUnreachable(
                f"the runtime does not answer: {error.details}",
                hint="reset needs it, to give containers their CPUs back",
            ) from None
        ours = {
            each.id: own
            for each in containers
            if each.state in _LIVE and (own := asked.get(each.id) or _kept(each.annotations.get(KEY, ""))) is not None
        }
        weights = [pair for each, own in ours.items() for pair in await self._weight(each, own)] if self._v2 else []
        done, failed = 0, []
        for container_id, own in ours.items():
            try:
                await self._one(container_id, own, weights)
                done += 1
            except CallError as error:
                if error.code is not grpc.StatusCode.NOT_FOUND:
                    failed.append(f"{container_id}: {error.details}")
            except NotEnforced as error:
                failed.append(f"{container_id}: {error}")
        return done, failed

    async def _one(self, container_id: str, own: Own, weights: Sequence[tuple[int, str]]) -> None:
        resources = self._given_back(own)
        if not own.placed:
            async with self._files.updating(container_id, resources):
                await self._runtime.update(container_id, resources)
            return
        names = set[str]()
        if self._v2:
            # What a profile says since the container was made was written beside the runtime, which does not know it.
            names = {*own.files, *(await self._runtime.container(container_id)).unified}
            weight = undo.weight_for(own.asked.cpu_shares, weights)
            resources.unified.update(undo.neutral(names, own.asked.unified, weight))
        folders = await self._processes.folders(container_id)
        undo.unlock(folders, v2=self._v2)
        await self._runtime.update(container_id, resources)
        if not self._v2:
            undo.restore_legacy(folders, own.files)
        elif folders and IO_MAX in names - own.asked.unified.keys():
            undo.lift_limits(folders[""] / IO_MAX)

    def _given_back(self, own: Own) -> cri.LinuxContainerResources:
        """What undoes our changes. Empty fields would mean "unchanged", so everything is named."""
        memory = NodeSet(node.id for node in self._machine.nodes.values() if node.memory)
        return cri.LinuxContainerResources(
            cpuset_cpus=own.asked.cpuset_cpus or str(self._machine.online),
            cpuset_mems=(own.asked.cpuset_mems or str(memory)) if own.mems else "",
            cpu_quota=own.asked.cpu_quota,
            cpu_shares=own.asked.cpu_shares,
        )

    async def _weight(self, container_id: str, own: Own) -> list[tuple[int, str]]:
        """The container's shares and the weight that the runtime made of them, where we have not set another."""
        if WEIGHT in own.files or not own.asked.cpu_shares:
            return []
        folders = await self._processes.folders(container_id)
        weight = kernel.read(folders[""] / WEIGHT) if folders else None
        return [(own.asked.cpu_shares, weight.strip())] if weight else []


def _kept(text: str) -> Own | None:
    kept: Kept | None = read_annotation(text) if text else None
    if kept is None:
        return None
    return Own(cri.LinuxContainerResources.FromString(kept.asked_bytes), MEMORY in kept.others)
