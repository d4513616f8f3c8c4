"""The guest is what the other guest tests rely on: two NUMA nodes, cgroup v2, and an exit code that arrives."""

from __future__ import annotations

from pathlib import Path

import pytest

from .vm import GuestError, GuestResult, Kernel, default_cache, prepare, run

pytestmark = [pytest.mark.guest, pytest.mark.timeout(1800)]

BOOT_TIMEOUT = 1500

LOOK_AROUND = """
for node in 0 1; do echo "node$node=$(cat /sys/devices/system/node/node$node/cpulist)"; done
echo "controllers=$(cat /sys/fs/cgroup/cgroup.controllers)"
echo "delegated=$(cat /sys/fs/cgroup/cgroup.subtree_control)"
echo "folder=$PWD"
modprobe overlay && modprobe veth && modprobe null_blk && echo "modules=loaded"
python -c 'import grpc; print("grpc=imported")'
exit 42
"""


@pytest.fixture(scope="module")
def kernel() -> Kernel:
    return prepare(default_cache())


@pytest.fixture(scope="module")
def result(kernel: Kernel, tmp_path_factory: pytest.TempPathFactory) -> GuestResult:
    script = tmp_path_factory.mktemp("guest") / "look-around.sh"
    script.write_text(LOOK_AROUND)
    return run(kernel, script, timeout=BOOT_TIMEOUT)


@pytest.fixture(scope="module")
def seen(result: GuestResult) -> dict[str, str]:
    """What the script found, by the name that it printed it under."""
    pairs = (line.partition("=") for line in result.console.splitlines())
    return {name: value for name, equals, value in pairs if equals}


def test_the_exit_code_of_the_script_is_carried_out(result: GuestResult) -> None:
    assert result.exit_code == 42


def test_there_are_two_numa_nodes_of_four_cpus(seen: dict[str, str]) -> None:
    assert (seen["node0"], seen["node1"]) == ("0-3", "4-7")


def test_every_cgroup_controller_is_on_below_the_root(seen: dict[str, str]) -> None:
    assert {"cpuset", "cpu", "io", "memory", "pids"} <= set(seen["controllers"].split())
    assert seen["delegated"] == seen["controllers"]


def test_the_script_starts_in_the_checkout_with_this_python(seen: dict[str, str]) -> None:
    assert seen["folder"] == str(Path(__file__).resolve().parents[2])
    assert seen["grpc"] == "imported"


def test_modules_of_the_guests_kernel_load(seen: dict[str, str]) -> None:
    assert seen["modules"] == "loaded"


def test_a_guest_that_does_not_end_is_killed(kernel: Kernel, tmp_path: Path) -> None:
    script = tmp_path / "hang.sh"
    script.write_text("sleep infinity\n")
    with pytest.raises(GuestError, match="did not end within"):
        run(kernel, script, timeout=2)


def test_a_guest_that_dies_is_told_from_a_script_that_fails(kernel: Kernel, tmp_path: Path) -> None:
    script = tmp_path / "die.sh"
    script.write_text("echo c >/proc/sysrq-trigger\n")
    with pytest.raises(GuestError, match="Kernel panic"):
        run(kernel, script, timeout=BOOT_TIMEOUT)


@pytest.mark.parametrize(("cpus", "memory"), [(7, "2G"), (0, "2G"), (8, "2048")])
def test_unequal_nodes_are_refused(kernel: Kernel, tmp_path: Path, cpus: int, memory: str) -> None:
    script = tmp_path / "script.sh"
    script.write_text("true\n")
    with pytest.raises(GuestError, match="two equal nodes"):
        run(kernel, script, cpus=cpus, memory_per_node=memory, timeout=BOOT_TIMEOUT)
