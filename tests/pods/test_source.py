"""`PodSource.complete`: which of the three places is believed about what."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from qrm.config import KubeletSection
from qrm.errors import BadRequest
from qrm.pods.declared import MAIN_CONTAINER, RESOURCES
from qrm.pods.kubelet import KubeletPods
from qrm.pods.model import NET_EGRESS, NET_INGRESS, ContainerKind, PodIdentity, ResourceRequest
from qrm.pods.source import PodSource
from tests.pods.test_kubelet import PATIENT, listed, serving

GI = 1 << 30
EGRESS, INGRESS = "kubernetes.io/egress-bandwidth", "kubernetes.io/ingress-bandwidth"
RECLAIMED_CPU = "resource.katalyst.kubewharf.io/reclaimed_millicpu"
CRI = ResourceRequest(PodIdentity("a", "shop", "web-0"), "main", cpu_millis=500, memory_limit=2 * GI)
SECOND = replace(CRI, container="second")


class StubKubelet(KubeletPods):
    """Knows one pod, or none, and how it was asked."""

    def __init__(self, pod: Mapping[str, Any] | None) -> None:
        super().__init__(KubeletSection(pods_url="http://127.0.0.1/pods"))
        self._pod = pod
        self.asked: list[tuple[str, str, str, bool]] = []

    async def pod(self, uid: str, namespace: str, name: str, *, fresh: bool = False) -> Mapping[str, Any] | None:
        self.asked.append((uid, namespace, name, fresh))
        return self._pod


def kubelet(**requests: Mapping[str, str]) -> StubKubelet:
    """A kubelet whose pod has a sidecar, and containers with these requests."""
    containers = [{"name": name, "resources": {"requests": dict(asked)}} for name, asked in requests.items()]
    sidecar = {"name": "proxy", "restartPolicy": "Always", "resources": {"requests": {"memory": "1Gi"}}}
    return StubKubelet({"spec": {"initContainers": [sidecar], "containers": containers}})


def annotated(**containers: Mapping[str, str]) -> dict[str, str]:
    """The annotations of a pod that declares these requests."""
    return {RESOURCES: json.dumps(containers)}


@pytest.mark.parametrize("source", [PodSource(), PodSource(StubKubelet(None)), PodSource(kubelet(other={}))])
async def test_cri_only(source: PodSource) -> None:
    """Where nobody else speaks of the container, the request stays as it is."""
    assert await source.complete(CRI, {}) == CRI
    assert await source.complete(CRI, annotated(other={"memory": "1Gi"})) == CRI


async def test_annotation_without_kubelet() -> None:
    """What is annotated counts for its container, with CRI's numbers for the rest."""
    told = await PodSource().complete(CRI, annotated(main={"memory": "1Gi", "vendor.com/fpga": "1"}))
    asked = {"memory": GI, "vendor.com/fpga": 1}
    assert told == replace(CRI, quantities=asked, pod_quantities=asked, source="annotation")
    told = await PodSource().complete(CRI, annotated(main={"cpu": "3"}))
    assert told == replace(CRI, cpu_millis=3000, source="annotation")


async def test_kubelet_alone() -> None:
    """Kubelet tells requests and kind, and is asked for the pod of the request."""
    source = kubelet(main={"cpu": "500m", "memory": "1Gi"})
    told = await PodSource(source).complete(CRI, {"example.com/owner": "me"})
    both = {"memory": 2 * GI}
    expected = replace(CRI, quantities={"memory": GI}, pod_quantities=both, kind=ContainerKind.MAIN, source="kubelet")
    assert told == expected
    proxy = await PodSource(source).complete(replace(CRI, container="proxy"), {}, fresh=True)
    assert (proxy.kind, proxy.quantities, proxy.cpu_millis) == (ContainerKind.SIDECAR, {"memory": GI}, 500)
    assert source.asked == [("a", "shop", "web-0", False), ("a", "shop", "web-0", True)]


