"""From CRI messages to a `ResourceRequest`, whole or with parts missing, and through updates."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message
from google.protobuf.unknown_fields import UnknownFieldSet
from hypothesis import given
from hypothesis import strategies as st

from qrm.cpuset import NodeSet
from qrm.errors import BadRequest
from qrm.pods.identity import UNNAMED
from qrm.pods.model import MemoryEnhancement, NativeQos, PodIdentity, Qos, QosLevel, ResourceRequest
from qrm.pods.qos import CPU_ENHANCEMENT, MEMORY_ENHANCEMENT, NUMA_IDS, QOS_LEVEL
from qrm.pods.request import QosDefaults, merge_asked, read_request, read_sandbox_qos, with_resources
from qrm.units import shares_from_millis
from qrm.wire.cri_pb2 import (
    ContainerConfig,
    ContainerMetadata,
    CreateContainerRequest,
    LinuxContainerConfig,
    LinuxContainerResources,
    LinuxPodSandboxConfig,
    PodSandboxConfig,
    PodSandboxMetadata,
)

UID = "6a7c94a2-0c2e-4d4e-9d4b-1f5f0d0b8a11"
GUARANTEED, BURSTABLE = f"/kubepods/pod{UID}", f"/kubepods/burstable/pod{UID}"
POD_LABELS = {
    "app": "web",
    "io.kubernetes.pod.name": "web-0",
    "io.kubernetes.pod.namespace": "shop",
    "io.kubernetes.pod.uid": UID,
}
NODE = QosDefaults()
DEDICATING = QosDefaults(guaranteed_whole_cpus=QosLevel.DEDICATED)


def kubelets_resources(millis: int, limit: int = 0, memory: int = 0, period: int = 100_000) -> LinuxContainerResources:
    """What kubelet sends for a request and limits (kuberuntime_container_linux.go, cm/helpers_linux.go)."""
    return LinuxContainerResources(
        cpu_shares=shares_from_millis(millis),
        cpu_quota=max(1000, limit * period // 1000) if limit else 0,
        cpu_period=period,
        memory_limit_in_bytes=memory,
        oom_score_adj=-997,
    )


def kubelets_message(
    resources: LinuxContainerResources, cgroup_parent: str = BURSTABLE, **annotations: str
) -> CreateContainerRequest:
    """A CreateContainer as kubelet sends it; `annotations` are given by the name after Katalyst's domain."""
    return CreateContainerRequest(
        pod_sandbox_id="sandbox-1",
        config=ContainerConfig(
            metadata=ContainerMetadata(name="main", attempt=2),
            labels={**POD_LABELS, "io.kubernetes.container.name": "main"},
            annotations={QOS_LEVEL: "gold", "io.kubernetes.container.hash": "1"},
            linux=LinuxContainerConfig(resources=resources),
        ),
        sandbox_config=PodSandboxConfig(
            metadata=PodSandboxMetadata(name="web-0", namespace="shop", uid=UID),
            labels=POD_LABELS,
            annotations={f"katalyst.kubewharf.io/{name}": text for name, text in annotations.items()},
            linux=LinuxPodSandboxConfig(cgroup_parent=cgroup_parent, resources=kubelets_resources(6500)),
        ),
    )


def test_reads_all_of_a_message() -> None:
    """Every field of the request comes from its place in kubelet's message; QoS only from the pod's annotations."""
    message = kubelets_message(
        kubelets_resources(4000, limit=5500, memory=1 << 30),
        qos_level="dedicated_cores",
        memory_enhancement='{"numa_binding": "true"}',
        numa_ids="1",
    )
    assert read_request(message, NODE) == ResourceRequest(
        pod=PodIdentity(UID, "shop", "web-0"),
        container="main",
        qos=Qos(QosLevel.DEDICATED, memory=MemoryEnhancement(numa_binding=True), numa_ids=NodeSet([1])),
        native_qos=NativeQos.BURSTABLE,
        cpu_millis=4000,
        cpu_limit_millis=5500,
        memory_limit=1 << 30,
        pod_cpu_millis=6500,
    )


