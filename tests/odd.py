"""Requests and containers that say odd things, and a node that serves over many examples of them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Coroutine
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, Self, TypeVar

import structlog
from hypothesis import strategies as st

from qrm.ledger.annotation import KEY
from qrm.wire import cri_pb2 as cri
from tests.support import HOSTS_OWN, under_test

Result = TypeVar("Result")
MORE = f"""
{HOSTS_OWN}
[upkeep]
drift_seconds = 3600
[allocators.cpu]
[allocators.memory]
[allocators.nic.nics.far]
speed = 10000
node = 0
namespace = "far"
[profiles.odd]
memory_high = "90%"
cpu_burst_percent = 50
"""
LARGEST = 2**63 - 1
NUMBERS = st.sampled_from([0, 1, 2, 3, 1000, 1024, 2048, 4096, 100_000, 262_144, LARGEST, -LARGEST - 1, -1])
DEEP = "[" * 3000
DIGITS = "9" * 5000
NASTY = [
    "\x00",
    DEEP,
    DIGITS,
    '{"a":' * 3000,
    f'{{"a":{DIGITS}}}',
    '{"/dev/\\u0000":{"wbps":9}}',
    f'{{"/dev/{"b" * 300}":{{"wbps":9}}}}',
    '{"\\ud800":{"\\ud800":"1"}}',
    '{"c0":{"\\ud800":"1"}}',
    f'{{"c0":{{"cpu":{DIGITS}}}}}',
    '{"c0":{"cpu":1e400,"memory":NaN}}',
]
"""What has made, or might make, a reader fail in another way than its own."""
TEXTS = st.one_of(
    st.sampled_from(NASTY),
    st.sampled_from(
        ["", "0", "1", "true", "false", "null", "NaN", "-Infinity", "1e400", "-1", "\u0663", "\x00", "a\x00b", "é"]
    ),
    st.sampled_from(["x" * 2000, '{"/dev/sda":{"rbps":' + DEEP]),
    st.sampled_from(["dedicated_cores", "shared_cores", "reclaimed_cores", "system_cores", "odd", "0-1", "0,1", "1-0"]),
    st.sampled_from(["999999", "1M", "1k", "10P", "9223372036854775807", "1.5", ".5", "5m", "2Gi", "1E", "0.1n"]),
    st.text(max_size=8),
)
SCALARS = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), TEXTS)


def objects(keys: list[str], values: st.SearchStrategy[Any]) -> st.SearchStrategy[str]:
    """JSON objects with some of `keys`, and now and then another; half a surrogate is one in Python's JSON."""
    names = st.one_of(st.sampled_from(keys), st.sampled_from([*keys, "", "\ud800", "x", "a" * 300]))
    return st.dictionaries(names, values, max_size=4).map(json.dumps)


RIGHT = st.sampled_from(["true", "false", "0", "1", "50", "100", "share", "batch", "static", "closed", "host_ns"])
RESOURCES = [
    "cpu",
    "memory",
    "ephemeral-storage",
    "hugepages-2Mi",
    "hugepages-0",
    "hugepages-9999999999Ti",
    "resource.katalyst.kubewharf.io/net_bandwidth",
    "qrm.io/net_ingress_bandwidth",
    "resource.katalyst.kubewharf.io/reclaimed_millicpu",
    "vendor.com/fpga",
]
AMOUNTS = st.one_of(
    st.sampled_from(["1", "2", "500m", "2Mi", "9223372036854775807", "0", "9E", "1e18", 4, 1.5, LARGEST]), SCALARS
)
D = "katalyst.kubewharf.io/"
ANNOTATIONS: dict[str, st.SearchStrategy[str]] = {
    f"{D}qos_level": st.one_of(
        st.sampled_from(["dedicated_cores", "shared_cores", "reclaimed_cores", "system_cores"]), TEXTS
    ),
    f"{D}cpu_enhancement": objects(
        [
            "cpuset_pool",
            "numa_share",
            "suppression_tolerance_rate",
            "cpu_burst_policy",
            "cpu_burst_percent",
            "cpu_burst_threshold",
            "align_by_socket",
            "distribute_evenly_across_numa",
            "full_pcpus_pairing",
        ],
        st.one_of(RIGHT, SCALARS),
    ),
    f"{D}memory_enhancement": objects(
        ["numa_binding", "numa_exclusive", "rss_overuse_threshold", "oom_priority"], st.one_of(RIGHT, SCALARS)
    ),
    f"{D}network_enhancement": objects(["namespace_type", "topology_affinity_restricted"], st.one_of(RIGHT, SCALARS)),
    f"{D}numa_number": TEXTS,
    f"{D}numa_ids": TEXTS,
    "qrm.io/memory_only_nodes": TEXTS,
    "qrm.io/profile": TEXTS,
    "qrm.io/io_max": objects(
        ["/dev/sda", "8:0", "/dev/../x", "/dev/\x00", "a" * 500, "/dev/" + "b/" * 300],
        st.one_of(st.dictionaries(st.sampled_from(["rbps", "wbps", "riops", "wiops", "x"]), SCALARS), SCALARS),
    ),
    "qrm.io/resources": objects(
        ["c0", "c1", "c2"], st.one_of(st.dictionaries(st.sampled_from(RESOURCES), AMOUNTS, max_size=3), SCALARS)
    ),
    "kubernetes.io/egress-bandwidth": TEXTS,
    "kubernetes.io/ingress-bandwidth": TEXTS,
    "kubernetes.io/main-container-name": st.one_of(st.just("c0"), TEXTS),
    KEY: TEXTS,
}


