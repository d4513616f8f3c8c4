"""Pods that come, exit, restart, change their size and go at random, on NICs that go down and come back."""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import replace

from hypothesis import assume
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from qrm.allocator import NET_EGRESS, NET_INGRESS, Allocation, ContainerKey, DoesNotFit, ResourceRequest
from qrm.allocator.testing import machine
from qrm.cpuset import NodeSet
from qrm.topology.machine import Nic
from tests.plugins.qrm_nic.nodes import Node, ask, mbit

PODS = ("a", "b", "c", "d")
CONTAINERS = ("main", "side", "init")
SPEEDS = (100, 1000, 1001)
ASSUMED = 50
RATES = st.sampled_from((0, 1, 10, 40, 90, 300, 500))
WISHES = st.sampled_from((None, None, "host_ns", "host_ns_preferred", "anti_host_ns", "anti_host_ns_preferred"))
NICS = st.builds(
    Nic,
    name=st.sampled_from([f"eth{number}" for number in range(5)]),
    speed=st.sampled_from((None, *SPEEDS)),
    node=st.sampled_from((None, 0, 1, 2, 3)),
    up=st.booleans(),
)


class RandomPods(RuleBasedStateMachine):
    """A node with the NIC allocator."""

    @initialize(
        nics=st.lists(NICS, min_size=1, max_size=4, unique_by=lambda nic: nic.name),
        sockets=st.integers(1, 3),
        elsewhere=st.sets(st.sampled_from([f"eth{number}" for number in range(6)]), max_size=3),
        assume_speed=st.sampled_from((0, ASSUMED)),
        reserved=st.sampled_from((0, 20)),
    )
    def start(self, nics: list[Nic], sockets: int, elsewhere: set[str], assume_speed: int, reserved: int) -> None:
        said = {name: {"namespace": "blue", "ipv4": "192.0.2.7"} for name in elsewhere}
        node = replace(machine(sockets=sockets, memory_only=1), nics=tuple(nics))
        settings = {"nics": said, "assume_speed": assume_speed, "reserved": reserved}
        self.node = Node(node, settings)
        self.elsewhere = elsewhere
        self.owed: set[ContainerKey] = set()

    @rule(
        pod=st.sampled_from(PODS),
        container=st.sampled_from(CONTAINERS),
        egress=RATES,
        ingress=st.none() | RATES,
        namespace=WISHES,
        restricted=st.booleans(),
        on=st.none() | st.sampled_from(("0", "1", "0-1")),
    )
    def create(
        self,
        pod: str,
        container: str,
        egress: int,
        ingress: int | None,
        namespace: str | None,
        restricted: bool,
        on: str | None,
    ) -> None:
        """A new container, or an old one with another size."""
        asked = ask(pod, egress, ingress, container=container, namespace=namespace, restricted=restricted)
        settled = ContainerKey(pod, "") in self.node.holdings
        before = dict(self.node.holdings)
        try:
            held = self.node.create(asked, on)
        except DoesNotFit as refused:
            assert self.node.holdings == before
            if not restricted or on is None:
                self.check_refusal(asked, str(refused))
            return
        self.owed = {key for key in self.owed if key.pod_uid != pod or not held.device}
        assert mbit(held) == (egress, egress if ingress is None else ingress)
        if held.device and not settled:
            self.check_choice(held, asked, on)

    def check_choice(self, held: Allocation, asked: ResourceRequest, on: str | None) -> None:
        """A new pod is on a NIC that it may have, and near its nodes if it insists."""
        nics = {nic.name: nic for nic in self.node.machine.nics}
        network = asked.qos.network
        assert held.device in nics or held.device in self.elsewhere
        assert held.device not in nics or nics[held.device].up
        assert (network.namespace_type, held.device in self.elsewhere) not in (
            ("host_ns", True),
            ("anti_host_ns", False),
        )
        if network.topology_affinity_restricted and on is not None and held.nodes:
            assert held.nodes & NodeSet.parse(on)

    def check_refusal(self, asked: ResourceRequest, text: str) -> None:
        """What the refusal says would fit does fit, and no more does."""
        offer = text.partition("largest that would fit: ")[2]
        found = {name: int(number) for number, name in re.findall(r"(\d+) Mbit/s (egress|ingress)", offer)}
        smaller = {NET_EGRESS: found.get("egress", 0), NET_INGRESS: found.get("ingress", 0)}
        if found:
            self.node.hints(replace(asked, quantities=smaller))
        egress = asked.quantities.get(NET_EGRESS, 0)
        wanted = {NET_EGRESS: egress, NET_INGRESS: asked.quantities.get(NET_INGRESS, egress)}
        self.node.refusal(
            replace(asked, quantities={name: smaller[name] + 1 if wanted[name] else 0 for name in wanted})
        )

    @precondition(lambda self: any(key.container for key in self.node.holdings))
    @rule(choice=st.integers(0, 99))
    def exit(self, choice: int) -> None:
        """A container exits: what it held stays with its pod."""
        key = self.chosen(choice)
        assume(self.node.holdings[key].running)
        before = self.node.of_pod(key.pod_uid)
        self.node.exit(key.pod_uid, key.container)
        assert self.node.of_pod(key.pod_uid) == before
        self.owed.add(key)

    @precondition(lambda self: self.owed)
    @rule(choice=st.integers(0, 99))
    def restart(self, choice: int) -> None:
        """A container comes back: it fits if nothing was started in its pod since, whatever others have taken."""
        key = sorted(self.owed, key=str)[choice % len(self.owed)]
        old = self.node.holdings[key]
        if old.request.quantities:
            assert self.node.create(old.request).device == old.allocation.device
        self.owed.discard(key)

    @precondition(lambda self: any(key.container for key in self.node.holdings))
    @rule(choice=st.integers(0, 99), whole=st.booleans())
    def remove(self, choice: int, whole: bool) -> None:
        """A container goes, or its pod."""
        key = self.chosen(choice)
        self.node.remove(key.pod_uid, None if whole else key.container)
        self.owed = {each for each in self.owed if each in self.node.holdings}
        if not any(each.pod_uid == key.pod_uid and each.container for each in self.node.holdings):
            self.node.remove(key.pod_uid)

    @rule(choice=st.integers(0, 99))
    def flap(self, choice: int) -> None:
        """A NIC goes down or comes up; nobody moves."""
        nics = list(self.node.machine.nics)
        nic = nics[choice % len(nics)]
        nics[choice % len(nics)] = replace(nic, up=not nic.up)
        self.node.machine = replace(self.node.machine, nics=tuple(nics))
        assert self.node.settle().allocations == {}

    def chosen(self, choice: int) -> ContainerKey:
        """One of the containers that hold something."""
        keys = sorted((key for key in self.node.holdings if key.container), key=str)
        return keys[choice % len(keys)]

    @invariant()
    def no_nic_is_promised_twice(self) -> None:
        """The pods on a NIC have no more than 94 % and 90 % of its speed."""
        speeds = {nic.name: nic.speed or ASSUMED for nic in self.node.machine.nics}
        promised: dict[str, list[int]] = defaultdict(lambda: [0, 0])
        for key, held in self.node.holdings.items():
            if not key.container:
                egress, ingress = mbit(held.allocation)
                promised[held.allocation.device][0] += egress
                promised[held.allocation.device][1] += ingress
        for name, (egress, ingress) in promised.items():
            assert egress * 100 <= speeds.get(name, ASSUMED) * 94
            assert ingress * 100 <= speeds.get(name, ASSUMED) * 90

    @invariant()
    def a_pod_is_the_sum_of_its_containers(self) -> None:
        """All on its NIC, with room for those that run, and for no more than all of them."""
        for uid in {key.pod_uid for key in self.node.holdings}:
            device = self.node.holdings[ContainerKey(uid, "")].allocation.device
            members = [held for key, held in self.node.holdings.items() if key.pod_uid == uid and key.container]
            assert {held.allocation.device for held in members} == {device}
            for direction in (0, 1):
                every = [mbit(held.allocation)[direction] for held in members]
                running = [mbit(held.allocation)[direction] for held in members if held.running]
                assert max(sum(running), *every, 0) <= self.node.of_pod(uid)[direction] <= sum(every)

    @invariant()
    def free_is_what_is_not_held(self) -> None:
        """Of an empty node all that there is, and never less than nothing."""
        quantities = self.node.twice(self.node.allocator.allocatable)
        assert quantities.free.keys() == quantities.allocatable.keys() <= set(self.node.machine.cpu_nodes)
        assert all(0 <= quantities.free[node] <= quantities.allocatable[node] for node in quantities.free)
        if not self.node.holdings:
            assert quantities.free == quantities.allocatable


TestRandomPods = RandomPods.TestCase
TestRandomPods.settings = hypothesis_settings(max_examples=120, stateful_step_count=40, deadline=None)
