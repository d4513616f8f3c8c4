"""Our own allocators keep the contract under random scripts of pod events, in the harness that is there for all."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import qrm_cpu
import qrm_memory
import qrm_nic
from hypothesis import given, settings
from hypothesis import strategies as st

from qrm.allocator import MEMORY, NET_EGRESS, Allocator, DoesNotFit, QosLevel, ResourceRequest
from qrm.allocator.testing import Harness, request
from qrm.topology.generate import GIB, Layout
from qrm.topology.machine import Machine, Nic
from tests.topology.machines import machine_of

NICS = (Nic("eth0", 10000, 0, up=True), Nic("eth1", 10000, 1, up=True), Nic("eth2", 1000, None, up=True))
TWO_NODES = Layout(sockets=2, cores_per_socket=4, threads=2, memory=8 * GIB, hugepages={GIB: 2}, nics=NICS)
ODD = Layout(
    nodes_per_socket=2,
    l3_per_socket=2,
    cores_per_socket=5,
    memory_only_nodes=1,
    node_stride=3,
    memory=4 * GIB,
    nics=NICS,
)
OURS: dict[str, Callable[[dict[str, Any]], Allocator]] = {
    "cpu": qrm_cpu.create,
    "memory": qrm_memory.create,
    "nic": qrm_nic.create,
}


@st.composite
def asked(draw: st.DrawFn, pod: str) -> ResourceRequest:
    """Any container that asks for some of everything."""
    level = draw(st.sampled_from(QosLevel))
    bound = level in (QosLevel.DEDICATED, QosLevel.SHARED) and draw(st.booleans())
    made = request(
        pod,
        draw(st.sampled_from([0, 500, 1000, 2000, 3000])),
        level,
        container=draw(st.sampled_from(["a", "b"])),
        numa_binding=bound,
        numa_exclusive=level is QosLevel.DEDICATED and bound and draw(st.booleans()),
    )
    amounts = {
        MEMORY: draw(st.integers(1, 3)) * GIB,
        "hugepages-1Gi": draw(st.integers(0, 1)) * GIB,
        NET_EGRESS: draw(st.sampled_from([1, 500, 4000])),
    }
    return replace(made, quantities={name: amount for name, amount in amounts.items() if amount})


@pytest.mark.parametrize("machine", [machine_of(TWO_NODES), machine_of(ODD)], ids=["two nodes", "odd"])
@pytest.mark.parametrize("name", OURS)
@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_the_contract_holds_whatever_happens(name: str, machine: Machine, data: st.DataObject) -> None:
    """After each event the harness finds nothing broken, and a node without pods is as free as at the start."""
    harness = Harness(OURS[name]({}), machine)
    empty = harness.quantities()
    first: dict[str, ResourceRequest] = {}
    for _ in range(data.draw(st.integers(0, 10))):
        pod = data.draw(st.sampled_from(["p0", "p1", "p2", "p3"]))
        held = [key.container for key in harness.holdings if key.pod_uid == pod and key.container]
        event = data.draw(st.sampled_from(["create", "restart", "exit", "remove"])) if held else "create"
        if event == "create":
            wanted = data.draw(asked(pod))
            # All containers of a pod have its annotations in common.
            wanted = replace(wanted, qos=first.setdefault(pod, wanted).qos)
            try:
                harness.create(wanted, choice=data.draw(st.integers(0, 5)))
            except DoesNotFit:
                continue
        elif event == "remove":
            harness.remove(pod)
            first.pop(pod)
        else:
            getattr(harness, event)(pod, data.draw(st.sampled_from(held)))
    for pod in {key.pod_uid for key in harness.holdings}:
        harness.remove(pod)
    assert harness.quantities() == empty
