"""The messages are, byte for byte, those of kubewharf/kubelet and of kubelet's plugin watcher."""

from __future__ import annotations

import struct

import pytest
from google.protobuf.message import Message

from qrm.wire import plugin_registration_pb2 as registration
from qrm.wire import resource_plugin_pb2 as wire

STRINGS = "map<string,string>"
ABOUT = "pod_uid pod_namespace pod_name container_name container_type:ContainerType container_index:uint64 pod_role"
ABOUT_POD = "pod_uid pod_namespace pod_name pod_role pod_type resource_name"
LABELLED = f"labels:{STRINGS} annotations:{STRINGS}"
FIELDS = {
    "Empty": "",
    "ResourcePluginOptions": "pre_start_required:bool with_topology_alignment:bool need_reconcile:bool "
    "associated_devices:[string] extra_resources:[string]",
    "RegisterRequest": "version endpoint resource_name options:ResourcePluginOptions",
    "ResourceRequest": f"{ABOUT} pod_type resource_name hint:TopologyHint resource_requests:map<string,double> "
    f"{LABELLED} native_qos_class runtime_class",
    "ResourceHintsResponse": f"{ABOUT} pod_type resource_name resource_hints:map<string,ListOfTopologyHints> "
    f"{LABELLED} native_qos_class",
    "ResourceAllocationResponse": f"{ABOUT} pod_type resource_name allocation_result:ResourceAllocation "
    f"{LABELLED} native_qos_class",
    "PodResourceRequest": f"{ABOUT_POD} hint:TopologyHint resource_requests:map<string,double> {LABELLED}",
    "PodResourceHintsResponse": f"{ABOUT_POD} resource_hints:map<string,ListOfTopologyHints> {LABELLED}",
    "PodResourceAllocationResponse": f"{ABOUT_POD} allocation_result:ResourceAllocation {LABELLED}",
    "ListOfTopologyHints": "hints:[TopologyHint]",
    "TopologyHint": "nodes:[uint64] preferred:bool",
    "RemovePodRequest": "pod_uid",
    "RemovePodResponse": "",
    "GetResourcesAllocationRequest": "",
    "GetResourcesAllocationResponse": "pod_resources:map<string,ContainerResources>",
    "ContainerResources": "container_resources:map<string,ResourceAllocation>",
    "ResourceAllocation": "resource_allocation:map<string,ResourceAllocationInfo>",
    "ResourceAllocationInfo": "oci_property_name is_node_resource:bool is_scalar_resource:bool "
    f"allocated_quantity:double allocation_result envs:{STRINGS} annotations:{STRINGS} "
    "resource_hints:ListOfTopologyHints topology_assignments:map<uint64,uint64> mounts:[Mount] devices:[DeviceSpec]",
    "Mount": "container_path host_path read_only:bool",
    "DeviceSpec": "container_path host_path permissions",
    "GetTopologyAwareResourcesRequest": "pod_uid container_name",
    "GetTopologyAwareResourcesResponse": "pod_uid pod_name pod_namespace "
    "container_topology_aware_resources:ContainerTopologyAwareResources",
    "ContainerTopologyAwareResources": "container_name allocated_resources:map<string,TopologyAwareResource>",
    "TopologyAwareResource": "is_node_resource:bool is_scalar_resource:bool aggregated_quantity:double "
    "original_aggregated_quantity:double topology_aware_quantity_list:[TopologyAwareQuantity] "
    "original_topology_aware_quantity_list:[TopologyAwareQuantity]",
    "TopologyAwareQuantity": f"resource_value:double node:uint64 name type topology_level:TopologyLevel "
    f"annotations:{STRINGS}",
    "GetTopologyAwareAllocatableResourcesRequest": "",
    "GetTopologyAwareAllocatableResourcesResponse": "allocatable_resources:"
    "map<string,AllocatableTopologyAwareResource>",
    "AllocatableTopologyAwareResource": "is_node_resource:bool is_scalar_resource:bool "
    "aggregated_allocatable_quantity:double topology_aware_allocatable_quantity_list:[TopologyAwareQuantity] "
    "aggregated_capacity_quantity:double topology_aware_capacity_quantity_list:[TopologyAwareQuantity]",
    "PreStartContainerRequest": "pod_uid pod_namespace pod_name container_name",
    "PreStartContainerResponse": "",
}
"""By message: its fields, numbered from 1; strings have no type here, repeated fields brackets."""
REGISTRATION_FIELDS = {
    "InfoRequest": "",
    "PluginInfo": "type name endpoint supported_versions:[string]",
    "RegistrationStatus": "plugin_registered:bool error",
    "RegistrationStatusResponse": "",
}
SCALARS = {1: "double", 4: "uint64", 8: "bool", 9: "string"}


def kind(field: object) -> str:
    message, enum = getattr(field, "message_type", None), getattr(field, "enum_type", None)
    if message is not None and message.GetOptions().map_entry:
        return f"map<{kind(message.fields[0])},{kind(message.fields[1])}>"
    base = message.name if message is not None else enum.name if enum is not None else SCALARS[field.type]  # type: ignore[attr-defined]
    return f"[{base}]" if getattr(field, "is_repeated", False) else str(base)


