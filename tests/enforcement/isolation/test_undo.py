"""What reset tells the runtime: every key of ours is neutral afterwards, and kubelet's own are back."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qrm.enforcement.isolation import kernel
from qrm.enforcement.isolation.knobs import FILES
from qrm.enforcement.isolation.undo import (
    curved_weight,
    lift_limits,
    linear_weight,
    neutral,
    restore_legacy,
    unlock,
    weight_for,
)

UNIFIED = {
    "cpu.idle": "1",
    "memory.high": "4096",
    "io.max": "8:0 rbps=1 wbps=max riops=max wiops=max\n8:16 rbps=max wbps=2 riops=max wiops=max",
    "memory.swap.max": "0",
}


def test_keys_of_ours_become_neutral() -> None:
    """With kubelet's value where it has one; keys that are not ours are not named."""
    assert neutral(UNIFIED, {"memory.high": "8192"}, "39") == {
        "cpu.idle": "0",
        "memory.high": "8192",
        "io.max": "",
    }


def test_limits_of_all_disks_are_lifted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As the kernel has them; a disk that goes in the middle takes its own along."""
    written: list[str] = []

    def write(path: Path, value: str, *, old: str) -> None:
        written.append(value)
        if old.startswith("8:0 "):
            raise kernel.KernelError(path, value, errno.ENODEV)

    monkeypatch.setattr(kernel, "write", write)
    (tmp_path / "io.max").write_text(f"{UNIFIED['io.max']}\n")
    lift_limits(tmp_path / "io.max")
    assert written == [f"{number} rbps=max wbps=max riops=max wiops=max" for number in ("8:0", "8:16")]


@given(st.frozensets(st.sampled_from(sorted(FILES))))
def test_all_of_them(names: frozenset[str]) -> None:
    """Whatever was set can be undone."""
    assert neutral(dict.fromkeys(names, "8:0 x"), {}, "39").keys() == names


@pytest.mark.parametrize(
    ("millis", "linear", "curved"),
    [(10, 1, 4), (100, 4, 17), (250, 10, 35), (500, 20, 59), (1000, 39, 100), (4000, 157, 303), (64000, 2500, 3023)],
)
def test_both_formulas(millis: int, linear: int, curved: int) -> None:
    """As runc's releases compute them (values seen with them)."""
    shares = max(2, millis * 1024 // 1000)
    assert (linear_weight(shares), curved_weight(shares)) == (linear, curved)


def test_the_runtimes_formula_is_read_off_other_containers() -> None:
    """One that tells is enough; with none, it is the older."""
    assert weight_for(1024, [(512, "59")]) == "100"
    assert weight_for(1024, [(512, "20")]) == "39"
    assert weight_for(1024, [(2, "1")]) == "39"


def test_v1_loses_only_lines_of_ours(tmp_path: Path) -> None:
    """A limit that has another value by now is somebody else's."""
    folder = tmp_path / "blkio"
    folder.mkdir()
    bps, iops = folder / "blkio.throttle.read_bps_device", folder / "blkio.throttle.write_iops_device"
    bps.write_text("8:0 5\n")
    iops.write_text("8:0 7\n")
    restore_legacy({"blkio": folder}, {"io.max": "8:0 rbps=5 wbps=max riops=max wiops=6"})
    assert (bps.read_text(), iops.read_text()) == ("8:0 0\n", "8:0 7\n")


@pytest.mark.parametrize(
    ("v2", "controller", "burst"), [(True, "", "cpu.max.burst"), (False, "cpu", "cpu.cfs_burst_us")]
)
def test_what_would_block_the_update_is_lifted(tmp_path: Path, v2: bool, controller: str, burst: str) -> None:
    """The runtime's own writes are refused while a cgroup is idle, or has a burst above the new quota."""
    for name in ("cpu.idle", burst):
        (tmp_path / name).write_text("1\n")
    unlock({controller: tmp_path}, v2=v2)
    assert {(tmp_path / name).read_text() for name in ("cpu.idle", burst)} == {"0\n"}
