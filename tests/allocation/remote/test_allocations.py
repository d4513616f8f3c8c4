"""Allocations on the wire and back, and what of a plugin's answer cannot be used."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qrm.allocation.remote.allocations import from_wire_allocation, to_wire_allocation
from qrm.allocation.remote.errors import PluginError
from qrm.allocator import QosLevel, ResourceRequest, TopologyHint
from qrm.allocator.testing import machine, request
from qrm.cpuset import CPUSet, NodeSet
from qrm.wire import resource_plugin_pb2 as wire
from tests.allocation.remote.strategies import allocations

NODE = machine(sockets=2, cores_per_l3=4, threads=2, node_stride=4, memory_only=1)
NIC = "resource.katalyst.kubewharf.io/net_bandwidth"


@given(st.data(), st.sampled_from(("cpu", "memory", NIC)), st.booleans())
def test_an_allocation_comes_back_as_it_went(data: st.DataObject, resource: str, preferred: bool) -> None:
    allocation = data.draw(allocations(resource, NODE))
    hint = TopologyHint(allocation.nodes, preferred)
    sent = to_wire_allocation(resource, allocation, hint).SerializeToString()
    found = from_wire_allocation(resource, wire.ResourceAllocationInfo.FromString(sent), NODE)
    assert found is not None
    assert (found.resource, found.allocation, found.hints) == (resource, allocation, (hint,))
    assert (found.envs, found.annotations) == (allocation.envs, allocation.annotations)


def info(name: str, result: str, **more: object) -> wire.ResourceAllocationInfo:
    return wire.ResourceAllocationInfo(
        oci_property_name=name,
        allocation_result=result,
        **more,  # type: ignore[arg-type]
    )


@pytest.mark.parametrize(
    ("level", "pool", "exclusive"),
    [
        (QosLevel.DEDICATED, "dedicated", "0-1,8"),
        (QosLevel.SHARED, "share", ""),
        (QosLevel.RECLAIMED, "reclaim", ""),
        (QosLevel.SYSTEM, "system", ""),
    ],
)
def test_cpus_of_katalyst(level: QosLevel, pool: str, exclusive: str) -> None:
    found = from_wire_allocation(
        "cpu", info("CpusetCpus", "0-1,8", allocated_quantity=3.0), NODE, request("p", 3000, level)
    )
    assert found is not None
    assert (found.oci, found.quantity) == ({"cpuset_cpus": "0-1,8"}, 3000)
    assert (found.allocation.cpus, found.allocation.nodes) == (CPUSet((0, 1, 8)), NodeSet((0,)))
    assert (found.allocation.pool, str(found.allocation.exclusive)) == (pool, exclusive)


def test_memory_of_katalyst() -> None:
    found = from_wire_allocation("memory", info("CpusetMems", "4", allocated_quantity=4096.0), NODE)
    assert found is not None
    assert found.oci == {"cpuset_mems": "4"}
    assert (found.allocation.nodes, found.allocation.amounts) == (NodeSet((4,)), {"memory": {4: 4096}})


def test_an_accompanying_limit() -> None:
    found = from_wire_allocation("memory_limit_in_bytes", info("MemoryLimitInBytes", "-1"), NODE)
    assert found is not None
    assert found.oci == {"memory_limit_in_bytes": -1}


def test_a_nic_of_katalyst() -> None:
    message = info("", "", annotations={"nic": "eth1"}, envs={"NIC": "eth1"}, topology_assignments={4: 100})
    found = from_wire_allocation(NIC, message, NODE)
    assert found is not None
    assert (found.oci, found.annotations, found.envs) == ({}, {"nic": "eth1"}, {"NIC": "eth1"})
    assert (found.allocation.nodes, found.allocation.amounts) == (NodeSet((4,)), {NIC: {4: 100}})


@pytest.mark.parametrize("resource", ["cpu", "memory"])
def test_a_container_that_is_left_alone(resource: str) -> None:
    assert from_wire_allocation(resource, info("", "", is_scalar_resource=True), NODE) is None


HELD = "qrm.io/held"


@pytest.mark.parametrize(
    ("message", "said"),
    [
        (info("CpusetCpus", ""), "CpusetCpus is empty"),
        (info("CpusetMems", " "), "CpusetMems is empty"),
        (info("CpusetCpus", "0-"), "'0-' is not a list of ids"),
        (info("CpusetCpus", "0-99999999999"), "is not a list of ids"),
        (info("CpusetCpus", "0,16-17"), "CPUs 16-17 are not online (online: 0-15)"),
        (info("CpusetMems", "1"), "NUMA nodes [1] do not exist here (there are 0,4,8)"),
        (info("Unified", "{}"), "no OCI property 'Unified' (there are CpuPeriod, CpuQuota, CpuShares, CpusetCpus"),
        (info("cpuset_cpus", "0"), "no OCI property 'cpuset_cpus'"),
        (info("CpuShares", "1_0"), "CpuShares is '1_0', which is no 64-bit number"),
        (info("CpuShares", "9223372036854775808"), "no 64-bit number"),
        (info("CpuShares", ""), "CpuShares is ''"),
        (info("CpusetCpus", "0", allocated_quantity=float("nan")), "nan is not an amount"),
        (info("CpusetCpus", "0", topology_assignments={3: 1}), "NUMA nodes [3]"),
        (info("CpusetCpus", "0", mounts=[wire.Mount(host_path="/")]), "mounts or devices"),
        (info("CpusetCpus", "0", annotations={HELD: '{"v":1,"exclusive":"1"}'}), "CPUs 1 are exclusive"),
        (info("CpusetCpus", "0", annotations={HELD: '{"v":1,"nodes":"1"}'}), "NUMA nodes [1]"),
        (info("CpusetCpus", "0", annotations={HELD: '{"v":1,"amounts":{"cpu":{"2":1}}}'}), "NUMA nodes [2]"),
        (info("CpusetCpus", "0", annotations={HELD: "{}"}), "annotation qrm.io/held cannot be read"),
        (
            info("CpusetCpus", "0", annotations={HELD: '{"v":1,"x":' + "[" * 3000}),
            "annotation qrm.io/held cannot be read",
        ),
    ],
)
def test_what_cannot_be_used(message: wire.ResourceAllocationInfo, said: str) -> None:
    asked: ResourceRequest = request("p", 1000)
    with pytest.raises(PluginError) as caught:
        from_wire_allocation("cpu", message, NODE, asked)
    assert said in str(caught.value)
