"""`qrm.pods.declared`: the annotation `qrm.io/resources` and kubelet's pods, right and wrong ones."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from qrm.errors import BadRequest
from qrm.pods.declared import (
    MAIN_CONTAINER,
    RESOURCES,
    Declared,
    apply,
    in_all,
    main_container,
    merged,
    read_declared,
    read_pod,
    with_bandwidth,
)
from qrm.pods.model import NET_EGRESS, NET_INGRESS, ContainerKind, PodIdentity, ResourceRequest

MI, GI = 1 << 20, 1 << 30
EGRESS, INGRESS = "kubernetes.io/egress-bandwidth", "kubernetes.io/ingress-bandwidth"
RECLAIMED_CPU = "resource.katalyst.kubewharf.io/reclaimed_millicpu"
RECLAIMED_MEMORY = "resource.katalyst.kubewharf.io/reclaimed_memory"
KINDS = ("initContainers", "containers", "ephemeralContainers")


def annotated(containers: object) -> dict[str, str]:
    """The annotations of a pod that declares `containers`."""
    return {"example.com/owner": "nobody's business", RESOURCES: json.dumps(containers)}


def container(name: str, requests: Mapping[str, str] | None = None, **more: Any) -> dict[str, Any]:
    """A container of a v1.Pod."""
    return {"name": name, "image": "busybox", "resources": {"requests": dict(requests or {})}, **more}


def test_annotation() -> None:
    """Each resource is in its own unit, and containers are told apart by name."""
    declared = read_declared(
        annotated(
            {
                "main": {
                    "cpu": "1500m",
                    "memory": "1.5Gi",
                    "hugepages-2Mi": "8Mi",
                    "hugepages-1Gi": "2Gi",
                    "vendor.com/fpga": "1",
                    "ephemeral-storage": "1k",
                    NET_EGRESS: "2k",
                    NET_INGRESS: "10",
                },
                "helper": {"memory": "64Mi"},
                "idle": {},
            }
        )
    )
    assert declared["main"] == Declared(
        1500,
        {
            "memory": 3 * GI // 2,
            "hugepages-2Mi": 8 * MI,
            "hugepages-1Gi": 2 * GI,
            "vendor.com/fpga": 1,
            "ephemeral-storage": 1000,
            NET_EGRESS: 2000,
            NET_INGRESS: 10,
        },
    )
    assert declared["helper"] == Declared(None, {"memory": 64 * MI})
    assert declared["idle"] == Declared()
    assert read_declared({"example.com/owner": "me"}) == {}


@pytest.mark.parametrize(
    ("asked", "millis", "bytes_"),
    [
        ({"cpu": 2, "memory": 1e9}, 2000, 10**9),
        ({"cpu": 1.1, "memory": 1.5}, 1100, 2),
        ({"cpu": "0.1m", "memory": "100m"}, 1, 1),
        ({RECLAIMED_CPU: "2k", RECLAIMED_MEMORY: "1Gi"}, 2000, GI),
        ({RECLAIMED_CPU: "1500", "memory": "1Gi"}, 1500, GI),
        ({"cpu": "0", "memory": "0"}, 0, 0),
    ],
)
def test_numbers(asked: object, millis: int, bytes_: int) -> None:
    """JSON numbers count as they are written, fractions are rounded up, reclaimed resources stand for the original."""
    assert read_declared(annotated({"main": asked})) == {"main": Declared(millis, {"memory": bytes_})}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", ["is ''", '{"main": {']),
        ("{", ["is '{'", '{"main": {']),
        ("[]", ["'[]'", "by container name"]),
        ('"main"', ["by container name"]),
        ("[" * 100_000, ["is '[[["]),
        ('{"main": {}, "main": {}}', ["'main' is there twice"]),
        ('{"main": {"cpu": 1, "cpu": 2}}', ["'cpu' is there twice"]),
        ('{"main": "2"}', ["container 'main'", "is '2'", "an object of resources"]),
        ('{"main": ["cpu"]}', ["container 'main'", "a list", "an object of resources"]),
        ('{"main": {"cpu": "two"}}', ["container 'main'", "'cpu' is 'two'", "a quantity such as"]),
        ('{"main": {"cpu": null}}', ["'cpu' is None", "a quantity such as"]),
        ('{"main": {"cpu": true}}', ["'cpu' is True", "a quantity such as"]),
        ('{"main": {"cpu": NaN}}', ["'cpu' is nan", "a quantity such as"]),
        ('{"main": {"cpu": -1}}', ["'cpu' is '-1'", "from 0"]),
        ('{"main": {"memory": "9e18"}, "b": {"memory": "1e99"}}', ["container 'b'", "'1e99'", "to 2^63-1"]),
        (f'{{"main": {{"cpu": {"9" * 10_000}}}}}', ["'cpu' is '999", "to 2^63-1"]),
        ('{"main": {"mem": "1Gi"}}', ["'mem' is '1Gi'", "the resources cpu, memory,", "DOMAIN/NAME"]),
        ('{"main": {"hugepages-": "1Gi"}}', ["'hugepages-' is '1Gi'", "hugepages-2Mi"]),
        ('{"main": {"hugepages-0": "1Gi"}}', ["'hugepages-0' is '1Gi'", "hugepages-2Mi"]),
        ('{"main": {"hugepages-2Mi": "3Mi"}}', ["'hugepages-2Mi' is '3Mi'", f"a multiple of {2 * MI}"]),
        ('{"main": {"vendor.com/fpga": "500m"}}', ["'vendor.com/fpga' is '500m'", "a whole number"]),
        ('{"main": {"\\ud800": "1"}}', ["'\\ud800' is '1'"]),
        (
            f'{{"c": {{"cpu": 1, "{RECLAIMED_CPU}": "1k"}}}}',
            ["container 'c'", "reclaimed_millicpu' is '1k'", "without cpu"],
        ),
        (f'{{"c": {{"{RECLAIMED_MEMORY}": 1, "memory": 2}}}}', ["reclaimed_memory' is '1'", "without memory"]),
    ],
)
def test_refusals(text: str, words: list[str]) -> None:
    """What is wrong is named from the annotation down to the value, with what is allowed, in a short message."""
    with pytest.raises(BadRequest) as refusal:
        read_declared({RESOURCES: text})
    said = str(refusal.value)
    assert said.startswith(RESOURCES)
    assert all(word in said for word in words), said
    assert len(said.encode()) < 500


def test_pod() -> None:
    """A container asks for its requests, for what is missing there its limits, and has the kind of its list."""
    pod = {
        "metadata": {"name": "web-0", "uid": "u"},
        "spec": {
            "initContainers": [
                container("setup", {"cpu": "1", "memory": "1Gi"}),
                container("proxy", {"cpu": "100m"}, restartPolicy="Always"),
            ],
            "containers": [
                {
                    "name": "main",
                    "resources": {
                        "requests": {"cpu": "500m"},
                        "limits": {"cpu": "4", "memory": "2Gi", "vendor.com/fpga": "2", "hugepages-1Gi": "1Gi"},
                    },
                },
                container("second", {"memory": "1Mi"}),
                {"name": "plain"},
            ],
            "ephemeralContainers": [{"name": "debugger", "resources": {}}],
        },
    }
    assert read_pod(pod) == {
        "setup": Declared(1000, {"memory": GI}, ContainerKind.INIT),
        "proxy": Declared(100, {}, ContainerKind.SIDECAR),
        "main": Declared(500, {"memory": 2 * GI, "vendor.com/fpga": 2, "hugepages-1Gi": GI}, ContainerKind.MAIN),
        "second": Declared(None, {"memory": MI}, ContainerKind.MAIN),
        "plain": Declared(None, {}, ContainerKind.MAIN),
        "debugger": Declared(None, {}, ContainerKind.EPHEMERAL),
    }


def test_pod_with_odd_parts() -> None:
    """What is not understood is left out, and the rest counts; reclaimed resources win over original ones."""
    odd = {"cpu": "many", "memory": "1Gi", "new-resource": "1", "vendor.com/x": "1m", RECLAIMED_CPU: "2k"}
    spec: dict[str, object] = {
        "containers": [
            None,
            "main",
            {"resources": {}},
            {"name": 7},
            container("main", odd),
            {"name": "b", "resources": 1},
        ],
        "initContainers": {"name": "setup"},
    }
    assert read_pod({"spec": spec}) == {
        "main": Declared(2000, {"memory": GI}, ContainerKind.MAIN),
        "b": Declared(None, {}, ContainerKind.MAIN),
    }
    both = {"cpu": "1", RECLAIMED_CPU: "3k", "memory": "1", RECLAIMED_MEMORY: "2"}
    assert read_pod({"spec": {"containers": [container("c", both)]}})["c"] == Declared(
        3000, {"memory": 2}, ContainerKind.MAIN
    )


@pytest.mark.parametrize(
    ("annotations", "names", "main"),
    [
        (None, ["a", "b"], "a"),
        ({MAIN_CONTAINER: "b"}, ["a", "b"], "b"),
        ({MAIN_CONTAINER: "gone"}, ["a", "b"], "a"),
        ({MAIN_CONTAINER: 1}, ["a"], "a"),
        ({MAIN_CONTAINER: "a"}, [], ""),
    ],
)
def test_main_container(annotations: object, names: list[str], main: str) -> None:
    """The container that the annotation names if there is one of that name, else the first."""
    pod = {"metadata": {"annotations": annotations}, "spec": {"containers": [container(name) for name in names]}}
    assert main_container(pod) == main


def test_bandwidth() -> None:
    """The pod's bandwidth is in Mbit/s, rounded up, on one container: the given, the annotated, or the first."""
    declared = {"a": Declared(1, {"memory": 1}), "b": Declared()}
    both = {EGRESS: "10M", INGRESS: "1500k"}
    asked = {NET_EGRESS: 10, NET_INGRESS: 2}
    assert with_bandwidth(declared, both) == {"a": Declared(1, {"memory": 1, **asked}), "b": Declared()}
    assert with_bandwidth(declared, both, "b") == {**declared, "b": Declared(None, asked)}
    assert with_bandwidth(declared, {**both, MAIN_CONTAINER: "c"}) == {**declared, "c": Declared(None, asked)}
    assert with_bandwidth(declared, {**both, MAIN_CONTAINER: "c"}, "b") == {**declared, "b": Declared(None, asked)}
    assert with_bandwidth({}, {INGRESS: "1G"}, "a") == {"a": Declared(None, {NET_INGRESS: 1000})}
    assert with_bandwidth({}, both) == {}
    assert with_bandwidth(declared, {}, "a") == declared


