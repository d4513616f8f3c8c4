"""Random machines, settings and requests."""

from __future__ import annotations

from typing import TypedDict

from hypothesis import strategies as st

from qrm.allocator import CpuEnhancement, QosLevel, ResourceRequest
from qrm.allocator.testing import machine, request
from qrm.topology.machine import Machine


class Shape(TypedDict):
    """The arguments of `qrm.allocator.testing.machine`."""

    sockets: int
    nodes_per_socket: int
    l3_per_node: int
    cores_per_l3: list[int]
    threads: int
    memory_only: int
    cpu_stride: int
    node_stride: int
    offline: set[int]
    isolated: set[int]


@st.composite
def shapes(draw: st.DrawFn) -> Shape:
    """From one CPU to a few dozen: uneven nodes, several L3 domains, SMT or not, offline, isolated and sparse ids."""
    sockets = draw(st.integers(1, 2))
    nodes_per_socket = draw(st.integers(1, 2))
    l3_per_node = draw(st.integers(1, 2))
    cores_per_l3 = draw(st.lists(st.integers(1, 4), min_size=1, max_size=4))
    threads = draw(st.sampled_from((1, 2, 2, 4)))
    stride = draw(st.sampled_from((1, 1, 1, 3, 64)))
    domains = sockets * nodes_per_socket * l3_per_node
    cores = sum(cores_per_l3[domain % len(cores_per_l3)] for domain in range(domains))
    ids = [stride * number for number in range(cores * threads)]
    offline = draw(st.sets(st.sampled_from(ids), max_size=min(3, len(ids) - 1)))
    online = [cpu for cpu in ids if cpu not in offline]
    isolated = draw(st.sets(st.sampled_from(online), max_size=min(2, len(online) - 1)))
    return Shape(
        sockets=sockets,
        nodes_per_socket=nodes_per_socket,
        l3_per_node=l3_per_node,
        cores_per_l3=cores_per_l3,
        threads=threads,
        memory_only=draw(st.integers(0, 1)),
        cpu_stride=stride,
        node_stride=draw(st.sampled_from((1, 1, 4))),
        offline=offline,
        isolated=isolated,
    )


def machines() -> st.SearchStrategy[Machine]:
    """Machines of these shapes."""
    return shapes().map(lambda shape: machine(**shape))


def settings() -> st.SearchStrategy[dict[str, object]]:
    """Settings that can be had."""
    return st.fixed_dictionaries(
        {
            "reserved": st.one_of(st.integers(0, 3), st.sampled_from(("", "0", "0,1", "0-4096"))),
            "reclaim_overlap": st.booleans(),
            "reclaim_min": st.integers(1, 4),
        }
    )


@st.composite
def requests(draw: st.DrawFn, pod: str, container: str, node: Machine) -> ResourceRequest:
    """Any ask that the annotations allow."""
    level = draw(st.sampled_from((*QosLevel, QosLevel.DEDICATED, QosLevel.DEDICATED)))
    binding = level is not QosLevel.SYSTEM and draw(st.booleans())
    whole = draw(st.integers(0, 6)) * 1000
    millis = draw(st.sampled_from((whole, whole, draw(st.integers(0, 4000)))))
    pod_millis = draw(st.sampled_from((0, millis, millis + 500, millis * 2)))
    if level is not QosLevel.DEDICATED:
        pool = draw(st.sampled_from((None, None, "batch", "a", "z"))) if level is not QosLevel.RECLAIMED else None
        numa_share = not binding or level is not QosLevel.SHARED or draw(st.booleans())
        cpu = CpuEnhancement(cpuset_pool=pool, numa_share=numa_share)
        return request(pod, millis, level, container=container, pod_millis=pod_millis, numa_binding=binding, cpu=cpu)
    exclusive = binding and draw(st.booleans())
    nodes = list(node.cpu_nodes)
    ids = draw(st.none() | st.sets(st.sampled_from(nodes), min_size=1)) if binding else None
    cpu = CpuEnhancement(
        align_by_socket=binding and draw(st.booleans()),
        distribute_evenly_across_numa=binding and not exclusive and draw(st.booleans()),
        full_pcpus_pairing=not exclusive and draw(st.booleans()),
    )
    return request(
        pod,
        millis,
        level,
        container=container,
        pod_millis=pod_millis,
        numa_binding=binding,
        numa_exclusive=exclusive,
        numa_ids=None if ids is None else ",".join(map(str, sorted(ids))),
        numa_number=draw(st.none() | st.integers(1, len(nodes))) if binding and ids is None else None,
        by_default=draw(st.sampled_from((False, False, True))),
        cpu=cpu,
    )
