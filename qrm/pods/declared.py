"""What a pod's containers request beyond what CRI carries, read from an annotation or from the pod as kubelet has it.

Both are plain JSON. The annotation is what somebody wrote for qrm, so what is wrong in it is refused; kubelet's pod was
checked by the API server, so what is not understood there is newer than qrm and left out.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from decimal import Decimal
from typing import Any

from qrm.errors import BadRequest, ParseError
from qrm.pods.model import HUGEPAGES, MEMORY, NET_EGRESS, NET_INGRESS, ContainerKind, ResourceRequest
from qrm.pods.values import NotAllowed, without_repeats
from qrm.units import LARGEST, MILLIS_PER_CPU, parse_quantity

RESOURCES = "qrm.io/resources"
"""The annotation: `{"main": {"cpu": "2", "memory": "4Gi", "vendor.com/fpga": "1"}}`."""
MAIN_CONTAINER = "kubernetes.io/main-container-name"
BANDWIDTH = {"kubernetes.io/egress-bandwidth": NET_EGRESS, "kubernetes.io/ingress-bandwidth": NET_INGRESS}
"""The annotations, in bit/s, that the CNI plugin `bandwidth` enforces as limits of the whole pod."""
_BANDWIDTHS = frozenset(BANDWIDTH.values())
CPU = "cpu"
RECLAIMED_CPU = "resource.katalyst.kubewharf.io/reclaimed_millicpu"
RECLAIMED_MEMORY = "resource.katalyst.kubewharf.io/reclaimed_memory"
_STANDS_FOR = {RECLAIMED_CPU: CPU, RECLAIMED_MEMORY: MEMORY}

_KINDS = {
    "initContainers": ContainerKind.INIT,
    "containers": ContainerKind.MAIN,
    "ephemeralContainers": ContainerKind.EPHEMERAL,
}
_EXAMPLE = 'write it like {"main": {"cpu": "2", "memory": "4Gi"}}'
_NATIVE = (CPU, MEMORY, "ephemeral-storage")
_EXTENDED = re.compile(r"[a-z0-9](?:[a-z0-9.-]{0,251}[a-z0-9])?/[A-Za-z0-9](?:[A-Za-z0-9._-]{0,61}[A-Za-z0-9])?")
_HUGEPAGES = re.compile(rf"{HUGEPAGES}[1-9][0-9]{{0,9}}(?:[kMGT]|[KMGT]i)?")
_LARGEST = Decimal(LARGEST)
_LONGEST = 64
"""Characters of a quantity; longer ones are nobody's, and would only cost time."""
_BITS_PER_MBIT = 1_000_000
_SMALLEST_BANDWIDTH, _LARGEST_BANDWIDTH = Decimal(10**3), Decimal(10**15)
"""containerd refuses pods with others (internal/cri/server validateBandwidthIsReasonable)."""
_SHOWN = 80
"""Characters of a value that a message quotes, as in `qrm.pods.qos`."""


@dataclass(frozen=True, slots=True)
class Declared:
    """What one source says about one container."""

    cpu_millis: int | None = None
    """None where nothing is said."""
    quantities: Mapping[str, int] = field(default_factory=dict)
    """As in ResourceRequest, but 0 is a word too: it overrides what a weaker source says."""
    kind: ContainerKind | None = None


def read_declared(annotations: Mapping[str, str]) -> Mapping[str, Declared]:
    """What the annotation `qrm.io/resources` says, by container name; empty without it.

    Raises:
        BadRequest: It is not what it should be; the message names the container, the resource, the value and what is
            allowed.
    """
    text = annotations.get(RESOURCES)
    if text is None:
        return {}
    try:
        # Numbers stay as they are written, because 1.1 has no exact binary form.
        containers = json.loads(text, object_pairs_hook=without_repeats, parse_int=str, parse_float=str)
    except (ValueError, RecursionError) as error:
        raise BadRequest(f"{RESOURCES} is {_shown(text)}: {_cut(str(error))}", hint=_EXAMPLE) from None
    if not isinstance(containers, dict):
        raise BadRequest(f"{RESOURCES} is {_shown(text)}, allowed: a JSON object by container name", hint=_EXAMPLE)
    return {name: _declared_for(name, asked) for name, asked in containers.items()}


