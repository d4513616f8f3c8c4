"""Four resources on one NUMA node, under a real kernel: `inside/together.py` does it in one boot; here it is judged."""

from __future__ import annotations

import pytest

from qrm.cpuset import CPUSet

from .vm import GuestResult, default_cache, prepare, run

pytestmark = [pytest.mark.guest, pytest.mark.timeout(1800)]

NODES = {"0": CPUSet.parse("0-3"), "1": CPUSet.parse("4-7")}
NICS = {"0": "left", "1": "right"}
BOTH = "0-1"
BOOT_TIMEOUT = 1500


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> GuestResult:
    """The guest's exit code and console."""
    script = tmp_path_factory.mktemp("guest") / "together.sh"
    script.write_text("exec python -m tests.guest.inside.together\n")
    return run(prepare(default_cache()), script, timeout=BOOT_TIMEOUT)


@pytest.fixture(scope="module")
def seen(result: GuestResult) -> dict[str, str]:
    """What was found, by name."""
    pairs = (line.partition("=") for line in result.console.splitlines())
    return {name: value for name, equals, value in pairs if equals}


def place(seen: dict[str, str], name: str) -> tuple[CPUSet, str]:
    """A container's CPUs and memory nodes, on which its cgroup's files and its process must agree."""
    for dimension in ("cpus", "mems"):
        now = f"{name}.now.{dimension}"
        assert seen[now] == seen[f"{now}.effective"] == seen[f"{now}.allowed"]
    return CPUSet.parse(seen[f"{name}.now.cpus"]), seen[f"{name}.now.mems"]


def node_of(seen: dict[str, str], name: str) -> str:
    """The NUMA node on which all that a container has is, as the container itself saw it when it began."""
    cpus, mems = place(seen, name)
    assert mems in NODES
    assert cpus <= NODES[mems]
    assert seen[f"{name}.first.cpus.allowed"] == str(cpus)
    assert seen[f"{name}.first.mems.allowed"] == mems
    return mems


def test_it_went_to_its_end(result: GuestResult, seen: dict[str, str]) -> None:
    """Nothing failed inside the guest, and both nodes had their hugepages."""
    assert result.exit_code == 0
    assert seen["node0.hugepages"] == seen["node1.hugepages"] == "32"


def test_all_four_are_on_one_node(seen: dict[str, str]) -> None:
    """CPUs, memory, hugepages and NIC: cgroup, first command and environment agree."""
    node = node_of(seen, "db")
    assert len(place(seen, "db")[0]) == 2
    assert seen["db.first.QRM_NIC_NAME"] == NICS[node]
    assert seen["db.first.QRM_NET_EGRESS_MBIT"] == "3000"


def test_without_its_hugepages_all_goes_to_the_other_node(seen: dict[str, str]) -> None:
    """Hugepages alone move the same pod: without them it would have found room beside the first one."""
    first, second = node_of(seen, "db"), node_of(seen, "twin")
    assert seen["modest.plan.mems"] == first != second
    assert seen["modest.plan.nic"] == NICS[first]
    assert len(place(seen, "twin")[0]) == 2
    assert seen["twin.first.QRM_NIC_NAME"] == NICS[second]


def test_without_hugepages_anywhere_the_numbers_are_said(seen: dict[str, str]) -> None:
    """The same pod a third time."""
    assert seen["third.plan.fits"] == "False"
    assert seen["third.plan.refusal"] == (
        "hugepages-2Mi: asked 64Mi for dedicated_cores with numa_binding;"
        " free by NUMA node: 0: 0, 1: 0; largest that would fit: 0"
    )


def test_best_effort_would_place_it_apart(seen: dict[str, str]) -> None:
    """Hugepages are left on one node, bandwidth on the other: CPUs and memory stay together."""
    assert seen["apart.plan.fits"] == "True"
    assert CPUSet.parse(seen["apart.plan.cpus"]) <= NODES["1"]
    assert (seen["apart.plan.mems"], seen["apart.plan.nic"]) == ("1", NICS["0"])


def test_restricted_refuses_it_with_each_resource_and_its_nodes(seen: dict[str, str]) -> None:
    """As planned, so refused."""
    assert seen["rival.refused"] == f"RESOURCE_EXHAUSTED: qrm: {seen['rival.plan.refusal']}"
    assert (
        "under the policy restricted: cpu fits on 0 or 1; memory fits on 1;"
        " resource.katalyst.kubewharf.io/net_bandwidth fits on 0"
    ) in seen["rival.refused"]


@pytest.mark.parametrize("name", ["web", "db", "twin", "solo"])
def test_it_came_as_planned(seen: dict[str, str], name: str) -> None:
    """`qrm plan` before says what `qrm explain` says after, reasons included."""
    planned, explained = (
        {key: value for key, value in seen.items() if key.startswith(f"{name}.{command}.")}
        for command in ("plan", "explain")
    )
    assert planned[f"{name}.plan.fits"] == "True"
    reasons = [key for key in planned if ".plan.why." in key]
    assert len(reasons) == (3 if f"{name}.first.QRM_NIC_NAME" in seen else 2)
    for key in (f"{name}.plan.cpus", f"{name}.plan.mems", f"{name}.plan.nic", *reasons):
        assert planned[key] == explained[key.replace(".plan.", ".explain.")]


@pytest.mark.parametrize("name", ["web", "db", "twin", "solo", "web.beside-solo"])
def test_the_ledger_is_what_the_kernel_has(seen: dict[str, str], name: str) -> None:
    """`qrm explain` agrees with the cgroup, and with itself."""
    cpus, mems = place(seen, name)
    explained = [seen[f"{name}.explain.{field}"] for field in ("cpus", "applied", "kernel")]
    assert explained == [str(cpus)] * 3
    assert seen[f"{name}.explain.mems"] == mems


def test_who_asks_for_no_bandwidth_is_told_of_no_nic(seen: dict[str, str]) -> None:
    """Neither the environment nor `qrm explain` has one."""
    for name in ("web", "solo"):
        assert f"{name}.first.QRM_NIC_NAME" not in seen
        assert seen[f"{name}.explain.nic"] == ""


def test_nothing_moves_when_qrm_comes_back(seen: dict[str, str]) -> None:
    """A restart with a stricter policy leaves alone who runs."""
    assert place(seen, "db.restarted") == place(seen, "db")
    assert place(seen, "web.restarted")[1] == BOTH


def test_drift_of_memory_nodes_is_repaired(seen: dict[str, str]) -> None:
    """What somebody writes into cpuset.mems is undone and counted, once each, and no push of qrm's own is."""
    assert place(seen, "db.repaired") == place(seen, "db")
    assert place(seen, "web.repaired") == place(seen, "web.restarted")
    assert float(seen["repairs"]) == float(seen["repairs.end"]) == 2


def test_a_node_of_ones_own(seen: dict[str, str]) -> None:
    """numa_exclusive gives a pod a whole node, which a floating pod that runs already leaves with its memory too."""
    alone = node_of(seen, "solo")
    assert place(seen, "solo")[0] == NODES[alone]
    cpus, mems = place(seen, "web.beside-solo")
    assert mems in NODES.keys() - {alone}
    assert cpus < NODES[mems]


def test_a_floating_pod_has_all_memory_nodes(seen: dict[str, str]) -> None:
    """From its first instruction on, and again once the pod that wanted one for itself is gone."""
    assert place(seen, "web")[1] == seen["web.first.mems.allowed"] == BOTH
    cpus, mems = place(seen, "web.alone")
    assert mems == BOTH
    assert cpus > place(seen, "web.beside-solo")[0]
