"""RDT on the kernel's own resctrl, with a real containerd: `inside/rdt.py` does it in one boot; here it is judged."""

from __future__ import annotations

import json
from typing import Any

import pytest

from .vm import GuestResult, default_cache, prepare, run

pytestmark = [pytest.mark.guest, pytest.mark.timeout(1800)]

BOOT_TIMEOUT = 1500
THEIRS = "theirs:['L3:0=ff;1=fffff']"
WHOLE = ".:['L3:0=fffff;1=fffff']"
LENT = "qrm-reclaimed:['L3:0=3f;1=3f']"
"""30 % of 20 ways are 6."""
BATCH = "qrm-batch:['L3:0=3c00;1=3c00']"


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> GuestResult:
    """The guest's exit code and console."""
    script = tmp_path_factory.mktemp("guest") / "rdt.sh"
    script.write_text("exec python -m tests.guest.inside.rdt\n")
    return run(prepare(default_cache()), script, resctrl=True, timeout=BOOT_TIMEOUT)


@pytest.fixture(scope="module")
def seen(result: GuestResult) -> dict[str, str]:
    """What was found, by name."""
    pairs = (line.partition("=") for line in result.console.splitlines())
    return {name: value for name, equals, value in pairs if equals}


def repaired(seen: dict[str, str], name: str) -> Any:
    """What a round of repair counted, and that it could do all."""
    assert seen[f"{name}.failed"] == "{}"
    return json.loads(seen[f"{name}.repaired"])


def test_it_went_to_its_end(result: GuestResult) -> None:
    """Nothing failed inside the guest."""
    assert result.exit_code == 0


def test_without_a_mount_the_remedy_is_named(seen: dict[str, str]) -> None:
    """By the probe and by prepare, and there is nothing to reset."""
    assert seen["unmounted"] == seen["unmounted.prepare"]
    assert seen["unmounted"].startswith("resctrl is not mounted (mount -t resctrl resctrl /sys/fs/resctrl")
    assert seen["unmounted.reset"] == "[]"


def test_what_the_hardware_has_is_said(seen: dict[str, str]) -> None:
    """Ways, CLOSIDs and who has them; what it has not or would refuse, with the class and the key."""
    assert "L3 of 20 ways; 2 of 3 CLOSIDs used by classes, 1 by other groups (theirs); no monitoring" in seen["mounted"]
    assert "needs 3 CLOSIDs (a, b, c), 2 are free: the hardware has 4" in seen["short"]
    assert "1 of other groups (theirs) (configure fewer classes" in seen["short"]
    assert seen["unfit"].startswith("rdt.classes.a.l3 = '0x5'")
    assert seen["bandwidth"].startswith("rdt.classes.a.memory_bandwidth = '40%'")


def test_groups_are_made_once_and_beside_others(seen: dict[str, str]) -> None:
    """One for each class that sets something; preparing again writes nothing."""
    assert seen["before"] == f"{WHOLE} {THEIRS}"
    assert seen["prepared"] == f"{BATCH} {LENT} {WHOLE} {THEIRS}"
    assert seen["prepared.again"] == "0"


@pytest.mark.parametrize(("name", "group"), [("lent", "qrm-reclaimed"), ("online", "")])
def test_a_pod_is_born_in_its_group(seen: dict[str, str], name: str, group: str) -> None:
    """The first command of its container, and one that is run in it later, inherit it from the shim."""
    assert seen[f"{name}.first"] == seen[f"{name}.exec"] == f"res:{group or '/'}"
    how, _, threads = seen[f"{name}.rdt membership"].partition("|")
    assert how.startswith("inherited from shim ")
    inside, _, total, _ = threads.split()
    assert inside == total
    assert int(total) > 3
    assert seen[f"{name}.rdt group"] == "|".join([group or "default"] * 2)


def test_the_steady_state_writes_nothing(seen: dict[str, str]) -> None:
    """Neither to groups nor to tasks; a pod that is gone changes nothing."""
    assert repaired(seen, "fresh") == repaired(seen, "steady") == repaired(seen, "vanished") == {}
    assert seen["steady.writes"] == seen["vanished.writes"] == "0"


def test_what_drifts_is_put_back_and_counted(seen: dict[str, str]) -> None:
    """Foreign schemata, a thread that left its group, one that came into ours, and a group that was removed."""
    assert repaired(seen, "schemata") == {"schemata": 1}
    assert seen["schemata.now"] == "L3:0=3f;1=3f"
    assert repaired(seen, "left") == repaired(seen, "strayed") == {"tasks": 1}
    inside = int(seen["lent.rdt membership"].split("|")[1].split()[0])
    removed = repaired(seen, "removed")
    assert (removed["group"], removed["schemata"]) == (1, 1)
    assert removed["tasks"] >= inside - 3  # an idle thread of the shim may have ended
    assert seen["removed.exec"] == "res:qrm-reclaimed"


def test_when_closids_are_out_the_kernel_is_quoted(seen: dict[str, str]) -> None:
    """For the node and for each of the class's pods, with a way out; once there is one, all comes back."""
    failed = json.loads(seen["exhausted.failed"])
    assert len(failed) == 2
    for text in failed.values():
        assert text.startswith("/sys/fs/resctrl/qrm-reclaimed: 'mkdir' was refused with ENOSPC")
        assert "last_cmd_status: Out of CLOSIDs (configure fewer classes" in text
    assert seen["exhausted.repaired"] == "{}"
    assert repaired(seen, "freed")["group"] == 1


def test_without_a_shim_threads_are_moved(seen: dict[str, str]) -> None:
    """All of all processes, though they fork meanwhile, and later what came since; `qrm explain` says so."""
    why, _, threads = seen["moved.rdt membership"].partition("|")
    assert why.startswith("moved: its parent ")
    assert why.endswith(" is no containerd shim")
    inside, _, total, _ = threads.split()
    assert inside == total
    assert int(total) >= 4 * 4
    assert seen["moved.later"] == "1"
    assert seen["moved.later.group"] == "res:qrm-reclaimed"


def test_reset_leaves_what_was_there(seen: dict[str, str]) -> None:
    """Two groups of ours are gone, and those of others are as they were."""
    assert len(json.loads(seen["reset"])) == 2
    assert seen["after"] == seen["before"]
