"""200 pods with 500 containers come, are restarted and go, with every QoS level among them, and nothing is left."""

from __future__ import annotations

import asyncio
import gc
import sqlite3
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, closing, suppress
from pathlib import Path
from typing import Any

import psutil

from qrm.allocation.placements import Reservation
from qrm.allocator import Allocation, ContainerKey, Holding, ResourceRequest
from qrm.demo.fake_runtime import FakeRuntime
from qrm.demo.kubelet import KubeletClient
from qrm.ledger.record import Record
from qrm.shim.exchange import Exchange
from tests.bench import crowd
from tests.bench.processes import Admin, Service, memory_folder
from tests.soak.rounds import Round
from tests.support import UnderTest, under_test, until

CPUS, PODS, CONTAINERS = 256, 200, 500
_MADE = (Allocation, ContainerKey, Exchange, Holding, Record, Reservation, ResourceRequest)
LAYOUT = crowd.MACHINES[CPUS]


@asynccontextmanager
async def fake_runtime() -> AsyncIterator[tuple[Path, FakeRuntime]]:
    """A runtime on the generated machine, in this process, with its folder."""
    with memory_folder() as folder:
        async with FakeRuntime(folder, cpus=LAYOUT.cpus, nodes=LAYOUT.nodes, pod_updates=True) as fake:
            yield folder, fake


async def test_after_many_pods_nothing_is_held_and_nothing_is_left_open() -> None:
    me = psutil.Process()
    async with fake_runtime() as (folder, fake), under_test(folder, layout=LAYOUT, fake=fake) as node:
        await node.kubelet.version()
        await asyncio.sleep(0.2)  # for gRPC to end that call's own tasks
        before, descriptors = node.node.book.quantities()["cpu"], me.num_fds()
        tasks, objects = tasks_by_kind(), objects_by_kind()
        async with KubeletClient(f"unix://{node.config.shim.socket}") as kubelet:
            await Round(kubelet, fake, lambda: calm(node)).run(crowd.crowd(PODS, CONTAINERS, CPUS))
        await node.settled()
        after = node.node.book.quantities()["cpu"]
        assert after == before
        assert after.free == after.allocatable
        assert not node.node.placements.in_flight
        await comes_back(tasks_by_kind, tasks)
        await comes_back(objects_by_kind, objects)
        await comes_back(me.num_fds, descriptors)
        # Last, since SQLite keeps the file of a second connection open for as long as the first is.
        assert lines(node.node.book.ledger.path) == len(node.node.book.ledger) == 0


async def comes_back(measure: Callable[[], Any], before: Any) -> None:
    """Wait until there is no more of what `measure` counts than there was."""
    with suppress(TimeoutError):
        await until(lambda: measure() <= before)
    assert measure() <= before


def tasks_by_kind() -> Counter[str]:
    """What runs on this event loop; gRPC's servers end and begin a waiting task with each call, of the same kind."""
    return Counter(getattr(task.get_coro(), "__qualname__", "") for task in asyncio.all_tasks())


def objects_by_kind() -> Counter[type]:
    """How many there are of what qrm makes for a container."""
    gc.collect()
    return Counter(kind for kind in map(type, gc.get_objects()) if kind in _MADE)


async def calm(node: UnderTest) -> None:
    """Wait for everything that is due, and hold ledger and cgroups against each other."""
    await node.settled()
    node.check()


def lines(ledger: Path) -> int:
    """What the ledger has on disk."""
    with closing(sqlite3.connect(ledger)) as connection:
        count: int = connection.execute("SELECT count(*) FROM records").fetchone()[0]
        return count


async def test_after_many_pods_memory_is_back_where_it_was() -> None:
    async with fake_runtime() as (folder, fake):
        service = Service(folder, folder / "state", fake.endpoint, LAYOUT)
        async with service.running() as process, Admin(service.admin) as admin:
            sizes = []
            for _ in range(3):
                async with service.kubelet() as kubelet:
                    await Round(kubelet, fake, admin.settled).run(crowd.crowd(PODS, CONTAINERS, CPUS))
                fake.calls.clear()
                sizes.append(process.memory_info().rss)
            assert sizes[-1] < sizes[0] * 1.1
            assert "level=error" not in service.log.read_text()
