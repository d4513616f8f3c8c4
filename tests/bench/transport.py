"""What the transport adds to a call, beside what a proxy on grpc.aio adds, and how much either carries."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from tests.bench.processes import socket_process
from tests.bench.report import Cell, Table, millis, p50, p99
from tests.bench.wire_calls import Call, calls
from tests.bench.wire_client import Round, measure

_ROUNDS, _SECONDS = 5, 0.4
_CLIENTS = (1, 8)
_MICRO = 1e6

_ROADS = {"direct": "", "bytes": "bytes", "qrm": "frames", "grpc.aio": "messages"}
"""What is compared: the kind of proxy by its name in the tables."""


@dataclass(frozen=True)
class _Road:
    """One way to the runtime."""

    socket: Path
    processes: tuple[psutil.Popen, ...]
    """The proxy, if there is one, and the runtime."""

    def cpu(self) -> list[float]:
        """Seconds of CPU time of each process so far."""
        return [_cpu(process.pid) for process in self.processes]


@dataclass
class _Sum:
    """All rounds of one kind of call on one road."""

    seconds: list[float] = field(default_factory=list)
    elapsed: float = 0.0
    cpu: list[float] = field(default_factory=list)

    def add(self, each: Round) -> None:
        """One round more."""
        self.seconds += each.seconds
        self.elapsed += each.elapsed
        self.cpu = [sum(pair) for pair in zip(self.cpu or (0.0,) * len(each.cpu), each.cpu, strict=True)]

    def rate(self, each: int) -> int:
        """Messages a second, with `each` in a call."""
        return round(len(self.seconds) * each / self.elapsed)

    def micros(self, process: int, each: int) -> float:
        """Microseconds of CPU time that a process took for a message."""
        return round(self.cpu[process] * _MICRO / (len(self.seconds) * each), 1)


async def transport(folder: Path) -> tuple[Table, Table]:
    """Both tables; sockets are made under `folder`."""
    latency = Table(
        "The transport: latency in ms",
        f"{_ROUNDS} rounds of {_SECONDS} s on each road in turns: past any proxy, through one that copies bytes and "
        "looks at nothing, through qrm's transport, through a proxy of messages on grpc.aio. Client, proxy and runtime "
        "have an uvloop each, the last two a process each; client and runtime send ready-made frames. Each client has "
        "a connection and one call at a time. What is added is that of the medians; 'times' is how much more grpc.aio "
        "adds than qrm. 'seen' and 'changed': held for a handler.",
    )
    load = Table(
        "The transport: what it carries",
        "From the same rounds: calls a second, of a stream its messages, and CPU time in µs of each process for one of "
        "them; client and runtime are those that went with qrm. 'busy': the part of the time in which qrm's process "
        "ran; near 100 % it is what limits the rate.",
    )
    async with _roads(folder) as roads:
        for call in calls():
            for clients in _CLIENTS:
                sums = await _measured(roads, call, clients)
                latency.lines.append(_latency(call, clients, sums))
                load.lines.append(_load(call, clients, sums))
    return latency, load


@asynccontextmanager
async def _roads(folder: Path) -> AsyncIterator[dict[str, _Road]]:
    """All roads to one runtime."""
    async with AsyncExitStack() as stack:
        target = folder / "wire-runtime.sock"
        runtime = await stack.enter_async_context(socket_process(target, "tests.bench.wire_runtime", str(target)))
        roads = {}
        for name, kind in _ROADS.items():
            if not kind:
                roads[name] = _Road(target, (runtime,))
                continue
            entry = folder / f"wire-{kind}.sock"
            made = socket_process(entry, "tests.bench.wire_proxies", kind, str(entry), str(target))
            roads[name] = _Road(entry, (await stack.enter_async_context(made), runtime))
        yield roads


async def _measured(roads: dict[str, _Road], call: Call, clients: int) -> dict[str, _Sum]:
    sums = {name: _Sum() for name in roads}
    for _ in range(_ROUNDS):
        for name, road in roads.items():
            sums[name].add(await asyncio.to_thread(measure, road.socket, call, clients, _SECONDS, road.cpu))
    return sums


def _latency(call: Call, clients: int, sums: dict[str, _Sum]) -> dict[str, Cell]:
    median = {name: p50(each.seconds) for name, each in sums.items()}
    added = {name: value - median["direct"] for name, value in median.items()}
    return {
        "call": call.name,
        "clients": clients,
        **{f"{name}, p50": millis(value) for name, value in median.items()},
        "bytes add": millis(added["bytes"]),
        "qrm adds": millis(added["qrm"]),
        "grpc.aio adds": millis(added["grpc.aio"]),
        "times": round(added["grpc.aio"] / added["qrm"], 1),
        **{f"{name}, p99": millis(p99(each.seconds)) for name, each in sums.items()},
    }


def _load(call: Call, clients: int, sums: dict[str, _Sum]) -> dict[str, Cell]:
    each, ours, theirs = len(call.answer), sums["qrm"], sums["grpc.aio"]
    return {
        "call": call.name,
        "clients": clients,
        **{f"{name}, per s": total.rate(each) for name, total in sums.items()},
        "times more": round(ours.rate(each) / theirs.rate(each), 1),
        "qrm CPU": ours.micros(0, each),
        "grpc.aio CPU": theirs.micros(0, each),
        "times less": round(theirs.micros(0, each) / ours.micros(0, each), 1),
        "client CPU": ours.micros(2, each),
        "runtime CPU": ours.micros(1, each),
        "busy %": round(100 * ours.cpu[0] / ours.elapsed),
    }


def _cpu(pid: int) -> float:
    """Seconds for which the threads of a process ran (kernel: Documentation/scheduler/sched-stats.rst, schedstat)."""
    tasks = Path(f"/proc/{pid}/task").glob("*/schedstat")
    return sum(int(path.read_text().split()[0]) for path in tasks) / 1e9
