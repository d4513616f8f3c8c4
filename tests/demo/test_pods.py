"""What kubelet would send for a pod; the numbers are worked out by hand from its formulas."""

from __future__ import annotations

import pytest

from qrm.demo.pods import ContainerSpec, Pod, container_config, container_resources, pod_resources, sandbox_config
from qrm.pods.model import NativeQos
from qrm.wire import cri_pb2

GIB = 1 << 30
UID = "0f5ab8d2-6c35-4f5c-9a2f-0e8b6f1c7a11"


@pytest.mark.parametrize(
    ("containers", "qos", "cgroup"),
    [
        ([ContainerSpec("a")], NativeQos.BEST_EFFORT, f"/kubepods/besteffort/pod{UID}"),
        ([ContainerSpec("a", memory_limit=GIB)], NativeQos.BURSTABLE, f"/kubepods/burstable/pod{UID}"),
        ([ContainerSpec("a", cpu_limit=1000, memory_limit=GIB)], NativeQos.GUARANTEED, f"/kubepods/pod{UID}"),
        (
            [ContainerSpec("a", cpu_limit=1000, memory_limit=GIB), ContainerSpec("b")],
            NativeQos.BURSTABLE,
            f"/kubepods/burstable/pod{UID}",
        ),
        (
            [ContainerSpec("a", cpu_request=500, cpu_limit=1000, memory_limit=GIB)],
            NativeQos.BURSTABLE,
            f"/kubepods/burstable/pod{UID}",
        ),
    ],
)
def test_the_qos_class_decides_the_cgroup(containers: list[ContainerSpec], qos: NativeQos, cgroup: str) -> None:
    pod = Pod("web", tuple(containers), uid=UID)
    assert (pod.qos, pod.cgroup(), pod.cgroup("/demo")) == (qos, cgroup, f"/demo{cgroup}")


@pytest.mark.parametrize(
    ("spec", "shares", "quota"),
    [
        (ContainerSpec("a"), 2, 0),
        (ContainerSpec("a", cpu_request=500), 512, 0),
        (ContainerSpec("a", cpu_request=500, cpu_limit=1500), 512, 150_000),
        (ContainerSpec("a", cpu_limit=1500), 1536, 150_000),
        (ContainerSpec("a", cpu_limit=5), 5, 1000),
        (ContainerSpec("a", cpu_request=300_000), 262_144, 0),
    ],
)
def test_shares_and_quota(spec: ContainerSpec, shares: int, quota: int) -> None:
    resources = container_resources(Pod("web", (spec,)), spec)
    assert (resources.cpu_shares, resources.cpu_quota, resources.cpu_period) == (shares, quota, 100_000)


def test_oom_scores_follow_the_qos_class(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("qrm.demo.pods._machine_memory", lambda: 100 * GIB)

    def score(*containers: ContainerSpec) -> int:
        return container_resources(Pod("web", containers), containers[0]).oom_score_adj

    assert score(ContainerSpec("a")) == 1000
    assert score(ContainerSpec("a", cpu_limit=1000, memory_limit=GIB)) == -997
    assert score(ContainerSpec("a", memory_request=10 * GIB)) == 900
    assert score(ContainerSpec("a", cpu_request=100)) == 999
    assert score(ContainerSpec("a", memory_request=200 * GIB)) == 3


def test_the_sandbox_carries_the_sums_and_the_pod() -> None:
    pod = Pod(
        "web",
        (ContainerSpec("a", cpu_request=500, cpu_limit=1000, memory_limit=GIB), ContainerSpec("b", cpu_request=250)),
        namespace="shop",
        uid=UID,
        annotations={"katalyst.kubewharf.io/qos_level": "dedicated_cores"},
        labels={"app": "web"},
    )
    assert pod_resources(pod) == cri_pb2.LinuxContainerResources(
        cpu_shares=768, cpu_quota=100_000, cpu_period=100_000, memory_limit_in_bytes=GIB
    )
    config = sandbox_config(pod, cgroup_root="/demo", attempt=2)
    assert (config.metadata.name, config.metadata.namespace, config.metadata.uid) == ("web", "shop", UID)
    assert config.metadata.attempt == 2
    assert config.labels == {
        "app": "web",
        "io.kubernetes.pod.name": "web",
        "io.kubernetes.pod.namespace": "shop",
        "io.kubernetes.pod.uid": UID,
    }
    assert config.annotations["katalyst.kubewharf.io/qos_level"] == "dedicated_cores"
    assert config.linux.cgroup_parent == f"/demo/kubepods/burstable/pod{UID}"
    assert config.linux.resources == pod_resources(pod)
    assert config.linux.security_context.namespace_options.network == cri_pb2.NODE


def test_the_container_carries_its_four_labels_and_no_more() -> None:
    pod = Pod("web", (ContainerSpec("a"),), uid=UID, labels={"app": "web"}, annotations={"some": "thing"})
    config = container_config(pod, pod.container("a"), attempt=3)
    assert config.labels == {
        "io.kubernetes.pod.name": "web",
        "io.kubernetes.pod.namespace": "default",
        "io.kubernetes.pod.uid": UID,
        "io.kubernetes.container.name": "a",
    }
    assert config.metadata.attempt == 3
    assert config.annotations["io.kubernetes.container.restartCount"] == "3"
    assert "some" not in config.annotations


def test_the_hash_is_of_name_and_image_only() -> None:
    def hash_of(spec: ContainerSpec) -> str:
        annotations = container_config(Pod("web", (spec,)), spec).annotations
        return annotations["io.kubernetes.container.hash"]

    assert hash_of(ContainerSpec("a")) == hash_of(ContainerSpec("a", cpu_limit=7))
    assert len({hash_of(ContainerSpec("a")), hash_of(ContainerSpec("b")), hash_of(ContainerSpec("a", image="x"))}) == 3


def test_a_pod_knows_its_containers() -> None:
    pod = Pod("web", (ContainerSpec("a"), ContainerSpec("b")))
    assert pod.container("b").name == "b"
    with pytest.raises(KeyError):
        pod.container("c")
