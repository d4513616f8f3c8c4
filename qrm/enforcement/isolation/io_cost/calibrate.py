"""Measuring the cost model of one disk with fio, without harm to what is on it.

Three ways: read the disk only; write and read a file on a file system of the disk; write and read the disk itself,
which is refused where anything seems to be on it. The file has no name, so nothing is left of it however this ends.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields, replace
from datetime import UTC, datetime
from pathlib import Path

from qrm.enforcement.isolation.io_cost.disks import HOST, SECTOR, Disk, Host, Kind, disks_below, users
from qrm.enforcement.isolation.io_cost.fio import BLOCK, READS, WRITES, Job, Outcome, Target, run
from qrm.enforcement.isolation.io_cost.measured import FORMAT, Measurement, Way
from qrm.enforcement.isolation.io_cost.model import Model
from qrm.enforcement.isolation.io_cost.table import TABLE
from qrm.enforcement.isolation.kernel import read, write
from qrm.errors import QrmError
from qrm.topology.attributes import read_text

SMALLEST_FILE = 16 << 20
"""Bytes; even the slowest disk writes that much in ten seconds."""
LEAST_RATE, LEAST_OPERATIONS = 1 << 20, 10
"""What any disk does in a second; one that measures less is broken or busy."""
_DOUBTFUL_SHARE = 0.1
_PROCESSES = 4


@dataclass(frozen=True, slots=True)
class Request:
    """What to measure, and how."""

    disk: Disk
    way: Way
    directory: Path | None
    """For "file": where."""
    seconds: float
    """How long each measurement may take: three to read, six to write too."""
    most: int
    """Bytes that each measurement may move."""


def check(request: Request, host: Host = HOST) -> None:
    """Refuse what cannot be done or would do harm; raises QrmError."""
    disk = request.disk
    if os.geteuid() != 0:
        raise QrmError("only root may measure disks")
    if shutil.which("fio") is None:
        raise QrmError("fio is not installed", hint="apt-get install fio")
    if not disk.takes_requests:
        raise QrmError(f"{disk.name} passes its I/O on to devices below it", hint="measure those")
    if request.way == "write":
        _check_empty(disk, host)
    elif request.directory is not None:
        _file_size(request, host)


def measure(request: Request, *, cgroup: Path, host: Host = HOST, tell: Callable[[Job, Outcome], None]) -> Measurement:
    """Measure; `tell` hears of each part. `cgroup` is the mount of the root cgroup.

    Raises:
        QrmError: `check` refuses, fio failed, or found what no disk does.
    """
    check(request, host)
    root = cgroup if (cgroup / "io.cost.qos").exists() else None
    outcomes: dict[str, Outcome] = {}
    with _target(request, host) as target, _bare_queue(host.sysfs / "block" / request.disk.name):
        before = _moved(request.disk, host)
        for job in _order(request):
            outcome = run(job, target, root)
            outcomes[job.name] = outcome
            tell(job, outcome)
            if request.way == "file" and len(outcomes) == 1:
                target = replace(target, size=_written(outcome))
        others = _moved(request.disk, host) - before - sum(outcome.bytes for outcome in outcomes.values())
    model, assumed = derive(outcomes, request.disk.kind)
    writes = outcomes.get("wrandiops")
    return Measurement(
        format=FORMAT,
        identity=request.disk.identity,
        disk=request.disk.name,
        number=request.disk.number,
        way=request.way,
        seconds=request.seconds,
        finished=datetime.now(UTC).isoformat(timespec="seconds"),
        model=model,
        assumed=assumed,
        rlat=outcomes["rrandiops"].latency,
        wlat=writes.latency if writes else 0,
        doubts=doubts(outcomes, others, request.seconds),
    )


def derive(outcomes: Mapping[str, Outcome], kind: Kind) -> tuple[Model, tuple[str, ...]]:
    """The model, and the parts of it that are assumed.

    A disk that moved 4 KiB blocks faster than large ones can move large ones as fast: the kernel's base cost of an
    operation would otherwise be nothing. Writes that were not measured are to reads as in the table, or as fast.

    Raises:
        QrmError: something measured is too little to be true.
    """
    found: dict[str, int] = {}
    for letter in "rw" if "wbps" in outcomes else "r":
        seq, rand = (round(outcomes[f"{letter}{pattern}iops"].operations) for pattern in ("seq", "rand"))
        rate = max(round(outcomes[f"{letter}bps"].rate), BLOCK * seq, BLOCK * rand)
        if rate < LEAST_RATE or min(seq, rand) < LEAST_OPERATIONS:
            raise QrmError(
                f"measured {letter}bps={rate} {letter}seqiops={seq} {letter}randiops={rand}, which is too little",
                hint="is the disk failing (see dmesg), or busy? nothing was saved",
            )
        found |= {f"{letter}bps": rate, f"{letter}seqiops": seq, f"{letter}randiops": rand}
    assumed = tuple(each.name for each in fields(Model) if each.name not in found)
    for name in assumed:
        like = f"r{name[1:]}"
        known = TABLE.get(kind)
        share = getattr(known.model, name) / getattr(known.model, like) if known else 1
        found[name] = max(round(found[like] * share), 1)
    return Model(**found), assumed


def doubts(outcomes: Mapping[str, Outcome], others: int, seconds: float) -> tuple[str, ...]:
    """Why the numbers may be wrong; `others` is how many bytes the disk moved besides."""
    short = [
        name
        for name, outcome in outcomes.items()
        if outcome.rate and outcome.bytes / outcome.rate < min(seconds / 2, 1)
    ]
    found = [f"too short a time for {', '.join(short)}: let them move more bytes"] if short else []
    share = others / max(sum(outcome.bytes for outcome in outcomes.values()), 1)
    if share > _DOUBTFUL_SHARE:
        found.append(f"somebody else used the disk too: it moved {share:.0%} more than what was measured")
    return tuple(found)


def _order(request: Request) -> tuple[Job, ...]:
    if request.way == "read":
        return READS
    if request.way == "write":
        return READS + WRITES
    return (WRITES[0], *READS, *WRITES[1:])  # the first one fills the file


def _check_empty(disk: Disk, host: Host) -> None:
    """Raises QrmError where the disk is used, or something is on it."""
    device = _device(disk, host)
    if found := users(disk, host):
        raise QrmError(f"{device} is in use: {', '.join(found)}", hint="measure with --file, or only read")
    with _claimed(device):
        # util-linux: 0 says that something was found, 2 that nothing was
        command = ("blkid", "--probe", "--output", "value", "--match-tag", "TYPE", str(device))
        probed = subprocess.run(command, capture_output=True, text=True, check=False)
    if probed.returncode == 0:
        what = probed.stdout.strip() or "a partition table"
        raise QrmError(f"there is {what} on {device}", hint=f"if nobody needs it: wipefs --all {device}")


@contextlib.contextmanager
def _claimed(device: Path) -> Iterator[None]:
    """Nobody can mount the device or use it for swap meanwhile, as nobody may have; raises QrmError."""
    try:
        descriptor = os.open(device, os.O_RDONLY | os.O_EXCL | os.O_CLOEXEC)
    except OSError as error:
        why = "it is mounted, or in use in another way" if error.errno == errno.EBUSY else str(error)
        raise QrmError(f"cannot have {device} alone: {why}", hint="measure with --file, or only read") from error
    try:
        yield
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def _target(request: Request, host: Host) -> Iterator[Target]:
    """What fio reads and writes, as long as this lasts; raises QrmError."""
    processes = 1 if request.disk.kind == "hdd" else min(_PROCESSES, os.cpu_count() or 1)
    if request.directory is None:
        device = _device(request.disk, host)
        with _claimed(device) if request.way == "write" else contextlib.nullcontext():
            yield Target(str(device), request.disk.size, request.seconds, request.most, processes)
        return
    size = _file_size(request, host)
    try:
        descriptor = os.open(request.directory, os.O_TMPFILE | os.O_RDWR, 0o600)
    except OSError as error:
        raise QrmError(f"cannot make a file in {request.directory}: {error}", hint="use ext4, xfs or btrfs") from error
    try:
        os.ftruncate(descriptor, size)
        yield Target(f"/proc/{os.getpid()}/fd/{descriptor}", size, request.seconds, request.most, processes)
    finally:
        os.close(descriptor)


def _file_size(request: Request, host: Host) -> int:
    """How large the file may be: half of what is free, at most. Raises QrmError where there is no place for it."""
    directory = request.directory
    if directory is None or not directory.is_dir():
        raise QrmError(f"{directory} is no directory")
    device = directory.stat().st_dev
    number = f"{os.major(device)}:{os.minor(device)}"
    below = disks_below(number, host)
    if below != {request.disk.number}:
        on = (
            f"on {', '.join(sorted(below))}" if below else "on no block device that can be told (overlay, btrfs, tmpfs)"
        )
        raise QrmError(
            f"{directory} is not on {request.disk.name} ({request.disk.number}), but {on}",
            hint="name a directory on a file system of that disk alone",
        )
    free = os.statvfs(directory)
    size = min(request.most, free.f_bavail * free.f_frsize // 2) // BLOCK * BLOCK
    if size < SMALLEST_FILE:
        raise QrmError(
            f"the file would have {size >> 20} MiB, and {SMALLEST_FILE >> 20} is the least", hint="make room"
        )
    return size


def _written(outcome: Outcome) -> int:
    """How much of the file there is to read."""
    size = outcome.bytes // BLOCK * BLOCK
    if size < SMALLEST_FILE:
        raise QrmError(
            f"only {size >> 20} MiB were written, and {SMALLEST_FILE >> 20} is the least", hint="give it more --seconds"
        )
    return size


@contextlib.contextmanager
def _bare_queue(folder: Path) -> Iterator[None]:
    """No scheduler and no merging of requests, as the kernel's numbers were found; put back at the end."""
    merges, scheduler = folder / "queue/nomerges", folder / "queue/scheduler"
    changes = [(merges, "2", read(merges) or "0")]
    schedulers = read_text(scheduler) or ""
    chosen = re.search(r"\[(.+?)\]", schedulers)
    if chosen and "none" in schedulers.split():
        changes.append((scheduler, "none", chosen[1]))
    try:
        for path, value, old in changes:
            write(path, value, old=old)
        yield
    finally:
        for path, value, old in changes:
            if path.exists():
                write(path, old, old=value)


def _moved(disk: Disk, host: Host) -> int:
    """Bytes that the disk has read and written since it came (Documentation/block/stat.rst)."""
    numbers = (read_text(host.sysfs / "block" / disk.name / "stat") or "").split()
    return (int(numbers[2]) + int(numbers[6])) * SECTOR if len(numbers) > 6 else 0


def _device(disk: Disk, host: Host) -> Path:
    return host.dev / disk.name.replace("!", "/")
