"""Requests as Katalyst's plugins expect them, and back."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qrm.allocation.remote.convert import (
    from_wire_amount,
    from_wire_hint,
    from_wire_request,
    to_wire_amount,
    to_wire_hint,
    to_wire_request,
)
from qrm.allocation.remote.errors import PluginError
from qrm.allocator import BadRequest, ContainerKind, NativeQos, QosLevel, ResourceRequest, TopologyHint
from qrm.allocator.testing import machine, request
from qrm.cpuset import NodeSet
from qrm.wire import resource_plugin_pb2 as wire
from tests.allocation.remote.strategies import requests

RESOURCES = ("cpu", "memory", "resource.katalyst.kubewharf.io/net_bandwidth", "hugepages-2Mi", "vendor.com/fpga")
KATALYST = "katalyst.kubewharf.io/"


@given(requests(), st.sampled_from(RESOURCES), st.booleans())
def test_a_request_comes_back_as_it_went(asked: ResourceRequest, resource: str, original: bool) -> None:
    sent = to_wire_request(asked, resource, original=original)
    there = wire.ResourceRequest.FromString(sent.SerializeToString())
    assert from_wire_request(there) == asked


def test_what_goes_out() -> None:
    asked = replace(
        request("p", 2500, QosLevel.DEDICATED, numa_binding=True, numa_ids="0-1"),
        kind=ContainerKind.SIDECAR,
        native_qos=NativeQos.BURSTABLE,
    )
    sent = to_wire_request(asked, "cpu", TopologyHint(NodeSet((1, 0)), preferred=True), index=2)
    assert (sent.pod_uid, sent.pod_namespace, sent.pod_name, sent.container_name) == ("p", "test", "p", "main")
    assert (sent.container_type, sent.container_index, sent.native_qos_class) == (wire.SIDECAR, 2, "Burstable")
    assert sent.resource_name == "cpu"
    assert dict(sent.resource_requests) == {"cpu": 2.5}
    assert list(sent.hint.nodes) == [0, 1]
    assert sent.hint.preferred
    assert dict(sent.labels) == {f"{KATALYST}qos_level": "dedicated_cores"}
    said = dict(sent.annotations)
    assert said[f"{KATALYST}qos_level"] == "dedicated_cores"
    assert json.loads(said[f"{KATALYST}memory_enhancement"]) == {"numa_binding": "true"}
    assert said["numa_binding"] == "true"
    assert said[f"{KATALYST}numa_ids"] == "0-1"
    assert "numa_exclusive" not in said


@pytest.mark.parametrize(
    ("resource", "original", "named"),
    [
        ("cpu", True, {"resource.katalyst.kubewharf.io/reclaimed_millicpu": 2500.0}),
        ("cpu", False, {"cpu": 2.5}),
        ("memory", True, {"resource.katalyst.kubewharf.io/reclaimed_memory": 4096.0}),
        ("memory", False, {"memory": 4096.0}),
        ("vendor.com/fpga", True, {"vendor.com/fpga": 2.0}),
    ],
)
def test_reclaimed_resources_have_their_own_name(resource: str, original: bool, named: dict[str, float]) -> None:
    asked = replace(
        request("p", 2500, QosLevel.RECLAIMED), quantities={"memory": 4096, "vendor.com/fpga": 2}, memory_limit=9
    )
    sent = to_wire_request(asked, resource, original=original)
    assert sent.resource_name == resource
    assert dict(sent.resource_requests) == named


@pytest.mark.parametrize(
    ("kind", "sent"),
    [
        (ContainerKind.INIT, wire.INIT),
        (ContainerKind.MAIN, wire.MAIN),
        (ContainerKind.UNKNOWN, wire.MAIN),
        (ContainerKind.EPHEMERAL, wire.EPHEMERAL),
    ],
)
def test_container_types(kind: ContainerKind, sent: int) -> None:
    assert to_wire_request(replace(request("p"), kind=kind), "cpu").container_type == sent


@pytest.mark.parametrize(
    ("native", "quantities", "sent"),
    [
        (NativeQos.GUARANTEED, {}, 8192.0),
        (NativeQos.BURSTABLE, {}, 0.0),
        (NativeQos.BURSTABLE, {"memory": 4096}, 4096.0),
    ],
)
def test_memory_counts_by_its_limit_only_where_both_are_equal(
    native: NativeQos, quantities: dict[str, int], sent: float
) -> None:
    asked = replace(request("p"), native_qos=native, quantities=quantities, memory_limit=8192)
    assert dict(to_wire_request(asked, "memory").resource_requests) == {"memory": sent}


def katalyst(**said: str) -> wire.ResourceRequest:
    """A request as Katalyst's kubelet sends it: with the annotations of the pod and nothing of ours."""
    message = wire.ResourceRequest(pod_uid="u", pod_name="p", container_name="c", resource_name="cpu")
    message.annotations.update({f"{KATALYST}{name}": text for name, text in said.items()})
    return message


