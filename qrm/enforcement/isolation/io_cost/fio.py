"""fio, for `qrm calibrate-io`: the jobs, running one, and reading what it found.

The jobs are those by which the kernel's own numbers were found (tools/cgroup/iocost_coef_gen.py): bandwidth with large
blocks in sequence, and operations of 4 KiB with 64 under way, in sequence and at random places.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from qrm.errors import QrmError

BLOCK = 4096
"""Bytes of one operation: what the kernel's model counts in (block/blk-iocost.c, IOC_PAGE_SIZE)."""

_LARGE = 1 << 20
_LARGE_DEPTH, _DEPTH = 16, 64
_MARGIN = 60.0
"""Seconds that fio may take to begin and to end, beyond which the disk is taken to hang."""


@dataclass(frozen=True, slots=True)
class Job:
    """One measurement."""

    name: str
    """The part of the model that it measures."""
    pattern: str
    """fio's readwrite."""
    block: int
    depth: int
    """Operations under way at a time, of all processes together."""

    @property
    def writes(self) -> bool:
        """Whether it writes."""
        return self.pattern.endswith("write")


def _jobs(letter: str, word: str) -> tuple[Job, Job, Job]:
    return (
        Job(f"{letter}bps", word, _LARGE, _LARGE_DEPTH),
        Job(f"{letter}seqiops", word, BLOCK, _DEPTH),
        Job(f"{letter}randiops", f"rand{word}", BLOCK, _DEPTH),
    )


READS = _jobs("r", "read")
WRITES = _jobs("w", "write")


@dataclass(frozen=True, slots=True)
class Target:
    """Where, how long and how much."""

    path: str
    """A device or a file, which exists."""
    size: int
    """Bytes of it to use."""
    seconds: float
    """How long one job may take."""
    most: int
    """Bytes that one job may move."""
    processes: int
    """Processes that make the 4 KiB operations: one does not saturate a fast disk, several are seeks to a slow one."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one job found."""

    bytes: int
    """Moved in all."""
    rate: float
    """Bytes a second."""
    operations: float
    """A second."""
    latency: int
    """The 99th percentile, in microseconds, rounded up."""


def command(job: Job, target: Target) -> list[str]:
    """The command for `job`. It writes nothing unless the job is one that writes."""
    processes = target.processes if job.block == BLOCK else 1
    part = target.size // processes // job.block * job.block
    spread = [] if job.pattern.startswith("rand") else [f"--offset_increment={part}"]
    return [
        "fio",
        f"--name={job.name}",
        f"--filename={target.path}",
        f"--readwrite={job.pattern}",
        *([] if job.writes else ["--readonly"]),
        f"--blocksize={job.block}",
        f"--iodepth={max(job.depth // processes, 1)}",
        f"--numjobs={processes}",
        f"--size={part if spread else target.size}",
        *spread,
        f"--io_size={max(target.most // processes, job.block)}",
        f"--runtime={round(target.seconds * 1000)}ms",
        "--direct=1",
        "--ioengine=libaio",
        "--randrepeat=0",
        "--norandommap",
        "--allow_file_create=0",
        "--fallocate=none",
        "--group_reporting",
        "--eta=never",
        "--output-format=json",
    ]


def parse(output: str, job: Job) -> Outcome:
    """What fio printed; raises QrmError."""
    try:
        found = json.loads(output[output.index("{") :])["jobs"][0]
        if found["error"]:
            raise QrmError(f"fio ended {job.name} with error {found['error']}")
        side = found["write" if job.writes else "read"]
        latency = side["clat_ns"].get("percentile", {}).get("99.000000", 0)
        return Outcome(int(side["io_bytes"]), float(side["bw_bytes"]), float(side["iops"]), -(-int(latency) // 1000))
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise QrmError(f"fio printed what cannot be read: {output[:200]!r}") from error


def run(job: Job, target: Target, root_cgroup: Path | None) -> Outcome:
    """Run `job`, in the root cgroup where that is given.

    The root cgroup is the one that io.cost and io.max never hold back (block/blk-iocost.c, ioc_rqos_throttle), so that
    what is measured is the disk.

    Raises:
        QrmError: fio is not installed, failed, or does not end.
    """
    fio = command(job, target)
    if root_cgroup is not None:
        fio = _joining(root_cgroup / "cgroup.procs", fio)
    try:
        done = subprocess.run(fio, capture_output=True, text=True, timeout=target.seconds + _MARGIN, check=False)
    except subprocess.TimeoutExpired:
        raise QrmError(
            f"fio measures {job.name} for much longer than {target.seconds:g} s", hint="does the disk hang? see dmesg"
        ) from None
    except OSError as error:
        raise QrmError(f"cannot run fio: {error}", hint="apt-get install fio") from error
    if done.returncode:
        said = (done.stderr.strip() or done.stdout.strip())[-500:]
        raise QrmError(f"fio could not measure {job.name} (exit code {done.returncode}): {said}")
    return parse(done.stdout, job)


def _joining(procs: Path, arguments: Sequence[str]) -> list[str]:
    """A command that puts itself into a cgroup before it becomes another one."""
    return ["sh", "-c", 'echo 0 >"$0" && exec "$@"', str(procs), *arguments]
