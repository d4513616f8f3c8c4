"""Boxes whose size is known before they are printed."""

from __future__ import annotations

import pytest
from rich.text import Text

from qrm.cli.tiles import Block, flowing, framed, lines, per_line
from tests.cli.samples import text


def _box(word: str, height: int = 1) -> Block:
    return lines([Text(word)] * height)


@pytest.mark.parametrize(
    ("count", "each", "width", "expected"),
    [(4, 10, 80, 4), (8, 10, 80, 4), (5, 10, 32, 3), (3, 10, 9, 1), (1, 10, 80, 1), (0, 10, 80, 1)],
)
def test_per_line(count: int, each: int, width: int, expected: int) -> None:
    """Lines are as few as possible, and their lengths as even as possible."""
    assert per_line(count, each, width, 1) == expected


@pytest.mark.parametrize("width", [10, 20, 40, 80])
def test_size_is_what_is_printed(width: int) -> None:
    """A block takes as many columns and lines as it says."""
    block = framed([(f"t{number}", _box("x" * 6, 1 + number % 3)) for number in range(5)], width, style="")
    printed = text(block.body, width=200)
    assert (max(map(len, printed)), len(printed)) == (block.width, block.height)
    assert block.width <= max(width, 10)


def test_frames_of_a_line_are_equally_high() -> None:
    """Frames beside each other end in the same line."""
    block = framed([("a", _box("1", 3)), ("b", _box("2", 1))], 80, style="")
    assert text(block.body) == [
        "╭─ a ─╮ ╭─ b ─╮",
        "│ 1   │ │ 2   │",
        "│ 1   │ │     │",
        "│ 1   │ │     │",
        "╰─────╯ ╰─────╯",
    ]


def test_flow() -> None:
    """Blocks stand beside each other with a gap, and in columns where there are several lines."""
    block = flowing([_box("aa"), _box("b"), _box("cc"), _box("d")], 6, gap=2)
    assert text(block.body) == ["aa  b", "cc  d"]
