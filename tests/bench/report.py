"""Tables of figures, for people and as JSON."""

from __future__ import annotations

import statistics
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field

import msgspec
from rich.console import Console
from rich.table import Table as RichTable

_WIDTH = 140
"""Columns where the output is no terminal."""

Cell = str | int | float


@dataclass(frozen=True)
class Table:
    """Lines of one kind of measurement; `said` tells how it was made."""

    title: str
    said: str
    lines: list[dict[str, Cell]] = field(default_factory=list)


def p50(samples: Sequence[float]) -> float:
    """The median."""
    return statistics.median(samples)


def p99(samples: Sequence[float]) -> float:
    """What 99 of 100 samples stay below; of fewer than a hundred it is near the largest."""
    return statistics.quantiles(samples, n=100, method="inclusive")[98]


def millis(seconds: float) -> float:
    """Seconds as milliseconds, to three digits after the point."""
    return round(seconds * 1000, 3)


def show(table: Table) -> None:
    """Print for people."""
    console = Console(width=None if sys.stdout.isatty() else _WIDTH)
    drawn = RichTable(title=table.title, title_justify="left")
    for name, cell in table.lines[0].items():
        drawn.add_column(name, justify="left" if isinstance(cell, str) else "right")
    for line in table.lines:
        drawn.add_row(*map(str, line.values()))
    console.print(drawn)
    console.print(table.said, end="\n\n", style="dim")


def as_json(tables: Sequence[Table]) -> str:
    """All of it as one JSON list."""
    return msgspec.json.format(msgspec.json.encode(list(tables)), indent=2).decode()
