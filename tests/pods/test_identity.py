"""Who a pod and a container are, and what a cgroup parent says about the pod."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qrm.pods.identity import UNNAMED, container_name, native_qos, pod_identity
from qrm.pods.model import NativeQos, PodIdentity
from qrm.wire.cri_pb2 import ContainerMetadata, PodSandboxMetadata

UID = "6a7c94a2-0c2e-4d4e-9d4b-1f5f0d0b8a11"
STATIC_UID = "0123456789abcdef0123456789abcdef"
LABELS = {
    "io.kubernetes.pod.name": "web-0",
    "io.kubernetes.pod.namespace": "shop",
    "io.kubernetes.pod.uid": UID,
}
METADATA = PodSandboxMetadata(name="web-m", namespace="shop-m", uid="uid-m")


def test_labels_come_first() -> None:
    """Kubelet's labels name the pod, whatever the metadata says."""
    assert pod_identity(LABELS, METADATA, sandbox_id="s") == PodIdentity(UID, "shop", "web-0")


@pytest.mark.parametrize("missing", [[], *([label] for label in LABELS), list(LABELS)])
def test_metadata_fills_each_gap(missing: list[str]) -> None:
    """Each label that is missing or empty is replaced by its own part of the metadata."""
    expected = PodIdentity(
        "uid-m" if "io.kubernetes.pod.uid" in missing else UID,
        "shop-m" if "io.kubernetes.pod.namespace" in missing else "shop",
        "web-m" if "io.kubernetes.pod.name" in missing else "web-0",
    )
    assert pod_identity({key: text for key, text in LABELS.items() if key not in missing}, METADATA) == expected
    assert pod_identity(LABELS | dict.fromkeys(missing, ""), METADATA) == expected


def test_sandbox_id_stands_in_for_a_uid() -> None:
    """A pod without labels and metadata is known by its sandbox, so that two of them are not one."""
    assert pod_identity({}, PodSandboxMetadata(), sandbox_id="s1") == PodIdentity("s1", "", "")


def test_container_name() -> None:
    """A container's name is its label, else its metadata, and never empty, which would mean the whole pod."""
    label = {"io.kubernetes.container.name": "main"}
    assert container_name(label, ContainerMetadata(name="other")) == "main"
    assert container_name({}, ContainerMetadata(name="other")) == "other"
    assert container_name({}, ContainerMetadata()) == UNNAMED != ""


def cgroupfs(root: str, qos: str, uid: str) -> str:
    """The path that kubelet's cgroupfs driver gives a pod."""
    return "/" + "/".join(part for part in (*root.split("/"), "kubepods", qos, f"pod{uid}") if part)


def systemd(root: str, qos: str, uid: str) -> str:
    """The path that kubelet's systemd driver gives a pod: each slice repeats the names of those above it."""
    parts = [part.replace("-", "_") for part in (*root.split("/"), "kubepods", qos, f"pod{uid}") if part]
    return "".join(f"/{'-'.join(parts[: depth + 1])}.slice" for depth in range(len(parts)))


CLASSES = {"": NativeQos.GUARANTEED, "burstable": NativeQos.BURSTABLE, "besteffort": NativeQos.BEST_EFFORT}


@pytest.mark.parametrize("spell", [cgroupfs, systemd])
@pytest.mark.parametrize("root", ["", "/", "kubelet", "/my-root/a.b", "/kubepods", "/kubepods/burstable", "pods"])
@pytest.mark.parametrize("uid", [UID, STATIC_UID])
@pytest.mark.parametrize("qos", CLASSES)
def test_both_drivers(spell: Callable[[str, str, str], str], root: str, uid: str, qos: str) -> None:
    """The class is read from either driver's path, below any cgroup root."""
    path = spell(root, qos, uid)
    assert native_qos(path) is CLASSES[qos]
    assert native_qos(f"{path}/") is CLASSES[qos]


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        (f"/kubepods/pod{UID}", NativeQos.GUARANTEED),
        ("/kubepods.slice/kubepods-pod6a7c_94a2.slice", NativeQos.GUARANTEED),
        (f"/kubepods/burstable/pod{UID}", NativeQos.BURSTABLE),
        ("/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod6a7c_94a2.slice", NativeQos.BURSTABLE),
        ("/kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod6a7c_94a2.slice", NativeQos.BEST_EFFORT),
    ],
)
def test_paths_as_kubelet_writes_them(path: str, expected: NativeQos) -> None:
    """The spellings that are seen on nodes, letter by letter."""
    assert native_qos(path) is expected


@pytest.mark.parametrize(
    "path",
    [
        "",
        "/",
        "/kubepods",
        "/kubepods/burstable",
        "/kubepods/pod",
        "/kubepods/burstable/pod",
        "/kubepods.slice",
        "/kubepods.slice/kubepods-burstable.slice",
        "/system.slice/pod1",
        "/burstable/pod1",
        "/mykubepods/pod1",
        "/kubepods/bestbuy/pod1",
        "/kubepods/besteffort/x/pod1",
        "/other/burstable/pod1",
        "/other.slice/other-burstable.slice/other-burstable-pod1.slice",
        "/crictl",
        ".slice",
        "-.slice",
    ],
)
def test_other_paths_are_unknown(path: str) -> None:
    """What is no pod under kubepods has no class."""
    assert native_qos(path) is NativeQos.UNKNOWN


@given(st.lists(st.sampled_from(["/", "-", ".slice", "kubepods", "burstable", "pod", "x"]) | st.text()).map("".join))
def test_any_path_has_an_answer(path: str) -> None:
    """No path is too odd to be judged."""
    assert isinstance(native_qos(path), NativeQos)
