"""Pods that come, exit, restart, change their size and go at random, on any machine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from hypothesis import HealthCheck
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from qrm.allocator import (
    HUGEPAGES,
    MEMORY,
    ContainerKey,
    DoesNotFit,
    Holding,
    NativeQos,
    ResourceRequest,
)
from qrm.topology.generate import GIB
from qrm.topology.machine import Machine
from tests.plugins.qrm_memory import strategies
from tests.plugins.qrm_memory.nodes import DEDICATED, RECLAIMED, SYSTEM, Node, capacity, is_bound

PODS = ("a", "b", "c", "d", "e")
CONTAINERS = ("main", "side", "init")
RANKS = {NativeQos.BEST_EFFORT: 1, NativeQos.BURSTABLE: 2, NativeQos.UNKNOWN: 2, NativeQos.GUARANTEED: 3}


class RandomPods(RuleBasedStateMachine):
    """A node with the memory allocator. What is wrong with what is held is checked after each step by `Node`."""

    @initialize(machine=strategies.machines(), settings=strategies.settings())
    def start(self, machine: Machine, settings: dict[str, object]) -> None:
        self.node = Node(machine, **settings)
        self.empty = Node(machine, **settings).free()

    def _some(self, data: st.DataObject) -> ContainerKey | None:
        keys = sorted((key for key in self.node.holdings if key.container), key=str)
        return data.draw(st.sampled_from(keys)) if keys else None

    @rule(data=st.data(), pod=st.sampled_from(PODS), container=st.sampled_from(CONTAINERS), choice=st.integers(0, 9))
    def create(self, data: st.DataObject, pod: str, container: str, choice: int) -> None:
        """A container of a new pod, or another one of a pod that is there, which has the same annotations."""
        asked = data.draw(strategies.requests(pod, container, self.node.machine))
        if asked.key in self.node.holdings:
            return
        for key, held in self.node.holdings.items():
            if key.pod_uid == pod:
                asked = replace(asked, qos=held.request.qos, native_qos=held.request.native_qos)
        self._try(asked, choice)

    @rule(data=st.data(), gib=st.integers(0, 8), pages=st.integers(0, 2))
    def resize(self, data: st.DataObject, gib: int, pages: int) -> None:
        """A running container that asks for more or less."""
        key = self._some(data)
        if key is None:
            return
        held = self.node.holdings[key]
        quantities = {MEMORY: gib * GIB} | ({f"{HUGEPAGES}1Gi": pages * GIB} if pages else {})
        self._try(replace(held.request, quantities=quantities))

    @rule(data=st.data())
    def exit(self, data: st.DataObject) -> None:
        """A container that ends."""
        key = self._some(data)
        if key is not None:
            self.node.exit(key.pod_uid, key.container)

    @rule(data=st.data())
    def restart(self, data: st.DataObject) -> None:
        """A container that ends and comes back at once is where it was."""
        key = self._some(data)
        if key is None:
            return
        before = self.node.holdings[key]
        if not before.running:
            self._try(before.request)
            return
        self.node.exit(key.pod_uid, key.container)
        assert self.node.create(before.request).nodes == before.allocation.nodes

    @rule(pod=st.sampled_from(PODS))
    def remove(self, pod: str) -> None:
        """A pod that goes."""
        before = dict(self.node.holdings)
        self.node.remove(pod)
        for key, held in self.node.holdings.items():
            assert before[key].allocation.nodes <= held.allocation.nodes
            assert not is_bound(held) or held.allocation.nodes == before[key].allocation.nodes

    def _try(self, asked: ResourceRequest, choice: int = 0) -> None:
        before = dict(self.node.holdings)
        try:
            self.node.create(asked, choice=choice)
        except DoesNotFit as refused:
            assert asked.qos.level not in (RECLAIMED, SYSTEM)
            assert self.node.holdings == before
            self._check_numbers(asked, str(refused))
            return
        self._check_others(asked, before)
        self._check_total(asked, before)

    def _check_numbers(self, asked: ResourceRequest, text: str) -> None:
        """The refusal names what is asked, and what would fit fits."""
        assert "asked " in text
        assert "free by NUMA node: " in text
        assert "largest that would fit: " in text
        if asked.key not in self.node.holdings:
            self.node.hints(replace(asked, quantities={MEMORY: 0}, qos=replace(asked.qos, level=RECLAIMED)))

    def _check_others(self, asked: ResourceRequest, before: Mapping[ContainerKey, Holding]) -> None:
        """Others are pushed off nodes that are exclusive now, or widened because they are less important."""
        exclusive = asked.qos.memory.numa_exclusive
        for key, old in before.items():
            now = self.node.holdings[key].allocation.nodes
            if key.pod_uid == asked.pod.uid or now == old.allocation.nodes:
                continue
            if not is_bound(old):
                assert exclusive or (old.request.qos.level is RECLAIMED and old.allocation.nodes < now)
                continue
            assert old.allocation.nodes < now
            assert old.request.qos.level is not DEDICATED
            ours = 4 if asked.qos.level is DEDICATED else RANKS[asked.native_qos]
            assert RANKS[old.request.native_qos] < ours

    def _check_total(self, asked: ResourceRequest, before: Mapping[ContainerKey, Holding]) -> None:
        """After a container was let in that asks for more, all promises together have memory behind them."""
        old = before.get(asked.key)
        wants, had = asked.quantities.get(MEMORY, 0), old.request.quantities.get(MEMORY, 0) if old else 0
        if asked.qos.level in (RECLAIMED, SYSTEM) or wants <= had or (is_bound(Holding(asked, None)) and old):  # type: ignore[arg-type]
            return
        lines = [held.allocation for key, held in self.node.holdings.items() if not key.container]
        promised = sum(sum(each.amounts.get(MEMORY, {}).values()) for each in lines)
        for key, held in self.node.holdings.items():
            if key.container and held.running and not is_bound(held) and held.request.qos.level is not RECLAIMED:
                promised += sum(held.allocation.amounts.get(MEMORY, {}).values())
        assert promised <= sum(capacity(self.node, MEMORY).values())

    def teardown(self) -> None:
        """What all pods had is free again."""
        if hasattr(self, "node"):
            for pod in PODS:
                self.node.remove(pod)
            assert self.node.free() == self.empty


RandomPods.TestCase.settings = hypothesis_settings(
    max_examples=400, stateful_step_count=30, deadline=None, suppress_health_check=list(HealthCheck)
)
TestRandomPods = RandomPods.TestCase
