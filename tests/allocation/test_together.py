"""CPU, memory, hugepages and NIC of one container: on one NUMA node, or the reason why not."""

from __future__ import annotations

from pathlib import Path

import pytest

from qrm.allocation.hints import Policy
from qrm.allocation.planner import Alignment, Plan, Planner
from qrm.allocation.registry import load_allocators
from qrm.allocator import (
    MEMORY,
    NET_EGRESS,
    ContainerKey,
    DoesNotFit,
    Holding,
    MemoryEnhancement,
    PodIdentity,
    Qos,
    QosLevel,
    ResourceRequest,
)
from qrm.cpuset import NodeSet
from qrm.topology.generate import GIB, Layout, write_sysfs
from qrm.topology.machine import Machine, Nic
from qrm.topology.sysfs import read_machine

TWO_SOCKETS = Layout(
    sockets=2,
    cores_per_socket=8,
    threads=2,
    memory=32 * GIB,
    hugepages={GIB: 4},
    nics=(Nic("eth0", 25000, 0, up=True), Nic("eth1", 25000, 1, up=True)),
)
HUGE = "hugepages-1Gi"


class Node:
    """A machine with what is held on it so far."""

    def __init__(self, machine: Machine, policy: Policy, *, whole_pod: bool = False) -> None:
        allocators = load_allocators({"cpu": {}, "memory": {}, "nic": {}})
        self.planner = Planner(machine, allocators, Alignment(policy, whole_pod=whole_pod))
        self.holdings: dict[str, dict[ContainerKey, Holding]] = {each.resource: {} for each in allocators}

    def place(self, request: ResourceRequest, home: NodeSet | None = None) -> Plan:
        plan = self.planner.plan(request, self.holdings, home=home)
        for key, changed in plan.allocations.items():
            for resource, allocation in changed.items():
                held = self.holdings[resource].get(key)
                whose = request if held is None or key.pod_uid == request.pod.uid else held.request
                self.holdings[resource][key] = Holding(whose, allocation)
        return plan


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Machine:
    root: Path = tmp_path_factory.mktemp("sys")
    write_sysfs(TWO_SOCKETS, root)
    return read_machine(root)


def asking(
    name: str, *, cpus: int = 4, memory: int = 8, huge: int = 1, net: int = 5000, node: int | None = None
) -> ResourceRequest:
    """A dedicated, NUMA-bound container: CPUs, GiB, GiB of 1 GiB pages, Mbit/s; on `node` where that is given."""
    quantities = {MEMORY: memory * GIB, HUGE: huge * GIB, NET_EGRESS: net}
    return ResourceRequest(
        PodIdentity(name, "ns", name),
        "main",
        qos=Qos(
            QosLevel.DEDICATED,
            memory=MemoryEnhancement(numa_binding=True),
            numa_ids=None if node is None else NodeSet([node]),
        ),
        cpu_millis=cpus * 1000,
        quantities={resource: amount for resource, amount in quantities.items() if amount},
    )


def nodes(plan: Plan) -> dict[str, str]:
    return {resource: str(allocation.nodes) for resource, allocation in plan.own.items()}


@pytest.mark.parametrize("policy", [each for each in Policy if each is not Policy.NONE])
def test_all_four_are_on_one_numa_node(machine: Machine, policy: Policy) -> None:
    """CPUs, memory, hugepages and NIC, with what each counts for there."""
    plan = Node(machine, policy).place(asking("db"))
    assert set(nodes(plan).values()) == {"0"}
    assert len(plan.own["cpu"].exclusive) == 4
    assert plan.own[MEMORY].amounts == {MEMORY: {0: 8 * GIB}, HUGE: {0: GIB}}
    assert plan.own[NET_EGRESS].device == "eth0"
    assert plan.own[NET_EGRESS].amounts[NET_EGRESS] == {0: 5000}


