"""What kubelet does in the demo, one act after the other."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple

import grpc

from qrm.cpuset import CPUSet
from qrm.demo.cast import MAIN, Cast
from qrm.demo.kubelet import RunningPod
from qrm.demo.pods import Pod, container_resources, pod_resources
from qrm.demo.stage import Stage
from qrm.errors import QrmError
from qrm.units import MILLIS_PER_CPU
from qrm.wire import cri_pb2 as cri

_EXIT_SECONDS = 10.0
_INTERVAL = 0.02


class Told(NamedTuple):
    """What came of an act."""

    said: str
    quote: str = ""
    """What qrm answered where it refused."""
    problem: str = ""
    """What should have come out otherwise; empty where nothing should."""


@dataclass(slots=True)
class Actor:
    """A container that kubelet believes to run."""

    pod: RunningPod
    attempt: int = 0

    @property
    def id(self) -> str:
        """The current instance's."""
        return self.pod.containers[MAIN]


class Acts:
    """Kubelet's side of the story."""

    def __init__(self, stage: Stage, cast: Cast) -> None:
        self._stage = stage
        self._kubelet = stage.kubelet
        self._cast = cast
        self.actors: dict[str, Actor] = {}
        """By the pod's name, in the order of their entrance."""

    def all(self) -> Sequence[Callable[[], Awaitable[Told]]]:
        """The acts in their order."""
        resizes = (partial(self._resize, pod) for pod in self._cast.resized)
        starts = (self._shared, self._dedicated, self._reclaimed, self._system)
        return (*starts, self._crash, *resizes, self._refusal, self._removal)

    async def _shared(self) -> Told:
        pod = self._cast.web
        cpus = await self._start(pod)
        return Told(f"{pod.name} starts, a shared pod that requests {_request(pod)}: its pool has {_named(cpus)}.")

    async def _dedicated(self) -> Told:
        """The kernel is asked between creation and start: by then nobody else may run on the pod's CPUs."""
        pod = self._cast.database
        sandbox = await self._kubelet.run_pod(pod)
        container = await self._kubelet.create_container(sandbox, pod, pod.container(MAIN))
        actor = Actor(RunningPod(pod, sandbox, {MAIN: container}))
        cpus = self._ledger_cpus(actor)
        late = [name for name, other in self.actors.items() if (await self._stage.cpus(other.id) or CPUSet()) & cpus]
        await self._kubelet.start_container(container)
        self.actors[pod.name] = actor
        said = f"{pod.name} starts, a dedicated pod of {_request(pod)}: it gets {_named(cpus)} for itself."
        problem = f"{', '.join(late)} had not left before." if late else _unless_as_many(cpus, pod)
        return Told(f"{said} The others left before its first instruction.", problem=problem)

    async def _reclaimed(self) -> Told:
        pod = self._cast.batch
        cpus = await self._start(pod)
        return Told(f"{pod.name} starts, a reclaimed pod without a request: it borrows {_named(cpus)} while idle.")

    async def _system(self) -> Told:
        pod = self._cast.agent
        await self._start(pod)
        return Told(f"{pod.name} starts, a system pod: it may run on everything that is nobody's own.")

    async def _crash(self) -> Told:
        """The container with CPUs of its own dies; kubelet learns it from its list and makes the next instance."""
        actor = self.actors[self._cast.database.name]
        pod, dead, cpus = actor.pod.pod, actor.id, self._ledger_cpus(actor)
        await self._stage.kill(dead)
        await self._until_exited(dead)
        attempt = actor.attempt + 1
        successor = await self._kubelet.create_container(
            actor.pod.sandbox_id, pod, pod.container(MAIN), attempt=attempt
        )
        await self._kubelet.start_container(successor)
        await self._kubelet.remove_container(dead)
        self.actors[pod.name] = Actor(replace(actor.pod, containers={MAIN: successor}), attempt)
        now = self._ledger_cpus(self.actors[pod.name])
        return Told(
            f"{pod.name}'s process is killed. kubelet starts it again; {_named(cpus)} had been kept for it.",
            problem="" if now == cpus else f"It got {_named(now)} instead.",
        )

    async def _resize(self, pod: Pod) -> Told:
        """In place, in kubelet's order: a pod grows before its container and shrinks after it."""
        actor = self.actors[pod.name]
        before, ran_on = actor.pod.pod, self._ledger_cpus(actor)
        grows = pod.container(MAIN).cpu > before.container(MAIN).cpu
        if grows:
            await self._resize_around(actor, pod)
        await self._kubelet.update_resources(actor.id, container_resources(pod, pod.container(MAIN)))
        if not grows:
            await self._resize_around(actor, pod)
        actor.pod = replace(actor.pod, pod=pod)
        cpus = self._ledger_cpus(actor)
        outcome = f"it stays on {_named(cpus)}" if cpus == ran_on else f"it runs on {_named(cpus)} now"
        said = f"{pod.name} is resized in place from {_request(before)} to {_request(pod)}: {outcome}."
        return Told(said, problem=_unless_as_many(cpus, pod) or self._unless_asked(actor, pod))

    async def _resize_around(self, actor: Actor, pod: Pod) -> None:
        try:
            await self._kubelet.update_pod_resources(actor.pod.sandbox_id, pod_resources(pod))
        except grpc.aio.AioRpcError as error:
            # containerd before 2.3; kubelet goes on then.
            if error.code() is not grpc.StatusCode.UNIMPLEMENTED and "not implemented" not in (error.details() or ""):
                raise
        if self._stage.cgroups:
            self._stage.cgroups.ensure(pod)

    async def _refusal(self) -> Told:
        """Kubelet would try again and again; here the pod is deleted after the first time."""
        pod = self._cast.huge
        sandbox = await self._kubelet.run_pod(pod)
        made, quote = {}, ""
        try:
            made[MAIN] = await self._kubelet.create_container(sandbox, pod, pod.container(MAIN))
        except grpc.aio.AioRpcError as error:
            if error.code() is not grpc.StatusCode.RESOURCE_EXHAUSTED:
                raise
            quote = error.details() or ""
        await self._kubelet.end_pod(RunningPod(pod, sandbox, made))
        said = f"{pod.name} comes, a dedicated pod of {_request(pod)}. It does not fit, and kubelet is told why:"
        return Told(said, quote, "It was not refused." if made else "")

    async def _removal(self) -> Told:
        actor = self.actors.pop(self._cast.database.name)
        cpus = self._ledger_cpus(actor)
        await self._kubelet.end_pod(actor.pod)
        lost = cpus - CPUSet.union(self._ledger_cpus(each) for each in self.actors.values())
        return Told(
            f"{actor.pod.pod.name} is removed: the others get {_named(cpus)} back.",
            problem=f"{_named(lost)} went to nobody." if lost else "",
        )

    async def _start(self, pod: Pod) -> CPUSet:
        actor = self.actors[pod.name] = Actor(await self._kubelet.start_pod(pod))
        return self._ledger_cpus(actor)

    async def _until_exited(self, container_id: str) -> None:
        """Kubelet lists everything each second, and sees so what has ended."""
        deadline = time.monotonic() + _EXIT_SECONDS
        while time.monotonic() < deadline:
            listed = {each.id: each.state for each in await self._kubelet.containers()}
            if listed.get(container_id) == cri.CONTAINER_EXITED:
                return
            await asyncio.sleep(_INTERVAL)
        raise QrmError(f"container {container_id} was killed, but the runtime does not show that it has exited")

    def _ledger_cpus(self, actor: Actor) -> CPUSet:
        record = self._stage.node.book.ledger.find(actor.id)
        return (record.cpus if record else None) or CPUSet()

    def _unless_asked(self, actor: Actor, pod: Pod) -> str:
        record = self._stage.node.book.ledger.find(actor.id)
        known = record.request.cpu_millis if record else 0
        return "" if known == pod.container(MAIN).cpu else f"The ledger has {known} millicores."


def _request(pod: Pod) -> str:
    millis = pod.container(MAIN).cpu
    return f"{millis / MILLIS_PER_CPU:g} CPU{'' if millis == MILLIS_PER_CPU else 's'}"


def _named(cpus: CPUSet) -> str:
    return f"CPU{'' if len(cpus) == 1 else 's'} {cpus or 'none'}"


def _unless_as_many(cpus: CPUSet, pod: Pod) -> str:
    """A container that asks for whole CPUs has that many."""
    wanted, rest = divmod(pod.container(MAIN).cpu, MILLIS_PER_CPU)
    return "" if rest or len(cpus) == wanted else f"It has {len(cpus)} CPUs instead."