def test_bandwidth_asked_as_a_resource_counts() -> None:
    """A pod one of whose containers asks for bandwidth, were it none, gets no more by annotation."""
    declared = {"a": Declared(), "b": Declared(None, {NET_EGRESS: 0})}
    assert with_bandwidth(declared, {EGRESS: "10M", INGRESS: "1M"}) == declared


@pytest.mark.parametrize("text", ["", "fast", "0", "999", "1.1P", "-1M", "1e99"])
def test_bad_bandwidth(text: str) -> None:
    """A bandwidth that containerd would refuse is refused with its annotation named, whatever the containers."""
    with pytest.raises(BadRequest, match=rf"^{INGRESS} is '{text}', allowed: bits per second from 1k to 1P"):
        with_bandwidth({}, {INGRESS: text})


def test_merged() -> None:
    """The stronger source is right where both speak, the weaker one where only it does."""
    strong = Declared(None, {"memory": 0, "a.b/c": 1})
    weak = Declared(500, {"memory": 7, "d.e/f": 2}, ContainerKind.INIT)
    assert merged(strong, weak) == Declared(500, {"memory": 0, "a.b/c": 1, "d.e/f": 2}, ContainerKind.INIT)
    assert merged(Declared(0), weak) == Declared(0, weak.quantities, ContainerKind.INIT)
    assert merged(strong, None) is strong
    assert merged(None, weak) is weak
    assert merged(None, None) is None


