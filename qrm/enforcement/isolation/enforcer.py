"""Runs the dimensions: their modes, a thread for each, which pods they know, and what is not in force.

A dimension that hangs in the kernel holds up its own thread only; who waits for it waits no longer than the call may.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TypeVar

import structlog

from qrm.config import IsolationSection, Mode
from qrm.enforcement.channel import CallError
from qrm.enforcement.isolation.dimension import Closing, Dimension, Fact, NotEnforced, Repairs, Sandbox, Starting
from qrm.metrics import Metrics

log = structlog.get_logger(__name__)

_PATIENCE = 20.0
"""Seconds that a round waits for a dimension; one that takes longer is looked at again in the next."""
_ASKED = 1.0
"""Seconds that a dimension has to explain itself, behind whatever it is doing."""
_LOOK_AGAIN = 60.0
"""Seconds after which a dimension that could not be used is looked at once more."""
Result = TypeVar("Result")
Find = Callable[[str], Awaitable[Sandbox | None]]
"""Everything about a sandbox by its id; None where it is gone or not ours to isolate."""


@dataclass(slots=True)
class _Lane:
    """A dimension with its thread."""

    dimension: Dimension
    mode: Mode
    thread: ThreadPoolExecutor
    on: bool = False
    why: str = ""
    """Why it is on or off."""
    looked: float = 0.0
    """When that was found out, by the monotonic clock."""
    round: asyncio.Future[Repairs] | None = None
    """The repair that is under way."""
    failed: dict[str, str] = field(default_factory=dict)
    """What is not in force, by sandbox id, "" for the node."""

    def run(self, work: Callable[..., Result], *arguments: object) -> asyncio.Future[Result]:
        """Have `work` run in the dimension's thread, after all that it was given before.

        An error that it is not to have becomes NotEnforced, of which everybody knows what it means in each mode.
        """
        name = self.dimension.name
        return asyncio.get_running_loop().run_in_executor(self.thread, _contained, name, work, *arguments)


class Enforcer:
    """All dimensions of a node."""

    def __init__(self, dimensions: Sequence[Dimension], modes: IsolationSection, metrics: Metrics, find: Find) -> None:
        self._lanes = [
            _Lane(each, getattr(modes, each.name), ThreadPoolExecutor(1, thread_name_prefix=each.name))
            for each in dimensions
        ]
        self._metrics = metrics
        self._find = find
        self._sandboxes: dict[str, Sandbox] = {}
        self._since: dict[str, float] = {}
        """When each was admitted, by the monotonic clock."""
        self._retired = False

    async def prepare(self) -> None:
        """Find out what the node can do, and bring about what is the node's.

        Raises:
            NotEnforced: a dimension that is required cannot be used.
        """
        for lane in self._lanes:
            if lane.mode == "off":
                lane.why = f"isolation.{lane.dimension.name} is off"
                continue
            trouble = await self._begin(lane)
            if trouble and lane.mode == "required":
                name = lane.dimension.name
                raise NotEnforced(
                    f"isolation.{name} is required and cannot be: {trouble}",
                    hint=f'isolation.{name} = "auto" does without it',
                )
            log.info("isolation", dimension=lane.dimension.name, on=lane.on, why=trouble or lane.why)

    async def look_again(self) -> None:
        """Begin with what could not be used so far, if the node can by now: a link or a mount may have come late."""
        for lane in self._lanes:
            if lane.mode != "auto" or lane.on or self._retired or time.monotonic() - lane.looked < _LOOK_AGAIN:
                continue
            with suppress(TimeoutError):
                async with asyncio.timeout(_PATIENCE):
                    trouble = await self._begin(lane)
                    if lane.on:
                        log.info("isolation", dimension=lane.dimension.name, on=True, why=trouble or lane.why)

    async def _begin(self, lane: _Lane) -> str:
        """Find out whether a dimension can be used, and bring about what is the node's; returns what is in the way."""
        lane.looked = time.monotonic()
        lane.failed.pop("", None)
        try:
            probe = await lane.run(lane.dimension.probe)
            lane.on, lane.why = probe.usable and not self._retired, probe.why
            if lane.on:
                await lane.run(lane.dimension.prepare)
        except NotEnforced as error:
            lane.failed[""] = str(error)
        return lane.failed.get("") or ("" if lane.on else lane.why)

    async def admit(self, sandbox: Sandbox) -> None:
        """Put in force what a pod is to have.

        Raises:
            NotEnforced: what is required could not be; what could not be of the rest is logged, and tried again.
        """
        self._sandboxes[sandbox.id] = sandbox
        self._since[sandbox.id] = time.monotonic()
        lanes = [lane for lane in self._lanes if lane.on]
        results = await asyncio.gather(*(self._admit(lane, sandbox) for lane in lanes), return_exceptions=True)
        for result in results:
            if isinstance(result, BaseException):
                raise result

    async def started(self, sandbox_id: str) -> None:
        """A container of the sandbox has started. What cannot be is logged, and tried again by the next repair."""
        sandbox = self._sandboxes.get(sandbox_id)
        for lane in self._lanes:
            if lane.on and sandbox is not None and isinstance(lane.dimension, Starting):
                try:
                    await lane.run(lane.dimension.started, sandbox)
                except NotEnforced as error:
                    self._failed(lane, sandbox, error)

    @property
    def required(self) -> bool:
        """Whether a pod must not run without one of the dimensions."""
        return any(lane.on and lane.mode == "required" for lane in self._lanes)

    def knows(self, sandbox_id: str) -> bool:
        """Whether a pod was admitted, by this process or as one that ran before."""
        return sandbox_id in self._sandboxes

    @property
    def active(self) -> bool:
        """Whether any dimension is on."""
        return any(lane.on for lane in self._lanes)

    def forget(self, sandbox_id: str) -> None:
        """A pod is gone; what was there for it alone is removed behind the caller's back."""
        self._sandboxes.pop(sandbox_id, None)
        self._since.pop(sandbox_id, None)
        for lane in self._lanes:
            lane.failed.pop(sandbox_id, None)
            if lane.on:
                lane.thread.submit(_contained, lane.dimension.name, lane.dimension.forget, sandbox_id)

    async def repair(self, sandbox_ids: Sequence[str], asked: float) -> str:
        """Compare everything with the kernel; returns what was done.

        `sandbox_ids` are all pods that ran when they were asked for, at `asked` of the monotonic clock.

        Raises:
            CallError: the runtime went away before all pods that are new here were looked up.
        """
        await self._learn(sandbox_ids, asked)
        for lane in self._lanes:
            if lane.on and lane.round is None:
                lane.round = lane.run(lane.dimension.repair, list(self._sandboxes.values()))
        rounds = {lane.round for lane in self._lanes if lane.round is not None}
        if rounds:
            await asyncio.wait(rounds, timeout=_PATIENCE)
        did = []
        for lane in self._lanes:
            done, lane.round = (lane.round, None) if lane.round and lane.round.done() else (None, lane.round)
            if done is not None:
                did += self._note(lane, _outcome(done))
            elif lane.round is not None:
                log.warning("repair takes long", dimension=lane.dimension.name)
        return ", ".join(did)

    async def _learn(self, sandbox_ids: Sequence[str], asked: float) -> None:
        """Know all pods that there are, and no others."""
        for gone in self._sandboxes.keys() - set(sandbox_ids):
            if self._since.get(gone, 0.0) < asked:
                self._sandboxes.pop(gone)
                self._since.pop(gone, None)
        for new in [each for each in sandbox_ids if each not in self._sandboxes]:
            try:
                found = await self._find(new)
            except CallError as error:
                if error.runtime_away:
                    raise
                log.warning("pod not known", sandbox=new, error=str(error), next="with the next round")
                continue
            if found is not None:
                self._sandboxes[new] = found

    async def explain(self, sandbox_id: str) -> list[Fact]:
        """What a pod is to have of each dimension, and what the kernel has."""
        sandbox = self._sandboxes.get(sandbox_id)
        facts = list[Fact]()
        for lane in self._lanes:
            if lane.on and sandbox is not None:
                try:
                    async with asyncio.timeout(_ASKED):
                        facts += await lane.run(lane.dimension.explain, sandbox)
                except NotEnforced as error:
                    facts.append(Fact(lane.dimension.name, "", str(error)))
                except TimeoutError:
                    facts.append(Fact(lane.dimension.name, "", "no answer: it is busy, or hangs in the kernel"))
            if trouble := lane.failed.get(sandbox_id) or lane.failed.get(""):
                facts.append(Fact(f"{lane.dimension.name} is not in force", trouble, ""))
        return facts

    def states(self) -> Sequence[tuple[str, bool, str, Mapping[str, str]]]:
        """Of each dimension: its name, whether it is on, why, and what is not in force by sandbox id."""
        return [(lane.dimension.name, lane.on, lane.why, dict(lane.failed)) for lane in self._lanes]

    async def retire(self, seconds: float) -> None:
        """Begin nothing more, and wait for what was begun, at most `seconds`: another process may go on."""
        self._retired = True
        lanes = [lane for lane in self._lanes if lane.on]
        for lane in lanes:
            lane.on = False
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await asyncio.gather(*(lane.run(_nothing) for lane in lanes))  # after all that the thread has to do

    def close(self) -> None:
        """Let go of dimensions and threads; one that hangs is left to itself."""
        for lane in self._lanes:
            if isinstance(lane.dimension, Closing):
                lane.thread.submit(lane.dimension.close)
            lane.thread.shutdown(wait=False)

    async def _admit(self, lane: _Lane, sandbox: Sandbox) -> None:
        try:
            with self._metrics.step(f"isolate {lane.dimension.name}"):
                await lane.run(lane.dimension.admit, sandbox)
        except NotEnforced as error:
            self._failed(lane, sandbox, error)
            if lane.mode == "required":
                raise
        else:
            lane.failed.pop(sandbox.id, None)
        self._metrics.not_enforced.labels(lane.dimension.name).set(len(lane.failed))

    def _failed(self, lane: _Lane, sandbox: Sandbox, error: NotEnforced) -> None:
        lane.failed[sandbox.id] = str(error)
        log.warning("not isolated", dimension=lane.dimension.name, pod=str(sandbox.pod), error=str(error))

    def _note(self, lane: _Lane, repairs: Repairs) -> list[str]:
        name = lane.dimension.name
        for cause, count in repairs.by_cause.items():
            self._metrics.repairs.labels(name, cause).inc(count)
        for where, why in repairs.failed.items():
            if lane.failed.get(where) != why:
                log.warning("not in force", dimension=name, sandbox=where, why=why)
        lane.failed = dict(repairs.failed)
        self._metrics.not_enforced.labels(name).set(len(lane.failed))
        return [f"{name}: put back {count} {cause}" for cause, count in sorted(repairs.by_cause.items()) if count]


def _contained(name: str, work: Callable[..., Result], *arguments: object) -> Result:
    """What `work` returns. Raises NotEnforced, and nothing else."""
    try:
        return work(*arguments)
    except NotEnforced:
        raise
    except Exception as error:
        log.exception("dimension failed", dimension=name)
        raise NotEnforced(f"{name}: qrm itself failed: {error!r}", hint="its log has the details") from error


def _outcome(done: asyncio.Future[Repairs]) -> Repairs:
    try:
        return done.result()
    except NotEnforced as error:
        return Repairs(failed={"": str(error)})


def _nothing() -> None:
    """To be the last one in a thread's queue."""
