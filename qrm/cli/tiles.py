"""Boxes beside and below each other, of a width and a height that are known before anything is printed.

Rich lays out what it is given only while it prints; here it must be known how many boxes go into one line.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

FRAME = 4
"""Columns that a frame takes: its two sides, and a space within each."""


@dataclass(frozen=True, slots=True)
class Block:
    """Something to print and the columns and lines that it takes."""

    body: RenderableType
    width: int
    height: int


def lines(texts: Sequence[Text]) -> Block:
    """Lines below each other, none of which is wrapped."""
    body = Text("\n", no_wrap=True).join(texts)
    return Block(body, max((text.cell_len for text in texts), default=0), len(texts))


def stacked(blocks: Sequence[Block]) -> Block:
    """`blocks` below each other."""
    width = max((block.width for block in blocks), default=0)
    return Block(Group(*(block.body for block in blocks)), width, sum(block.height for block in blocks))


def flowing(blocks: Sequence[Block], width: int, *, gap: int) -> Block:
    """`blocks` in as few lines of at most `width` columns as they fit in, the lines being of similar length."""
    widest = max((block.width for block in blocks), default=0)
    beside = per_line(len(blocks), widest, width, gap)
    rows = [blocks[start : start + beside] for start in range(0, len(blocks), beside)]
    return stacked([_row(row, widest, gap) for row in rows])


def framed(contents: Sequence[tuple[str, Block]], width: int, *, style: str) -> Block:
    """Every content with its title in a frame, as wide as the widest, flowing in at most `width` columns."""
    inner = max((max(block.width, len(title) + 2) for title, block in contents), default=0)
    beside = per_line(len(contents), inner + FRAME, width, 1)
    frames = []
    for start in range(0, len(contents), beside):
        row = contents[start : start + beside]
        height = max(block.height for _, block in row)
        frames += [_frame(title, block, inner, height, style) for title, block in row]
    return flowing(frames, width, gap=1)


def per_line(count: int, each: int, width: int, gap: int) -> int:
    """How many of `count`, `each` columns wide, go into a line so that lines are few, and none is much the shortest."""
    most = max((width + gap) // (each + gap), 1)
    lines_needed = -(-count // most) or 1
    return -(-count // lines_needed) or 1


def _row(blocks: Sequence[Block], width: int, gap: int) -> Block:
    if len(blocks) == 1:
        return blocks[0]
    grid = Table.grid(padding=(0, gap, 0, 0), pad_edge=False)
    for _ in blocks:
        grid.add_column(width=width, no_wrap=True)
    grid.add_row(*(block.body for block in blocks))
    return Block(grid, len(blocks) * (width + gap) - gap, max(block.height for block in blocks))


def _frame(title: str, block: Block, inner: int, height: int, style: str) -> Block:
    panel = Panel(
        block.body,
        title=Text(title),
        title_align="left",
        border_style=style,
        width=inner + FRAME,
        height=height + 2,
    )
    return Block(panel, inner + FRAME, height + 2)
