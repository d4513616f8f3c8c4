"""The node that every test here starts with."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from .world import World, world


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[World]:
    """A node on which qrm does not run yet."""
    async with world(tmp_path) as made:
        yield made
