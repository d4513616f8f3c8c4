"""Disks to a real kernel: `inside/disks.py` does it all in one boot, and here it is judged."""

from __future__ import annotations

import json

import pytest

from .vm import GuestResult, default_cache, prepare, run

pytestmark = [pytest.mark.guest, pytest.mark.timeout(1800)]

BOOT_TIMEOUT = 1500
LIMIT = 2 << 20
HDD = (
    "ctrl=user model=linear rbps=174019176 rseqiops=41708 rrandiops=370 wbps=178075866 wseqiops=42705 wrandiops=378",
    "enable=1 ctrl=user rpct=95.00 rlat=250000 wpct=95.00 wlat=250000 min=50.00 max=10000.00",
)
FOREIGN = "enable=1 ctrl=user rpct=50.00 rlat=1234 wpct=0.00 wlat=4321 min=10.00 max=200.00"


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> GuestResult:
    """The guest's exit code and console."""
    script = tmp_path_factory.mktemp("guest") / "disks.sh"
    script.write_text("exec python -m tests.guest.inside.disks\n")
    return run(prepare(default_cache()), script, cpus=2, counted=True, timeout=BOOT_TIMEOUT)


@pytest.fixture(scope="module")
def seen(result: GuestResult) -> dict[str, str]:
    """What was found, by name."""
    pairs = (line.partition("=") for line in result.console.splitlines())
    return {name: value for name, equals, value in pairs if equals}


def lines(seen: dict[str, str], name: str) -> tuple[str, str]:
    """What the kernel had for a disk."""
    return seen[f"{name}.model"], seen[f"{name}.qos"]


def test_it_went_to_its_end(result: GuestResult) -> None:
    """Nothing failed inside the guest."""
    assert result.exit_code == 0


def test_parameters_are_read_back(seen: dict[str, str]) -> None:
    """The kernel has what the configuration and the table say, also where somebody else had set the disk."""
    assert "for qrma (" in seen["probe"]
    assert "not there now: qrmb" in seen["probe"]
    model, qos = lines(seen, "set.qrma")
    assert model.startswith("ctrl=user model=linear rbps=123456789 rseqiops=724816 rrandiops=778122 wbps=1742780862")
    assert qos == "enable=1 ctrl=user rpct=97.50 rlat=7000 wpct=95.00 wlat=5000 min=50.00 max=150.00"
    assert seen["set.qrmc.model"].startswith("ctrl=user model=linear rbps=488636629 rseqiops=8932 rrandiops=8518")
    assert seen["io.weight"] == "default 10"


def test_steady_state_writes_nothing(seen: dict[str, str]) -> None:
    """Nothing is written while nothing differs, nor by a process that starts anew."""
    assert seen["steady.writes"] == "0"


def test_a_foreign_write_is_repaired(seen: dict[str, str]) -> None:
    """One round puts back both files, and counts them."""
    assert json.loads(seen["drift.repairs"]) == {"model": 1, "qos": 1}
    assert seen["drift.writes"] == "2"
    assert lines(seen, "drift.qrma") == lines(seen, "set.qrma")


def test_disks_come_and_go(seen: dict[str, str]) -> None:
    """A disk has its parameters one round after it came, each time; one that is gone is no failure."""
    assert json.loads(seen["come.repairs"]) == json.loads(seen["again.repairs"]) == {"disk": 2}
    assert lines(seen, "come.qrmb") == lines(seen, "again.qrmb") == HDD
    assert json.loads(seen["gone.repairs"]) == [{}, {}]


def test_everything_is_given_back(seen: dict[str, str]) -> None:
    """Disks get back the kernel's values or somebody's, when they are no longer named, and at the reset."""
    for disk in ("dropped.qrmb", "reset.qrma", "reset.qrmb"):
        model, qos = lines(seen, disk)
        assert model.startswith("ctrl=auto model=linear rbps=488636629 ")
        assert qos == "enable=0 ctrl=auto rpct=0.00 rlat=25000 wpct=0.00 wlat=25000 min=1.00 max=10000.00"
    for disk in ("dropped.qrmc", "reset.qrmc"):
        assert seen[f"{disk}.qos"] == FOREIGN
        assert seen[f"{disk}.model"].startswith("ctrl=auto ")
    assert len(json.loads(seen["reset"])) == 3
    assert (seen["reset.files"], seen["reset.again"]) == ("[]", "[]")


def test_io_max_limits_a_real_dd(seen: dict[str, str]) -> None:
    """With the number that the name was resolved to, dd gets the rate of io.max and no more."""
    assert seen["io.max"].endswith(f" rbps=max wbps={LIMIT} riops=max wiops=max")
    assert float(seen["speed.unlimited"]) > 2 * LIMIT
    assert 0.5 * LIMIT < float(seen["speed.limited"]) < 1.15 * LIMIT


def test_measured_by_reading(seen: dict[str, str]) -> None:
    """The disk is measured, not what io.cost allowed it; the queue is as before; the dimension uses what was found."""
    assert seen["read.code"] == "0", seen["read.err"]
    found = json.loads(json.loads(seen["read.out"]))
    model = found["model"]
    assert min(model["rseqiops"], model["rrandiops"]) > 200, "io.cost had been set to 100"
    assert model["rbps"] >= 4096 * max(model["rseqiops"], model["rrandiops"])
    assert found["assumed"] == ["wbps", "wseqiops", "wrandiops"]
    assert seen["read.queue"] == seen["read.queue-before"] == "none [mq-deadline] 0"
    said = "event=written path=/sys/block/qrma/queue/scheduler value=none old=mq-deadline"
    assert said in json.loads(seen["read.err"])
    measured, qos = lines(seen, "measured.qrma")
    assert measured == " ".join(("ctrl=user model=linear", *(f"{key}={value}" for key, value in model.items())))
    assert qos == f"enable=1 ctrl=user rpct=99.00 rlat={found['rlat']} wpct=0.00 wlat=0 min=75.00 max=10000.00"


@pytest.mark.parametrize("way", ["write", "file"])
def test_measured_by_writing(seen: dict[str, str], way: str) -> None:
    """All of the model is measured, after a person agreed; of the file nothing is left."""
    assert seen[f"{way}.code"] == "0", seen[f"{way}.err"]
    assert "in proportion" not in json.loads(seen[f"{way}.out"])
    assert "wpct=99.00" in json.loads(seen[f"{way}.out"])
    assert seen["file.left"] == "['lost+found']"
    assert len(json.loads(seen["state.files"])) == 2


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("unasked", "is lost. Type qrma"),
        ("refused", "Aborted!"),
        ("full", "there is ext4 on /dev/qrmc"),
        ("mounted", "it is mounted"),
        ("elsewhere", "/mnt/disk is not on qrma"),
    ],
)
def test_nothing_is_written_where_it_does_harm(seen: dict[str, str], name: str, said: str) -> None:
    """Without an answer, with a wrong one, on a file system, mounted or not, and beside the disk: refused."""
    assert seen[f"{name}.code"] == "1"
    assert said in json.loads(seen[f"{name}.err"])
    assert "event=written" not in json.loads(seen[f"{name}.err"])
