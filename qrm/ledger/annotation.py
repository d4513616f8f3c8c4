"""What the runtime keeps for us: enough of a record, in the container's own annotations, to rebuild it.

The runtime lists annotations with every container each second, so this holds only what cannot be learned elsewhere: the
rest comes from the container's labels, its sandbox and its present cpuset.
"""

from __future__ import annotations

import base64
from typing import Annotated, Literal

import msgspec
from google.protobuf.message import DecodeError

from qrm.allocator import Allocation
from qrm.cpuset import CPUSet, NodeSet
from qrm.errors import ParseError
from qrm.ledger.record import CPU, Record
from qrm.units import LARGEST
from qrm.wire import cri_pb2 as cri

KEY = "qrm.io/allocation"
Amount = Annotated[int, msgspec.Meta(ge=0, le=LARGEST)]
Node = Annotated[int, msgspec.Meta(ge=0, le=999_999)]
"""As far as `IdSet` reads."""


class KeptResource(msgspec.Struct, frozen=True, omit_defaults=True):
    """What the container holds of a resource other than CPU."""

    pool: str
    nodes: str = ""
    amounts: dict[str, dict[Node, Amount]] = {}
    device: str = ""

    def allocation(self) -> Allocation:
        """As an allocation."""
        why = "rebuilt from its annotation"
        nodes = NodeSet.parse(self.nodes)
        return Allocation(self.pool, nodes=nodes, amounts=self.amounts, device=self.device, why=why)


class Kept(msgspec.Struct, frozen=True, omit_defaults=True):
    """The annotation's value."""

    v: Literal[1]
    """Version of the format; always written."""
    pool: str
    cpus: str
    """Kernel list format, as it was at creation."""
    exclusive: bool = False
    pod_cpu: Amount = 0
    """The whole pod's request in millicores."""
    quantities: dict[str, Amount] = {}
    """What is asked besides CPU."""
    others: dict[str, KeptResource] = {}
    """What is held besides CPU, by resource."""
    asked: str = ""
    """kubelet's own LinuxContainerResources, base64."""

    @property
    def cpuset(self) -> CPUSet:
        """`cpus` as a set."""
        return CPUSet.parse(self.cpus)

    @property
    def asked_bytes(self) -> bytes:
        """kubelet's own LinuxContainerResources, serialised."""
        return base64.b64decode(self.asked)


def annotation(record: Record) -> str:
    """The annotation's value for a record that holds CPUs."""
    allocation = record.allocations[CPU]
    kept = Kept(
        1,
        allocation.pool,
        str(allocation.cpus),
        exclusive=bool(allocation.exclusive),
        pod_cpu=record.request.pod_cpu_millis,
        quantities=dict(record.request.quantities),
        others={
            resource: KeptResource(
                held.pool, str(held.nodes), {k: dict(v) for k, v in held.amounts.items()}, held.device
            )
            for resource, held in record.allocations.items()
            if resource != CPU
        },
        asked=base64.b64encode(record.asked).decode(),
    )
    return msgspec.json.encode(kept).decode()


def read_annotation(text: str) -> Kept | None:
    """What `annotation` wrote; None for anything else, such as another version's, or where somebody has damaged it."""
    try:
        kept = msgspec.json.decode(text, type=Kept)
        cri.LinuxContainerResources.FromString(base64.b64decode(kept.asked, validate=True))
        CPUSet.parse(kept.cpus)
        for each in kept.others.values():
            each.allocation()
    except (msgspec.MsgspecError, ParseError, ValueError, DecodeError, RecursionError):
        return None
    return kept