def test_apply() -> None:
    """What is declared replaces what CRI told; what is 0 is not asked, and without a declaration nothing changes."""
    request = ResourceRequest(PodIdentity("u", "shop", "web-0"), "main", cpu_millis=100, memory_limit=5)
    assert apply(request, None, "kubelet") is request
    told = apply(request, Declared(None, {"memory": 3, "a.b/c": 0}), "annotation")
    assert (told.cpu_millis, told.quantities, told.kind) == (100, {"memory": 3}, ContainerKind.UNKNOWN)
    assert (told.source, told.memory_limit, told.pod) == ("annotation", 5, request.pod)
    told = apply(request, Declared(0, {}, ContainerKind.INIT), "kubelet")
    assert (told.cpu_millis, told.quantities, told.kind, told.source) == (0, {}, ContainerKind.INIT, "kubelet")


KEYS = (
    "metadata spec annotations resources requests limits name restartPolicy cpu memory hugepages-2Mi hugepages- a.b/c"
)
WORDS = st.sampled_from([*KEYS.split(), NET_EGRESS, RECLAIMED_CPU, RECLAIMED_MEMORY, EGRESS, MAIN_CONTAINER, *KINDS])
TEXTS = st.one_of(
    st.sampled_from(["1", "100m", "2Gi", "1e3", "Always", "x", "1e-99", "", "9" * 70]), st.text(max_size=5)
)
SCALARS = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), TEXTS)
JSON = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(WORDS | TEXTS, inner, max_size=5),
    max_leaves=20,
)
ODD_RESOURCES = st.fixed_dictionaries({}, optional={"requests": st.dictionaries(WORDS, JSON), "limits": JSON})
ODD_CONTAINERS = st.lists(st.fixed_dictionaries({"name": TEXTS}, optional={"resources": ODD_RESOURCES | JSON}) | JSON)
ODD_PODS = st.fixed_dictionaries(
    {"spec": st.fixed_dictionaries({}, optional=dict.fromkeys(KINDS, ODD_CONTAINERS | JSON)) | JSON},
    optional={"metadata": JSON},
)


