"""`qrm doctor`: what works here, what does not, and why."""

from __future__ import annotations

from pathlib import Path

from qrm.allocation.remote.registry import Standing
from qrm.enforcement.cgroup import Cgroups
from qrm.enforcement.channel import CallError
from qrm.enforcement.isolation.knobs import FILES
from qrm.ledger.record import Mark
from qrm.service import api
from qrm.service.node import Node
from qrm.wire import cri_pb2 as cri

ON, OFF, DEGRADED = "on", "off", "degraded"


async def examine(node: Node) -> api.Doctor:
    """All features of a running node."""
    config = node.config
    cgroups = Cgroups(Path(config.host.cgroup), Path(config.host.proc))
    features = [
        await _runtime(node),
        _placing(node),
        api.Feature("cgroup", ON, f"version {cgroups.version} at {config.host.cgroup}"),
        *(api.Feature(f"allocator {each.resource}", ON, type(each).__module__) for each in node.planner.allocators),
        *_plugins(node, *await node.crew.stock()),
        _files(node),
        *_dimensions(node),
        _static_cpu_manager(node),
        _unmanaged(node),
        _pod_source(node),
        api.Feature(
            "metrics", ON if config.metrics.listen else OFF, config.metrics.listen or "metrics.listen is empty"
        ),
    ]
    return api.Doctor(features)


async def _runtime(node: Node) -> api.Feature:
    try:
        version = await node.runtime.version()
    except CallError as error:
        return api.Feature("runtime", DEGRADED, f"{node.config.runtime.endpoint} does not answer: {error.details}")
    return api.Feature("runtime", ON, f"{version.runtime_name} {version.runtime_version}")


def _placing(node: Node) -> api.Feature:
    if node.context.ready.is_set():
        return api.Feature("placing", ON, "ledger and runtime have been compared")
    return api.Feature("placing", DEGRADED, "waits for the runtime, to compare the ledger with it")


def _files(node: Node) -> api.Feature:
    """The cgroup files that containers can be given."""
    able = node.files.able
    missing = sorted(FILES.keys() - able)
    why = f"{', '.join(sorted(able)) or 'none'}; not here or off: {', '.join(missing) or 'none'}"
    return api.Feature("isolation cgroup files", ON if able else OFF, why)


def _dimensions(node: Node) -> list[api.Feature]:
    """RDT, io.cost and traffic."""
    features = []
    for name, on, why, failed in node.enforcer.states():
        state = ON if on else OFF
        if failed:
            where, trouble = next(iter(failed.items()))
            state, why = DEGRADED, f"{len(failed)} not in force, such as {where or 'the node'}: {trouble}"
        features.append(api.Feature(f"isolation {name}", state, why))
    return features


def _static_cpu_manager(node: Node) -> api.Feature:
    """kubelet's static CPU manager sends cpusets of its own; they are put right, but the two plan past each other."""
    seen = [record for record in node.book.ledger if _asks_cpuset(record.asked)]
    if seen:
        why = f"kubelet sends cpusets of its own (for {len(seen)} containers): set cpuManagerPolicy: none"
        return api.Feature("sole owner of cpusets", DEGRADED, why)
    return api.Feature("sole owner of cpusets", ON, "kubelet sends no cpusets of its own")


def _unmanaged(node: Node) -> api.Feature:
    count = sum(record.mark is Mark.UNMANAGED and record.running for record in node.book.ledger)
    if count:
        return api.Feature("all containers placed", DEGRADED, f"{count} passed unmanaged; the log says why")
    return api.Feature("all containers placed", ON, "none is unmanaged")


def _pod_source(node: Node) -> api.Feature:
    """Where requests come from that CRI does not carry."""
    name = "kubelet's pod list"
    if node.kubelet is None:
        return api.Feature(name, OFF, "kubelet.pods_url is empty: requests are what CRI and qrm.io/resources say")
    if node.kubelet.last_error:
        return api.Feature(name, DEGRADED, node.kubelet.last_error)
    return api.Feature(name, ON, node.config.kubelet.pods_url)


def _plugins(node: Node, stock: dict[str, str], trouble: dict[str, str]) -> list[api.Feature]:
    """Each plugin that was seen, and those that must be there and are not."""
    seen = node.registry.plugins if node.registry is not None else {}
    features = []
    for name, each in sorted(seen.items()):
        state, why = ON, f"{each.endpoint}, allocatable: {stock.get(name, 'not told')}"
        if each.state is not Standing.REGISTERED:
            state, why = DEGRADED, f"{each.endpoint} is {each.state}: {each.why}"
        elif name in trouble:
            state, why = DEGRADED, trouble[name]
        features.append(api.Feature(f"plugin {name}", state, why))
    missing = [name for name in node.config.plugins.required if name not in seen]
    return features + [api.Feature(f"plugin {name}", DEGRADED, "required and not registered") for name in missing]


def _asks_cpuset(asked: bytes) -> bool:
    return bool(cri.LinuxContainerResources.FromString(asked).cpuset_cpus)
