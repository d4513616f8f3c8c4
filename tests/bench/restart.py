"""How soon qrm serves after its start."""

from __future__ import annotations

import asyncio
import time

from tests.bench.processes import Service, stop
from tests.bench.report import Cell, Table, millis, p50

_STARTS = 7


async def restart(service: Service, containers: int) -> Table:
    """The table; qrm must not run, and has `containers` in its ledger."""
    table = Table(
        f"Restart to serving in ms, {containers} containers in ledger and runtime",
        "From the start of the process, seen by a client that dials every 2 ms. The aim is ready below 2000 ms. "
        "The stages are what qrm itself measures in the same starts; bytecode is there, as after an installation.",
    )
    await _start(service)
    starts = [await _start(service) for _ in range(_STARTS)]
    for what in starts[0]:
        samples = [each[what] for each in starts]
        line: dict[str, Cell] = {"until": what, "samples": len(samples)}
        line |= {"min": millis(min(samples)), "p50": millis(p50(samples)), "max": millis(max(samples))}
        table.lines.append(line)
    return table


async def _start(service: Service) -> dict[str, float]:
    begun = time.monotonic()
    process = await asyncio.to_thread(service.start)
    try:
        answered, ready = await service.ready(process)
        stages, used = service.stages, process.cpu_times()
    finally:
        await stop(process)
    known = stages["python"] - begun
    figures = {
        "Version answered": answered - begun,
        "ready for pods": ready - begun,
        "(CPU time by then)": used.user + used.system,
        "stage: python starts": known,
        "stage: imports": stages["imports"],
        "stage: ledger loaded": stages["ledger"],
        "stage: machine read": stages["machine"],
        "stage: compared with runtime": stages["compare"],
    }
    stages["python"] = known
    return {**figures, "stage: all else": ready - begun - sum(stages.values())}
