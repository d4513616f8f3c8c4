"""Who holds bandwidth: pods on their NICs, with the shares of their containers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from qrm.allocator import Allocation, ContainerKey, Holding
from qrm.cpuset import NodeSet
from qrm_nic.rate import Rate, held_in, total


@dataclass(frozen=True, slots=True)
class Share:
    """What one container holds."""

    rate: Rate
    running: bool


@dataclass(frozen=True, slots=True)
class Pod:
    """A pod on its NIC: it has one network namespace, so all of its containers are on that one."""

    device: str
    nodes: NodeSet
    """Those of the NIC when it was chosen."""
    line: Rate | None
    """What the pod as a whole holds; None where only its containers are known, as after the ledger was lost."""
    shares: Mapping[str, Share]
    """By container."""

    @property
    def held(self) -> Rate:
        """What is kept for the pod: what all running containers hold, and what an exited one needs to come back.

        Containers that start after others exited use the room of these. What the pod has it keeps while there are
        exited containers that may want it back; it has never more than all containers together.
        """
        needed = total(share.rate for share in self.shares.values() if share.running)
        for share in self.shares.values():
            needed = needed.at_least(share.rate)
        most = total(share.rate for share in self.shares.values())
        return (most if self.line is None else self.line).at_least(needed).at_most(most)

    def taken_beside(self, container: str) -> Rate:
        """What of the pod's room that container cannot have, whatever it asks for."""
        others = {name: share for name, share in self.shares.items() if name != container}
        if self.line is None:
            return total(share.rate for share in others.values())
        running = total(share.rate for share in others.values() if share.running)
        old = self.shares.get(container)
        return running.at_least(self.line - old.rate) if old and old.running else running

    def with_share(self, container: str, rate: Rate) -> Pod:
        """The pod after that container was started, or resized, with `rate`."""
        old, line = self.shares.get(container), self.line
        if line is not None and old is not None and old.running:
            line = line - old.rate + rate
        return replace(self, line=line, shares={**self.shares, container: Share(rate, running=True)})


def read_pods(holdings: Mapping[ContainerKey, Holding]) -> Mapping[str, Pod]:
    """The pods that are on a NIC, by uid."""
    lines: dict[str, Allocation] = {}
    containers: dict[str, dict[str, Holding]] = {}
    for key, holding in holdings.items():
        if not holding.allocation.device:
            continue
        if key.container:
            containers.setdefault(key.pod_uid, {})[key.container] = holding
        else:
            lines[key.pod_uid] = holding.allocation
    return {uid: _pod(lines.get(uid), containers.get(uid, {})) for uid in sorted(lines.keys() | containers.keys())}


def _pod(line: Allocation | None, containers: Mapping[str, Holding]) -> Pod:
    place = line or containers[min(containers)].allocation
    return Pod(
        device=place.device,
        nodes=place.nodes,
        line=None if line is None else held_in(line),
        shares={name: Share(held_in(each.allocation), each.running) for name, each in containers.items()},
    )
