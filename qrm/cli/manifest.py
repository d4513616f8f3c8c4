"""A pod's manifest as `qrm plan` reads it: JSON, as `kubectl get -o json` and `--dry-run=client -o json` print it."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec
from msgspec import Struct, field

from qrm.errors import ParseError, QrmError
from qrm.pods.model import NativeQos
from qrm.service import api
from qrm.units import parse_millis, parse_quantity

NO_YAML = "YAML is not read here: kubectl create --dry-run=client -o json -f POD.yaml | qrm plan --file -"

Amounts = dict[str, str | int | float]


class Resources(Struct, frozen=True):
    """What a container asks for, by resource."""

    requests: Amounts = {}
    limits: Amounts = {}

    def request(self, name: str) -> str:
        """The request; a limit without a request stands for both, as in the API server."""
        return str(self.requests.get(name, self.limits.get(name, 0)))


class Container(Struct, frozen=True):
    """One container."""

    name: str
    resources: Resources = field(default_factory=Resources)
    restart_policy: str = field(default="", name="restartPolicy")


class Metadata(Struct, frozen=True):
    """The part of the metadata that matters."""

    name: str = "planned"
    annotations: dict[str, str] = {}


class Spec(Struct, frozen=True):
    """A pod's spec, or that of a Deployment, DaemonSet, StatefulSet or Job, which has the pod in its template."""

    containers: list[Container] = []
    init_containers: list[Container] = field(default_factory=list, name="initContainers")
    template: Manifest | None = None


class Manifest(Struct, frozen=True):
    """The whole file, or the template in it."""

    spec: Spec
    metadata: Metadata = field(default_factory=Metadata)


def read_manifest(text: bytes, source: str) -> api.PlanRequest:
    """The pod that the manifest `text` describes; `source` names it in errors.

    Init containers are left out, because they are gone before the pod's containers run; those with restartPolicy
    Always, which stay, come first.

    Raises:
        QrmError: it is not JSON, not a pod, or has an amount that is no quantity; the message says where.
    """
    try:
        manifest = msgspec.json.decode(text, type=Manifest)
    except msgspec.ValidationError as error:
        raise QrmError(
            f"{source} is not the manifest of a pod: {error}", hint="give one Pod, or one workload"
        ) from error
    except msgspec.DecodeError as error:
        raise QrmError(f"{source} is not JSON: {error}", hint=NO_YAML) from error
    pod = manifest.spec.template or manifest
    staying = [each for each in pod.spec.init_containers if each.restart_policy == "Always"]
    containers = [*staying, *pod.spec.containers]
    if not containers:
        raise QrmError(f"{source} has no containers in its spec", hint="give one Pod, or one workload with a template")
    try:
        asked = {each.name: parse_millis(each.resources.request("cpu")) for each in containers}
        native = _native_qos([*pod.spec.init_containers, *pod.spec.containers])
    except ParseError as error:
        raise QrmError(f"{source}: {error.message}", hint=error.hint) from error
    raw = msgspec.json.decode(text)
    raw = raw["spec"]["template"] if manifest.spec.template else raw
    return api.PlanRequest(pod.metadata.annotations, asked, manifest.metadata.name, native, pod=raw)


def _native_qos(containers: Iterable[Container]) -> NativeQos:
    """Kubernetes' QoS class, by the rules of its pkg/apis/core/v1/helper/qos."""
    asked = [
        (parse_quantity(each.resources.request(name)), parse_quantity(str(each.resources.limits.get(name, 0))))
        for each in containers
        for name in ("cpu", "memory")
    ]
    if not any(request for request, _ in asked):
        return NativeQos.BEST_EFFORT
    same = all(limit and request == limit for request, limit in asked)
    return NativeQos.GUARANTEED if same else NativeQos.BURSTABLE
