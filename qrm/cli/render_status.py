"""`qrm status`, `qrm doctor` and the end of `qrm reset`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from qrm.cli.output import cpus, facts, number, plain, span, table
from qrm.cpuset import CPUSet
from qrm.service import api

_BAR = 24
"""Columns of the bar that shows how much of a NUMA node is held."""

_STATES = {"on": "green", "off": "dim", "degraded": "bold yellow"}


def status(view: api.Status, now: float) -> Iterator[RenderableType]:
    """The service, its containers, its pools and its NUMA nodes."""
    ready = (
        ("ready", "bold green") if view.ready else ("waits for the runtime, places no containers yet", "bold yellow")
    )
    yield Text.assemble((f"qrm {view.version}", "bold"), ", ", ready, f", up {span(now - view.started)}")
    by_level = (f"{count} {level}" for level, count in sorted(view.containers.items()))
    pairs: list[tuple[str, RenderableType | str]] = [
        ("socket", view.socket),
        ("runtime", view.runtime),
        ("ledger", view.ledger),
        ("containers", ", ".join(by_level) or "none"),
    ]
    attention = _attention(view)
    if attention:
        pairs.append(("attention", plain(attention, "yellow")))
    yield facts(pairs)
    yield Text()
    yield _pools(view)
    yield Text()
    yield _nodes(view)


def doctor(view: api.Doctor) -> Table:
    """A line for each feature."""
    made = table("STATE", "FEATURE", "WHY")
    for feature in view.features:
        made.add_row(plain(feature.state, _STATES.get(feature.state, "")), plain(feature.name), plain(feature.why))
    return made


def reset(report: api.ResetReport) -> Iterator[RenderableType]:
    """What was undone, and what was not."""
    yield plain(f"{number(report.containers, 'container')} may use the CPUs of the whole machine again")
    for line in report.undone:
        yield plain(line)
    for path in report.removed:
        yield plain(f"removed {path}")
    for failed in report.failed:
        yield plain(f"not undone: {failed}", "bold red")
    if report.failed:
        yield plain("The ledger is kept: qrm reset can be repeated.")


def _attention(view: api.Status) -> str:
    counts = {
        "unmanaged": view.unmanaged,
        "adopted": view.adopted,
        "waiting for the runtime to take their CPUs": view.pushes_due,
    }
    return ", ".join(f"{count} {what}" for what, count in counts.items() if count)


def _pools(view: api.Status) -> Table:
    made = table("POOL", "CPUS", "WHICH", right=("CPUS",))
    for name, listed in sorted(view.pools.items()):
        made.add_row(plain(name), str(len(CPUSet.parse(listed))), plain(listed))
    return made


def _nodes(view: api.Status) -> Table:
    made = table("NUMA", "FREE", "OF", "HELD", right=("NUMA", "FREE", "OF"))
    for node in _by_number(view.allocatable):
        whole, free = view.allocatable[node], view.free.get(node, 0)
        held = round(_BAR * (whole - free) / whole) if whole else 0
        made.add_row(
            plain(node), cpus(free), cpus(whole), Text.assemble(("█" * held, "cyan"), ("░" * (_BAR - held), "dim"))
        )
    return made


def _by_number(nodes: Iterable[str]) -> list[str]:
    return sorted(nodes, key=int)
