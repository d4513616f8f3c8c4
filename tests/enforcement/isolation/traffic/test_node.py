"""What is found out about the node: its rate and what its kernel lacks."""

from __future__ import annotations

from pathlib import Path

import pytest

from qrm.config import NetworkSection
from qrm.enforcement.isolation.dimension import NotEnforced
from qrm.enforcement.isolation.traffic.parts import PARTS, missing
from qrm.enforcement.isolation.traffic.uplink import node_rate

HEADER = "Iface Destination Gateway Flags RefCnt Use Metric Mask MTU Window IRTT\n"
V4 = HEADER + (
    "slow 00000000 010200C0 0003 0 0 200 00000000 0 0 0\n"
    "fast 00000000 010200C0 0003 0 0 100 00000000 0 0 0\n"
    "none 000200C0 00000000 0001 0 0 0 00FFFFFF 0 0 0\n"
)
NOWHERE = "0" * 32
V6 = (
    f"{NOWHERE} 00 {NOWHERE} 00 {NOWHERE} ffffffff 00000001 00000000 00200200 lo\n"
    f"{NOWHERE} 00 {NOWHERE} 00 fd000000000000000000000000000001 00000400 00000003 00000000 00000003 fast\n"
)


def node(tmp_path: Path, *, v4: str = "", v6: str = "", **speeds: str) -> tuple[Path, Path]:
    """A sysfs and a proc with these routes and devices."""
    for name, text in speeds.items():
        device = tmp_path / "sys/class/net" / name
        device.mkdir(parents=True)
        (device / "speed").write_text(f"{text}\n")
    net = tmp_path / "proc/net"
    net.mkdir(parents=True)
    (net / "route").write_text(v4)
    (net / "ipv6_route").write_text(v6)
    return tmp_path / "sys", tmp_path / "proc"


@pytest.mark.parametrize("routes", [{"v4": V4}, {"v6": V6}, {"v4": HEADER, "v6": V6}])
def test_the_default_routes_device_tells(tmp_path: Path, routes: dict[str, str]) -> None:
    """The one with the lowest metric, and IPv6's where there is no other."""
    sysfs, proc = node(tmp_path, fast="25000", slow="100", none="10", lo="1", **routes)
    assert node_rate(NetworkSection(), sysfs, proc) == 25_000_000_000


def test_the_configuration_is_stronger(tmp_path: Path) -> None:
    """A configured rate needs no device."""
    assert node_rate(NetworkSection(rate_mbit=300), tmp_path, tmp_path) == 300_000_000


@pytest.mark.parametrize("speed", ["-1", "0", ""])
def test_an_unknown_rate_says_what_to_set(tmp_path: Path, speed: str) -> None:
    """Virtual devices tell none."""
    sysfs, proc = node(tmp_path, v4=V4, fast=speed)
    with pytest.raises(NotEnforced, match=r"fast tells no speed \(set network.rate_mbit"):
        node_rate(NetworkSection(), sysfs, proc)


def test_a_node_without_routes_says_what_to_set(tmp_path: Path) -> None:
    """No default route, no device to ask."""
    with pytest.raises(NotEnforced, match=r"no device has a default route \(set network.rate_mbit"):
        node_rate(NetworkSection(), *node(tmp_path))


ALL = "".join(f"kernel/net/sched/{name}.ko.xz: kernel/other.ko\n" for name in PARTS)


def lacks(tmp_path: Path, *, dep: str = "", builtin: str = "", kallsyms: str = "", loads: bool = True) -> list[str]:
    """What a kernel with these files lacks; `loads` says whether it can load modules."""
    proc, modules = tmp_path / "proc", tmp_path / "modules/6.1"
    proc.mkdir()
    modules.mkdir(parents=True)
    (proc / "kallsyms").write_text(kallsyms)
    if loads:
        (proc / "modules").touch()
    if dep:
        (modules / "modules.dep").write_text(dep)
        (modules / "modules.builtin").write_text(builtin)
    return missing(proc, "6.1", modules.parent)


def test_modules_on_disk_are_enough(tmp_path: Path) -> None:
    """The kernel loads them itself."""
    assert lacks(tmp_path, dep=ALL) == []


def test_what_is_nowhere_is_named(tmp_path: Path) -> None:
    """A part may be on disk, built in, or in the running kernel; else it is missing."""
    without = ALL.replace("sch_htb", "x").replace("cls_matchall", "y").replace("act_skbedit", "z")
    symbols = "ffffffff81eefa60 t tcf_skbedit_init [act_skbedit]\n"
    assert lacks(tmp_path, dep=without, builtin="kernel/net/sched/sch_htb.ko\n", kallsyms=symbols) == ["cls_matchall"]


def test_what_cannot_be_listed_is_not_said_to_be_missing(tmp_path: Path) -> None:
    """A service may have no view of the modules' folder, and the kernel still loads from it."""
    assert lacks(tmp_path) == []


def test_a_kernel_without_modules_has_what_is_in_it(tmp_path: Path) -> None:
    """Where nothing can be loaded, what has no symbol is missing."""
    symbols = "".join(f"ffffffff81eefa60 t {symbol}\n" for name, symbol in PARTS.items() if name != "ifb")
    assert lacks(tmp_path, kallsyms=symbols, loads=False) == ["ifb"]
