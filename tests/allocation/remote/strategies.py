"""Random requests of any kind, for any resource."""

from __future__ import annotations

from hypothesis import strategies as st

from qrm.allocator import (
    MEMORY,
    NET_EGRESS,
    Allocation,
    ContainerKind,
    CpuEnhancement,
    MemoryEnhancement,
    NativeQos,
    NetworkEnhancement,
    PodIdentity,
    Qos,
    QosLevel,
    ResourceRequest,
)
from qrm.cpuset import CPUSet, NodeSet
from qrm.pods.values import MAX_NODES
from qrm.topology.machine import Machine

AMOUNTS = st.integers(0, 2**63 - 1)
NAMES = st.text(st.characters(codec="utf-8"), min_size=1, max_size=20)
MILLIS = st.integers(0, 10**7)
TEXTS = st.dictionaries(NAMES, NAMES, max_size=3)
DECIMALS = st.integers(1, 10**9).map(lambda thousandths: thousandths / 1000)


@st.composite
def qos(draw: st.DrawFn) -> Qos:
    """What any pod's annotations can say."""
    level = draw(st.sampled_from(QosLevel))
    binding = level is not QosLevel.SYSTEM and draw(st.booleans())
    dedicated, shared = level is QosLevel.DEDICATED, level is QosLevel.SHARED
    exclusive = dedicated and binding and draw(st.booleans())
    bursts = dedicated or shared
    reclaimed = level is QosLevel.RECLAIMED
    cpu = CpuEnhancement(
        cpuset_pool=draw(st.none() | st.just("batch")) if shared or level is QosLevel.SYSTEM else None,
        numa_share=not (shared and binding) or draw(st.booleans()),
        suppression_tolerance_rate=draw(st.none() | DECIMALS) if reclaimed else None,
        cpu_burst_policy=draw(st.none() | st.just("static")) if bursts else None,
        cpu_burst_percent=draw(st.none() | st.integers(0, 100)) if bursts else None,
        cpu_burst_threshold=draw(st.none() | DECIMALS) if bursts else None,
        align_by_socket=dedicated and binding and draw(st.booleans()),
        distribute_evenly_across_numa=dedicated and binding and not exclusive and draw(st.booleans()),
        full_pcpus_pairing=dedicated and not exclusive and draw(st.booleans()),
    )
    memory = MemoryEnhancement(
        numa_binding=binding,
        numa_exclusive=exclusive,
        rss_overuse_threshold=draw(st.none() | DECIMALS),
        oom_priority=draw(st.none() | st.sampled_from((-300, 300))),
    )
    network = NetworkEnhancement(draw(st.none() | st.just("host_ns")), draw(st.booleans()))
    nodes = st.sets(st.integers(0, MAX_NODES - 1), min_size=1).map(NodeSet)
    return Qos(
        level=level,
        cpu=cpu,
        memory=memory,
        network=network,
        numa_number=draw(st.none() | st.integers(1, MAX_NODES)) if dedicated and binding else None,
        numa_ids=draw(st.none() | nodes) if dedicated and binding else None,
        by_default=draw(st.booleans()),
        memory_only_nodes=draw(st.booleans()),
    )


def requests() -> st.SearchStrategy[ResourceRequest]:
    """Any request; of a kind that the protocol knows."""
    resources = st.sampled_from((MEMORY, NET_EGRESS, "hugepages-2Mi", "vendor.com/fpga"))
    return st.builds(
        ResourceRequest,
        pod=st.builds(PodIdentity, NAMES, NAMES, NAMES),
        container=NAMES,
        qos=qos(),
        kind=st.sampled_from([kind for kind in ContainerKind if kind is not ContainerKind.UNKNOWN]),
        native_qos=st.sampled_from(NativeQos),
        cpu_millis=MILLIS,
        cpu_limit_millis=st.none() | MILLIS,
        memory_limit=AMOUNTS,
        pod_cpu_millis=MILLIS,
        quantities=st.dictionaries(resources, st.integers(1, 2**63 - 1)),
        source=st.sampled_from(("cri", "kubelet", "annotation")),
    )


@st.composite
def allocations(draw: st.DrawFn, resource: str, node: Machine) -> Allocation:
    """Anything that an allocator of `resource` may give on `node`."""
    cpus = CPUSet(draw(st.sets(st.sampled_from(list(node.online)), min_size=1))) if resource == "cpu" else CPUSet()
    nodes = NodeSet(draw(st.sets(st.sampled_from(list(node.nodes)), min_size=1)))
    by_node = st.dictionaries(st.sampled_from(list(node.nodes)), st.integers(0, 2**53))
    return Allocation(
        pool=draw(NAMES),
        cpus=cpus,
        exclusive=CPUSet(draw(st.sets(st.sampled_from(list(cpus))))) if cpus else cpus,
        nodes=node.nodes_of(cpus) if cpus else nodes,
        why=draw(NAMES),
        amounts=draw(st.dictionaries(st.sampled_from((resource, "hugepages-2Mi")), by_node)),
        device=draw(st.sampled_from(("", "eth0"))),
        envs=draw(TEXTS),
        annotations=draw(TEXTS),
    )
