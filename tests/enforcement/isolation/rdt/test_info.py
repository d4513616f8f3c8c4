"""The info directory of each platform, and what the mount says."""

from __future__ import annotations

import pytest

from qrm.enforcement.isolation.dimension import NotEnforced
from qrm.enforcement.isolation.rdt.info import read_info
from qrm.enforcement.isolation.rdt.schemata import differences, format_schemata, parse_schemata, show
from tests.enforcement.isolation.rdt.fake import AMD, CDP, INTEL, ROOTS, Kernel


def test_intel(intel: Kernel) -> None:
    """Bandwidth in percent; the least number of CLOSIDs counts; what configures an event is no event."""
    info = read_info(intel.proc)
    assert (info.root, info.closids, info.writable, info.rmids) == (intel.root, 8, True, 6)
    assert (info.caches["L3"].full, info.caches["L3"].shareable, info.caches["L3"].sparse) == (0x7FF, 0x600, False)
    assert info.bandwidth is not None
    assert (info.bandwidth.unit, info.bandwidth.low, info.bandwidth.step, info.bandwidth.full) == (
        "percent",
        10,
        10,
        100,
    )
    assert info.features == ("llc_occupancy", "mbm_total_bytes")


def test_amd(kernel: Kernel) -> None:
    """Bandwidth in 1/8 GB/s, up to 2048 where nobody says more."""
    kernel.mount(AMD, ROOTS["amd"].replace("2048", "16"))
    bandwidth = read_info(kernel.proc).bandwidth
    assert bandwidth is not None
    assert (bandwidth.unit, bandwidth.low, bandwidth.full) == ("1/8 GB/s", 0, 2048)
    (kernel.root / "schemata").write_text(ROOTS["amd"].replace("2048", "4096"))
    more = read_info(kernel.proc).bandwidth
    assert more is not None
    assert more.full == 4096


def test_a_mount_in_mib(kernel: Kernel) -> None:
    """No file says so, only the options."""
    kernel.mount(INTEL, ROOTS["intel"], "rw,mba_MBps")
    bandwidth = read_info(kernel.proc).bandwidth
    assert bandwidth is not None
    assert (bandwidth.unit, bandwidth.step) == ("MiB/s", 1)


def test_code_and_data_are_apart_with_cdp(kernel: Kernel) -> None:
    """Each level on its own; the number of CLOSIDs is halved by the kernel."""
    kernel.mount(CDP, ROOTS["cdp"], "ro,cdp")
    info = read_info(kernel.proc)
    assert set(info.caches) == {"L3CODE", "L3DATA", "L2"}
    assert (info.closids, info.writable, info.bandwidth, info.rmids) == (4, False, None, 0)


def test_it_is_found_where_it_is_mounted(intel: Kernel) -> None:
    """Spaces in paths are octal in the list of mounts."""
    moved = intel.folder / "res ctrl"
    intel.root.rename(moved)
    mounts = (intel.proc / "mounts").read_text().replace("resctrl resctrl", "res\\040ctrl resctrl")
    (intel.proc / "mounts").write_text(f"tmpfs /tmp tmpfs rw 0 0\n{mounts}")
    assert read_info(intel.proc).root == moved


@pytest.mark.parametrize(
    ("filesystems", "message"),
    [("nodev\tproc\nnodev\tresctrl\n", "mount -t resctrl"), ("nodev\tproc\n", "takes a processor with RDT")],
)
def test_without_a_mount_it_is_said_whether_there_can_be_one(kernel: Kernel, filesystems: str, message: str) -> None:
    """The remedies differ."""
    (kernel.proc / "filesystems").write_text(filesystems)
    with pytest.raises(NotEnforced, match=message):
        read_info(kernel.proc)


def test_monitoring_alone_allocates_nothing(kernel: Kernel) -> None:
    """Some processors can only monitor."""
    kernel.mount({"L3_MON": INTEL["L3_MON"]}, "")
    with pytest.raises(NotEnforced, match="nothing that can be allocated"):
        read_info(kernel.proc)


def test_a_mask_that_is_no_row_of_ways_is_refused(kernel: Kernel) -> None:
    """Rather than computing masks from what is not understood."""
    kernel.mount({"L3": {**INTEL["L3"], "cbm_mask": "7fe"}}, "L3:0=7fe\n")
    with pytest.raises(NotEnforced, match="cbm_mask is 0x7fe"):
        read_info(kernel.proc)


def test_schemata_are_read_and_written_as_the_kernel_does() -> None:
    """Masks are hexadecimal, bandwidth is decimal, and a line that is neither is passed over."""
    parsed = parse_schemata("    L3:0=7ff;10=00f\n    MB:0=100;10= 50\nWHAT:x\n")
    assert parsed == {"L3": {0: 0x7FF, 10: 0xF}, "MB": {0: 100, 10: 50}}
    assert format_schemata(parsed) == "L3:0=7ff;10=f\nMB:0=100;10=50"
    assert show(parsed) == "L3:0=7ff;10=f MB:0=100;10=50"


def test_only_what_differs_is_to_be_written() -> None:
    """A domain that is not there now, such as that of an offline cache, is not."""
    now = parse_schemata("L3:0=3;1=7\nMB:0=100\nL2:0=f\n")
    assert differences({"L3": 3, "MB": 100}, now) == {"L3": {1: 3}}