def test_an_empty_message_asks_for_nothing() -> None:
    """A message without any part is a container of the default level that asks for nothing and is not the pod."""
    asked = read_request(CreateContainerRequest(pod_sandbox_id="s1"), NODE)
    assert asked == ResourceRequest(PodIdentity("s1", "", ""), UNNAMED, Qos(by_default=True))
    assert asked.key != asked.pod_key


def submessages(message: Message, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """The path of every message and map inside `message`."""
    for field, value in message.ListFields():
        if field.type == FieldDescriptor.TYPE_MESSAGE:
            yield (*path, field.name)
        if isinstance(value, Message):
            yield from submessages(value, (*path, field.name))


FULL = kubelets_message(kubelets_resources(2000, 2000, 1 << 20), GUARANTEED, qos_level="system_cores")


@pytest.mark.parametrize("path", list(submessages(FULL)), ids=".".join)
def test_each_part_may_be_missing(path: tuple[str, ...]) -> None:
    """Without one part, what it alone tells is not asked for; all else is read as before."""
    message = CreateContainerRequest()
    message.CopyFrom(FULL)
    holder: Message = message
    for name in path[:-1]:
        holder = getattr(holder, name)
    holder.ClearField(path[-1])
    whole = read_request(FULL, NODE)
    not_sized = replace(whole, cpu_millis=0, cpu_limit_millis=None, memory_limit=0)
    defaulted = replace(whole, qos=Qos(by_default=True))
    expected = {
        "config": replace(not_sized, container=UNNAMED),
        "config.linux": not_sized,
        "config.linux.resources": not_sized,
        "sandbox_config": replace(defaulted, native_qos=NativeQos.UNKNOWN, pod_cpu_millis=0),
        "sandbox_config.annotations": defaulted,
        "sandbox_config.linux": replace(whole, native_qos=NativeQos.UNKNOWN, pod_cpu_millis=0),
        "sandbox_config.linux.resources": replace(whole, pod_cpu_millis=0),
    }
    assert read_request(message, NODE) == expected.get(".".join(path), whole)


def test_metadata_and_sandbox_name_a_pod_without_labels() -> None:
    """A pod made by crictl is known by its metadata, and failing that by its sandbox."""
    message = CreateContainerRequest(pod_sandbox_id="s1")
    message.sandbox_config.metadata.MergeFrom(PodSandboxMetadata(name="n", namespace="ns", uid="u"))
    message.config.metadata.name = "c"
    named = read_request(message, NODE)
    assert (named.pod, named.container) == (PodIdentity("u", "ns", "n"), "c")
    message.sandbox_config.metadata.uid = ""
    assert read_request(message, NODE).pod == PodIdentity("s1", "ns", "n")


@given(st.integers(3, 255_999), st.integers(10, 300_000))
def test_millicores_survive_kubelets_formulas(request_: int, limit: int) -> None:
    """The request and limit of the pod spec come back out of shares and quota."""
    asked = read_request(kubelets_message(kubelets_resources(request_, limit)), NODE)
    assert (asked.cpu_millis, asked.cpu_limit_millis) == (request_, limit)


@given(st.integers(256_000, 2_000_000))
def test_requests_beyond_the_largest_shares(millis: int) -> None:
    """Above 256 CPUs the quota of a Guaranteed container says what shares cannot."""
    assert read_request(kubelets_message(kubelets_resources(millis, millis)), NODE).cpu_millis == millis
    assert read_request(kubelets_message(kubelets_resources(millis)), NODE).cpu_millis == 256_000


@pytest.mark.parametrize("millis", [0, 1, 2])
def test_no_request(millis: int) -> None:
    """Shares of 2, which is what kubelet sends for nothing, ask for nothing."""
    assert read_request(kubelets_message(kubelets_resources(millis)), NODE).cpu_millis == 0


def test_unlimited() -> None:
    """-1 for quota and memory is no limit."""
    message = kubelets_message(LinuxContainerResources(cpu_quota=-1, cpu_period=100_000, memory_limit_in_bytes=-1))
    asked = read_request(message, NODE)
    assert (asked.cpu_limit_millis, asked.memory_limit) == (None, 0)


@pytest.mark.parametrize(
    ("millis", "cgroup_parent", "level"),
    [
        (1000, GUARANTEED, QosLevel.DEDICATED),
        (64_000, GUARANTEED, QosLevel.DEDICATED),
        (999, GUARANTEED, QosLevel.SHARED),
        (1500, GUARANTEED, QosLevel.SHARED),
        (0, GUARANTEED, QosLevel.SHARED),
        (2000, BURSTABLE, QosLevel.SHARED),
        (2000, "", QosLevel.SHARED),
    ],
)
def test_whole_cpus_in_guaranteed_pods(millis: int, cgroup_parent: str, level: QosLevel) -> None:
    """Only whole CPUs in a Guaranteed pod get the level set for them, and still by default."""
    message = kubelets_message(kubelets_resources(millis, millis), cgroup_parent)
    assert read_request(message, DEDICATING).qos == Qos(level, by_default=True)
    assert read_request(message, NODE).qos == Qos(QosLevel.SHARED, by_default=True)


@pytest.mark.parametrize("level", QosLevel)
def test_a_level_that_is_said_stays(level: QosLevel) -> None:
    """The level for whole CPUs is no answer to a pod that names its own."""
    message = kubelets_message(kubelets_resources(2000, 2000), GUARANTEED, qos_level=level)
    assert read_request(message, DEDICATING).qos == Qos(level)


def test_annotations_go_along_to_the_level_for_whole_cpus() -> None:
    """An enhancement without a level is kept where it makes sense for whole CPUs too."""
    message = kubelets_message(
        kubelets_resources(2000, 2000), GUARANTEED, memory_enhancement='{"numa_binding": "true"}'
    )
    bound = MemoryEnhancement(numa_binding=True)
    assert read_request(message, DEDICATING).qos == Qos(QosLevel.DEDICATED, memory=bound, by_default=True)


def test_annotations_decide_against_the_level_for_whole_cpus() -> None:
    """A pod whose annotations only make sense at the default level keeps it, rather than fail by a node's setting."""
    message = kubelets_message(kubelets_resources(2000, 2000), GUARANTEED, cpu_enhancement='{"cpuset_pool": "batch"}')
    assert read_request(message, DEDICATING) == read_request(message, NODE)


def test_bad_annotations_are_refused_at_both_places() -> None:
    """RunPodSandbox and CreateContainer refuse the same annotations, the pod's default level included."""
    message = kubelets_message(kubelets_resources(2000), cpu_enhancement='{"align_by_socket": "true"}')
    with pytest.raises(BadRequest, match=f"{CPU_ENHANCEMENT}: align_by_socket is 'true'"):
        read_sandbox_qos(message.sandbox_config, NODE)
    with pytest.raises(BadRequest, match=f"{CPU_ENHANCEMENT}: align_by_socket is 'true'"):
        read_request(message, NODE)


def test_sandbox_qos() -> None:
    """A sandbox's annotations are read with the node's default level; without a config there is nothing to refuse."""
    defaults = QosDefaults(level=QosLevel.RECLAIMED)
    assert read_sandbox_qos(PodSandboxConfig(), defaults) == Qos(QosLevel.RECLAIMED, by_default=True)
    config = PodSandboxConfig(
        annotations={QOS_LEVEL: "dedicated_cores", MEMORY_ENHANCEMENT: '{"numa_binding": "true"}', NUMA_IDS: "0-1"}
    )
    assert read_sandbox_qos(config, defaults).numa_ids == NodeSet([0, 1])


def test_resized() -> None:
    """A resize changes the numbers and nothing else, not even a level that came with the old size."""
    asked = read_request(kubelets_message(kubelets_resources(2000, 2000, 1 << 20), GUARANTEED), DEDICATING)
    assert with_resources(asked, kubelets_resources(1500, 3000, 1 << 21)) == replace(
        asked, cpu_millis=1500, cpu_limit_millis=3000, memory_limit=1 << 21
    )
    assert with_resources(asked, LinuxContainerResources()) == replace(
        asked, cpu_millis=0, cpu_limit_millis=None, memory_limit=0
    )


def test_update_overwrites_what_it_names() -> None:
    """Zero and empty mean unchanged; `unified` is merged key by key; neither argument is touched."""
    old = LinuxContainerResources(cpu_shares=1024, cpu_quota=100_000, cpuset_mems="0", unified={"a.b": "1", "c.d": "2"})
    new = LinuxContainerResources(cpu_shares=2048, cpu_quota=-1, cpuset_cpus="1-2", unified={"c.d": "3", "e.f": "4"})
    before = old.SerializeToString(deterministic=True), new.SerializeToString(deterministic=True)
    assert merge_asked(old, new) == LinuxContainerResources(
        cpu_shares=2048,
        cpu_quota=-1,
        cpuset_cpus="1-2",
        cpuset_mems="0",
        unified={"a.b": "1", "c.d": "3", "e.f": "4"},
    )
    assert before == (old.SerializeToString(deterministic=True), new.SerializeToString(deterministic=True))


def with_unknown(*entries: tuple[int, bytes], shares: int = 0) -> LinuxContainerResources:
    """Resources with fields that the generated code does not know, each a number below 16 and its bytes."""
    raw = b"".join(bytes([number << 3 | 2, len(content)]) + content for number, content in entries)
    resources = LinuxContainerResources.FromString(raw)
    resources.cpu_shares = shares
    return resources


def unknown(resources: LinuxContainerResources) -> list[tuple[int, object]]:
    """The fields of `resources` that the generated code does not know."""
    fields = UnknownFieldSet(resources)
    return [(fields[place].field_number, fields[place].data) for place in range(len(fields))]


PAGES_2MB, PAGES_1GB, LATER = (8, b"\n\x032MB"), (8, b"\n\x031GB"), (15, b"later")


def test_unknown_fields_survive_an_update_without_any() -> None:
    """A cpuset-only update does not lose the hugepage limits asked at creation."""
    merged = merge_asked(with_unknown(PAGES_2MB, PAGES_1GB, LATER, shares=2), LinuxContainerResources(cpuset_cpus="1"))
    assert unknown(merged) == [PAGES_2MB, PAGES_1GB, LATER]
    assert (merged.cpu_shares, merged.cpuset_cpus) == (2, "1")


def test_unknown_fields_of_an_update_replace_the_old_ones() -> None:
    """Hugepage limits that are sent again do not pile up."""
    asked = with_unknown(PAGES_2MB, PAGES_1GB, shares=2)
    for _ in range(3):
        asked = merge_asked(asked, with_unknown(PAGES_2MB, LATER))
    assert unknown(asked) == [PAGES_2MB, LATER]
    assert asked.cpu_shares == 2


NUMBERS = ("cpu_period", "cpu_quota", "cpu_shares", "memory_limit_in_bytes", "oom_score_adj")
SETS = ("cpuset_cpus", "cpuset_mems")
RESOURCES = st.builds(
    LinuxContainerResources,
    **dict.fromkeys(NUMBERS, st.integers(-1, 3)),
    **dict.fromkeys(SETS, st.sampled_from(["", "0", "1"])),
    unified=st.dictionaries(st.sampled_from("abc"), st.sampled_from("xy")),
)


@given(RESOURCES, RESOURCES)
def test_update_field_by_field(old: LinuxContainerResources, new: LinuxContainerResources) -> None:
    """For each field alone: the new value where there is one, else the old; the same update again changes nothing."""
    merged = merge_asked(old, new)
    for name in (*NUMBERS, *SETS):
        assert getattr(merged, name) == (getattr(new, name) or getattr(old, name))
    assert dict(merged.unified) == {**old.unified, **new.unified}
    assert merge_asked(merged, new) == merged
    assert merge_asked(old, LinuxContainerResources()) == old
