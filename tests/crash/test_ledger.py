"""A ledger that is gone, damaged or behind the times after kill -9: the runtime's annotations are enough."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from qrm.cpuset import CPUSet
from qrm.demo.kubelet import RunningPod
from qrm.ledger.record import Mark
from tests.support import dedicated, pod

from .world import World

BOUND = {"katalyst.kubewharf.io/memory_enhancement": '{"numa_binding": "true"}'}
Damage = Callable[[Path], None]


async def populate(node: World) -> list[RunningPod]:
    """A pod of each kind that a ledger must know."""
    wanted = [
        pod("shared", 500),
        dedicated("other", 2),
        pod("bound", 1000, annotations=BOUND),
        dedicated("pair", 1, count=2),
    ]
    return [await node.kubelet.start_pod(each) for each in wanted]


def held(node: World, pods: list[RunningPod]) -> dict[str, CPUSet]:
    """Where each container runs."""
    return {each: node.cpus(each) for running in pods for each in running.containers.values()}


async def as_before(node: World, pods: list[RunningPod], before: dict[str, CPUSet], free: dict[str, int]) -> None:
    """Nobody has moved, all lines are as good as the lost ones, and the node goes on from there."""
    lines = await node.agreed()
    assert held(node, pods) == before
    assert {each.mark for each in lines.values()} == {Mark.NONE}
    new = await node.kubelet.start_pod(dedicated("new", 1))
    await node.agreed()
    assert node.cpus(new.containers["c0"]).isdisjoint(before[pods[1].containers["c0"]])
    await node.end(new, *pods)
    await node.empty(free)


def gone(file: Path) -> None:
    """Somebody has deleted it."""
    for each in file.parent.iterdir():
        each.unlink()


def main_file_gone(file: Path) -> None:
    """Somebody has deleted the file that looks like the ledger."""
    file.unlink()


def garbage(file: Path) -> None:
    """All of it is something else."""
    for each in file.parent.iterdir():
        each.write_bytes(b"not what it was\n" * 1024)


def garbage_inside(file: Path) -> None:
    """A bad block in the middle."""
    with file.open("r+b") as main:
        main.seek(file.stat().st_size // 2)
        main.write(b"\xa5" * 512)


def garbage_line(file: Path) -> None:
    """A line that is no record."""
    with closing(sqlite3.connect(file)) as connection, connection:
        connection.execute("UPDATE records SET record = '{\"key\": 7}' WHERE container = ''")


def other_schema(file: Path) -> None:
    """It was written by a qrm from the future."""
    with closing(sqlite3.connect(file)) as connection:
        connection.execute("PRAGMA user_version = 99")


def truncated(part: float, less: int = 0, suffix: str = "") -> Damage:
    """`part` of a file, less some bytes, is left."""

    def cut(file: Path) -> None:
        path = Path(f"{file}{suffix}")
        with path.open("r+b") as opened:
            opened.truncate(max(int(path.stat().st_size * part) - less, 0))

    return cut


@pytest.mark.parametrize("damage", [gone, main_file_gone, garbage], ids=lambda each: each.__name__)
async def test_damaged_by_a_crash(node: World, damage: Damage) -> None:
    """With the ledger's files lost, every pod keeps its CPUs, exclusive ones included."""
    await node.start()
    free = await node.free()
    pods = await populate(node)
    before = held(node, pods)
    await node.kill()
    damage(node.ledger_file)
    await node.start()
    await as_before(node, pods, before, free)


@pytest.mark.parametrize(("part", "less"), [(0, 0), (0.3, 0), (0.6, 0), (1, 1)])
async def test_a_journal_that_breaks_off(node: World, part: float, less: int) -> None:
    """A ledger that is behind the runtime by its last changes catches up."""
    await node.start()
    free = await node.free()
    pods = await populate(node)
    await node.agreed()
    before = held(node, pods)
    await node.kill()
    truncated(part, less, "-wal")(node.ledger_file)
    node.fake.faults.delay("ContainerStatus", 0.02)  # so that there is time to do something rash meanwhile
    await node.start()
    await as_before(node, pods, before, free)


DAMAGES = {
    **{each.__name__: each for each in (gone, garbage, garbage_inside, garbage_line, other_schema)},
    "cut to nothing": truncated(0),
    "cut in the header": truncated(0, -99),
    "cut after the header": truncated(0, -100),
    "cut in the middle": truncated(0.5),
    "cut in the middle of a page": truncated(0.5, 7),
    "cut at the end": truncated(1, 1),
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
async def test_damaged_while_qrm_was_stopped(node: World, damage: Damage) -> None:
    """A file that is not a ledger any more is set aside, and made anew from what runs."""
    await node.start()
    free = await node.free()
    pods = await populate(node)
    before = held(node, pods)
    await node.stop()
    damage(node.ledger_file)
    await node.start()
    await as_before(node, pods, before, free)


async def test_lost_in_the_middle_of_a_creation(node: World) -> None:
    """A container that was made and never started keeps the CPUs that it was made for."""
    await node.start()
    free = await node.free()
    wanted = dedicated("wanted", 2)
    sandbox_id = await node.kubelet.run_pod(wanted)
    await node.killed_during(
        node.kubelet.create_container(sandbox_id, wanted, wanted.containers[0]), "CreateContainer", done=True
    )
    gone(node.ledger_file)
    await node.start()
    (container_id,) = await node.agreed()
    other = await node.kubelet.start_pod(dedicated("other", 2))
    await node.kubelet.start_container(container_id)
    await node.agreed()
    assert node.cpus(container_id).isdisjoint(node.cpus(other.containers["c0"]))
    await node.end(RunningPod(wanted, sandbox_id, {"c0": container_id}), other)
    await node.empty(free)
