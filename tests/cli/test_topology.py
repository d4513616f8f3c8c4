"""The drawing of the machine."""

from __future__ import annotations

import re
from dataclasses import replace as with_fields

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console
from rich.style import Style

from qrm.cli.holders import PODS, legend
from qrm.cli.render_topology import topology
from qrm.cpuset import CPUSet
from qrm.service import api
from qrm.topology.generate import Layout
from qrm.topology.machine import Disk, Nic
from tests.cli.samples import MACHINE, text, view

_CELL = re.compile(r"(?<![\w.])(\d+)([A-Z]\d*|[a-z.+?])(?=[\s│])")
"""A CPU's id and its holder's letter. Nothing else in the drawing is a number with a letter behind it."""


def _letters(lines: list[str]) -> dict[int, str]:
    """What the drawing says of each CPU; a CPU that is drawn twice fails the test."""
    cells = [(int(cpu), letter) for line in lines for cpu, letter in _CELL.findall(line)]
    assert len(dict(cells)) == len(cells), "a CPU is drawn twice"
    return dict(cells)


def _drawn(seen: api.Topology, *, width: int = 80, known: bool = True) -> list[str]:
    return text(topology(seen, width=width, colours=False, known=known), width=width)


def test_two_cpus() -> None:
    """The smallest machines are drawn whole, with what is attached to no NUMA node in words."""
    seen = view(Layout(cores_per_socket=2, disks=(Disk("vda", "254:0", None, None),)), pools={"share": "0-1"})
    assert _drawn(seen) == [
        "1 socket, 1 NUMA node, 1 L3 domain, 2 cores, 2 CPUs",
        "╭─ socket 0 ──────────╮",
        "│ ╭─ NUMA 0, 8 GiB ─╮ │",
        "│ │ L3 0            │ │",
        "│ │ 0s 1s           │ │",
        "│ ╰─────────────────╯ │",
        "╰─────────────────────╯",
        "on no known NUMA node: disk vda (254:0, kind unknown)",
        "",
        "s  share  pool  2 CPUs  0-1",
    ]


def test_two_sockets() -> None:
    """Threads of a core stand below each other, NUMA nodes beside each other, and the legend names every holder."""
    seen = view(
        MACHINE,
        pods={"default/db-0": "2-3,18-19", "prod/kafka-1": "8-9,24-25"},
        pools={"reserve": "0,16", "batch": "6,22", "share": "1,4-5,7,17,20-21,23", "share+reclaim": "10-13,26-29"},
    )
    assert _drawn(seen) == [
        "2 sockets, 4 NUMA nodes, 4 L3 domains, 15 cores, 30 CPUs",
        "╭─ socket 0 ──────────────────────────────────────────────────────────────────╮",
        "│ ╭─ NUMA 0, 64 GiB ──────────────────╮ ╭─ NUMA 1, 64 GiB ──────────────────╮ │",
        "│ │ L3 0 ──────────                   │ │ L3 4 ──────────                   │ │",
        "│ │  0r  1s  2A  3A                   │ │  4s  5s  6b  7s                   │ │",
        "│ │ 16r 17s 18A 19A                   │ │ 20s 21s 22b 23s                   │ │",
        "│ │ hugepages 1024 x 2 MiB, 4 x 1 GiB │ │ hugepages 1024 x 2 MiB, 4 x 1 GiB │ │",
        "│ │ distance 12 to 1, 21 to 2-3       │ │ distance 12 to 0, 21 to 2-3       │ │",
        "│ │ nic eth0 (25000 Mbit/s, up)       │ │ nic eth1 (25000 Mbit/s, up)       │ │",
        "│ │ disk nvme0n1 (259:0, solid state) │ │                                   │ │",
        "│ ╰───────────────────────────────────╯ ╰───────────────────────────────────╯ │",
        "╰─────────────────────────────────────────────────────────────────────────────╯",
        "╭─ socket 1 ──────────────────────────────────────────────────────────────────╮",
        "│ ╭─ NUMA 2, 64 GiB ──────────────────╮ ╭─ NUMA 3, 64 GiB ──────────────────╮ │",
        "│ │ L3 8 ──────────                   │ │ L3 12 ─────                       │ │",
        "│ │  8B  9B 10+ 11+                   │ │ 12+ 13+ 14i                       │ │",
        "│ │ 24B 25B 26+ 27+                   │ │ 28+ 29+ 30i                       │ │",
        "│ │ hugepages 1024 x 2 MiB, 4 x 1 GiB │ │ hugepages 1024 x 2 MiB, 4 x 1 GiB │ │",
        "│ │ distance 12 to 3, 21 to 0-1       │ │ distance 12 to 2, 21 to 0-1       │ │",
        "│ ╰───────────────────────────────────╯ ╰───────────────────────────────────╯ │",
        "╰─────────────────────────────────────────────────────────────────────────────╯",
        "offline CPUs 15,31",
        "on no known NUMA node: disk sda (8:0, rotational)",
        "",
        "A  default/db-0   pod, exclusive            4 CPUs  2-3,18-19",
        "B  prod/kafka-1   pod, exclusive            4 CPUs  8-9,24-25",
        "b  batch          pool                      2 CPUs  6,22",
        "s  share          pool                      8 CPUs  1,4-5,7,17,20-21,23",
        "+  share+reclaim  pool, idle CPUs lent      8 CPUs  10-13,26-29",
        "i  isolated       by the kernel's isolcpus  2 CPUs  14,30",
        "r  reserve        system containers only    2 CPUs  0,16",
    ]


