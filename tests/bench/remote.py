"""What it costs that an allocator is a plugin: the same steps over its socket and in this process, in turns."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from pathlib import Path

from qrm.allocation.planner import Planner
from qrm.allocation.registry import load_allocators
from qrm.allocation.remote.client import Options, Plugin
from qrm.allocation.remote.crew import Crew
from qrm.allocation.remote.registry import PluginState, Standing
from qrm.allocation.remote.shelf import Shelf
from qrm.allocator import ResourceRequest
from qrm.demo.pods import Pod
from qrm.topology.generate import write_sysfs
from qrm.topology.machine import Machine
from qrm.topology.sysfs import read_machine
from tests.bench import crowd
from tests.bench.allocation import CONTAINERS, PODS
from tests.bench.processes import plugin
from tests.bench.report import Cell, Table, millis, p50, p99

_CPUS = 256
_SAMPLES = 200
_RESOURCE = "cpu"

_REQUESTS: dict[str, Callable[[str], Pod]] = {"4 dedicated": crowd.dedicated, "shared": crowd.shared}


async def remote(folder: Path) -> Table:
    """The table; the machine is written under `folder`."""
    table = Table(
        "An allocator over a socket in ms, as against the same calls in this process",
        f"Hints, then allocate, of the CPU allocator with {_CPUS} CPUs; the plugin is `qrm plugin serve`, a process of "
        "its own. Both remember what they gave and let the others have what is free, and the same pods come and go "
        "before both, in turns. Wall time, one call at a time. Added and ratio are of the medians.",
    )
    write_sysfs(crowd.MACHINES[_CPUS], folder / "remote-sys")
    machine = read_machine(folder / "remote-sys")
    residents = list(crowd.requests(crowd.crowd(PODS, CONTAINERS, _CPUS)))
    async with plugin(folder / "plugin", folder / "remote-sys", _RESOURCE) as socket:
        sides = _Sides(machine, str(socket))
        try:
            for count, requests in {0: [], PODS: residents}.items():
                for request in requests:
                    await sides.place(request)
                for what, pod in _REQUESTS.items():
                    table.lines.append({"resident pods": count, "request": what, **await _line(sides, pod)})
        finally:
            await sides.close()
    return table


class _Sides:
    """The allocator in this process and, with the same holdings, its plugin."""

    def __init__(self, machine: Machine, socket: str) -> None:
        (allocator,) = load_allocators({_RESOURCE: {}})
        options = Options(alignment=True, reconcile=True)
        self.shelf = Shelf(allocator, machine)
        self.crew = Crew(lambda: machine)
        self.crew.changed(PluginState(_RESOURCE, socket, Standing.REGISTERED, options=options))
        self.plugin = Plugin(_RESOURCE, socket, options, lambda: machine)
        self.planner = Planner(machine, ())
        """Merges hints, and allocates nothing itself."""

    async def place(self, request: ResourceRequest) -> tuple[float, float]:
        """Place a container before both; returns the seconds that it took here and over the socket."""
        begun = time.perf_counter()
        hints = tuple(self.shelf.hints(request))
        own = self.shelf.allocate(request, self.planner.plan(request, {}, {_RESOURCE: hints}).chosen[_RESOURCE])
        here = time.perf_counter()
        plan = self.planner.plan(request, {}, await self.crew.hints(request))
        held = await self.crew.allocate(request, plan.chosen)
        there = time.perf_counter()
        if held[_RESOURCE] != own:
            raise RuntimeError(f"{request.pod} has {held[_RESOURCE].cpus} from the plugin, and {own.cpus} here")
        return here - begun, there - here

    async def remove(self, request: ResourceRequest) -> None:
        """The pod leaves both."""
        self.shelf.remove_pod(request.pod.uid)
        await self.plugin.remove_pod(request.pod.uid)

    def allocation(self) -> Awaitable[object]:
        """All holdings over the socket."""
        return self.plugin.resources_allocation()

    async def close(self) -> None:
        """End the connections."""
        await self.crew.close()
        await self.plugin.close()


async def _line(sides: _Sides, pod: Callable[[str], Pod]) -> dict[str, Cell]:
    direct: list[float] = []
    distant: list[float] = []
    for turn in range(-5, _SAMPLES):
        (request,) = crowd.requests([pod(f"new-{turn}")])
        here, there = await sides.place(request)
        await sides.remove(request)
        if turn >= 0:
            direct.append(here)
            distant.append(there)
    begun = time.perf_counter()
    await sides.allocation()
    reconciled = time.perf_counter() - begun
    return {
        "samples": _SAMPLES,
        "direct p50": millis(p50(direct)),
        "socket p50": millis(p50(distant)),
        "added p50": millis(p50(distant) - p50(direct)),
        "ratio": round(p50(distant) / p50(direct), 2),
        "direct p99": millis(p99(direct)),
        "socket p99": millis(p99(distant)),
        "all holdings, once": millis(reconciled),
    }
