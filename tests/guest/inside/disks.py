"""Inside the guest: null block devices, real ones to the kernel, before qrm's io.cost and `qrm calibrate-io`.

    python -m tests.guest.inside.disks

Prints what it finds as NAME=VALUE; test_disks.py judges.
"""

from __future__ import annotations

import json
import subprocess
import time
from pathlib import Path

import structlog
from click.testing import CliRunner
from structlog.testing import capture_logs

from qrm.cli.calibrate import calibrate_io
from qrm.cli.failures import Commands
from qrm.config import parse
from qrm.enforcement.isolation.io_cost.dimension import IoCostDimension
from qrm.enforcement.isolation.io_cost.disks import resolve

CGROUP = Path("/sys/fs/cgroup")
NULLB = Path("/sys/kernel/config/nullb")
STATE = Path("/var/lib/qrm")
CONFIG = """
[io_cost]
others = "leave"
[io_cost.devices."/dev/qrma"]
kind = "nvme"
model = { rbps = 123456789 }
qos = { rpct = 97.5, rlat = 7000, max = 150 }
[io_cost.devices.qrmb]
kind = "hdd"
[io_cost.devices.qrmc]
kind = "sata_ssd"
"""
FOREIGN = "enable=1 ctrl=user rpct=50.00 rlat=1234 wpct=0.00 wlat=4321 min=10.00 max=200.00"
LIMIT = 2 << 20
"""Bytes a second."""
CLI = Commands(commands=[calibrate_io])
"""The qrm command without the others, whose imports take long here."""


def say(name: str, value: object) -> None:
    """A finding."""
    print(f"{name}={value}", flush=True)


def come(name: str, mib: int) -> None:
    """A disk comes, of memory."""
    folder = NULLB / name
    folder.mkdir()
    for key, value in {"size": mib, "memory_backed": 1, "blocksize": 4096, "power": 1}.items():
        (folder / key).write_text(str(value))


def go(name: str) -> None:
    """A disk goes."""
    (NULLB / name / "power").write_text("0")
    (NULLB / name).rmdir()


def line(file: str, name: str) -> str:
    """The kernel's line for a disk, without its number."""
    number = Path(f"/sys/block/{name}/dev").read_text().strip()
    lines = [text.split(maxsplit=1) for text in (CGROUP / file).read_text().splitlines()]
    return next((rest for first, rest in lines if first == number), "")


def look(name: str, *names: str) -> None:
    """Say what disks have."""
    for disk in names:
        say(f"{name}.{disk}.model", line("io.cost.model", disk))
        say(f"{name}.{disk}.qos", line("io.cost.qos", disk))


def foreign(file: str, name: str, value: str) -> None:
    """Somebody else sets a disk."""
    number = Path(f"/sys/block/{name}/dev").read_text().strip()
    (CGROUP / file).write_text(f"{number} {value}")


def make(text: str = CONFIG) -> IoCostDimension:
    """The dimension of a new process."""
    return IoCostDimension(parse(text).io_cost, cgroup=CGROUP, state=STATE)


def act_parameters() -> None:
    """Set, kept, repaired, for disks that come and go, and given back."""
    come("qrma", 64)
    come("qrmc", 300)
    foreign("io.cost.qos", "qrmc", FOREIGN)
    ours = make()
    say("probe", ours.probe())
    ours.prepare()
    look("set", "qrma", "qrmc")
    with capture_logs() as logs:
        for _ in range(3):
            ours.repair(())
        make().prepare()
    say("steady.writes", len(logs))
    foreign("io.cost.qos", "qrma", "enable=0")
    foreign("io.cost.model", "qrma", "rbps=1000000")
    with capture_logs() as logs:
        say("drift.repairs", json.dumps(ours.repair(()).by_cause))
    say("drift.writes", len(logs))
    look("drift", "qrma")
    come("qrmb", 64)
    repairs = ours.repair(())
    say("come.repairs", json.dumps(repairs.by_cause))
    look("come", "qrmb")
    go("qrmb")
    gone = ours.repair(())
    say("gone.repairs", json.dumps([gone.by_cause, gone.failed]))
    come("qrmb", 64)
    say("again.repairs", json.dumps(ours.repair(()).by_cause))
    look("again", "qrmb")
    make('[io_cost.devices.qrma]\nkind = "nvme"').prepare()
    look("dropped", "qrmb", "qrmc")
    make().prepare()
    say("reset", json.dumps(list(make("").reset())))
    look("reset", "qrma", "qrmb", "qrmc")
    say("reset.files", sorted(each.name for each in STATE.iterdir()))
    say("reset.again", json.dumps(list(make("").reset())))


