"""The registry of allocators and the plan."""

from __future__ import annotations

import pytest

from qrm.allocation.planner import Planner
from qrm.allocation.registry import load_allocators
from qrm.allocator import ContainerKey, DoesNotFit, Holding, PodIdentity, Qos, QosLevel, ResourceRequest
from qrm.errors import ConfigError
from qrm.topology.generate import write_sysfs
from qrm.topology.sysfs import read_machine
from tests.support import TWO_NODES


def request(uid: str, millis: int, level: QosLevel = QosLevel.DEDICATED) -> ResourceRequest:
    return ResourceRequest(PodIdentity(uid, "ns", uid), "main", qos=Qos(level), cpu_millis=millis)


@pytest.fixture(scope="module")
def planner(tmp_path_factory: pytest.TempPathFactory) -> Planner:
    root = tmp_path_factory.mktemp("sys")
    write_sysfs(TWO_NODES, root)
    return Planner(read_machine(root), load_allocators({"cpu": {}}))


def test_an_allocator_that_nobody_offers_is_named_with_those_that_are_there() -> None:
    """The setting, the name and the installed ones are in the message."""
    with pytest.raises(ConfigError, match=r"allocators\.gpu: no such allocator \(installed are: cpu"):
        load_allocators({"gpu": {}})


def test_settings_of_an_allocator_are_its_own_to_refuse() -> None:
    """A wrong key in [allocators.cpu] is an error that names it."""
    with pytest.raises(ConfigError, match="reserve"):
        load_allocators({"cpu": {"reserve": 1}})


def test_a_plan_has_the_containers_own_and_all_that_change(planner: Planner) -> None:
    """A dedicated container's plan holds its set, its pod's, and a shared one's smaller set; nothing is written."""
    shared = request("web", 100, QosLevel.SHARED)
    first = planner.plan(shared, {"cpu": {}})
    holdings = {key: Holding(shared, changed["cpu"]) for key, changed in first.allocations.items()}
    before = dict(holdings)
    plan = planner.plan(request("db", 3000), {"cpu": holdings})
    assert holdings == before
    own = plan.own["cpu"]
    assert len(own.cpus) == 3
    assert own.exclusive == own.cpus
    assert plan.allocations[ContainerKey("db", "")]["cpu"].cpus >= own.cpus
    assert plan.allocations[shared.key]["cpu"].cpus.isdisjoint(own.cpus)
    assert plan.hints["cpu"][0].preferred


def test_the_same_question_has_the_same_answer(planner: Planner) -> None:
    """Planning has no memory."""
    assert planner.plan(request("db", 2000), {"cpu": {}}) == planner.plan(request("db", 2000), {"cpu": {}})


def test_what_does_not_fit_is_told_with_numbers(planner: Planner) -> None:
    """Asked, free by NUMA node, largest that would fit."""
    with pytest.raises(DoesNotFit, match=r"asked 8.*0: .*1: .*would fit: 7"):
        planner.plan(request("db", 8000), {"cpu": {}})