@pytest.mark.parametrize(
    "exhausting",
    [
        asking("cpu", cpus=13, memory=1, huge=0, net=0),
        asking("memory", cpus=1, memory=25, huge=0, net=0),
        asking("hugepages", cpus=1, memory=1, huge=4, net=0),
        asking("nic", cpus=1, memory=1, huge=0, net=20000),
    ],
    ids=lambda request: request.pod.name,
)
@pytest.mark.parametrize("policy", [Policy.BEST_EFFORT, Policy.RESTRICTED, Policy.SINGLE_NUMA_NODE, Policy.NUMERIC])
def test_with_one_resource_exhausted_it_moves_as_a_whole(
    machine: Machine, policy: Policy, exhausting: ResourceRequest
) -> None:
    """Whichever resource is short on a node, everything goes to the other one."""
    node = Node(machine, policy)
    first = nodes(node.place(exhausting))["cpu"]
    moved = nodes(node.place(asking("db")))
    assert set(moved.values()) == {"1" if first == "0" else "0"}


def split(policy: Policy, machine: Machine) -> Node:
    """A node with CPUs left on NUMA node 1 only, and bandwidth on NUMA node 0 only."""
    node = Node(machine, policy)
    node.place(asking("cpus", cpus=13, memory=1, huge=0, net=0, node=0))
    node.place(asking("net", cpus=1, memory=1, huge=0, net=20000, node=1))
    return node


def test_where_no_node_has_everything_the_refusal_names_each_resource_and_node(machine: Machine) -> None:
    """restricted: CPUs are left on one node, bandwidth on the other."""
    node = split(Policy.RESTRICTED, machine)
    before = {resource: dict(held) for resource, held in node.holdings.items()}
    with pytest.raises(DoesNotFit) as caught:
        node.place(asking("db"))
    assert node.holdings == before
    text = str(caught.value)
    assert "policy restricted: cpu fits on 1; memory fits on" in text
    assert f"{NET_EGRESS} fits on 0" in text


def test_best_effort_places_it_apart_all_the_same(machine: Machine) -> None:
    """The same situation: CPUs and memory stay together, the NIC is the other node's."""
    placed = nodes(split(Policy.BEST_EFFORT, machine).place(asking("db")))
    assert placed == {"cpu": "1", MEMORY: "1", NET_EGRESS: "0"}


def test_who_asks_for_one_resource_only_holds_only_that(machine: Machine) -> None:
    """A container without bandwidth has no NIC."""
    plan = Node(machine, Policy.RESTRICTED).place(asking("db", net=0))
    assert NET_EGRESS not in plan.own


def whole(name: str, container: str, *, memory: int, pod_memory: int) -> ResourceRequest:
    """One container of a floating dedicated pod of 4 CPUs in all, whose memory is told for the pod as well."""
    return ResourceRequest(
        PodIdentity(name, "ns", name),
        container,
        qos=Qos(QosLevel.DEDICATED),
        cpu_millis=2000,
        pod_cpu_millis=4000,
        quantities={MEMORY: memory * GIB},
        pod_quantities={MEMORY: pod_memory * GIB},
    )


@pytest.mark.parametrize("whole_pod", [False, True])
def test_with_the_scope_pod_all_containers_go_where_the_pod_fits(machine: Machine, whole_pod: bool) -> None:
    """Node 0 suits the first container, and the pod only node 1: there both fit, else the second one is refused."""
    node = Node(machine, Policy.RESTRICTED, whole_pod=whole_pod)
    node.place(asking("filler", cpus=1, memory=18, huge=0, net=0, node=0))
    first = node.place(whole("db", "a", memory=8, pod_memory=20))
    second = whole("db", "b", memory=12, pod_memory=20)
    if whole_pod:
        assert set(nodes(first).values()) == {"1"}
        assert set(nodes(node.place(second, home=first.nodes)).values()) == {"1"}
    else:
        assert set(nodes(first).values()) == {"0"}
        with pytest.raises(DoesNotFit, match="stays on NUMA node 0"):
            node.place(second, home=first.nodes)


def test_with_the_scope_pod_a_container_that_does_not_fit_beside_its_siblings_is_refused(machine: Machine) -> None:
    """What fits elsewhere only is told with where the pod is and where it would fit."""
    node = Node(machine, Policy.BEST_EFFORT, whole_pod=True)
    node.place(asking("filler", cpus=1, memory=18, huge=0, net=0, node=0))
    with pytest.raises(DoesNotFit, match=r"does not fit on NUMA nodes 0, where its pod is"):
        node.place(whole("db", "b", memory=24, pod_memory=24), home=NodeSet([0]))
