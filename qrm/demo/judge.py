"""Whether ledger and kernel agree about every container."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping

from qrm.cpuset import CPUSet
from qrm.demo.acts import Actor
from qrm.demo.cast import MAIN
from qrm.demo.report import Row
from qrm.demo.stage import Stage
from qrm.ledger.record import CPU, Record

SETTLE_SECONDS = 5.0
"""How long they may differ after an act: containers are told of what they gain once it is over."""

_INTERVAL = 0.02


async def settled(stage: Stage, actors: Mapping[str, Actor]) -> tuple[Row, ...]:
    """One row for each container, as soon as all agree; after SETTLE_SECONDS as they are."""
    deadline = time.monotonic() + SETTLE_SECONDS
    while True:
        rows = await _rows(stage, actors)
        if not any(row.problem for row in rows) or time.monotonic() > deadline:
            return rows
        await asyncio.sleep(_INTERVAL)


async def _rows(stage: Stage, actors: Mapping[str, Actor]) -> tuple[Row, ...]:
    """Kubelet's containers, and after them those that only the ledger knows."""
    kernel = {name: await stage.cpus(actor.id) for name, actor in actors.items()}
    everybody = [record for record in stage.node.book.ledger if record.running and not record.is_pod]
    unknown = {record.container_id: record for record in everybody}
    rows = []
    for name, actor in actors.items():
        record = unknown.pop(actor.id, None)
        others = CPUSet.union(_own(each) for each in everybody if each is not record)
        rows.append(_row(name, actor.attempt, record, kernel[name], _problem(record, kernel[name], others)))
    rows += [_row(each.request.pod.name, each.attempt, each, None, "not kubelet's") for each in unknown.values()]
    return tuple(rows)


def _row(pod: str, attempt: int, record: Record | None, kernel: CPUSet | None, problem: str) -> Row:
    return Row(
        pod=pod,
        container=MAIN,
        attempt=attempt,
        qos=str(record.request.qos.level) if record else "",
        ledger=str(record.cpus or "") if record else "",
        cgroup=str(kernel or ""),
        problem=problem,
    )


def _problem(record: Record | None, kernel: CPUSet | None, others: CPUSet) -> str:
    """What is wrong with a container; `others` is what other containers have for themselves."""
    if record is None:
        return "not in the ledger"
    if kernel is None:
        return "does not run"
    if kernel != record.cpus:
        return "differ"
    return f"{kernel & others} is another's own" if kernel & others else ""


def _own(record: Record) -> CPUSet:
    allocation = record.allocations.get(CPU)
    return allocation.exclusive if allocation else CPUSet()
