"""Any machine that a Layout can describe is read as what it is."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from qrm.cpuset import CPUSet, NodeSet
from qrm.topology.generate import Layout
from qrm.topology.machine import Disk, Nic
from tests.topology.machines import check_invariants, machine_of, read_layout


@st.composite
def layouts(draw: st.DrawFn) -> Layout:
    """Machines of 1 to 24 CPUs, at least one of them online, with everything else odd."""
    sockets, cores, threads = draw(st.sampled_from([(1, 1, 1), (1, 5, 2), (2, 3, 2), (1, 8, 1), (3, 2, 4), (2, 6, 2)]))
    shape = Layout(
        sockets=sockets,
        dies_per_socket=draw(st.integers(1, 2)),
        nodes_per_socket=draw(st.integers(1, 3)),
        l3_per_socket=draw(st.integers(1, 4)),
        cores_per_socket=cores,
        threads=threads,
        cpu_stride=draw(st.sampled_from([1, 2, 211])),
        node_stride=draw(st.sampled_from([1, 3])),
        memory_only_nodes=draw(st.integers(0, 2)),
        numa=draw(st.booleans()),
        caches=draw(st.booleans()),
        ids=draw(st.booleans()),
        virtio=draw(st.booleans()),
    )
    cpus = st.sets(st.sampled_from(list(shape.cpus))).map(CPUSet)
    node = st.sampled_from([None, *shape.nodes]) if shape.numa else st.none()
    nic = st.builds(Nic, st.sampled_from(["a", "b", "c"]), st.sampled_from([None, 25_000]), node, st.booleans())
    disk_name = st.sampled_from(["nvme0n1", "nvme10n2", "sda", "vdb"])
    disk = st.builds(Disk, disk_name, st.just("8:16"), st.sampled_from([None, False, True]), node)
    return replace(
        shape,
        offline=draw(cpus.filter(lambda offline: offline != shape.cpus)),
        isolated=draw(cpus),
        memory=draw(st.integers(0, 1 << 40)) * 1024,
        hugepages=draw(st.dictionaries(st.sampled_from([1 << 21, 1 << 30]), st.integers(0, 70_000))),
        cpu_only_nodes=draw(st.sets(st.sampled_from(list(shape.nodes))).map(NodeSet)),
        nics=tuple(sorted(draw(st.lists(nic, unique_by=_name)), key=_name)),
        disks=tuple(sorted(draw(st.lists(disk, unique_by=_name)), key=_name)),
    )


def _name(device: Nic | Disk) -> str:
    return device.name


@settings(max_examples=200, deadline=None)
@given(layouts())
def test_round_trip(layout: Layout) -> None:
    """What is read equals what was laid out, and keeps every promise that a Machine makes."""
    machine = read_layout(layout)
    assert machine == machine_of(layout)
    check_invariants(machine)
