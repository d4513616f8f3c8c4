"""A placement is a small part of creating a container, whatever the machine."""

from __future__ import annotations

import pytest

from tests.plugins.qrm_cpu.speed import ASKED, MACHINES, placed_in, resident, settled_in


@pytest.mark.parametrize("cpus", [256, 1024])
def test_a_placement_takes_milliseconds_at_most(cpus: int) -> None:
    """About one, in fact; the bound leaves room for a busy machine."""
    allocator, state = resident(MACHINES[cpus])
    for asked in ASKED.values():
        assert placed_in(allocator, state, asked, times=9) < 0.02
    assert settled_in(allocator, state, times=9) < 0.02