@pytest.mark.parametrize(
    ("module", "package", "fields"),
    [(wire, "resourceplugin.v1alpha1", FIELDS), (registration, "pluginregistration", REGISTRATION_FIELDS)],
)
def test_every_field_has_its_number_and_type(module: object, package: str, fields: dict[str, str]) -> None:
    descriptor = module.DESCRIPTOR  # type: ignore[attr-defined]
    assert descriptor.package == package
    assert set(descriptor.message_types_by_name) == set(fields)
    for name, words in fields.items():
        wanted = [tuple((word if ":" in word else f"{word}:string").split(":")) for word in words.split()]
        found = descriptor.message_types_by_name[name].fields
        assert [(each.number, each.name, kind(each)) for each in found] == [
            (number, *each) for number, each in enumerate(wanted, 1)
        ], name


def test_enums_have_their_values() -> None:
    assert dict(wire.ContainerType.items()) == {"INIT": 0, "MAIN": 1, "SIDECAR": 2, "EPHEMERAL": 3}
    assert dict(wire.TopologyLevel.items()) == {"NUMA": 0, "SOCKET": 1}


def text(number: int, value: str | bytes) -> bytes:
    """A field of text, or of a message, shorter than 128 bytes."""
    raw = value.encode() if isinstance(value, str) else value
    return bytes([number << 3 | 2, len(raw)]) + raw


def number(field: int, value: int) -> bytes:
    return bytes([field << 3, value])


def double(field: int, value: float) -> bytes:
    return bytes([field << 3 | 1]) + struct.pack("<d", value)


def entry(field: int, key: str, value: bytes) -> bytes:
    return text(field, text(1, key) + value)


def test_request_byte_by_byte() -> None:
    message = wire.ResourceRequest(
        pod_uid="u",
        pod_namespace="ns",
        pod_name="p",
        container_name="c",
        container_type=wire.SIDECAR,
        container_index=3,
        pod_role="r",
        pod_type="t",
        resource_name="cpu",
        hint=wire.TopologyHint(nodes=[0, 2], preferred=True),
        resource_requests={"cpu": 2.5},
        labels={"l": "1"},
        annotations={"a": "2"},
        native_qos_class="Burstable",
    )
    names = [text(each, value) for each, value in enumerate(("u", "ns", "p", "c"), 1)]
    rest = [number(5, 2), number(6, 3), text(7, "r"), text(8, "t"), text(9, "cpu")]
    hint = text(10, text(1, b"\x00\x02") + number(2, 1))
    maps = [entry(11, "cpu", double(2, 2.5)), entry(12, "l", text(2, "1")), entry(13, "a", text(2, "2"))]
    assert message.SerializeToString() == b"".join((*names, *rest, hint, *maps, text(14, "Burstable")))


def test_answers_byte_by_byte() -> None:
    info = wire.ResourceAllocationInfo(
        oci_property_name="CpusetCpus",
        is_node_resource=True,
        is_scalar_resource=True,
        allocated_quantity=2.0,
        allocation_result="0-1",
        envs={"E": "1"},
        annotations={"a": "2"},
        topology_assignments={1: 7},
    )
    info.resource_hints.hints.add(nodes=[1])
    raw = b"".join(
        (
            text(1, "CpusetCpus") + number(2, 1) + number(3, 1) + double(4, 2.0) + text(5, "0-1"),
            entry(6, "E", text(2, "1")) + entry(7, "a", text(2, "2")) + text(8, text(1, text(1, b"\x01"))),
            text(9, number(1, 1) + number(2, 7)),
        )
    )
    assert info.SerializeToString() == raw
    reply = wire.GetResourcesAllocationResponse()
    reply.pod_resources["u"].container_resources["c"].resource_allocation["cpu"].CopyFrom(info)
    container = entry(1, "c", text(2, entry(1, "cpu", text(2, raw))))
    # Longer than 127 bytes, so that the lengths take two.
    assert len(raw) < 128
    assert wire.GetResourcesAllocationResponse.FromString(reply.SerializeToString()) == reply
    assert container in reply.SerializeToString()


def test_hints_of_go_without_a_value_are_an_empty_list() -> None:
    """A nil pointer in a Go map is an entry without a value."""
    reply = wire.ResourceHintsResponse.FromString(text(10, text(1, "cpu")))
    assert list(reply.resource_hints) == ["cpu"]
    assert not reply.resource_hints["cpu"].hints


@pytest.mark.parametrize(
    ("message", "raw"),
    [
        (wire.ResourcePluginOptions(with_topology_alignment=True, need_reconcile=True), b"\x10\x01\x18\x01"),
        (wire.RemovePodRequest(pod_uid="u"), b"\x0a\x01u"),
        (registration.PluginInfo(type="T", name="n", supported_versions=["v"]), b"\x0a\x01T\x12\x01n\x22\x01v"),
        (registration.RegistrationStatus(plugin_registered=True, error="e"), b"\x08\x01\x12\x01e"),
        (wire.TopologyAwareQuantity(node=300, topology_level=wire.SOCKET), b"\x10\xac\x02\x28\x01"),
    ],
)
def test_short_messages_byte_by_byte(message: Message, raw: bytes) -> None:
    assert message.SerializeToString() == raw