@st.composite
def said(draw: st.DrawFn) -> dict[str, str]:
    """A few of those that qrm reads, most of them odd."""
    names = draw(st.lists(st.sampled_from(sorted(ANNOTATIONS)), max_size=4, unique=True))
    return {name: draw(st.one_of(ANNOTATIONS[name], ANNOTATIONS[name], TEXTS)) for name in names}


@st.composite
def resources(draw: st.DrawFn) -> cri.LinuxContainerResources:
    """Numbers at the ends of their ranges, and cpusets and files that kubelet does not send."""
    made = cri.LinuxContainerResources()
    for name in ("cpu_period", "cpu_quota", "cpu_shares", "memory_limit_in_bytes", "memory_swap_limit_in_bytes"):
        if draw(st.booleans()):
            setattr(made, name, draw(NUMBERS))
    if draw(st.integers(0, 3)) == 0:
        made.cpuset_cpus, made.cpuset_mems = draw(TEXTS)[:100], draw(TEXTS)[:100]
    if draw(st.integers(0, 3)) == 0:
        made.unified.update(draw(st.dictionaries(st.sampled_from(["memory.high", "io.max", "cpu.idle", "x"]), TEXTS)))
    return made


@st.composite
def sandboxes(draw: st.DrawFn) -> cri.PodSandboxConfig:
    """A pod's configuration, of which any part may be missing."""
    made = cri.PodSandboxConfig()
    if draw(st.integers(0, 9)):
        made.metadata.name, made.metadata.namespace = draw(st.sampled_from(["p", "", "é"])), "n"
        made.metadata.uid = draw(st.sampled_from(["u", "", "\x00", "v" * 900]))
    made.annotations.update(draw(said()))
    if draw(st.booleans()):
        made.labels["io.kubernetes.pod.uid"] = draw(st.sampled_from(["w", "", "ü\x00"]))
    if draw(st.booleans()):
        made.linux.cgroup_parent = draw(
            st.sampled_from(["/kubepods/podu", "/kubepods/burstable/podu", "", "-.slice", "/"])
        )
        made.linux.resources.CopyFrom(draw(resources()))
    return made


@st.composite
def containers(draw: st.DrawFn) -> cri.ContainerConfig:
    """A container's configuration, of which any part may be missing."""
    made = cri.ContainerConfig()
    if draw(st.integers(0, 9)):
        made.metadata.name = draw(st.sampled_from(["c0", "c1", "", "c\x00"]))
        made.metadata.attempt = draw(st.sampled_from([0, 1, 2**32 - 1]))
    if draw(st.booleans()):
        made.labels["io.kubernetes.container.name"] = draw(st.sampled_from(["c0", "c2", ""]))
    if draw(st.integers(0, 9)):
        made.linux.resources.CopyFrom(draw(resources()))
    made.annotations.update(draw(said()))
    return made


class Scene:
    """A node in front of a fake runtime, in a loop of its own. Entering it starts both."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._runner = asyncio.Runner()
        self._stack = AsyncExitStack()

    def __enter__(self) -> Self:
        self.under = self._runner.run(self._stack.enter_async_context(under_test(self._folder, more=MORE)))
        return self

    def __exit__(self, *_: object) -> None:
        self._runner.run(self._stack.aclose())
        self._runner.close()

    def run(self, work: Coroutine[Any, Any, Result]) -> Result:
        """Let the loop run until `work` is done; what qrm fails at meanwhile is an assertion that fails."""
        before = self._failures()
        with structlog.testing.capture_logs() as logs:
            result = self._runner.run(work)
        assert self._failures() == before
        assert not [each for each in logs if each["log_level"] == "error"]
        return result

    def _failures(self) -> list[Any]:
        found = self.under.node.metrics.failures.collect()
        return [each for metric in found for each in metric.samples if each.value and each.name.endswith("_total")]
