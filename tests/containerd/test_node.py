"""What happens to the node under running pods: restarts, foreign hands, a lost ledger, the end of qrm."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

import grpc
import pytest

from qrm.demo.kubelet import RunningPod
from qrm.ledger.record import Mark
from qrm.service.reset import reset
from tests.support import PATIENCE, answering, until

from .site import Site, dedicated, shared

pytestmark = pytest.mark.containerd


async def both(site: Site) -> tuple[RunningPod, RunningPod]:
    """A shared pod, and a dedicated one that it has made room for."""
    return await site.kubelet.start_pod(shared("web")), await site.kubelet.start_pod(dedicated("db"))


async def test_qrm_restarts_under_running_pods(site: Site) -> None:
    """Nobody moves, and what happens next is as if it had been there all the time."""
    web, db = await both(site)
    before = site.cpus(web), site.cpus(db)
    await site.stop()
    await site.start()
    assert (site.cpus(web), site.cpus(db)) == before
    assert {record.mark for record in site.node.book.ledger} == {Mark.NONE}
    await site.kubelet.end_pod(db, grace=0)
    await site.has(web, site.machine)


async def test_the_ledger_is_rebuilt_from_containerd(site: Site) -> None:
    """With the ledger lost, the annotations that containerd has kept say who holds what."""
    web, db = await both(site)
    before = site.cpus(web), site.cpus(db)
    lines = {record.key: record for record in site.node.book.ledger}
    await site.stop()
    shutil.rmtree(site.config.state.directory)
    await site.start()
    rebuilt = {record.key: record for record in site.node.book.ledger}
    assert rebuilt.keys() == lines.keys()
    for key, record in rebuilt.items():
        old = lines[key]
        assert (record.cpus, record.asked, record.mark) == (old.cpus, old.asked, Mark.NONE)
        assert record.allocations["cpu"].exclusive == old.allocations["cpu"].exclusive
        assert record.request == old.request
    assert (site.cpus(web), site.cpus(db)) == before
    await site.kubelet.end_pod(db, grace=0)
    await site.has(web, site.machine)


async def test_pods_from_before_make_room(site: Site) -> None:
    """A container that containerd ran before qrm came is adopted, and taken off the CPUs that a dedicated one gets."""
    web = await site.direct.start_pod(shared("web"))
    await site.stop()
    await site.start()
    (record,) = site.node.book.ledger
    assert (record.mark, record.cpus) == (Mark.ADOPTED, site.machine)
    db = await site.kubelet.start_pod(dedicated("db"))
    assert site.cpus(web) == site.machine - site.cpus(db)
    assert await site.allowed(web.containers["c0"]) == site.machine - site.cpus(db)


async def test_containerd_restarts_under_qrm(site: Site) -> None:
    """Pods run on, and qrm finds its way back to the new containerd."""
    web, db = await both(site)
    before = site.cpus(web), site.cpus(db)
    await site.containerd.restart()
    await answering(site.direct)
    async with asyncio.timeout(PATIENCE):
        while not await answers(site):
            await asyncio.sleep(0.05)
    assert (site.cpus(web), site.cpus(db)) == before
    await site.kubelet.end_pod(db, grace=0)
    await site.has(web, site.machine)
    again = await site.kubelet.start_pod(dedicated("again"))
    assert site.cpus(web) == site.machine - site.cpus(again)


async def test_a_foreign_hand_is_undone(site: Site) -> None:
    """A cpuset that somebody writes into the cgroup is put back and counted."""
    web, db = await both(site)
    before = site.cpus(web), site.cpus(db)
    for pod in (web, db):
        path = site.file(pod, "cpuset.cpus")
        assert path is not None
        path.write_text(str(site.machine))
    await until(lambda: (site.cpus(web), site.cpus(db)) == before)
    assert site.metrics.registry.get_sample_value("qrm_drift_repaired_total", {"dimension": "cpuset"}) == 2


async def test_reset_gives_everything_back(site: Site) -> None:
    """After qrm's end each container has all CPUs and its own quota, and nothing of qrm is left on disk."""
    web, db = await both(site)
    assert site.quota(db) == -1
    machine = site.machine
    await site.stop()
    report = await reset(site.config)
    assert (report.containers, report.failed) == (2, [])
    assert (site.cpus(web), site.cpus(db)) == (machine, machine)
    assert await site.allowed(db.containers["c0"]) == machine
    assert site.quota(db) == 100_000
    assert not any(Path(site.config.state.directory).iterdir())
    assert not Path(site.config.shim.socket).exists()


async def answers(site: Site) -> bool:
    """Whether qrm reaches the runtime."""
    try:
        await site.kubelet.version()
    except grpc.aio.AioRpcError as error:
        if error.code() is not grpc.StatusCode.UNAVAILABLE:
            raise
        return False
    return True
