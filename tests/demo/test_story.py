"""`qrm demo`: what it shows, what it makes of a node that goes wrong, and what it leaves."""

from __future__ import annotations

import asyncio
import io
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path

import grpc
import msgspec
import psutil
import pytest
from rich.console import Console

from qrm.cpuset import CPUSet
from qrm.demo import judge, stage, story
from qrm.demo.acts import Actor
from qrm.demo.cast import Cast, cast_for
from qrm.demo.fake_store import Refusal, Store
from qrm.demo.report import Story
from qrm.demo.stage import PREFIX, Stage, simulated_stage
from qrm.errors import QrmError
from qrm.ledger.record import CPU
from qrm.topology.machine import Machine
from qrm.wire import cri_pb2
from tests.support import PATIENCE, until

PODS = ["web", "database", "batch", "agent"]


@pytest.fixture(autouse=True)
def folder(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Where simulated nodes are put: in memory if possible, with a path that is short enough for sockets."""
    with tempfile.TemporaryDirectory(dir=stage.MEMORY if os.access(stage.MEMORY, os.W_OK) else None) as name:
        monkeypatch.setattr(stage, "MEMORY", Path(name))
        monkeypatch.setattr(judge, "SETTLE_SECONDS", PATIENCE)
        yield Path(name)


@pytest.fixture
async def simulated() -> AsyncIterator[Stage]:
    async with simulated_stage() as made:
        yield made


class Screen:
    """A terminal of 100 columns, and what was printed on it."""

    def __init__(self) -> None:
        self._file = io.StringIO()
        self.console = Console(file=self._file, width=100)

    @property
    def text(self) -> str:
        return self._file.getvalue()

    @property
    def words(self) -> str:
        """The text on one line."""
        return " ".join(self.text.split())


async def told(screen: Screen, *, simulated: bool = True) -> Story:
    """The story as its JSON document tells it."""
    agreed = await story.run(simulated=simulated, console=screen.console, as_json=True)
    document = msgspec.json.decode(screen.text, type=Story)
    assert agreed is document.agreed
    return document


async def test_the_simulated_story_agrees_and_leaves_nothing(folder: Path) -> None:
    """Nine steps on 32 CPUs, and afterwards neither a file nor a task."""
    screen, tasks = Screen(), asyncio.all_tasks()
    assert await story.run(simulated=True, console=screen.console, as_json=False)
    assert "2 sockets, 4 NUMA nodes, 16 cores, 32 CPUs" in screen.text
    assert "All agreed: after each of 9 steps" in screen.words
    assert all(len(line) <= 100 for line in screen.text.splitlines())
    assert list(folder.iterdir()) == []
    await until(lambda: asyncio.all_tasks() <= tasks)


async def test_the_document_has_every_step() -> None:
    """With --json, all that is shown is in one document."""
    document = await told(Screen())
    assert document.simulated
    assert document.note == ""
    pods = [[row.pod for row in step.rows] for step in document.steps]
    assert pods[:4] == [PODS[:number] for number in range(1, 5)]
    assert pods[4:] == [PODS] * 4 + [["web", "batch", "agent"]]
    levels = {row.pod: row.qos for row in document.steps[3].rows}
    assert levels == dict(
        zip(PODS, ("shared_cores", "dedicated_cores", "reclaimed_cores", "system_cores"), strict=True)
    )
    assert all(row.ledger == row.cgroup != "" for step in document.steps for row in step.rows)


async def test_the_database_is_restarted_shrunk_and_grown() -> None:
    """The second instance has the first one's CPUs; resized, it has two, and then four again."""
    document = await told(Screen())
    database = [row for step in document.steps for row in step.rows if row.pod == "database"]
    assert [row.attempt for row in database] == [0, 0, 0, 1, 1, 1, 1]
    assert len({row.cgroup for row in database[:4]}) == 1
    assert [len(CPUSet.parse(row.cgroup)) for row in database[3:]] == [4, 2, 4, 4]


async def test_the_refusal_is_quoted() -> None:
    """What does not fit is refused with the numbers."""
    quotes = [step.quote for step in (await told(Screen())).steps if step.quote]
    assert len(quotes) == 1
    assert "asked 32 CPUs for dedicated_cores" in quotes[0]


async def test_a_runtime_that_ignores_updates_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """It answers that all is well; its cgroups say otherwise."""
    monkeypatch.setattr(Store, "update", lambda *_: cri_pb2.UpdateContainerResourcesResponse())
    monkeypatch.setattr(judge, "SETTLE_SECONDS", 0.1)
    screen = Screen()
    assert not await story.run(simulated=True, console=screen.console, as_json=False)
    assert "Ledger and kernel do not agree: step 2 (web: differ)" in screen.words
    assert "web had not left before." in screen.words


async def test_a_pod_that_should_have_been_refused_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ledger and kernel agree all the time, and yet it is wrong."""

    def cast(machine: Machine) -> Cast:
        made = cast_for(machine)
        return replace(made, huge=replace(made.huge, containers=made.database.containers))

    monkeypatch.setattr(story, "cast_for", cast)
    document = await told(Screen())
    (wrong,) = [step for step in document.steps if step.problem]
    assert wrong.problem == "It was not refused."
    assert not wrong.agreed
    assert not document.agreed


async def test_what_only_the_ledger_knows_is_shown(simulated: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """A container that qrm has and kubelet has not is no agreement."""
    monkeypatch.setattr(judge, "SETTLE_SECONDS", 0.1)
    await simulated.kubelet.start_pod(cast_for(simulated.machine).web)
    (row,) = await judge.settled(simulated, {})
    assert (row.pod, row.problem) == ("web", "not kubelet's")


async def test_what_has_died_is_shown(simulated: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """A container that kubelet and qrm believe to run, and that does not, is no agreement."""
    monkeypatch.setattr(judge, "SETTLE_SECONDS", 0.1)
    actor = Actor(await simulated.kubelet.start_pod(cast_for(simulated.machine).web))
    await simulated.kill(actor.id)
    (row,) = await judge.settled(simulated, {"web": actor})
    assert (row.cgroup, row.problem) == ("", "does not run")
    with pytest.raises(QrmError, match="does not run"):
        await simulated.kill(actor.id)


async def test_who_runs_on_anothers_own_cpus_is_shown(simulated: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """A ledger that gives CPUs away twice is wrong even where the kernel does as it says."""
    monkeypatch.setattr(judge, "SETTLE_SECONDS", 0.1)
    cast = cast_for(simulated.machine)
    actors = {each.name: Actor(await simulated.kubelet.start_pod(each)) for each in (cast.web, cast.database)}
    node = simulated.node
    web = node.book.ledger.find(actors["web"].id)
    assert web
    node.book.put(replace(web, allocations={CPU: replace(web.allocations[CPU], cpus=simulated.machine.online)}))
    node.placements.due.set()
    async with asyncio.timeout(PATIENCE):
        while await simulated.cpus(actors["web"].id) != simulated.machine.online:
            await asyncio.sleep(0.01)
    rows = await judge.settled(simulated, actors)
    assert [row.problem for row in rows] == ["0-1,16-17 is another's own", ""]


async def test_without_root_it_says_so_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """The story is the same on the simulated node."""
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    screen = Screen()
    assert await story.run(simulated=False, console=screen.console, as_json=False)
    assert screen.text.startswith("Without root this is a built-in simulated node")
    assert (await told(Screen(), simulated=False)).note.startswith("Without root")


async def test_packages_that_are_missing_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that the next try can be the real one."""
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(stage, "missing_tools", lambda: ["busybox-static", "runc"])
    screen = Screen()
    assert await story.run(simulated=False, console=screen.console, as_json=False)
    assert screen.text.startswith("Without busybox-static, runc this is a built-in simulated node")
    assert "apt install busybox-static runc" in screen.words


async def test_a_machine_with_too_few_cores_is_simulated(monkeypatch: pytest.MonkeyPatch) -> None:
    """A dedicated pod and all others need a core each."""
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(stage, "missing_tools", list)
    monkeypatch.setattr(stage, "LEAST_CORES", 1_000_000)
    assert "too few cores" in (await told(Screen(), simulated=False)).note


async def test_a_runtime_that_fails_ends_the_story(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error has the runtime's words; nothing is left."""

    def full(*_: object) -> None:
        raise Refusal(grpc.StatusCode.INTERNAL, "no space left on device")

    monkeypatch.setattr(Store, "start", full)
    with pytest.raises(QrmError, match=r"answered INTERNAL: no space left on device$"):
        await story.run(simulated=True, console=Screen().console, as_json=False)
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (QrmError("containerd ended", hint="its log"), "containerd ended (its log; qrm demo --simulated needs"),
        (PermissionError(13, "Permission denied", "/run/x"), "/run/x' (qrm demo --simulated needs"),
        (TimeoutError(), "did not get ready in time (qrm demo --simulated needs"),
    ],
)
async def test_a_containerd_that_does_not_start_has_a_way_around(
    error: Exception, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the real story cannot be played, the error names the simulated one."""

    def fail() -> None:
        raise error

    monkeypatch.setattr(story, "why_not_real", str)
    monkeypatch.setattr(story, "real_stage", fail)
    with pytest.raises(QrmError) as caught:
        await story.run(simulated=False, console=Screen().console, as_json=False)
    assert text in str(caught.value)


async def test_a_demo_that_is_cancelled_leaves_nothing(folder: Path) -> None:
    """As Ctrl-C does it under asyncio.run."""
    screen, tasks = Screen(), asyncio.all_tasks()
    playing = asyncio.create_task(story.run(simulated=True, console=screen.console, as_json=False))
    async with asyncio.timeout(PATIENCE):
        while "database starts" not in screen.text:
            await asyncio.sleep(0.01)
    playing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await playing
    assert list(folder.iterdir()) == []
    await until(lambda: asyncio.all_tasks() <= tasks)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_signals_end_it_in_order(number: signal.Signals) -> None:
    """A process that is told to end cleans up like any other, also as a background job, which ignores SIGINT."""
    interrupt = "default_int_handler" if number is signal.SIGINT else "SIG_IGN"
    script = f"""if True:
        import asyncio, signal
        from rich.console import Console
        from qrm.demo.story import run
        signal.signal(signal.SIGINT, signal.{interrupt})
        asyncio.run(run(simulated=True, console=Console(), as_json=False))
    """
    with subprocess.Popen(
        [sys.executable, "-u", "-c", script],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        assert process.stdout
        assert any("web starts" in line for line in process.stdout)
        process.send_signal(number)
        _, errors = process.communicate(timeout=PATIENCE)
    assert process.returncode == -signal.SIGINT
    assert errors.splitlines()[-1] == "KeyboardInterrupt"
    for parent in (Path("/dev/shm"), Path(tempfile.gettempdir())):  # noqa: S108, looked at only
        assert list(parent.glob(f"{PREFIX}{process.pid}-*")) == []


@pytest.mark.containerd
async def test_the_real_story_agrees_and_leaves_nothing(containerd_folder: Path) -> None:
    """Debian's containerd, real processes, real cgroups, and all of it gone afterwards."""
    assert containerd_folder
    tasks = asyncio.all_tasks()
    document = await told(Screen(), simulated=False)
    assert document.agreed
    assert not document.simulated
    assert document.runtime.startswith("containerd 1.")
    assert traces() == []
    await until(lambda: asyncio.all_tasks() <= tasks)


@pytest.mark.containerd
async def test_a_real_demo_that_is_cancelled_leaves_nothing(containerd_folder: Path) -> None:
    """With containers running."""
    assert containerd_folder
    screen = Screen()
    playing = asyncio.create_task(story.run(simulated=False, console=screen.console, as_json=False))
    async with asyncio.timeout(PATIENCE):
        while "batch starts" not in screen.text:
            await asyncio.sleep(0.01)
    assert traces() != []
    playing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await playing
    assert traces() == []


def traces() -> list[str]:
    """What there is of this process's demo on the machine: folders, mounts, cgroups and processes."""
    name = f"{PREFIX}{os.getpid()}-"
    found = [str(path) for path in Path("/run").glob(f"{name}*")]
    for partition in psutil.disk_partitions(all=True):
        if name in partition.mountpoint:
            found.append(partition.mountpoint)
        if partition.fstype in {"cgroup", "cgroup2"}:
            found += [str(path) for path in Path(partition.mountpoint).glob(f"{name}*")]
    for process in psutil.process_iter(["cmdline", "status"]):
        arguments = " ".join(process.info["cmdline"] or ())
        if process.info["status"] != psutil.STATUS_ZOMBIE and name in arguments:
            found.append(arguments)
    return found
