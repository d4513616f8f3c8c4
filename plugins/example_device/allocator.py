"""Whole FPGAs for containers that ask for `example.com/fpga`: all that an allocator has to do, in one file."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated

import msgspec

from qrm.allocator import (
    Allocation,
    BadRequest,
    Changes,
    ConfigError,
    ContainerKind,
    DoesNotFit,
    Holding,
    Quantities,
    ResourceRequest,
    State,
    TopologyHint,
)
from qrm.cpuset import NodeSet

RESOURCE = "example.com/fpga"

Name = Annotated[str, msgspec.Meta(pattern="^[^,]+$")]
Node = Annotated[int, msgspec.Meta(ge=0)]


class Settings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What stands under [allocators.fpga]."""

    devices: dict[Name, Node] = {}
    """The FPGAs by name, and the NUMA node of each."""


def create(settings: Mapping[str, object]) -> FpgaAllocator:
    """What the entry point names: from the settings to the allocator. Raises ConfigError."""
    try:
        return FpgaAllocator(msgspec.convert(dict(settings), Settings).devices)
    except msgspec.ValidationError as error:
        raise ConfigError(f"fpga: {error}", hint="write it like devices = { fpga0 = 0, fpga1 = 1 }") from error


class FpgaAllocator:
    """Gives each container the FPGAs that it asks for. See `qrm.allocator.Allocator`."""

    resource = RESOURCE

    def __init__(self, devices: Mapping[str, int]) -> None:
        self.devices = devices

    def hints(self, request: ResourceRequest, state: State) -> Sequence[TopologyHint]:
        """Each NUMA node that has enough, the fullest first (best fit), and last all nodes together."""
        asked = _asked(request)
        if not asked:
            return [TopologyHint(state.machine.cpu_nodes, preferred=True)]  # anywhere: no preference
        free, before = self._free(request, state), _held_by_pod(request, state)
        kept = Counter(node for name, node in free.items() if name in before)
        if kept.total() >= asked:
            return [TopologyHint(NodeSet(kept), preferred=True)]  # it stays where it is
        if len(free) < asked:
            raise _refusal(asked, free)
        room = Counter(free.values())
        fitting = sorted(node for node in room if room[node] >= asked)
        fitting.sort(key=lambda node: (-kept[node], room[node]))
        hints = [TopologyHint(NodeSet([node]), preferred=True) for node in fitting]
        if len(room) > 1:
            largest = max(Counter(self._present(state).values()).values())
            hints.append(TopologyHint(NodeSet(room), preferred=asked > largest))  # if even an idle node is too small
        return hints

    def allocate(self, request: ResourceRequest, hint: TopologyHint, state: State) -> Changes:
        """FPGAs on the nodes of `hint`: those that its pod has had, then on as few nodes as possible."""
        asked = _asked(request)
        if not asked:
            return Changes({})
        free = {name: node for name, node in self._free(request, state).items() if node in hint.nodes}
        if len(free) < asked:
            raise _refusal(asked, free)
        before, room = _held_by_pod(request, state), Counter(free.values())
        chosen = sorted(free, key=lambda name: (name not in before, -room[free[name]], free[name], name))[:asked]
        return Changes({request.key: _allocation(sorted(chosen), free)})

    def settle(self, state: State) -> Changes:  # noqa: ARG002 - part of the contract
        """Nothing: what one container gives back is of no use to those that run."""
        return Changes({})

    def allocatable(self, state: State) -> Quantities:
        """How many FPGAs there are on each NUMA node, and how many of them nobody holds."""
        present, held = self._present(state), _names(state.holdings.values())
        everywhere = dict.fromkeys(present.values(), 0)
        free = Counter(node for name, node in present.items() if name not in held)
        return Quantities(allocatable=dict(Counter(present.values())), free=everywhere | free)

    def _present(self, state: State) -> dict[str, int]:
        return {name: node for name, node in sorted(self.devices.items()) if node in state.machine.nodes}

    def _free(self, request: ResourceRequest, state: State) -> dict[str, int]:
        """The FPGAs that the container can have, and where they are: those that no other container holds."""
        taken = _names(held for held in state.holdings.values() if not _yields(held, request))
        return {name: node for name, node in self._present(state).items() if name not in taken}


def _asked(request: ResourceRequest) -> int:
    asked = request.quantities.get(RESOURCE, 0)
    if asked < 0:
        raise BadRequest(f"{RESOURCE} is {asked}", hint="0 or more are allowed")
    return asked


def _yields(held: Holding, request: ResourceRequest) -> bool:
    """Whether the container can have what `held` holds: it is its own, or one of the two is an init container."""
    same_pod = held.request.pod.uid == request.pod.uid
    take_turns = not held.running and ContainerKind.INIT in (request.kind, held.request.kind)
    return held.request.key == request.key or (same_pod and take_turns)


def _held_by_pod(request: ResourceRequest, state: State) -> set[str]:
    return _names(held for held in state.holdings.values() if held.request.pod.uid == request.pod.uid)


def _names(holdings: Iterable[Holding]) -> set[str]:
    return {name for held in holdings for name in held.allocation.device.split(",")}


def _allocation(names: list[str], nodes: Mapping[str, int]) -> Allocation:
    device, by_node = ",".join(names), Counter(nodes[name] for name in names)
    return Allocation(
        pool="fpga",
        nodes=NodeSet(by_node),
        device=device,
        amounts={RESOURCE: dict(by_node)},
        why=" and ".join(f"{count} on NUMA node {node}" for node, count in sorted(by_node.items())) + f": {device}",
        envs={"EXAMPLE_FPGA_DEVICES": device},
        annotations={"example.com/fpga-devices": device},
    )


def _refusal(asked: int, free: Mapping[str, int]) -> DoesNotFit:
    by_node = ", ".join(f"{node}: {count}" for node, count in sorted(Counter(free.values()).items())) or "none"
    return DoesNotFit(f"fpga: asked {asked}; free by NUMA node: {by_node}; largest that would fit: {len(free)}")