@given(ODD_PODS | st.dictionaries(WORDS, JSON))
def test_no_pod_is_too_odd(pod: Mapping[str, Any]) -> None:
    """Whatever JSON object kubelet sends, what is read of it are named containers with amounts of 0 or more."""
    for name, declared in read_pod(pod).items():
        assert name
        assert declared.kind is not None
        assert all(amount >= 0 for amount in (declared.cpu_millis or 0, *declared.quantities.values()))
    assert isinstance(main_container(pod), str)


@given(st.one_of(st.text(), st.dictionaries(TEXTS, st.dictionaries(WORDS | TEXTS, JSON) | JSON).map(json.dumps)))
@example("\ud800")
def test_no_annotation_is_too_odd(text: str) -> None:
    """Whatever the annotation's text, it is read or refused in words that fit into a gRPC status."""
    said, amounts = "", [0]
    try:
        for declared in read_declared({RESOURCES: text}).values():
            amounts += [declared.cpu_millis or 0, *declared.quantities.values()]
    except BadRequest as refusal:
        said = str(refusal)
    assert len(said.encode()) < 1000
    assert min(amounts) >= 0


def test_in_all() -> None:
    """A pod asks for its containers together, or for one init container where that is more."""
    main, side = Declared(None, {"memory": 2, "a.b/c": 1}), Declared(None, {"memory": 3}, ContainerKind.SIDECAR)
    first, second = (Declared(None, {"memory": size}, ContainerKind.INIT) for size in (4, 9))
    assert in_all([main, side, first]) == {"memory": 5, "a.b/c": 1}
    assert in_all([first, main, second, side]) == {"memory": 9, "a.b/c": 1}
