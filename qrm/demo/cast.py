"""The pods of the demo, as large as the machine allows. Each has one container, called main."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace

from qrm.demo.pods import ContainerSpec, Pod
from qrm.pods.model import QosLevel
from qrm.topology.machine import Machine
from qrm.units import MILLIS_PER_CPU

MAIN = "main"

_KEY = "katalyst.kubewharf.io/"
_NUMA_BINDING = {f"{_KEY}memory_enhancement": json.dumps({"numa_binding": "true"})}
_MEMORY = 64 << 20
_WEB, _AGENT = 200, 50
"""Millicores."""
_DATABASE = 4
"""CPUs, where they are plenty."""


@dataclass(frozen=True, slots=True)
class Cast:
    """The pods in the order of their entrance."""

    web: Pod
    """Shared."""
    database: Pod
    """Dedicated."""
    batch: Pod
    """Reclaimed."""
    agent: Pod
    """System."""
    huge: Pod
    """Dedicated, and larger than what is free."""
    resized: tuple[Pod, ...]
    """Some of the above once more, with other requests."""


def cast_for(machine: Machine) -> Cast:
    """The pods for `machine`: a large database where each NUMA node has room for two of it, else one of 1 CPU."""
    large = min(len(machine.nodes[node].cpus) for node in machine.cpu_nodes) >= 2 * _DATABASE
    database = _dedicated("database", _DATABASE, _NUMA_BINDING) if large else _dedicated("database", 1)
    web = _pod("web", QosLevel.SHARED, ContainerSpec(MAIN, cpu_request=_WEB))
    smaller = replace(database, containers=_whole_cpus(_DATABASE // 2))
    larger = replace(web, containers=(ContainerSpec(MAIN, cpu_request=2 * _WEB),))
    return Cast(
        web=web,
        database=database,
        batch=_pod("batch", QosLevel.RECLAIMED, ContainerSpec(MAIN)),
        agent=_pod("agent", QosLevel.SYSTEM, ContainerSpec(MAIN, cpu_request=_AGENT)),
        huge=_dedicated("huge", len(machine.online)),
        resized=(smaller, database) if large else (larger,),
    )


def _pod(name: str, level: QosLevel, spec: ContainerSpec) -> Pod:
    return Pod(name, (spec,), annotations={f"{_KEY}qos_level": level})


def _dedicated(name: str, cpus: int, enhancement: Mapping[str, str] | None = None) -> Pod:
    annotations = {f"{_KEY}qos_level": QosLevel.DEDICATED, **(enhancement or {})}
    return Pod(name, _whole_cpus(cpus), annotations=annotations)


def _whole_cpus(cpus: int) -> tuple[ContainerSpec]:
    millis = cpus * MILLIS_PER_CPU
    return (ContainerSpec(MAIN, cpu_request=millis, cpu_limit=millis, memory_limit=_MEMORY),)
