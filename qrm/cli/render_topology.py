"""The machine drawn: sockets as frames around NUMA nodes around L3 domains, and each core a column of its threads."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from qrm.cli.holders import Holder, Legend, legend
from qrm.cli.output import number, plain, size
from qrm.cli.tiles import FRAME, Block, flowing, framed, lines, per_line
from qrm.cpuset import NodeSet
from qrm.service import api

_NARROWEST = 40
"""Columns below which nothing sensible can be drawn."""
_DOMAIN_GAP = 3
"""Columns between two L3 domains."""
_ROOMY = 64
"""Up to this many CPUs, cells have a space on each side."""
_TEXT_WIDTH = 33
"""What is said about a NUMA node may make its frame this wide, not wider: so two fit into 80 columns."""

_SOCKET_STYLE, _NODE_STYLE, _QUIET = "bold", "cyan", "dim"


def topology(view: api.Topology, *, width: int, colours: bool, known: bool = True) -> RenderableType:
    """The drawing and its legend.

    Args:
        view: The machine.
        width: Columns of the terminal.
        colours: Tell holders apart by colours; by letters otherwise, or where there are more holders than colours.
        known: Whether `view` knows who holds the CPUs.
    """
    holders = legend(view.cpus, known=known)
    letters = not colours or holders.letters_needed
    digits = max((len(str(cpu.id)) for cpu in view.cpus), default=1)
    pad = 1 if len(view.cpus) <= _ROOMY and not letters else 0
    cells = _Cells(holders, digits, pad, letters, colours)
    drawing = _Drawing(view, cells)
    parts = [plain(_summary(view)), drawing.machine(max(width, _NARROWEST)).body]
    return Group(*parts, *_remarks(view), Text(), _key(holders, letters=letters, colours=colours))


@dataclass(frozen=True, slots=True)
class _Cells:
    """Draws one CPU as its id and its holder's letter, on its holder's colour; every cell is equally wide."""

    holders: Legend
    digits: int
    pad: int
    letters: bool
    colours: bool

    @property
    def letter_width(self) -> int:
        return max((len(holder.letter) for holder in self.holders.holders), default=1) if self.letters else 0

    @property
    def width(self) -> int:
        return self.digits + 2 * self.pad + self.letter_width

    def draw(self, cpu: api.CPUView | None) -> Text:
        """The cell; one that is blank where a core has no such thread."""
        if cpu is None:
            return Text(" " * self.width)
        holder = self.holders.of[cpu.id]
        letter = f"{holder.letter:<{self.letter_width}}" if self.letters else ""
        space = " " * self.pad
        return Text(f"{space}{cpu.id:>{self.digits}}{letter}{space}", holder.style if self.colours else "")


@dataclass(frozen=True, slots=True)
class _Drawing:
    """Puts the blocks of a machine together, from the outside to the inside."""

    view: api.Topology
    cells: _Cells

    def machine(self, width: int) -> Block:
        sockets = _grouped(self.view.cpus, lambda cpu: cpu.socket)
        drawn = [(f"socket {socket}", self._socket(cpus, width - FRAME)) for socket, cpus in sockets.items()]
        bare = [
            (f"{_title(node)}, no CPUs", lines(self._said(node, _TEXT_WIDTH)))
            for node in self.view.nodes
            if not node.cpus
        ]
        parts = [framed(drawn, width, style=_SOCKET_STYLE)]
        if bare:
            parts.append(framed(bare, width, style=_NODE_STYLE))
        return Block(Group(*(part.body for part in parts)), width, sum(part.height for part in parts))

    def _socket(self, cpus: Sequence[api.CPUView], width: int) -> Block:
        known = {node.id: node for node in self.view.nodes}
        nodes = [(known[node], members) for node, members in _grouped(cpus, lambda cpu: cpu.node).items()]
        drawn = [(_title(node), self._node(node, members, width - FRAME)) for node, members in nodes]
        return framed(drawn, width, style=_NODE_STYLE)

    def _node(self, node: api.NodeView, cpus: Sequence[api.CPUView], width: int) -> Block:
        domains = _grouped(cpus, lambda cpu: cpu.l3)
        drawn = flowing(
            [self._domain(domain, members, width) for domain, members in domains.items()], width, gap=_DOMAIN_GAP
        )
        said = lines(self._said(node, min(width, max(drawn.width, _TEXT_WIDTH))))
        return Block(Group(drawn.body, said.body), max(drawn.width, said.width), drawn.height + said.height)

    def _domain(self, domain: int, cpus: Sequence[api.CPUView], width: int) -> Block:
        """The L3 domain's name above its cores; each core is a column of its threads."""
        cores = list(_grouped(cpus, lambda cpu: cpu.core).values())
        threads = max(map(len, cores))
        beside = per_line(len(cores), self.cells.width, width, 1)
        rows = []
        for start in range(0, len(cores), beside):
            if start and threads > 1:
                rows.append(Text())
            row = cores[start : start + beside]
            for thread in range(threads):
                line = [self.cells.draw(core[thread] if thread < len(core) else None) for core in row]
                rows.append(Text(" ").join(line))
        widest = max(row.cell_len for row in rows)
        name = f"L3 {domain} "
        rule = Text(name + "─" * (widest - len(name)), _QUIET)
        return lines([rule, *rows])

    def _said(self, node: api.NodeView, width: int) -> list[Text]:
        """What is attached to a NUMA node, in lines of at most `width` columns."""
        said = [*_hugepages(node), *_distances(node), *_devices(self.view.devices, node.id)]
        return [plain(line, _QUIET) for text in said for line in textwrap.wrap(text, width, subsequent_indent="  ")]