AMD = Layout(sockets=2, nodes_per_socket=4, l3_per_socket=8, cores_per_socket=64, threads=2)
BIG = Layout(sockets=2, l3_per_socket=1, cores_per_socket=160, threads=2)


@pytest.mark.parametrize("layout", [AMD, BIG, Layout(sockets=8, cores_per_socket=60, threads=2)])
@pytest.mark.parametrize("width", [40, 80, 120, 250])
def test_many_cpus(layout: Layout, width: int) -> None:
    """Machines of hundreds of CPUs wrap to any terminal: no line is too long, and no CPU is lost."""
    seen = view(layout, pools={"share": str(layout.cpus)})
    lines = _drawn(seen, width=width)
    assert max(map(len, lines)) <= width
    assert _letters(lines) == dict.fromkeys(layout.cpus, "s")


def test_wide_terminal_is_used() -> None:
    """On a wide terminal a large machine takes fewer lines."""
    seen = view(AMD)
    narrow, wide = _drawn(seen, width=80), _drawn(seen, width=250)
    assert len(wide) < len(narrow) / 2


def test_cores_in_even_lines() -> None:
    """An L3 domain that is wider than the terminal is cut into lines of equal length, one below the other."""
    lines = _drawn(view(Layout(cores_per_socket=30)), width=100)
    rows = [len(_CELL.findall(line)) for line in lines if _CELL.search(line)]
    assert rows == [15, 15]


@st.composite
def _views(draw: st.DrawFn) -> api.Topology:
    layout = Layout(
        sockets=draw(st.integers(1, 3)),
        nodes_per_socket=draw(st.integers(1, 3)),
        l3_per_socket=draw(st.integers(1, 4)),
        cores_per_socket=draw(st.integers(3, 9)),
        threads=draw(st.sampled_from([1, 2, 4])),
        cpu_stride=draw(st.sampled_from([1, 37])),
        memory_only_nodes=draw(st.integers(0, 2)),
        numa=draw(st.booleans()),
        ids=draw(st.booleans()),
        caches=draw(st.booleans()),
        hugepages={2 << 20: draw(st.integers(0, 9))},
    )
    nodes = st.sampled_from([None, *layout.nodes]) if layout.numa else st.none()
    layout = with_fields(
        layout,
        offline=draw(st.sets(st.sampled_from(list(layout.cpus)[1:])).map(CPUSet)),
        nics=tuple(Nic(f"eth{each}", 100, draw(nodes), up=True) for each in range(draw(st.integers(0, 9)))),
    )
    names = [f"ns/pod-{each}" for each in range(draw(st.integers(0, 30)))]
    pods = {name: str(draw(st.sampled_from(list(layout.cpus)))) for name in names}
    return view(layout, pods, {"share": str(draw(st.sets(st.sampled_from(list(layout.cpus))).map(CPUSet)))})


@settings(max_examples=60, deadline=None)
@given(_views(), st.integers(40, 200))
def test_any_machine(seen: api.Topology, width: int) -> None:
    """Whatever the machine and its holders: each CPU is drawn once, by its holder's letter, in lines that fit."""
    lines = _drawn(seen, width=width)
    holders = legend(seen.cpus, known=True)
    assert _letters(lines) == {cpu.id: holders.of[cpu.id].letter for cpu in seen.cpus}
    assert max(map(len, lines)) <= width


