"""Structs to be drawn, as a service would answer them."""

from __future__ import annotations

from collections.abc import Mapping

import click
from msgspec.structs import replace
from rich.console import Console, RenderableType

from qrm.cpuset import CPUSet
from qrm.service import api, views
from qrm.topology.generate import GIB, Layout
from qrm.topology.machine import Disk, Nic
from tests.topology.machines import machine_of

MACHINE = Layout(
    sockets=2,
    nodes_per_socket=2,
    l3_per_socket=2,
    cores_per_socket=8,
    threads=2,
    memory=64 * GIB,
    hugepages={2 << 20: 1024, 1 << 30: 4},
    nics=(Nic("eth0", 25_000, 0, up=True), Nic("eth1", 25_000, 1, up=True)),
    disks=(Disk("nvme0n1", "259:0", False, 0), Disk("sda", "8:0", True, None)),
    offline=CPUSet.parse("15,31"),
    isolated=CPUSet.parse("14,30"),
)

CONTAINER = api.Container(
    pod="default/db-0",
    pod_uid="uid-1",
    container="main",
    id="c" * 64,
    qos="dedicated_cores",
    pool="dedicated",
    cpus="2-5",
    exclusive=True,
    request=4000,
    state="running",
    mark="",
)

EXPLANATION = api.Explanation(
    container=CONTAINER,
    asked={"cpu_shares": "4096", "cpu_quota": "400000"},
    annotations={"qos_level": "dedicated_cores"},
    hints={"cpu": [api.Hint("0", True), api.Hint("0-1", False)]},
    why={"cpu": "2 whole cores of L3 domain 0"},
    applied="2-5",
    kernel="2-5",
    cgroup="/sys/fs/cgroup/kubepods/poduid-1/c",
    created=1_700_000_000.0,
)


def view(layout: Layout, pods: Mapping[str, str] | None = None, pools: Mapping[str, str] | None = None) -> api.Topology:
    """The machine of `layout`, held by `pods` and `pools` (names to CPU lists); a pod wins over a pool."""
    made = views.topology(machine_of(layout), None, None)
    pod_of = {cpu: name for name, cpus in (pods or {}).items() for cpu in CPUSet.parse(cpus)}
    pool_of = {cpu: name for name, cpus in (pools or {}).items() for cpu in CPUSet.parse(cpus)}
    cpus = [
        replace(
            cpu,
            pool="dedicated" if cpu.id in pod_of else cpu.pool or pool_of.get(cpu.id, ""),
            pod=pod_of.get(cpu.id, ""),
        )
        for cpu in made.cpus
    ]
    return replace(made, cpus=cpus)


def text(*parts: RenderableType, width: int = 80) -> list[str]:
    """What a terminal of that width shows, without colours and without spaces at the ends of lines."""
    console = Console(width=width, highlight=False, emoji=False, force_terminal=True, color_system=None)
    with console.capture() as captured:
        for part in parts:
            console.print(part)
    return [line.rstrip() for line in captured.get().splitlines()]


def shown(output: str) -> list[str]:
    """The lines of what the command printed, without styles and without spaces at their ends."""
    return [line.rstrip() for line in click.unstyle(output).splitlines()]
