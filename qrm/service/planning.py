"""`qrm plan`: what would happen to a pod, without it. Works on a copy of what everybody holds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from qrm.allocation.book import Book
from qrm.allocator import BadRequest, ContainerKey, DoesNotFit, Holding, PodIdentity, ResourceRequest
from qrm.ledger.record import CPU, Record
from qrm.pods.declared import apply, main_container, merged, read_declared, read_pod, with_bandwidth
from qrm.pods.model import NativeQos
from qrm.pods.qos import read_qos
from qrm.pods.request import QosDefaults, at_default_level
from qrm.service import api, views

UID = "planned"


def what_if(book: Book, asked: api.PlanRequest, defaults: QosDefaults) -> api.PlanReply:
    """The placement of a pod's containers, one after the other, and what changes for others."""
    before = book.holdings()
    holdings = {resource: dict(held) for resource, held in before.items()}
    explained: list[api.Explanation] = []
    home = None
    try:
        for request in _requests(asked, defaults):
            plan = book.planner.plan(request, holdings, home=home)
            home = plan.nodes
            for key, changed in plan.allocations.items():
                for resource, allocation in changed.items():
                    held = holdings[resource].get(key)
                    mine = key.pod_uid == UID
                    if held is None or mine:
                        holdings[resource][key] = Holding(request, allocation)
                    else:
                        holdings[resource][key] = replace(held, allocation=allocation)
            record = Record(request.key, request, "", allocations=plan.own, hints=plan.hints)
            explained.append(views.explanation(record))
    except (DoesNotFit, BadRequest) as error:
        return api.PlanReply(False, str(error), explained, [])
    old, new = before.get(CPU, {}), holdings.get(CPU, {})
    changes = [
        api.Change(str(held.request.pod), key.container, _cpus(old, key), _cpus(new, key), held.allocation.pool)
        for key, held in new.items()
        if key.pod_uid != UID and _cpus(old, key) != _cpus(new, key)
    ]
    return api.PlanReply(True, "", explained, changes)


def _requests(asked: api.PlanRequest, defaults: QosDefaults) -> list[ResourceRequest]:
    try:
        native = NativeQos(asked.native_qos)
    except ValueError:
        known = ", ".join(NativeQos)
        raise BadRequest(f"native_qos: {asked.native_qos!r} is no QoS class", hint=f"write one of {known}") from None
    qos = read_qos(asked.annotations, defaults.level)
    annotated, listed = read_declared(asked.annotations), read_pod(asked.pod)
    both = {name: merged(annotated.get(name), listed.get(name)) for name in asked.containers}
    found = {name: declared for name, declared in both.items() if declared is not None}
    complete = with_bandwidth(found, asked.annotations, main_container(asked.pod))
    pod = PodIdentity(UID, asked.namespace, asked.name)
    total = sum(asked.containers.values())
    requests = []
    for name, millis in asked.containers.items():
        told = ResourceRequest(pod, name, qos=qos, native_qos=native, cpu_millis=millis, pod_cpu_millis=total)
        request = apply(told, complete.get(name), "manifest")
        requests.append(at_default_level(request, asked.annotations, defaults))
    return requests


def _cpus(holdings: Mapping[ContainerKey, Holding], key: ContainerKey) -> str:
    held = holdings.get(key)
    return str(held.allocation.cpus) if held else ""
