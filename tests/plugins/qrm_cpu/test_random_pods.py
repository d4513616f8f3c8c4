"""Pods that come, exit, restart, change their size and go at random, on any machine."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from qrm_cpu import create

from qrm.allocator import Allocation, ContainerKey, DoesNotFit, Qos, QosLevel, ResourceRequest
from qrm.allocator.testing import Harness, machine, request
from qrm.cpuset import CPUSet
from tests.plugins.qrm_cpu import strategies
from tests.plugins.qrm_cpu.rules import broken_promises, broken_rules, pooled_cpus

PODS = ("a", "b", "c", "d", "e", "f")
CONTAINERS = ("main", "side", "init")


class RandomPods(RuleBasedStateMachine):
    """A node with the CPU allocator."""

    hotplug = False

    @initialize(shape=strategies.shapes(), settings=strategies.settings())
    def start(self, shape: strategies.Shape, settings: dict[str, object]) -> None:
        self.shape = shape
        self.harness = Harness(create(settings), machine(**shape))
        self.qos: dict[str, Qos] = {}

    @property
    def reserve(self) -> CPUSet:
        """The reserved CPUs, which the allocator chooses by itself when it is only told how many."""
        return self.harness.quantities().pools.get("reserve", CPUSet())

    def _keys(self) -> list[ContainerKey]:
        return sorted((key for key in self.harness.holdings if key.container), key=str)

    @rule(data=st.data(), pod=st.sampled_from(PODS), container=st.sampled_from(CONTAINERS), choice=st.integers(0, 9))
    def create(self, data: st.DataObject, pod: str, container: str, choice: int) -> None:
        """A container of a new pod, or another one of a pod that is there, which has the same annotations."""
        asked = data.draw(strategies.requests(pod, container, self.harness.machine))
        siblings = [held.request for key, held in self.harness.holdings.items() if key.pod_uid == pod]
        if ContainerKey(pod, container) in self.harness.holdings:
            return
        if siblings:
            asked = replace(asked, qos=self.qos[pod], pod_cpu_millis=siblings[0].pod_cpu_millis)
        self.qos[pod] = asked.qos
        if asked.qos.by_default and asked.qos.level is QosLevel.DEDICATED and asked.cpu_millis % 1000:
            asked = replace(asked, qos=replace(asked.qos, level=QosLevel.SHARED))
        self._try(asked, choice)

    @precondition(lambda self: self._keys())
    @rule(data=st.data(), millis=st.integers(0, 6), more=st.sampled_from((0, 0, 300)), total=st.integers(0, 8))
    def resize(self, data: st.DataObject, millis: int, more: int, total: int) -> None:
        """A container that asks for more or less."""
        key = data.draw(st.sampled_from(self._keys()))
        old = self.harness.holdings[key].request
        # Nobody is asked whether a shared pod may be promised more as a whole; here nothing else breaks promises.
        pod_millis = total * 1000 if old.qos.level is QosLevel.DEDICATED else old.pod_cpu_millis
        try:
            self.harness.resize(key.pod_uid, millis * 1000 + more, container=key.container, pod_millis=pod_millis)
        except DoesNotFit:
            assert old.qos.level not in (QosLevel.RECLAIMED, QosLevel.SYSTEM)

    @precondition(lambda self: self._keys())
    @rule(data=st.data())
    def exit(self, data: st.DataObject) -> None:
        """A container that ends."""
        key = data.draw(st.sampled_from(self._keys()))
        self.harness.exit(key.pod_uid, key.container)

    @precondition(lambda self: self._keys())
    @rule(data=st.data())
    def restart(self, data: st.DataObject) -> None:
        """A container that ends and comes back has the CPUs that it had, unless another one got them meanwhile."""
        key = data.draw(st.sampled_from(self._keys()))
        self.harness.exit(key.pod_uid, key.container)
        before = self.harness.holdings[key]
        others = CPUSet.union(
            held.allocation.exclusive
            for other, held in self.harness.holdings.items()
            if other.pod_uid == key.pod_uid and other.container and other != key and held.running
        )
        exclusive = before.allocation.exclusive
        if not exclusive.isdisjoint(others):
            self._try(before.request)
        elif not self.hotplug:
            assert self.harness.create(before.request).exclusive == exclusive

    @precondition(lambda self: any(not held.running for held in self.harness.holdings.values()))
    @rule(data=st.data())
    def drop(self, data: st.DataObject) -> None:
        """An exited container of which the runtime forgets."""
        exited = [key for key in self._keys() if not self.harness.holdings[key].running]
        key = data.draw(st.sampled_from(exited))
        self.harness.drop(key.pod_uid, key.container)
        if not any(other.pod_uid == key.pod_uid for other in self._keys()):
            self.remove(key.pod_uid)

    @rule(pod=st.sampled_from(PODS))
    def remove(self, pod: str) -> None:
        """A pod that goes."""
        self.harness.remove(pod)
        self.qos.pop(pod, None)

    def _try(self, asked: ResourceRequest, choice: int = 0) -> bool:
        try:
            self.harness.create(asked, choice=choice)
        except DoesNotFit:
            assert asked.qos.level not in (QosLevel.RECLAIMED, QosLevel.SYSTEM)
            return False
        return True

    @invariant()
    def rules_are_kept(self) -> None:
        """What the CPU allocator promises besides the contract."""
        assert list(broken_rules(self.harness.state, self.reserve, hotplug=self.hotplug)) == []

    @invariant()
    def promises_are_kept(self) -> None:
        """What pods were given on creation is still theirs, where no CPU goes away and nobody ran before."""
        if not self.hotplug:
            assert list(broken_promises(self.harness.state, self.reserve)) == []

    @invariant()
    def pools_are_never_empty(self) -> None:
        """Share, reclaim and system are always there and have CPUs."""
        pools = self.harness.quantities().pools
        assert {"share", "reclaim", "system"} <= pools.keys()
        assert all(pools.values())

    def teardown(self) -> None:
        """What all pods had is free again."""
        if hasattr(self, "harness"):
            for pod in {key.pod_uid for key in self.harness.holdings}:
                self.harness.remove(pod)
            empty = Harness(self.harness.allocator, self.harness.machine)
            assert self.harness.quantities() == empty.quantities()


class RandomHotplug(RandomPods):
    """A node on which containers ran before the allocator came, and whose CPUs come and go."""

    hotplug = True

    @precondition(lambda self: len(pooled_cpus(self.harness.state, self.reserve)) > 1)
    @rule(data=st.data())
    def unplug(self, data: st.DataObject) -> None:
        """A CPU that goes offline; one always stays for the pools."""
        pooled = list(pooled_cpus(self.harness.state, self.reserve))
        spared = data.draw(st.sampled_from(pooled))
        gone = data.draw(st.sampled_from([cpu for cpu in self.harness.machine.cpus if cpu != spared]))
        self._replug(self.shape["offline"] | {gone})

    @precondition(lambda self: self.shape["offline"])
    @rule(data=st.data())
    def plug(self, data: st.DataObject) -> None:
        """A CPU that comes online."""
        self._replug(self.shape["offline"] - {data.draw(st.sampled_from(sorted(self.shape["offline"])))})

    def _replug(self, offline: set[int]) -> None:
        changed = self.shape.copy()
        changed["offline"] = offline
        node = machine(**changed)
        kept = self.harness.allocator.allocatable(replace(self.harness.state, machine=node)).pools.get(
            "reserve", CPUSet()
        )
        if pooled_cpus(replace(self.harness.state, machine=node), kept):
            self.shape = changed
            self.harness.replug(node)

    @rule(data=st.data(), number=st.integers(0, 2), own=st.booleans(), level=st.sampled_from(list(QosLevel)))
    def adopt(self, data: st.DataObject, number: int, own: bool, level: QosLevel) -> None:
        """A container that ran here before, on CPUs of its own if nobody else has them."""
        pooled = pooled_cpus(self.harness.state, self.reserve)
        cpus = CPUSet(data.draw(st.sets(st.sampled_from(list(pooled)), min_size=1)))
        asked = request(f"old{number}", 1000 * len(cpus), QosLevel.DEDICATED if own else level)
        if asked.key in self.harness.holdings or (own and cpus == pooled):
            return
        nodes = self.harness.machine.nodes_of(cpus)
        exclusive = cpus if own else CPUSet()
        self.harness.adopt(asked, Allocation("dedicated" if own else "share", cpus, exclusive=exclusive, nodes=nodes))


TestRandomPods = RandomPods.TestCase
TestRandomPods.settings = hypothesis_settings(max_examples=200, stateful_step_count=25, deadline=None)
TestRandomHotplug = RandomHotplug.TestCase
TestRandomHotplug.settings = hypothesis_settings(max_examples=200, stateful_step_count=25, deadline=None)
