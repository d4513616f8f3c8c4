"""`qrm plan`: where a pod's containers would run, and what would change for others."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from qrm.cli.output import cpus, facts, number, plain, table
from qrm.cli.render_explain import hints
from qrm.cli.render_pods import footnote, level, where
from qrm.cpuset import CPUSet
from qrm.service import api


def plan(reply: api.PlanReply) -> Iterator[RenderableType]:
    """The verdict, the pod's containers, and the others that would change."""
    if reply.fits:
        yield Text("The pod fits.", "bold green")
    else:
        yield Text.assemble(("The pod would be refused: ", "bold red"), plain(reply.refusal))
    if reply.containers:
        yield Text()
        yield _containers(reply)
        yield from footnote(told.container for told in reply.containers)
        yield Text()
        yield facts(pair for told in reply.containers for pair in _reasons(told))
    if reply.changes:
        yield Text()
        yield Text(f"What changes for {number(len(reply.changes), 'other container')}:", "bold")
        yield _changes(reply)
    elif reply.fits:
        yield Text()
        yield Text("Nothing changes for other containers.")


def _containers(reply: api.PlanReply) -> Table:
    made = table("CONTAINER", "QOS", "ASKED", "POOL", "CPUS", right=("ASKED",))
    for told in reply.containers:
        each = told.container
        made.add_row(plain(each.container), level(each.qos), cpus(each.request), plain(each.pool), where(each))
    return made


def _reasons(told: api.Explanation) -> Iterator[tuple[str, RenderableType]]:
    """Why each resource of a container was chosen, and from what."""
    name = told.container.container
    for resource, offered in told.hints.items():
        yield name, plain(f"{resource}: {told.why.get(resource, '')}")
        yield "", Text.assemble("NUMA nodes offered: ", hints(offered), style="dim")
        name = ""


def _changes(reply: api.PlanReply) -> Table:
    made = table("POD", "CONTAINER", "POOL", "BEFORE", "AFTER", "CPUS", right=("CPUS",))
    for change in reply.changes:
        made.add_row(
            plain(change.pod),
            plain(change.container or "(the whole pod)"),
            plain(change.pool),
            plain(change.before or "none"),
            plain(change.after or "none"),
            _difference(change),
        )
    return made


def _difference(change: api.Change) -> Text:
    difference = len(CPUSet.parse(change.after)) - len(CPUSet.parse(change.before))
    return Text(f"{difference:+d}", "green" if difference > 0 else "yellow")
