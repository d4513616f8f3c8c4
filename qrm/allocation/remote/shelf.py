"""What a served allocator remembers: qrm's ledger in small, in memory."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from qrm.allocator import (
    Allocation,
    Allocator,
    BadRequest,
    Changes,
    ContainerKey,
    ContainerKind,
    Holding,
    ResourceRequest,
    State,
    TopologyHint,
)
from qrm.topology.machine import Machine


class Shelf:
    """The holdings of one allocator. A refused step changes nothing."""

    def __init__(
        self, allocator: Allocator, machine: Machine, holdings: Mapping[ContainerKey, Holding] | None = None
    ) -> None:
        self.allocator = allocator
        self.machine = machine
        self.holdings = dict(holdings or {})

    @property
    def state(self) -> State:
        """What the allocator sees; a copy."""
        return State(self.machine, dict(self.holdings))

    def hints(self, request: ResourceRequest) -> tuple[TopologyHint, ...]:
        """Where the request could be served, best first. Raises DoesNotFit, BadRequest."""
        return tuple(self.allocator.hints(request, self._before(request)))

    def allocate(self, request: ResourceRequest, hint: TopologyHint | None) -> Allocation:
        """What the container holds from now on; without a hint on the best nodes. Raises DoesNotFit, BadRequest."""
        state = self._before(request)
        if hint is None:
            hint = next(iter(self.allocator.hints(request, state)), TopologyHint(self.machine.cpu_nodes, True))
        changes = self.allocator.allocate(request, hint, state)
        if request.key not in changes.allocations:
            raise BadRequest(f"{self.allocator.resource}: the allocator gave {request.key} nothing")
        self.holdings = _applied(state.holdings, changes, request)
        self.settle()
        return self.holdings[request.key].allocation

    def remove_pod(self, uid: str) -> None:
        """Take everything from the pod; one that holds nothing is no error."""
        kept = {key: held for key, held in self.holdings.items() if key.pod_uid != uid}
        if len(kept) != len(self.holdings):
            self.holdings = kept
            self.settle()

    def settle(self) -> None:
        """Let the others have what is free."""
        self.holdings = _applied(self.holdings, self.allocator.settle(self.state), None)

    def _before(self, request: ResourceRequest) -> State:
        """The state in which the request is judged.

        Nobody tells when a container ends, but init containers run one after the other and before all others: the ones
        of this pod have ended by the time that this container runs, so that it can have what they had.
        """
        holdings = dict(self.holdings)
        for key, held in self.holdings.items():
            if key.pod_uid == request.pod.uid and key.container and key != request.key:
                over = held.request.kind is ContainerKind.INIT
                holdings[key] = replace(held, running=held.running and not over)
        return State(self.machine, holdings)


def _applied(
    holdings: Mapping[ContainerKey, Holding], changes: Changes, request: ResourceRequest | None
) -> dict[ContainerKey, Holding]:
    """`holdings` with `changes`; `request` tells what its pod as a whole asks for from now on."""
    made = dict(holdings)
    for key, allocation in changes.allocations.items():
        if request is not None and key in (request.key, request.pod_key):
            made[key] = Holding(request, allocation)
        elif key in made:
            made[key] = replace(made[key], allocation=allocation)
    if request is not None:
        for key, held in made.items():
            if key.pod_uid == request.pod.uid:
                made[key] = replace(held, request=replace(held.request, pod_cpu_millis=request.pod_cpu_millis))
    return made
