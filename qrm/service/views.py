"""The node's state as the admin API shows it. Pure functions of the book and the machine."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import fields, is_dataclass

from qrm.allocation.book import Book
from qrm.allocator import Quantities, TopologyHint
from qrm.cpuset import CPUSet
from qrm.enforcement.cgroup import KernelCpuset
from qrm.ledger.record import CPU, Mark, Record
from qrm.pods.model import Qos
from qrm.service import api
from qrm.topology.machine import Machine
from qrm.wire import cri_pb2 as cri


def containers(book: Book) -> list[Record]:
    """The records of containers, in a stable order for people."""
    records = (record for record in book.ledger if not record.is_pod)
    return sorted(records, key=lambda each: (str(each.request.pod), each.created, each.key.container))


def container(record: Record) -> api.Container:
    """One record as `qrm pods` shows it."""
    allocation = record.allocations.get(CPU)
    return api.Container(
        pod=str(record.request.pod),
        pod_uid=record.key.pod_uid,
        container=record.key.container,
        id=record.container_id,
        qos=str(record.request.qos.level),
        pool=allocation.pool if allocation else "",
        cpus=str(allocation.cpus) if allocation else "",
        exclusive=bool(allocation and allocation.exclusive),
        request=record.request.cpu_millis,
        state="pending" if record.pending else "running" if record.running else "exited",
        mark=str(record.mark),
    )


def explanation(
    record: Record,
    *,
    seen: KernelCpuset | None = None,
    plugins: dict[str, str] | None = None,
    isolation: list[api.Fact] | None = None,
) -> api.Explanation:
    """One record as `qrm explain` shows it; `seen` is what the kernel has, as far as it was asked."""
    asked = cri.LinuxContainerResources.FromString(record.asked)
    return api.Explanation(
        container=container(record),
        asked={field.name: str(value) for field, value in asked.ListFields()},
        annotations=_said(record.request.qos),
        hints={resource: _hints(offered) for resource, offered in record.hints.items()},
        why={resource: allocation.why for resource, allocation in record.allocations.items()},
        applied=str(record.applied) if record.applied else "",
        kernel=str(seen.cpus or seen.effective) if seen else "",
        cgroup=str(seen.path) if seen else "",
        created=record.created,
        source=record.request.source,
        quantities=dict(record.request.quantities),
        mems=str(record.mems or ""),
        nodes=str(record.nodes),
        plugins=plugins or {},
        profile=record.request.qos.profile or str(record.request.qos.level),
        isolation=isolation or [],
        kernel_mems=str(seen.mems) if seen else "",
        devices={resource: held.device for resource, held in record.allocations.items() if held.device},
    )


def counts(book: Book) -> tuple[dict[str, int], int, int]:
    """Running containers by QoS level, how many of all are unmanaged, and how many adopted."""
    live = [record for record in containers(book) if record.running]
    by_level = Counter(str(record.request.qos.level) for record in live)
    unmanaged = sum(record.mark is Mark.UNMANAGED for record in live)
    return dict(by_level), unmanaged, sum(record.mark is Mark.ADOPTED for record in live)


def topology(machine: Machine, book: Book | None, quantities: Quantities | None) -> api.Topology:
    """The machine, with who holds what where a book is given."""
    owner = _owners(book) if book else {}
    pools = quantities.pools if quantities else {}
    cpus = [
        api.CPUView(
            id=cpu.id,
            core=cpu.core,
            l3=cpu.l3,
            die=cpu.die,
            node=cpu.node,
            socket=cpu.socket,
            pool=_pool_of(cpu.id, machine, owner, pools),
            pod=owner.get(cpu.id, ""),
        )
        for cpu in machine.cpus.values()
    ]
    return api.Topology(cpus, _nodes(machine), _devices(machine), str(machine.offline), str(machine.isolated))


def _owners(book: Book) -> dict[int, str]:
    """CPU to the pod that holds it exclusively."""
    owner: dict[int, str] = {}
    for record in book.ledger:
        allocation = record.allocations.get(CPU)
        if allocation is not None:
            owner.update(dict.fromkeys(allocation.exclusive, str(record.request.pod)))
    return owner


def _pool_of(cpu: int, machine: Machine, owner: Mapping[int, str], pools: Mapping[str, CPUSet]) -> str:
    if cpu in owner:
        return "dedicated"
    if cpu in machine.isolated:
        return "isolated"
    # reclaim overlaps with share: who may run there always is shown before who borrows it.
    names = sorted((name for name, members in pools.items() if cpu in members), key=lambda name: name == "reclaim")
    return "+".join(name for name in names if name not in ("dedicated", "system"))


def _nodes(machine: Machine) -> list[api.NodeView]:
    return [
        api.NodeView(
            node.id,
            str(node.cpus),
            node.memory,
            {str(size): count for size, count in node.hugepages.items()},
            {str(other): distance for other, distance in node.distances.items()},
        )
        for node in machine.nodes.values()
    ]


def _devices(machine: Machine) -> list[api.DeviceView]:
    nics = [
        api.DeviceView(nic.name, "nic", nic.node, f"{nic.speed or 'unknown'} Mbit/s, {'up' if nic.up else 'down'}")
        for nic in machine.nics
    ]
    kinds = {True: "rotational", False: "solid state", None: "kind unknown"}
    disks = [
        api.DeviceView(disk.name, "disk", disk.node, f"{disk.device}, {kinds[disk.rotational]}")
        for disk in machine.disks
    ]
    return nics + disks


def _hints(offered: Iterable[TopologyHint]) -> list[api.Hint]:
    return [api.Hint(str(hint.nodes), hint.preferred) for hint in offered]


def _said(qos: Qos) -> dict[str, str]:
    """What the annotations said beyond the defaults, by the annotation keys' names."""
    said = {"qos_level": f"{qos.level} (the node's default)" if qos.by_default else str(qos.level)}
    usual = Qos()
    parts = ((qos.cpu, usual.cpu), (qos.memory, usual.memory), (qos.network, usual.network), (qos, usual))
    for part, default in parts:
        for field in fields(part):
            value = getattr(part, field.name)
            told = field.name not in ("level", "by_default") and not is_dataclass(value)
            if told and value != getattr(default, field.name):
                said[field.name] = str(value).lower() if isinstance(value, bool) else str(value)
    return said