def read_pod(pod: Mapping[str, Any]) -> Mapping[str, Declared]:
    """What each container of a v1.Pod requests, and its kind; never raises.

    A missing request is the limit, as the API server has it. All of `containers` are MAIN: Kubernetes has no word for
    which of them the others serve (Katalyst calls all but one of them sidecars). Where a container asks for reclaimed
    and for original resources, the reclaimed ones count.
    """
    spec, found = _part(pod, "spec"), {}
    for key, usual in _KINDS.items():
        for container in _objects(spec, key):
            name, resources = container.get("name"), _part(container, "resources")
            if isinstance(name, str) and name:
                restarts = usual is ContainerKind.INIT and container.get("restartPolicy") == "Always"
                asked = {**_part(resources, "limits"), **_part(resources, "requests")}
                kind = ContainerKind.SIDECAR if restarts else usual
                found[name] = replace(_declared(asked, _leave_out), kind=kind)
    return found


def main_container(pod: Mapping[str, Any]) -> str:
    """The container of a v1.Pod that the annotation `kubernetes.io/main-container-name` names, else the first one."""
    names = [each["name"] for each in _objects(_part(pod, "spec"), "containers") if isinstance(each.get("name"), str)]
    named = _part(_part(pod, "metadata"), "annotations").get(MAIN_CONTAINER)
    return next((name for name in names if name == named), names[0] if names else "")


def with_bandwidth(
    declared: Mapping[str, Declared], annotations: Mapping[str, str], main: str = ""
) -> Mapping[str, Declared]:
    """`declared` with the pod's bandwidth annotations as requests, in Mbit/s, of one container.

    They are about the pod, so one container stands for it: `main`, else the one that the annotation for it names, else
    the first of `declared`. Where any container asks for bandwidth as a resource, that counts and they do not.

    Raises:
        BadRequest: An annotation is no bandwidth; the runtime would refuse the pod too.
    """
    asked = {resource: _rounded_up(Decimal(bits) / _BITS_PER_MBIT) for resource, bits in bandwidth(annotations).items()}
    main = main or annotations.get(MAIN_CONTAINER, "") or next(iter(declared), "")
    if not asked or not main or any(_BANDWIDTHS & each.quantities.keys() for each in declared.values()):
        return declared
    old = declared.get(main, Declared())
    return {**declared, main: replace(old, quantities={**old.quantities, **asked})}


def bandwidth(annotations: Mapping[str, str]) -> Mapping[str, int]:
    """The pod's bandwidth annotations in bit/s, as NET_EGRESS and NET_INGRESS.

    Raises:
        BadRequest: One is no bandwidth; the runtime would refuse the pod too.
    """
    return {
        resource: _bits(annotation, annotations[annotation])
        for annotation, resource in BANDWIDTH.items()
        if annotation in annotations
    }


def merged(strong: Declared | None, weak: Declared | None) -> Declared | None:
    """What both sources say of one container; where both speak of the same thing, `strong` is right."""
    if strong is None or weak is None:
        return strong or weak
    return Declared(
        cpu_millis=weak.cpu_millis if strong.cpu_millis is None else strong.cpu_millis,
        quantities={**weak.quantities, **strong.quantities},
        kind=strong.kind or weak.kind,
    )


def apply(request: ResourceRequest, declared: Declared | None, source: str) -> ResourceRequest:
    """`request` with what `declared` says in place of what CRI told, and `source` as where it was learned."""
    if declared is None:
        return request
    return replace(
        request,
        cpu_millis=request.cpu_millis if declared.cpu_millis is None else declared.cpu_millis,
        quantities={name: amount for name, amount in declared.quantities.items() if amount},
        kind=declared.kind or request.kind,
        source=source,
    )


