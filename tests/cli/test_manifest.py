"""Pods as `qrm plan --file` reads them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from qrm.cli.manifest import read_manifest
from qrm.errors import QrmError
from qrm.service import api


def _container(name: str, *, requests: dict[str, Any] | None = None, limits: dict[str, Any] | None = None) -> Any:
    resources = {"requests": requests, "limits": limits}
    return {"name": name, "image": "x", "resources": {key: value for key, value in resources.items() if value}}


def _read(spec: dict[str, Any], **metadata: Any) -> api.PlanRequest:
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "web", **metadata}, "spec": spec, "status": {}}
    return read_manifest(json.dumps(pod).encode(), "pod.json")


def test_pod() -> None:
    """Name, annotations, and each container's CPU request in the order of creation."""
    asked = _read(
        {
            "nodeName": "n1",
            "containers": [
                _container("b", requests={"cpu": "1500m"}),
                _container("a", requests={"cpu": 2}),
                {"name": "c"},
            ],
        },
        annotations={"katalyst.kubewharf.io/qos_level": "shared_cores"},
        labels={"app": "web"},
    )
    assert asked.name == "web"
    assert asked.annotations == {"katalyst.kubewharf.io/qos_level": "shared_cores"}
    assert list(asked.containers.items()) == [("b", 1500), ("a", 2000), ("c", 0)]


def test_limit_stands_for_request() -> None:
    """A limit without a request is the request; a request wins over a limit."""
    asked = _read(
        {
            "containers": [
                _container("only-limit", limits={"cpu": "2"}),
                _container("both", requests={"cpu": "100m"}, limits={"cpu": "2"}),
            ]
        }
    )
    assert asked.containers == {"only-limit": 2000, "both": 100}


def test_init_containers() -> None:
    """Init containers are gone before the others run; sidecars stay, and come first."""
    sidecar = {**_container("proxy", requests={"cpu": "200m"}), "restartPolicy": "Always"}
    asked = _read(
        {"initContainers": [_container("setup", requests={"cpu": 8}), sidecar], "containers": [{"name": "main"}]}
    )
    assert list(asked.containers.items()) == [("proxy", 200), ("main", 0)]


def test_workload() -> None:
    """Of a Deployment, the pod is in the template, its name at the top."""
    template = {
        "metadata": {"annotations": {"a/b": "c"}, "labels": {}},
        "spec": {"containers": [_container("main", requests={"cpu": 1})]},
    }
    deployment = {"kind": "Deployment", "metadata": {"name": "web"}, "spec": {"replicas": 3, "template": template}}
    asked = read_manifest(json.dumps(deployment).encode(), "-")
    assert (asked.name, asked.annotations, asked.containers) == ("web", {"a/b": "c"}, {"main": 1000})


_WHOLE = {"cpu": "2", "memory": "1Gi"}


@pytest.mark.parametrize(
    ("containers", "expected"),
    [
        ([_container("a")], "BestEffort"),
        ([_container("a", limits=_WHOLE)], "Guaranteed"),
        ([_container("a", limits=_WHOLE, requests={"cpu": "2000m", "memory": "1024Mi"})], "Guaranteed"),
        ([_container("a", limits=_WHOLE), _container("b")], "Burstable"),
        ([_container("a", limits={"cpu": 2})], "Burstable"),
        ([_container("a", limits=_WHOLE, requests={"cpu": 1})], "Burstable"),
        ([_container("a", requests=_WHOLE)], "Burstable"),
    ],
)
def test_native_qos(containers: list[Any], expected: str) -> None:
    """Kubernetes' own QoS class, as the API server would set it."""
    assert _read({"containers": containers}).native_qos == expected


@pytest.mark.parametrize(
    ("text", "message", "hint"),
    [
        (b"apiVersion: v1\nkind: Pod\n", "pod.json is not JSON", "kubectl create --dry-run=client -o json"),
        (b"\xff\xfe", "pod.json is not", ""),
        (b"", "pod.json is not JSON", "YAML is not read here"),
        (b"[]", "pod.json is not the manifest of a pod", "one Pod"),
        (b'{"spec": {"containers": [{}]}}', "`name`", "one Pod"),
        (b'{"kind": "List", "items": []}', "pod.json is not the manifest of a pod", "one Pod"),
        (b'{"spec": {"containers": []}}', "pod.json has no containers", "template"),
        (
            b'{"spec": {"containers": [{"name": "a", "resources": {"requests": {"cpu": "two"}}}]}}',
            "pod.json: 'two' is not a quantity",
            "500m",
        ),
    ],
)
def test_unusable(text: bytes, message: str, hint: str) -> None:
    """What cannot be used is an error that names the file, the place and the remedy."""
    with pytest.raises(QrmError) as caught:
        read_manifest(text, "pod.json")
    assert message in caught.value.message
    assert hint in caught.value.hint
