"""Fixtures for the tests of `qrm.topology`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.topology.machines import scratch


@pytest.fixture
def root() -> Iterator[Path]:
    """An empty directory to write a sysfs into."""
    with scratch() as directory:
        yield directory
