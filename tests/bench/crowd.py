"""The pods of a busy node: mostly shared and reclaimed, some dedicated, a few in pools of their own."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from qrm.demo.pods import ContainerSpec, Pod, container_config, sandbox_config
from qrm.pods.model import ResourceRequest
from qrm.pods.request import QosDefaults, read_request
from qrm.topology.generate import Layout
from qrm.wire import cri_pb2

MIB = 1 << 20
_DOMAIN = "katalyst.kubewharf.io"

MACHINES = {
    16: Layout(cores_per_socket=8, threads=2),
    256: Layout(sockets=2, nodes_per_socket=2, l3_per_socket=8, cores_per_socket=64, threads=2),
    1024: Layout(sockets=4, nodes_per_socket=4, l3_per_socket=16, cores_per_socket=128, threads=2),
}
"""Machines by their number of CPUs: a small one, two sockets of chiplets, and four sockets of them."""

_BOUND = {f"{_DOMAIN}/memory_enhancement": '{"numa_binding": "true"}'}
_SAID: dict[str, dict[str, str]] = {
    "shared": {},
    "bound": _BOUND,
    "pool": {f"{_DOMAIN}/cpu_enhancement": '{"cpuset_pool": "batch"}'},
    "reclaimed": {f"{_DOMAIN}/qos_level": "reclaimed_cores"},
    "system": {f"{_DOMAIN}/qos_level": "system_cores"},
    "dedicated": {f"{_DOMAIN}/qos_level": "dedicated_cores"},
    "dedicated bound": {f"{_DOMAIN}/qos_level": "dedicated_cores", **_BOUND},
}
"""What pods of each kind say in their annotations."""

_CYCLE = (
    *("shared", "reclaimed", "shared", "dedicated", "shared", "reclaimed", "shared", "bound", "shared", "reclaimed"),
    *("shared", "reclaimed", "shared", "dedicated bound", "shared", "reclaimed", "pool", "system", "shared", "shared"),
)
"""The kinds of twenty pods in the order in which they come."""

_DEDICATED_PART, _SHARED_PART = 0.25, 0.35
"""How much of the machine is asked for by dedicated pods, at most, and by all that share, together."""


def crowd(pods: int, containers: int, cpus: int) -> list[Pod]:
    """As many pods with as many containers in all, sized so that they fit on a machine of `cpus` CPUs."""
    left = int(cpus * _DEDICATED_PART)
    made = []
    for number in range(pods):
        count = containers * (number + 1) // pods - containers * number // pods
        kind = _CYCLE[number % len(_CYCLE)]
        whole = 1 + number % 4 if kind.startswith("dedicated") else 0
        if whole * count > left:
            kind, whole = "shared", 0
        left -= whole * count
        millis = 0 if kind in {"reclaimed", "system"} else whole * 1000 or int(cpus * 1000 * _SHARED_PART) // containers
        made.append(
            Pod(f"{kind.replace(' ', '-')}-{number}", tuple(_specs(count, millis, whole)), annotations=_SAID[kind])
        )
    return made


def dedicated(name: str, cpus: int = 4) -> Pod:
    """A pod with one container that asks for CPUs of its own."""
    return Pod(name, tuple(_specs(1, cpus * 1000, cpus)), annotations=_SAID["dedicated"])


def shared(name: str, millis: int = 100) -> Pod:
    """A pod with one container that shares."""
    return Pod(name, tuple(_specs(1, millis, 0)))


def requests(pods: Iterable[Pod]) -> Iterator[ResourceRequest]:
    """What the containers of `pods` ask for, as qrm reads it from their CreateContainer calls."""
    for pod in pods:
        for spec in pod.containers:
            message = cri_pb2.CreateContainerRequest(
                config=container_config(pod, spec), sandbox_config=sandbox_config(pod)
            )
            yield read_request(message, QosDefaults())


def _specs(count: int, millis: int, whole: int) -> Iterator[ContainerSpec]:
    for number in range(count):
        yield ContainerSpec(f"c{number}", cpu_request=millis, cpu_limit=whole * 1000, memory_limit=64 * MIB)
