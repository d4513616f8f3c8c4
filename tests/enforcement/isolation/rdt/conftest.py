"""What the tests of RDT share."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.enforcement.isolation.rdt.fake import INTEL, ROOTS, Kernel


@pytest.fixture
def kernel(tmp_path: Path) -> Kernel:
    """A node on which nothing is mounted."""
    kernel = Kernel(tmp_path)
    kernel.proc.mkdir()
    return kernel


@pytest.fixture
def intel(kernel: Kernel) -> Kernel:
    """A node with L3 ways, bandwidth in percent, and 6 RMIDs."""
    kernel.mount(INTEL, ROOTS["intel"])
    return kernel
