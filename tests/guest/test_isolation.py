"""Isolation before the first instruction, under a real kernel: `inside/isolation.py` does it; here it is judged."""

from __future__ import annotations

import os

import pytest

from .vm import GuestResult, default_cache, prepare, run

pytestmark = [pytest.mark.guest, pytest.mark.timeout(1800)]

PODS = int(os.environ.get("QRM_ISOLATION_PODS", "2"))
"""Reclaimed pods of five containers each. Ten of them take ten minutes: a container is a dozen emulated processes."""
BORN = 5 * PODS
BOOT_TIMEOUT = 1500
LENT = {
    "cpu.idle": "1",
    "memory.high": str((64 << 20) * 75 // 100),
    "io.weight": "default_10",
    "cpuset.cpus": "3-7",
    "groups": "res:qrm-reclaimed mon:",
}


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> GuestResult:
    """The guest's exit code and console."""
    script = tmp_path_factory.mktemp("guest") / "isolation.sh"
    script.write_text(f"exec python -m tests.guest.inside.isolation {PODS}\n")
    return run(prepare(default_cache()), script, timeout=BOOT_TIMEOUT, resctrl=True)


@pytest.fixture(scope="module")
def seen(result: GuestResult) -> dict[str, str]:
    """What was found, by name."""
    pairs = (line.partition("=") for line in result.console.splitlines())
    return {name: value for name, equals, value in pairs if equals}


def found(line: str) -> dict[str, str]:
    """FILE:VALUE pairs of a container."""
    words, _, groups = line.partition("groups:")
    return {**dict(word.split(":", 1) for word in words.split()), "groups": groups}


def test_it_went_to_its_end(result: GuestResult, seen: dict[str, str]) -> None:
    """Nothing failed inside the guest, and every dimension was on."""
    assert result.exit_code == 0
    for name in ("rdt", "io_cost", "network"):
        assert seen[f"dimension.{name}"].startswith("True: ")


def test_lent_containers_are_born_as_their_profile_says(seen: dict[str, str]) -> None:
    """The first thing that each of them sees, and what a command sees that is exec'd into it."""
    names = [name for name in seen if name.startswith("batch") and name.endswith((".first", ".exec")) and ".c" in name]
    assert len(names) == 2 * BORN
    for name in names:
        assert LENT.items() <= found(seen[name]).items(), name


def test_a_dedicated_pod_has_its_own(seen: dict[str, str]) -> None:
    """No quota, its L3 ways from the upper end, its class of traffic."""
    for name in ("db.first", "db.exec"):
        has = found(seen[name])
        assert (has["cpu.max"], has["cpuset.cpus"], has["groups"]) == ("max_100000", "0-1", "res:qrm-dedicated mon:")
        assert (has["cpu.idle"], has["memory.high"]) == ("0", "max")
    assert seen["db.explain.rdt schemata"] == "L3:0=ffc00;1=ffc00|L3:0=ffc00;1=ffc00"
    assert seen["db.explain.network egress"].startswith("dedicated, ")


def test_a_shared_pod_is_left_alone(seen: dict[str, str]) -> None:
    """Its files and its group are the kernel's defaults."""
    has = found(seen["web.first"])
    assert (has["cpu.idle"], has["memory.high"], has["io.weight"]) == ("0", "max", "default_100")
    assert has["groups"] == "res:/ mon:"


@pytest.mark.parametrize("pod", ["db", "web", "batch0"])
def test_explain_and_kernel_agree(seen: dict[str, str], pod: str) -> None:
    """Of every value, what is wanted is what there is."""
    told = {name: value for name, value in seen.items() if name.startswith(f"{pod}.explain.")}
    assert len(told) > 5
    for name, value in told.items():
        if not name.endswith(("membership", "schemata")):
            wanted, _, kernel = value.partition("|")
            assert wanted == kernel, name


@pytest.mark.parametrize(
    ("what", "cause"),
    [
        ("memory.high", "cgroup/memory.high"),
        ("io.weight", "cgroup/io.weight"),
        ("cpu.idle", "cgroup/cpu.idle"),
        ("cpuset.cpus", "cpuset"),
        ("schemata", "rdt/schemata"),
        ("group", "rdt/group"),
        ("io.cost", "io_cost/qos"),
    ],
)
def test_what_drifts_is_put_back_and_counted(seen: dict[str, str], what: str, cause: str) -> None:
    """Foreign writes, and a group that was removed."""
    assert seen[f"repaired.{what}"] == cause


def test_a_deleted_qdisc_is_put_back_and_counted(seen: dict[str, str]) -> None:
    """With the filters that went with it."""
    assert {"network/qdisc", "network/filter"} <= set(seen["repaired.qdisc"].split())


def test_the_steady_state_writes_nothing(seen: dict[str, str]) -> None:
    """Before anything was disturbed, and once it was put right."""
    assert (seen["steady"], seen["steady.again"]) == ("True", "True")
    assert LENT.items() <= found(seen["batch.repaired.first"]).items()
    assert LENT.items() <= found(seen["batch.repaired.exec"]).items()


def test_a_disk_that_goes_holds_up_no_update(seen: dict[str, str]) -> None:
    """A container with limits for two disks starts, and what remains is the limit for the other."""
    assert {"wbps=5000000", "riops=500"} <= set(seen["disks.born"].split())
    assert "wbps=5000000" in seen["disks.updated"]
    assert "riops=500" not in seen["disks.updated"]


def test_reset_leaves_the_node_as_it_was(seen: dict[str, str]) -> None:
    """Groups, devices, qdiscs, io.cost; and each container's files are those of a container without qrm."""
    assert (seen["reset.failed"], seen["reset.state"], seen["reset.files"]) == ("[]", "True", "True")