def test_memory_only_node() -> None:
    """A NUMA node without CPUs is drawn outside the sockets."""
    lines = _drawn(view(Layout(memory_only_nodes=1)))
    assert any(line.startswith("╭─ NUMA 1, 8 GiB, no CPUs ─") for line in lines)


def test_devices_of_a_node_wrap() -> None:
    """Many devices of one node are listed in lines that do not widen its frame."""
    nics = tuple(Nic(f"eth{number}", 25_000, 0, up=True) for number in range(6))
    lines = _drawn(view(Layout(nics=nics)))
    assert sum("eth" in line for line in lines) > 3
    assert max(map(len, lines[1:-2])) <= 42


def test_unknown_holders() -> None:
    """Without the service's answer no CPU is shown as free, and those that the kernel isolates still are."""
    lines = _drawn(view(with_fields(MACHINE, offline=CPUSet())), known=False)
    assert _letters(lines) == {cpu: "i" if cpu in MACHINE.isolated else "?" for cpu in MACHINE.cpus}
    assert "?  holder not known  the service was not asked  30 CPUs  0-13,15-29,31" in lines


def _background(seen: api.Topology, cpu: str) -> object:
    """The colour behind the first cell that shows `cpu`."""
    console = Console(width=80, force_terminal=True, color_system="truecolor")
    for segment in console.render(topology(seen, width=80, colours=True)):
        if segment.text.strip() == cpu and segment.style is not None and segment.style.bgcolor:
            return segment.style.bgcolor
    raise AssertionError(f"no coloured cell for CPU {cpu}")


def test_colours() -> None:
    """With colours, a cell has its holder's, and holders that differ have colours that differ."""
    seen = view(Layout(), pods={"ns/a": "0", "ns/b": "1"}, pools={"share": "2-3"})
    holders = legend(seen.cpus, known=True)
    seen_colours = {cpu: _background(seen, cpu) for cpu in "0123"}
    assert seen_colours == {cpu: Style.parse(holders.of[int(cpu)].style).bgcolor for cpu in "0123"}
    assert len(set(seen_colours.values())) == 3
    assert not _letters(text(topology(seen, width=80, colours=True)))


def test_colour_stays() -> None:
    """A pod keeps its colour while others come that stand before it in the legend."""
    layout = Layout(cores_per_socket=12)
    alone = legend(view(layout, pods={"ns/m": "3"}).cpus, known=True)
    together = legend(view(layout, pods={"ns/m": "3", "ns/a": "0", "ns/b": "1"}).cpus, known=True)
    assert alone.of[3].style == together.of[3].style
    assert together.of[3].letter == "C"


def test_colours_differ() -> None:
    """As long as there are enough colours, every pod has one of its own."""
    names = {f"ns/{each}": str(each) for each in range(len(PODS))}
    holders = legend(view(Layout(cores_per_socket=len(PODS)), pods=names).cpus, known=True)
    assert {holder.style for holder in holders.holders} == set(PODS)
    assert not holders.letters_needed


def test_more_pods_than_colours() -> None:
    """Where colours have to repeat, letters tell the holders apart, beyond Z too."""
    cpus = 30
    seen = view(Layout(cores_per_socket=cpus), pods={f"ns/{each:02}": str(each) for each in range(cpus)})
    letters = _letters(text(topology(seen, width=80, colours=True)))
    assert len(set(letters.values())) == cpus
    assert (letters[25], letters[26]) == ("Z", "A1")


def test_letters_of_pools() -> None:
    """Named pools have a letter of their own name that no other pool has."""
    seen = view(Layout(), pools={"share": "0", "ss": "1", "sab": "2", "aaa": "3"})
    letters = {holder.name: holder.letter for holder in legend(seen.cpus, known=True).holders}
    assert letters["share"] == "s"
    assert letters["aaa"] == "a"
    assert letters["sab"] == "b"
    assert len(set(letters.values())) == 4


def test_names_are_not_markup() -> None:
    """What looks like markup or a terminal's control sequence in a name is only text."""
    lines = _drawn(view(Layout(cores_per_socket=1), pods={"ns/[red]\x1b[31m": "0"}))
    assert "ns/[red]\ufffd[31m" in lines[-1]
