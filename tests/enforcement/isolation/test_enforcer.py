"""The modes, and what happens when a dimension fails, hangs or is asked about a pod that comes and goes."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field

import grpc
import pytest

from qrm.config import IsolationSection
from qrm.enforcement.channel import CallError
from qrm.enforcement.isolation import enforcer as enforcer_module
from qrm.enforcement.isolation.dimension import Fact, NotEnforced, Probe, Repairs, Sandbox
from qrm.enforcement.isolation.enforcer import Enforcer
from qrm.enforcement.isolation.profile import DEFAULTS
from qrm.metrics import Metrics
from qrm.pods.model import PodIdentity, QosLevel
from tests.support import until


@dataclass
class Faulty:
    """A dimension whose failures are for the test to choose."""

    name: str = "rdt"
    usable: bool = True
    broken: str = ""
    bug: str = ""
    """The text of an error that a dimension is not to have."""
    hang: threading.Event | None = None
    seen: list[str] = field(default_factory=list)
    repairs: Repairs = field(default_factory=Repairs)

    def probe(self) -> Probe:
        return Probe(self.usable, "found" if self.usable else "no such thing here")

    def prepare(self) -> None:
        self._do("prepare")

    def admit(self, sandbox: Sandbox) -> None:
        self._do(f"admit {sandbox.id}")

    def started(self, sandbox: Sandbox) -> None:
        self._do(f"started {sandbox.id}")

    def forget(self, sandbox_id: str) -> None:
        self.seen.append(f"forget {sandbox_id}")

    def repair(self, sandboxes: Sequence[Sandbox]) -> Repairs:
        if self.hang is not None:
            self.hang.wait()
        if self.bug:
            raise ValueError(self.bug)
        self.seen.append(f"repair {' '.join(sorted(each.id for each in sandboxes))}")
        return self.repairs

    def explain(self, sandbox: Sandbox) -> Sequence[Fact]:
        if self.hang is not None:
            self.hang.wait()
        return [Fact("group", "qrm-x", sandbox.id)]

    def reset(self) -> Sequence[str]:
        self._do("reset")
        return ["gone"]

    def _do(self, what: str) -> None:
        if self.hang is not None:
            self.hang.wait()
        if self.bug:
            raise ValueError(self.bug)
        if self.broken:
            raise NotEnforced(self.broken)
        self.seen.append(what)


def sandbox(name: str) -> Sandbox:
    pod = PodIdentity(name, "ns", name)
    return Sandbox(name, pod, QosLevel.SHARED, DEFAULTS[QosLevel.SHARED], {}, 1, "")


async def find(sandbox_id: str) -> Sandbox | None:
    return None if sandbox_id == "unclear" else sandbox(sandbox_id)


def made(dimension: Faulty, mode: str = "auto") -> Enforcer:
    return Enforcer([dimension], IsolationSection(rdt=mode), Metrics(), find)  # type: ignore[arg-type]


@pytest.fixture
async def hung() -> AsyncIterator[Faulty]:
    """A dimension that hangs in the kernel until the test is over."""
    dimension = Faulty()
    dimension.hang = threading.Event()
    yield dimension
    dimension.hang.set()


async def test_off_is_not_even_looked_at() -> None:
    dimension = Faulty()
    enforcer = made(dimension, "off")
    await enforcer.prepare()
    await enforcer.admit(sandbox("a"))
    assert dimension.seen == []
    assert not enforcer.active


@pytest.mark.parametrize(("usable", "broken"), [(False, ""), (True, "the kernel says no")])
async def test_auto_does_without(usable: bool, broken: str) -> None:
    """Pods start, and `states` says why it is not there."""
    enforcer = made(Faulty(usable=usable, broken=broken))
    await enforcer.prepare()
    await enforcer.admit(sandbox("a"))
    ((_, on, why, failed),) = enforcer.states()
    assert (on, why) == (usable, "found" if usable else "no such thing here")
    assert set(failed) == ({"", "a"} if broken else set())


async def test_what_comes_late_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """Such as the link of a node that boots: it is looked for now and then, and nothing is begun by who retires."""
    dimension, off = Faulty(usable=False), Faulty("network")
    enforcer = Enforcer([dimension, off], IsolationSection(network="off"), Metrics(), find)
    await enforcer.prepare()
    dimension.usable = True
    await enforcer.look_again()
    assert not enforcer.active
    monkeypatch.setattr(enforcer_module, "_LOOK_AGAIN", 0.0)
    await enforcer.look_again()
    await enforcer.look_again()
    await enforcer.repair(["a"], time.monotonic())
    assert dimension.seen == ["prepare", "repair a"]
    await enforcer.retire(1)
    await enforcer.look_again()
    assert not enforcer.active
    assert off.seen == []


async def test_what_was_in_the_way_is_not_said_any_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """A look that failed says nothing of the next one."""
    monkeypatch.setattr(enforcer_module, "_LOOK_AGAIN", 0.0)
    dimension = Faulty(usable=False)
    enforcer = made(dimension)
    with monkeypatch.context() as broken:
        broken.setattr(Faulty, "probe", lambda _: int("no number"))
        await enforcer.prepare()
    ((_, _, _, failed),) = enforcer.states()
    assert "no number" in failed[""]
    await enforcer.look_again()
    assert enforcer.states() == [("rdt", False, "no such thing here", {})]


@pytest.mark.parametrize(("usable", "broken"), [(False, ""), (True, "the kernel says no")])
async def test_required_refuses_to_start(usable: bool, broken: str) -> None:
    """The message has the setting, the reason, and the way out."""
    with pytest.raises(NotEnforced, match=r"isolation.rdt is required and cannot be: (no such|the kernel).*auto"):
        await made(Faulty(usable=usable, broken=broken), "required").prepare()


@pytest.mark.parametrize("mode", ["auto", "required"])
async def test_a_pod_that_cannot_be_isolated(mode: str) -> None:
    """Is refused where it must not run without; else it is counted until a repair succeeds."""
    dimension = Faulty()
    enforcer = made(dimension, mode)
    await enforcer.prepare()
    dimension.broken = "out of CLOSIDs"
    if mode == "required":
        with pytest.raises(NotEnforced, match="out of CLOSIDs"):
            await enforcer.admit(sandbox("a"))
        return
    await enforcer.admit(sandbox("a"))
    assert [fact.name for fact in await enforcer.explain("a")] == ["group", "rdt is not in force"]
    await enforcer.repair(["a"], time.monotonic())
    assert [fact.name for fact in await enforcer.explain("a")] == ["group"]


async def test_a_start_is_told_to_who_wants_to_know() -> None:
    """Of a pod that is known; what fails then is tried again, whatever the mode: the container runs."""
    dimension = Faulty()
    enforcer = made(dimension, "required")
    await enforcer.prepare()
    await enforcer.started("a")
    await enforcer.admit(sandbox("a"))
    await enforcer.started("a")
    assert dimension.seen == ["prepare", "admit a", "started a"]
    dimension.broken = "no such thread"
    await enforcer.started("a")
    ((_, _, _, failed),) = enforcer.states()
    assert failed == {"a": "no such thread"}


async def test_one_that_hangs_holds_up_no_other(hung: Faulty) -> None:
    """Whoever waits for it waits as long as he likes; the others are in force meanwhile."""
    quick = Faulty("network")
    enforcer = Enforcer([hung, quick], IsolationSection(), Metrics(), find)
    hang, hung.hang = hung.hang, None
    await enforcer.prepare()
    hung.hang = hang
    admitting = asyncio.ensure_future(enforcer.admit(sandbox("a")))
    await until(lambda: "admit a" in quick.seen)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(admitting, 0.1)
    enforcer.close()


async def test_one_that_hangs_is_said_to(hung: Faulty) -> None:
    """What is known of the others is told all the same."""
    enforcer = Enforcer([hung, Faulty("network")], IsolationSection(), Metrics(), find)
    hang, hung.hang = hung.hang, None
    await enforcer.prepare()
    await enforcer.admit(sandbox("a"))
    hung.hang = hang
    said = [(fact.name, fact.kernel) for fact in await enforcer.explain("a")]
    assert said == [("rdt", "no answer: it is busy, or hangs in the kernel"), ("group", "a")]
    enforcer.close()


async def test_a_repair_that_hangs_holds_up_no_other(hung: Faulty, monkeypatch: pytest.MonkeyPatch) -> None:
    """The others are repaired in each round; it is asked once, and what it did is counted when it has done it."""
    monkeypatch.setattr(enforcer_module, "_PATIENCE", 1.0)
    quick, metrics = Faulty("network"), Metrics()
    enforcer = Enforcer([hung, quick], IsolationSection(), metrics, find)
    hang, hung.hang = hung.hang, None
    await enforcer.prepare()
    hung.hang, hung.repairs = hang, Repairs({"schemata": 1})
    for _ in range(2):
        assert await enforcer.repair(["a"], time.monotonic()) == ""
    assert quick.seen.count("repair a") == 2
    assert hang is not None
    hang.set()
    await until(lambda: "repair a" in hung.seen)
    assert await enforcer.repair(["a"], time.monotonic()) == "rdt: put back 1 schemata"
    assert hung.seen.count("repair a") == 1
    enforcer.close()


@pytest.mark.parametrize("mode", ["auto", "required"])
async def test_one_that_fails_as_it_must_not_fails_alone(mode: str) -> None:
    """Its error is treated as any other for which it is not in force, and the others are repaired in each round."""
    buggy, quick = Faulty(), Faulty("network")
    enforcer = Enforcer([buggy, quick], IsolationSection(rdt=mode), Metrics(), find)  # type: ignore[arg-type]
    await enforcer.prepare()
    buggy.bug = "no such letter"
    if mode == "required":
        with pytest.raises(NotEnforced, match="no such letter"):
            await enforcer.admit(sandbox("a"))
    else:
        await enforcer.admit(sandbox("a"))
    for _ in range(2):
        assert await enforcer.repair(["a"], time.monotonic()) == ""
    assert quick.seen.count("repair a") == 2
    (_, _, _, failed), _ = enforcer.states()
    assert "no such letter" in failed[""]
    enforcer.close()


async def test_repair_is_told_all_pods_there_are() -> None:
    """Those that were there before qrm are looked up; who came after the list was made is not taken for gone."""
    dimension = Faulty()
    enforcer = made(dimension)
    await enforcer.prepare()
    await enforcer.admit(sandbox("old"))
    asked = time.monotonic()
    await enforcer.admit(sandbox("young"))
    await enforcer.repair(["before", "unclear"], asked)
    assert dimension.seen[-1] == "repair before young"


async def test_one_that_cannot_be_looked_up_holds_up_no_other() -> None:
    """The runtime cannot tell of one pod: the others are repaired, and the one as soon as it can."""
    broken = {"b"}

    async def finding(sandbox_id: str) -> Sandbox | None:
        if sandbox_id in broken:
            raise CallError(grpc.StatusCode.INTERNAL, "its shim is gone")
        return sandbox(sandbox_id)

    dimension = Faulty()
    enforcer = Enforcer([dimension], IsolationSection(), Metrics(), finding)
    await enforcer.prepare()
    await enforcer.repair(["a", "b", "c"], time.monotonic())
    broken.clear()
    await enforcer.repair(["a", "b", "c"], time.monotonic())
    assert dimension.seen == ["prepare", "repair a c", "repair a b c"]
    enforcer.close()


async def test_who_is_gone_is_forgotten() -> None:
    dimension = Faulty()
    enforcer = made(dimension)
    await enforcer.prepare()
    await enforcer.admit(sandbox("a"))
    enforcer.forget("a")
    await until(lambda: "forget a" in dimension.seen)
    await enforcer.repair([], time.monotonic())
    assert dimension.seen[-1] == "repair "


async def test_repairs_are_counted_by_cause() -> None:
    """And told in a sentence; nothing is said where nothing was done."""
    dimension, metrics = Faulty(), Metrics()
    enforcer = Enforcer([dimension], IsolationSection(), metrics, find)
    await enforcer.prepare()
    assert await enforcer.repair(["a"], time.monotonic()) == ""
    dimension.repairs = Repairs({"schemata": 2}, {"a": "busy"})
    assert await enforcer.repair(["a"], time.monotonic()) == "rdt: put back 2 schemata"
    counted = metrics.registry.get_sample_value
    assert counted("qrm_isolation_repaired_total", {"dimension": "rdt", "cause": "schemata"}) == 2
    assert counted("qrm_isolation_failed", {"dimension": "rdt"}) == 1
