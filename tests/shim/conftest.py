"""A node in front of the fake runtime."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.support import UnderTest, under_test


@pytest.fixture
async def under(tmp_path: Path) -> AsyncIterator[UnderTest]:
    async with under_test(tmp_path, more="[upkeep]\ndrift_seconds = 3600\n") as made:
        yield made