def in_all(containers: Collection[Declared]) -> dict[str, int]:
    """What a pod asks for as a whole, besides CPU: its containers together, or one init container if that is more.

    Init containers run one after the other, before the others (Kubernetes' PodRequests; sidecars count as containers).
    """
    together: dict[str, int] = {}
    for each in containers:
        if each.kind is not ContainerKind.INIT:
            for name, amount in each.quantities.items():
                together[name] = together.get(name, 0) + amount
    for each in containers:
        if each.kind is ContainerKind.INIT:
            together |= {name: max(amount, together.get(name, 0)) for name, amount in each.quantities.items()}
    return together


def _declared_for(container: str, asked: object) -> Declared:
    place = f"{RESOURCES}: container {_shown(container)}"
    if not isinstance(asked, dict):
        raise BadRequest(f"{place} is {_shown(asked)}, allowed: an object of resources", hint=_EXAMPLE)

    def refuse(resource: str, value: object, allowed: str) -> None:
        raise BadRequest(f"{place}: {_shown(resource)} is {_shown(value)}, allowed: {allowed}")

    return _declared(asked, refuse)


def _leave_out(_resource: str, _value: object, _allowed: str) -> None:
    """What is odd to qrm in kubelet's pod is not there."""


def _declared(asked: Mapping[str, object], refuse: Callable[[str, object, str], None]) -> Declared:
    """The resources `asked`; `refuse` raises for a resource, its value and what is allowed, or has it left out."""
    found: dict[str, int] = {}
    for resource, value in asked.items():
        try:
            found[resource] = _amount(resource, value)
        except NotAllowed as allowed:
            refuse(resource, value, str(allowed))
    for reclaimed, original in _STANDS_FOR.items():
        if reclaimed in found:
            if original in found:
                refuse(reclaimed, asked[reclaimed], f"only without {original}, which it stands for")
            found[original] = found.pop(reclaimed)
    return Declared(found.pop(CPU, None), found)


def _amount(resource: str, value: object) -> int:
    """The quantity in the resource's own unit: millicores, bytes, Mbit/s or pieces."""
    if resource in _NATIVE:
        return _rounded_up(_exact(value) * (MILLIS_PER_CPU if resource == CPU else 1))
    amount, unit = _exact(value), 1
    if _HUGEPAGES.fullmatch(resource):
        unit = int(parse_quantity(resource.removeprefix(HUGEPAGES)))
    elif not _EXTENDED.fullmatch(resource):
        raise NotAllowed(f"the resources {', '.join(_NATIVE)}, {HUGEPAGES}SIZE such as {HUGEPAGES}2Mi, and DOMAIN/NAME")
    if amount % unit:
        raise NotAllowed("a whole number" if unit == 1 else f"a multiple of {unit}, the page size")
    return int(amount)


def _exact(value: object) -> Decimal:
    if isinstance(value, str) and len(value) <= _LONGEST:
        try:
            number = parse_quantity(value)
        except ParseError:
            number = _LARGEST + 1
        if number <= _LARGEST:
            return number
    raise NotAllowed("a quantity such as 2, 500m or 1.5Gi, from 0 to 2^63-1")


def _rounded_up(number: Decimal) -> int:
    return int(number.to_integral_value(rounding="ROUND_CEILING"))


def _bits(annotation: str, text: str) -> int:
    try:
        bits = _exact(text)
    except NotAllowed:
        bits = Decimal(0)
    if not _SMALLEST_BANDWIDTH <= bits <= _LARGEST_BANDWIDTH:
        raise BadRequest(f"{annotation} is {_shown(text)}, allowed: bits per second from 1k to 1P, such as 10M")
    return _rounded_up(bits)


def _objects(parent: Mapping[str, Any], key: str) -> Iterator[Mapping[str, Any]]:
    found = parent.get(key)
    return (each for each in found if isinstance(each, dict)) if isinstance(found, list) else iter(())


def _part(parent: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    found = parent.get(key)
    return found if isinstance(found, dict) else {}


def _shown(value: object) -> str:
    return "an object or a list" if isinstance(value, dict | list) else _cut(repr(value))


def _cut(text: str) -> str:
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."