async def test_annotation_over_kubelet() -> None:
    """The annotation is right about each resource that it names, 0 included; kubelet tells the others and the kind."""
    source = PodSource(
        kubelet(main={"cpu": "500m", "memory": "1Gi", "a.b/c": "1", "d.e/f": "1"}, second={"memory": "1"})
    )
    annotations = annotated(main={"cpu": "2", "memory": "3Gi", "a.b/c": "0"})
    told = await source.complete(CRI, annotations)
    assert (told.cpu_millis, told.quantities) == (2000, {"memory": 3 * GI, "d.e/f": 1})
    assert (told.kind, told.source) == (ContainerKind.MAIN, "annotation")
    told = await source.complete(SECOND, annotations)
    assert (told.cpu_millis, told.quantities, told.source) == (500, {"memory": 1}, "kubelet")


@pytest.mark.parametrize(
    ("by_cri", "by_kubelet", "millis"),
    [
        (500, {"cpu": "500m"}, 500),
        (500, {}, 500),
        (0, {"cpu": "1m"}, 1),
        (0, {RECLAIMED_CPU: "4k"}, 4000),
        (256_000, {"cpu": "300"}, 300_000),
        (500, {"cpu": "4"}, 500),
        (4000, {"cpu": "500m"}, 4000),
        (4000, {"cpu": "0"}, 4000),
    ],
)
async def test_cpu_in_force(by_cri: int, by_kubelet: Mapping[str, str], millis: int) -> None:
    """Kubelet's CPU request counts where CRI could not say it; where they differ the pod waits for its new size."""
    told = await PodSource(kubelet(main=by_kubelet)).complete(replace(CRI, cpu_millis=by_cri), {})
    assert told.cpu_millis == millis


@pytest.mark.parametrize(
    ("source", "annotations", "container", "asked"),
    [
        (kubelet(main={}, second={}), {}, "main", {NET_EGRESS: 10}),
        (kubelet(main={}, second={}), {}, "second", {}),
        (kubelet(main={}, second={}), {}, "proxy", {"memory": GI}),
        (kubelet(main={}, second={}), annotated(second={}), "second", {}),
        (kubelet(main={}, second={}), annotated(second={}), "main", {NET_EGRESS: 10}),
        (kubelet(main={}, second={}), annotated(second={NET_INGRESS: "3"}), "main", {}),
        (kubelet(main={}, second={NET_EGRESS: "3"}), {}, "main", {}),
        (None, {}, "main", {}),
        (None, annotated(second={}, main={}), "second", {NET_EGRESS: 10}),
        (None, {MAIN_CONTAINER: "main"}, "main", {NET_EGRESS: 10}),
    ],
)
async def test_bandwidth(
    source: StubKubelet | None, annotations: Mapping[str, str], container: str, asked: Mapping[str, int]
) -> None:
    """The pod's bandwidth is asked once: by the main container as kubelet knows it, else as the annotations do."""
    request = replace(CRI, container=container)
    told = await PodSource(source).complete(request, {**annotations, EGRESS: "10M"})
    assert told.quantities == asked


@pytest.mark.parametrize(
    "annotations", [{RESOURCES: "{"}, annotated(second={"cpu": "two"}), {INGRESS: "much"}, {**annotated(), EGRESS: "1"}]
)
async def test_bad_annotation(annotations: Mapping[str, str]) -> None:
    """A bad annotation is refused for every container of the pod, before kubelet is asked."""
    source = kubelet(main={})
    with pytest.raises(BadRequest):
        await PodSource(source).complete(CRI, annotations)
    assert source.asked == []


async def test_with_a_server() -> None:
    """Over HTTP: two containers of a pod cost one request, a pod that kubelet does not know none of its requests."""
    with serving() as server:
        server.pods = [listed("a")]
        pods = KubeletPods(KubeletSection(pods_url=server.url, budget_seconds=PATIENT))
        source = PodSource(pods)
        told = await source.complete(CRI, {})
        assert (told.quantities, told.kind, told.source) == ({"memory": GI}, ContainerKind.MAIN, "kubelet")
        assert await source.complete(SECOND, {}) == SECOND
        assert len(server.asked) == 1
        stranger = replace(CRI, pod=PodIdentity("b", "shop", "web-0"))
        assert await source.complete(stranger, {}) == stranger
        pods.close()