def _grouped(cpus: Sequence[api.CPUView], key: Callable[[api.CPUView], int]) -> dict[int, list[api.CPUView]]:
    groups: dict[int, list[api.CPUView]] = {}
    for cpu in cpus:
        groups.setdefault(key(cpu), []).append(cpu)
    return dict(sorted(groups.items()))


def _summary(view: api.Topology) -> str:
    counts = {
        "socket": len({cpu.socket for cpu in view.cpus}),
        "NUMA node": len(view.nodes),
        "L3 domain": len({cpu.l3 for cpu in view.cpus}),
        "core": len({cpu.core for cpu in view.cpus}),
        "CPU": len(view.cpus),
    }
    return ", ".join(number(count, noun) for noun, count in counts.items())


def _title(node: api.NodeView) -> str:
    return f"NUMA {node.id}, {size(node.memory) if node.memory else 'no memory'}"


def _hugepages(node: api.NodeView) -> list[str]:
    pages = [f"{count} x {size(int(page))}" for page, count in node.hugepages.items() if count]
    return [f"hugepages {', '.join(pages)}"] if pages else []


def _distances(node: api.NodeView) -> list[str]:
    """The other nodes by their distance: "distance 12 to 1, 21 to 2-3"."""
    by_distance: dict[int, list[int]] = {}
    for other, distance in node.distances.items():
        if int(other) != node.id:
            by_distance.setdefault(distance, []).append(int(other))
    near = [f"{distance} to {NodeSet(others)}" for distance, others in sorted(by_distance.items())]
    return [f"distance {', '.join(near)}"] if near else []


def _devices(devices: Sequence[api.DeviceView], node: int | None) -> list[str]:
    """One text for each kind of device."""
    texts = []
    for kind in ("nic", "disk"):
        found = [f"{device.name} ({device.detail})" for device in devices if (device.kind, device.node) == (kind, node)]
        if found:
            texts.append(f"{kind} {', '.join(found)}" if len(found) == 1 else f"{kind}s {', '.join(found)}")
    return texts


def _remarks(view: api.Topology) -> list[Text]:
    remarks = [f"offline CPUs {view.offline}"] if view.offline else []
    remarks += [f"on no known NUMA node: {text}" for text in _devices(view.devices, None)]
    return [plain(remark) for remark in remarks]


def _key(holders: Legend, *, letters: bool, colours: bool) -> Table:
    """The legend: colour or letter, name, kind, number of CPUs, and which."""
    made = Table.grid(padding=(0, 2, 0, 0), pad_edge=False)
    for justify in ("left", "left", "left", "right", "left"):
        made.add_column(justify=justify, overflow="fold")
    for holder in holders.holders:
        made.add_row(
            _swatch(holder, letters=letters, colours=colours),
            plain(holder.name),
            plain(holder.kind, _QUIET),
            plain(number(len(holder.cpus), "CPU")),
            plain(holder.cpus, _QUIET),
        )
    return made


def _swatch(holder: Holder, *, letters: bool, colours: bool) -> Text:
    if not colours:
        return Text(holder.letter)
    return Text(f" {holder.letter} " if letters else "    ", holder.style)
