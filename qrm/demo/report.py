"""What the demo shows: after each step a sentence and a table, at the end a verdict; or all of it as one document."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count

import msgspec
from msgspec import Struct
from rich import box
from rich.console import Console
from rich.markup import escape
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

_STYLES = {
    "dedicated_cores": "magenta",
    "shared_cores": "green",
    "reclaimed_cores": "yellow",
    "system_cores": "blue",
}
_COLUMNS = {"pod": 8, "container": 9, "try": 3, "QoS": 15, "ledger CPUs": 11, "cgroup CPUs": 11, "": 5}
"""With their least widths, so that the tables stand in line."""
_INDENT = 3


class Row(Struct, frozen=True):
    """One container after a step."""

    pod: str
    container: str
    attempt: int
    """How often it was restarted."""
    qos: str
    ledger: str
    """Its CPUs by qrm's ledger; empty where that does not know it."""
    cgroup: str
    """Its CPUs by the kernel; empty where it does not run."""
    problem: str
    """Why the two do not agree; empty where they do."""


class Step(Struct, frozen=True):
    """One thing that kubelet did, and the node after it."""

    said: str
    quote: str
    """What qrm answered to kubelet; empty unless it refused."""
    problem: str
    """What should have come out otherwise; empty where nothing should."""
    rows: tuple[Row, ...]
    agreed: bool
    """Whether it came out as it should and every container is where the ledger has it."""


class Story(Struct, frozen=True):
    """The whole demo, as `--json` prints it."""

    simulated: bool
    note: str
    """Why the node is simulated although that was not asked for."""
    machine: str
    runtime: str
    steps: tuple[Step, ...]
    agreed: bool
    seconds: float


def document(story: Story) -> str:
    """The story as a document for programs."""
    return msgspec.json.format(msgspec.json.encode(story), indent=2).decode()


class Printer:
    """Prints the story while it happens."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._numbers = count(1)
        self._before: dict[tuple[str, str], str] = {}

    def opening(self, *, simulated: bool, machine: str, runtime: str) -> None:
        """Where it plays."""
        behind, kind = ("a simulated runtime", "a simulated node") if simulated else (runtime, "this machine")
        self._console.print(f"qrm between a stand-in for kubelet and {escape(behind)}", style="bold")
        self._console.print(f"on {kind}: {escape(machine)}")

    def step(self, step: Step) -> None:
        """One step and the node after it. What has changed since the step before stands out."""
        head = Table.grid(padding=(0, 1, 0, 0))
        head.add_column(width=_INDENT - 1, justify="right", style="bold cyan")
        head.add_column()
        head.add_row(str(next(self._numbers)), Text(step.said, style="bold"))
        if step.quote:
            head.add_row("", Text(step.quote, style="italic yellow"))
        if step.problem:
            head.add_row("", Text(step.problem, style="bold red"))
        self._console.print()
        self._console.print(head)
        self._console.print(Padding(self._table(step.rows), (0, 0, 0, _INDENT)))
        self._before = {(row.pod, row.container): row.cgroup for row in step.rows}

    def closing(self, story: Story) -> None:
        """The verdict."""
        self._console.print()
        self._console.print(verdict(story), style="bold green" if story.agreed else "bold red")

    def _table(self, rows: Sequence[Row]) -> Table:
        table = Table(box=box.SIMPLE_HEAD, collapse_padding=True, pad_edge=False, show_edge=False, header_style="dim")
        for name, width in _COLUMNS.items():
            table.add_column(name, overflow="fold", min_width=width)
        for row in rows:
            changed = self._before.get((row.pod, row.container)) != row.cgroup
            table.add_row(
                row.pod,
                row.container,
                str(row.attempt),
                Text(row.qos, style=_STYLES.get(row.qos, "")),
                row.ledger or "none",
                Text(row.cgroup or "none", style="bold" if changed else ""),
                Text(row.problem or "agree", style="red" if row.problem else "green"),
            )
        return table


def verdict(story: Story) -> str:
    """One line: whether ledger and kernel agreed after every step, and where not."""
    wrong = [f"step {number} ({_wrong(step)})" for number, step in enumerate(story.steps, 1) if not step.agreed]
    if wrong:
        return f"Ledger and kernel do not agree: {', '.join(wrong)}."
    steps = f"after each of {len(story.steps)} steps"
    return f"All agreed: {steps} every container ran where the ledger has it ({story.seconds:.1f} s)."


def _wrong(step: Step) -> str:
    return ", ".join(f"{row.pod}: {row.problem}" for row in step.rows if row.problem) or step.problem
