"""`qrm pods`: a line for each container."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.table import Table
from rich.text import Text

from qrm.cli.output import cpus, natural_width, plain, table
from qrm.service import api

EXCLUSIVE = "*"
"""Behind CPUs that no container of another pod may run on."""

_LEVELS = {"dedicated_cores": "magenta", "shared_cores": "green", "reclaimed_cores": "yellow", "system_cores": "blue"}
_STATES = {"running": "", "pending": "yellow", "exited": "dim"}
_MARKS = {"adopted": "cyan", "unmanaged": "bold red"}


def pods(containers: Sequence[api.Container]) -> Iterator[RenderableType]:
    """The table. Where lines are too short for it, a container stands below its pod."""
    if not containers:
        yield plain("no containers")
        return
    yield _Fitting(containers)
    yield from footnote(containers)


@dataclass(frozen=True, slots=True)
class _Fitting:
    """Chooses between the two tables when it is printed, because only then the width is known."""

    containers: Sequence[api.Container]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        wide = _table(self.containers, stacked=False)
        fits = natural_width(console, wide) <= options.max_width
        yield wide if fits else _table(self.containers, stacked=True)


def footnote(containers: Iterable[api.Container]) -> Iterator[Text]:
    """What the mark behind CPUs means, where there is one."""
    if any(each.exclusive for each in containers):
        yield plain(f"{EXCLUSIVE} no container of another pod runs there", "dim")


def level(name: str) -> Text:
    """A QoS level in its colour."""
    return plain(name, _LEVELS.get(name, ""))


def state(container: api.Container) -> Text:
    """Its state in its colour."""
    return plain(container.state, _STATES.get(container.state, ""))


def mark(container: api.Container) -> Text:
    """Its mark in its colour."""
    return plain(container.mark, _MARKS.get(container.mark, ""))


def where(container: api.Container) -> Text:
    """Its CPUs, those of its own marked."""
    return plain(f"{container.cpus or 'any'}{EXCLUSIVE if container.exclusive else ''}")


def _table(containers: Sequence[api.Container], *, stacked: bool) -> Table:
    names = ("POD/CONTAINER",) if stacked else ("POD", "CONTAINER")
    made = table(*names, "QOS", "POOL", "CPUS", "ASKED", "STATE", "MARK", right=("ASKED",))
    for each in containers:
        name = [plain(f"{each.pod}\n  {each.container}")] if stacked else [plain(each.pod), plain(each.container)]
        asked = cpus(each.request)
        made.add_row(*name, level(each.qos), plain(each.pool), where(each), asked, state(each), mark(each))
    return made
