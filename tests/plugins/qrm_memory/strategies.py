"""Random machines, settings and requests."""

from __future__ import annotations

from hypothesis import strategies as st

from qrm.allocator import MEMORY, MemoryEnhancement, NativeQos, PodIdentity, Qos, QosLevel, ResourceRequest
from qrm.cpuset import CPUSet, NodeSet
from qrm.topology.generate import GIB, Layout
from qrm.topology.machine import Machine
from tests.plugins.qrm_memory.nodes import MIB
from tests.topology.machines import machine_of


@st.composite
def layouts(draw: st.DrawFn) -> Layout:
    """One to four NUMA nodes with CPUs, some without memory, some memory-only ones, sparse ids, or no sizes at all."""
    sockets, nodes = draw(st.integers(1, 2)), draw(st.integers(1, 2))
    stride, remote = draw(st.sampled_from((1, 1, 3))), draw(st.sampled_from((0, 0, 1, 2)))
    near = [stride * number for number in range(sockets * nodes)]
    without = draw(st.sets(st.sampled_from(near), max_size=len(near) - 1))
    return Layout(
        sockets=sockets,
        nodes_per_socket=nodes,
        l3_per_socket=nodes,
        cores_per_socket=2 * nodes,
        node_stride=stride,
        offline=CPUSet(draw(st.sets(st.integers(1, 2 * nodes * sockets - 1), max_size=1))),
        memory=draw(st.sampled_from((4, 8))) * GIB,
        hugepages=draw(st.sampled_from(({}, {}, {GIB: 2}, {GIB: 1, 2 * MIB: 512}))),
        memory_only_nodes=remote,
        cpu_only_nodes=NodeSet(without if draw(st.booleans()) else ()),
        numa=draw(st.sampled_from((True, True, True, True, False))),
    )


def machines() -> st.SearchStrategy[Machine]:
    """Machines of these layouts."""
    return layouts().map(machine_of)


def settings() -> st.SearchStrategy[dict[str, object]]:
    """Settings that can be had."""
    return st.sampled_from(({}, {}, {"reserved": "512Mi"}, {"reserved": {"0": "1Gi", "3": "100Gi", "77": 5}}))


@st.composite
def requests(draw: st.DrawFn, pod: str, container: str, node: Machine) -> ResourceRequest:
    """Any ask that the annotations allow, most of them for round numbers."""
    level = draw(st.sampled_from((*QosLevel, QosLevel.DEDICATED, QosLevel.SHARED)))
    binding = level is not QosLevel.SYSTEM and draw(st.booleans())
    dedicated = level is QosLevel.DEDICATED
    usable = [each.id for each in node.nodes.values() if each.cpus and each.memory]
    ids = draw(st.none() | st.sets(st.sampled_from(usable), min_size=1)) if binding and dedicated and usable else None
    number = draw(st.none() | st.integers(1, len(usable))) if binding and dedicated and usable and ids is None else None
    quantities = {}
    if draw(st.integers(0, 5)):
        quantities[MEMORY] = draw(st.integers(0, 12)) * GIB // 2 + draw(st.sampled_from((0, 0, 1, 4097)))
    if not draw(st.integers(0, 3)):
        quantities[draw(st.sampled_from(("hugepages-1Gi", "hugepages-2Mi")))] = draw(st.integers(1, 2)) * GIB
    qos = Qos(
        level=level,
        memory=MemoryEnhancement(numa_binding=binding, numa_exclusive=dedicated and binding and draw(st.booleans())),
        numa_ids=None if ids is None else NodeSet(ids),
        numa_number=number,
        memory_only_nodes=draw(st.sampled_from((False, False, True))),
    )
    return ResourceRequest(
        PodIdentity(pod, "test", pod),
        container,
        qos=qos,
        native_qos=draw(st.sampled_from(list(NativeQos))),
        cpu_millis=draw(st.sampled_from((0, 1000, 3000))),
        memory_limit=draw(st.sampled_from((0, GIB))),
        quantities=quantities,
    )