def test_a_request_of_katalysts_kubelet() -> None:
    message = katalyst(qos_level="reclaimed_cores", cpu_enhancement='{"suppression_tolerance_rate": "1.2"}')
    message.resource_requests["resource.katalyst.kubewharf.io/reclaimed_millicpu"] = 2000
    found = from_wire_request(message)
    assert (found.cpu_millis, found.kind, found.native_qos) == (2000, ContainerKind.INIT, NativeQos.UNKNOWN)
    assert (found.qos.level, found.qos.cpu.suppression_tolerance_rate) == (QosLevel.RECLAIMED, 1.2)


def test_without_a_level_the_default_counts() -> None:
    found = from_wire_request(katalyst(), QosLevel.SYSTEM)
    assert (found.qos.level, found.qos.by_default) == (QosLevel.SYSTEM, True)


@pytest.mark.parametrize("quantity", [-1.0, float("nan"), float("inf"), 1e300])
def test_what_is_no_amount_is_refused(quantity: float) -> None:
    message = katalyst()
    message.resource_requests["cpu"] = quantity
    with pytest.raises(BadRequest, match="cpu"):
        from_wire_request(message)


@pytest.mark.parametrize(
    "message",
    [
        wire.ResourceRequest(pod_uid="u"),
        wire.ResourceRequest(container_name="c"),
        katalyst(qos_level="best"),
        *(
            wire.ResourceRequest(pod_uid="u", container_name="c", annotations={"qrm.io/request": text})
            for text in ("[]", '{"v":1,"quantities":{"hugepages-2Mi":-2097152}}', '{"v":1,"x":' + "[" * 3000)
        ),
    ],
)
def test_what_makes_no_sense_is_refused(message: wire.ResourceRequest) -> None:
    with pytest.raises(BadRequest):
        from_wire_request(message)


def test_what_the_protocol_says_counts_more_than_what_we_tell() -> None:
    sent = to_wire_request(replace(request("p", 1000), quantities={"memory": 7}), "memory")
    sent.resource_requests["memory"] = 9
    assert from_wire_request(sent).quantities == {"memory": 9}


@given(st.integers(0, 10**9))
def test_millicores_survive(millis: int) -> None:
    assert from_wire_amount("cpu", to_wire_amount("cpu", millis)) == millis


def test_fractions_are_rounded_up() -> None:
    assert from_wire_amount("memory", 1.5) == 2
    assert from_wire_amount("cpu", 0.0015) == 2


def test_hints() -> None:
    node = machine(sockets=2, node_stride=4)
    hint = TopologyHint(NodeSet((0, 4)), preferred=False)
    assert from_wire_hint(to_wire_hint(hint), node) == hint
    assert from_wire_hint(wire.TopologyHint(preferred=True), node) == TopologyHint(NodeSet((0, 4)), preferred=True)
    with pytest.raises(PluginError, match=r"\[1, 18446744073709551615\] do not exist here"):
        from_wire_hint(wire.TopologyHint(nodes=[2**64 - 1, 0, 1]), node)
