"""How everything that the command prints is printed: the console, JSON, and the spellings of amounts and times."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any

import click
import msgspec
from rich.console import Console, RenderableType
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from qrm.units import MILLIS_PER_CPU

COLUMN_GAP = 2
"""Columns between the columns of a table."""

_UNLIMITED = 10_000
"""Columns that no line reaches."""

_SIZES = ((1 << 40, "TiB"), (1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"))
_SPANS = ((86_400, "d"), (3_600, "h"), (60, "min"), (1, "s"))


def make_console() -> Console:
    """The console on standard output as it is now; NO_COLOR, pipes and dumb terminals get no colours."""
    return Console(highlight=False, emoji=False)


def has_colours(console: Console) -> bool:
    """Whether the console can show colours that differ by their shade."""
    return not console.no_color and console.color_system in ("256", "truecolor")


def print_json(answer: Any) -> None:
    """Structs as indented JSON: fields in the order of `qrm.service.api`, the keys of maps sorted."""
    encoded = msgspec.json.encode(answer, order="deterministic")
    click.echo(msgspec.json.format(encoded, indent=2).decode())


def print_parts(console: Console, parts: Iterable[RenderableType]) -> None:
    """Print `parts` below each other. In a pipe or a file, lines are as long as they are, without spaces at the end."""
    if console.is_terminal:
        for part in parts:
            console.print(part)
        return
    console.width = _UNLIMITED
    for part in parts:
        with console.capture() as captured:
            console.print(part)
        click.echo("\n".join(line.rstrip() for line in captured.get().splitlines()))


def plain(text: object, style: str = "") -> Text:
    """Text from elsewhere: no markup, and no control characters that a terminal would obey."""
    return Text("".join(each if each.isprintable() or each == "\n" else "\ufffd" for each in str(text)), style)


def table(*headings: str, right: Iterable[str] = ()) -> Table:
    """An empty table without lines; the columns in `right` are flush right."""
    made = Table(box=None, pad_edge=False, padding=(0, COLUMN_GAP, 0, 0), header_style="dim")
    numbers = frozenset(right)
    for heading in headings:
        made.add_column(heading, justify="right" if heading in numbers else "left", overflow="fold")
    return made


def natural_width(console: Console, part: RenderableType) -> int:
    """The columns that `part` takes where there are enough of them."""
    return Measurement.get(console, console.options.update(max_width=_UNLIMITED), part).maximum


def facts(pairs: Iterable[tuple[str, RenderableType | str]]) -> Table:
    """Names and values below each other; a value that is a str is taken as `plain` does."""
    made = Table.grid(padding=(0, COLUMN_GAP, 0, 0), pad_edge=False)
    made.add_column(style="dim", no_wrap=True)
    made.add_column(overflow="fold")
    for name, value in pairs:
        made.add_row(plain(name), plain(value) if isinstance(value, str) else value)
    return made


def cpus(millis: int) -> str:
    """Millicores as CPUs: "2", "0.25"."""
    return f"{millis / MILLIS_PER_CPU:g}"


def cpus_in_words(millis: int) -> str:
    """Millicores as CPUs with the noun: "1 CPU", "0.25 CPUs"."""
    return f"{cpus(millis)} {'CPU' if millis == MILLIS_PER_CPU else 'CPUs'}"


def size(amount: int) -> str:
    """Bytes in the largest binary unit that leaves at least 1: "64 GiB", "1.5 TiB"."""
    for factor, unit in _SIZES:
        if amount >= factor:
            return f"{amount / factor:.4g} {unit}"
    return f"{amount} B"


def span(seconds: float) -> str:
    """A time span in its two largest units: "3 h 12 min"."""
    rest, words = max(int(seconds), 0), []
    for factor, unit in _SPANS:
        number, rest = divmod(rest, factor)
        if number:
            words.append(f"{number} {unit}")
    return " ".join(words[:2]) or "0 s"


def moment(timestamp: float) -> str:
    """Unix time as local date and time."""
    return datetime.fromtimestamp(timestamp, UTC).astimezone().strftime("%Y-%m-%d %H:%M:%S")


def number(amount: int, noun: str) -> str:
    """An amount and its noun: "1 CPU", "2 CPUs"."""
    return f"{amount} {noun}" if amount == 1 else f"{amount} {noun}s"