def speed(cgroup: Path, count: int) -> float:
    """Bytes a second that dd writes to qrma, from a cgroup."""
    begun = time.monotonic()
    join = 'echo 0 >"$0/cgroup.procs" && exec "$@"'
    dd = ("dd", "if=/dev/zero", "of=/dev/qrma", "bs=64k", f"count={count}", "oflag=direct", "status=none")
    subprocess.run(("sh", "-c", join, str(cgroup), *dd), check=True)
    return count * 65536 / (time.monotonic() - begun)


def act_limits() -> None:
    """io.weight and io.max of a cgroup."""
    cgroup = CGROUP / "qrm-test"
    cgroup.mkdir()
    (cgroup / "io.weight").write_text("10")
    say("io.weight", (cgroup / "io.weight").read_text().strip())
    say("speed.unlimited", speed(cgroup, 128))
    (cgroup / "io.max").write_text(f"{resolve('/dev/qrma')} wbps={LIMIT}")
    say("speed.limited", speed(cgroup, 64))
    say("io.max", (cgroup / "io.max").read_text().strip())


def calibrate(name: str, *arguments: str, stdin: str = "") -> None:
    """Run the command, and say how it ended."""
    begun = time.monotonic()
    command = ("calibrate-io", "--seconds", "2", "--bytes", "16Mi", *arguments)
    done = CliRunner().invoke(CLI, command, input=stdin)
    say(f"{name}.code", done.exit_code)
    say(f"{name}.out", json.dumps(done.stdout))
    say(f"{name}.err", json.dumps(done.stderr))
    say(f"{name}.seconds", round(time.monotonic() - begun, 1))


def queue(name: str) -> str:
    """What measuring changes for as long as it lasts."""
    return " ".join(Path(f"/sys/block/{name}/queue/{file}").read_text().strip() for file in ("scheduler", "nomerges"))


def act_calibrate() -> None:
    """Measured in each of the three ways, and refused where it would do harm."""
    Path("/sys/block/qrma/queue/scheduler").write_text("mq-deadline")
    foreign("io.cost.qos", "qrma", "enable=1 min=100 max=100")
    foreign("io.cost.model", "qrma", "rbps=1000000 rseqiops=100 rrandiops=100")
    say("read.queue-before", queue("qrma"))
    calibrate("read", "/dev/qrma", "--json")
    say("read.queue", queue("qrma"))
    measured = make("[io_cost.devices.qrma]")
    measured.prepare()
    look("measured", "qrma")
    measured.reset()
    calibrate("unasked", "/dev/qrma", "--write")
    calibrate("refused", "/dev/qrma", "--write", stdin="sda\n")
    calibrate("write", "/dev/qrma", "--write", stdin="qrma\n")
    subprocess.run(("mkfs.ext4", "-q", "-E", "lazy_itable_init=1", "/dev/qrmc"), check=True)
    calibrate("full", "qrmc", "--write", "--yes")
    Path("/mnt/disk").mkdir()
    subprocess.run(("mount", "/dev/qrmc", "/mnt/disk"), check=True)
    calibrate("mounted", "qrmc", "--write", "--yes")
    calibrate("elsewhere", "qrma", "--file", "/mnt/disk", "--yes")
    calibrate("file", "qrmc", "--file", "/mnt/disk", stdin="y\n")
    say("file.left", sorted(each.name for each in Path("/mnt/disk").iterdir()))
    say("state.files", json.dumps(sorted(each.name for each in STATE.iterdir())))


def main() -> None:
    """All acts; how long each took is for whoever wants to make it faster."""
    structlog.configure(logger_factory=structlog.ReturnLoggerFactory())
    subprocess.run(("modprobe", "null_blk", "nr_devices=0"), check=True)
    if not NULLB.exists():
        subprocess.run(("mount", "-t", "configfs", "configfs", "/sys/kernel/config"), check=True)
    STATE.mkdir(parents=True)
    for act in (act_parameters, act_limits, act_calibrate):
        begun = time.monotonic()
        act()
        say(f"seconds.{act.__name__}", round(time.monotonic() - begun, 1))


if __name__ == "__main__":
    main()
