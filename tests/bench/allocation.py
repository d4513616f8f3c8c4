"""How long the CPU allocator thinks, and what is written down in memory afterwards."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

from qrm.allocation.book import Book
from qrm.allocation.planner import Planner
from qrm.allocation.registry import load_allocators
from qrm.allocator import ResourceRequest
from qrm.demo.pods import Pod
from qrm.ledger.record import Record
from qrm.ledger.store import open_ledger
from qrm.topology.generate import Layout, write_sysfs
from qrm.topology.sysfs import read_machine
from tests.bench import crowd
from tests.bench.report import Cell, Table, millis, p50, p99

PODS, CONTAINERS = 250, 500
_SAMPLES = 200

_REQUESTS: dict[str, Callable[[str], Pod]] = {"4 dedicated": crowd.dedicated, "shared": crowd.shared}


@dataclass
class Figures:
    """Seconds of CPU time for one kind of request."""

    plan: list[float] = field(default_factory=list)
    apply: list[float] = field(default_factory=list)
    release: list[float] = field(default_factory=list)
    changed: list[float] = field(default_factory=list)
    """How many other containers a plan moves; no seconds."""


def allocation(folder: Path) -> Table:
    """The table; machines are written under `folder`."""
    table = Table(
        f"One CPU allocation in ms of CPU time, {PODS} pods with {CONTAINERS} containers resident",
        "plan: hints and allocate, pure; the aim is below 1 ms with 256 CPUs. apply: the plan goes into the records of "
        "all whose CPUs change, in memory. release: the container is gone and the others have got its CPUs. Each plan "
        "finds a state that has changed since the one before.",
    )
    for cpus in crowd.MACHINES:
        book = _filled(folder / str(cpus), cpus)
        for what, pod in _REQUESTS.items():
            figures = Figures()
            for turn in range(_SAMPLES):
                (request,) = crowd.requests([pod(f"new-{turn}")])
                sample(book, request, figures)
            table.lines.append({"CPUs": cpus, "request": what, **figures_of(figures)})
        book.ledger.close()
    return table


def _filled(folder: Path, cpus: int) -> Book:
    """A generated machine with its pods."""
    return filled(folder, crowd.MACHINES[cpus], ("cpu",), crowd.requests(crowd.crowd(PODS, CONTAINERS, cpus)))


def filled(folder: Path, layout: Layout, names: Iterable[str], requests: Iterable[ResourceRequest]) -> Book:
    """The machine of `layout` and the allocators `names`, with all of `requests` placed; the ledger writes nothing."""
    write_sysfs(layout, folder / "sys")
    planner = Planner(read_machine(folder / "sys"), load_allocators({name: {} for name in names}))
    book = Book(planner, open_ledger(folder / "ledger.db")[0])
    for request in requests:
        book.apply(book.plan(request).allocations, _record(request))
    return book


def _record(request: ResourceRequest) -> Record:
    return Record(request.key, request, "", container_id=f"{request.pod.uid}/{request.container}")


def sample(book: Book, request: ResourceRequest, figures: Figures) -> None:
    """Place one container and let it go again."""
    begun = time.thread_time()
    plan = book.plan(request)
    planned = time.thread_time()
    others = book.apply(plan.allocations, _record(request))
    applied = time.thread_time()
    book.drop(request.key)
    book.drop_pod_if_empty(request.pod.uid)
    book.settle()
    figures.release.append(time.thread_time() - applied)
    figures.plan.append(planned - begun)
    figures.apply.append(applied - planned)
    figures.changed.append(len(others))


def figures_of(figures: Figures) -> dict[str, Cell]:
    """The columns of a table."""
    return {
        "samples": len(figures.plan),
        "plan p50": millis(p50(figures.plan)),
        "plan p99": millis(p99(figures.plan)),
        "others moved": round(p50(figures.changed)),
        "apply p50": millis(p50(figures.apply)),
        "apply p99": millis(p99(figures.apply)),
        "release p50": millis(p50(figures.release)),
        "release p99": millis(p99(figures.release)),
    }
