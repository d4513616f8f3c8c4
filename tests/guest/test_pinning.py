"""Two NUMA nodes and cgroup v2, real: `inside/pinning.py` does it all in one boot, and here it is judged."""

from __future__ import annotations

import pytest

from qrm.cpuset import CPUSet

from .vm import GuestResult, default_cache, prepare, run

pytestmark = [pytest.mark.guest, pytest.mark.timeout(1800)]

NODES = CPUSet.parse("0-3"), CPUSet.parse("4-7")
MACHINE = NODES[0] | NODES[1]
BOOT_TIMEOUT = 1500


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> GuestResult:
    """The guest's exit code and console."""
    script = tmp_path_factory.mktemp("guest") / "pinning.sh"
    script.write_text("exec python -m tests.guest.inside.pinning\n")
    return run(prepare(default_cache()), script, timeout=BOOT_TIMEOUT)


@pytest.fixture(scope="module")
def seen(result: GuestResult) -> dict[str, str]:
    """What was found, by name."""
    pairs = (line.partition("=") for line in result.console.splitlines())
    return {name: value for name, equals, value in pairs if equals}


def place(seen: dict[str, str], name: str) -> CPUSet:
    """Where a container was, which its cgroup's two files and its process must agree on."""
    cpus = CPUSet.parse(seen[f"{name}.cpus"])
    assert CPUSet.parse(seen[f"{name}.effective"]) == cpus
    assert CPUSet.parse(seen[f"{name}.allowed"]) == cpus
    return cpus


def is_on_one_node(cpus: CPUSet) -> bool:
    """Whether a set is a part of one NUMA node."""
    return any(cpus <= node for node in NODES)


def test_it_went_to_its_end(result: GuestResult) -> None:
    """Nothing failed inside the guest."""
    assert result.exit_code == 0


def test_a_dedicated_pod_is_on_one_node(seen: dict[str, str]) -> None:
    """numa_binding gives a dedicated pod CPUs of one NUMA node, from its first instruction on."""
    cpus = place(seen, "db")
    assert len(cpus) == 2
    assert is_on_one_node(cpus)
    assert CPUSet.parse(seen["db.first"]) == cpus


def test_a_running_container_makes_room(seen: dict[str, str]) -> None:
    """The share pool shrinks in the cgroup of a container that runs already."""
    assert place(seen, "web") == MACHINE
    assert place(seen, "web.beside-db") == MACHINE - place(seen, "db")


def test_a_bound_shared_pod_is_on_one_node(seen: dict[str, str]) -> None:
    """numa_binding gives a shared pod a pool of its own on one NUMA node, apart from everybody else's."""
    cpus = place(seen, "bound")
    assert is_on_one_node(cpus)
    assert CPUSet.parse(seen["bound.first"]) == cpus
    assert place(seen, "web.beside-bound") == MACHINE - cpus - place(seen, "db")


def test_a_bound_pool_grows_on_its_node(seen: dict[str, str]) -> None:
    """A resize of a bound shared pod reaches its weight, and its pool, on the same NUMA node."""
    cpus = place(seen, "bound.resized")
    assert place(seen, "bound") < cpus
    assert is_on_one_node(cpus)
    assert int(seen["bound.resized.weight"]) > int(seen["bound.weight"])


def test_a_dedicated_pod_grows_on_its_node(seen: dict[str, str]) -> None:
    """A resize of a dedicated pod adds a CPU of its NUMA node, and no CFS quota."""
    cpus = place(seen, "db.resized")
    assert len(cpus) == 3
    assert place(seen, "db") < cpus
    assert is_on_one_node(cpus)
    assert seen["db.resized.quota"].split()[0] == "max"


def test_kubelets_cpuset_is_put_back(seen: dict[str, str]) -> None:
    """All CPUs, as kubelet's CPU manager sends them to everybody, move nobody."""
    cpus = place(seen, "db.told-all")
    assert cpus == place(seen, "db.resized")
    assert place(seen, "web.told-all") == MACHINE - cpus - place(seen, "bound.resized")


def test_drift_is_repaired(seen: dict[str, str]) -> None:
    """What somebody writes into the cgroups is undone and counted."""
    assert place(seen, "db.repaired") == place(seen, "db.told-all")
    assert place(seen, "web.repaired") == place(seen, "web.told-all")
    assert float(seen["repairs"]) == 2


def test_a_pod_that_fits_on_no_node_is_refused(seen: dict[str, str]) -> None:
    """Four CPUs are free, but not on one NUMA node: the refusal says how many are on each."""
    free = [len(node - place(seen, "db") - place(seen, "bound")) for node in NODES]
    assert sum(free) >= 4 > max(free)
    text = seen["rival.refused"]
    assert text.startswith("RESOURCE_EXHAUSTED: qrm: cpu: asked 4 CPUs for dedicated_cores with numa_binding")
    assert f"free by NUMA node: 0: {free[0]}, 1: {free[1]}; largest that would fit: {max(free)}" in text


def test_others_grow_back(seen: dict[str, str]) -> None:
    """What a removed pod had is in the cgroup of the running container again."""
    assert place(seen, "web.alone") == MACHINE - place(seen, "bound.end")
