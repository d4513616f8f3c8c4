"""Measuring: what fio is asked, what is made of its answers, and what is put back; the guest has disks to measure."""

from __future__ import annotations

import json
import os
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from qrm.enforcement.isolation.io_cost import calibrate
from qrm.enforcement.isolation.io_cost.calibrate import Request, derive, doubts
from qrm.enforcement.isolation.io_cost.disks import Disk, Host
from qrm.enforcement.isolation.io_cost.fio import READS, WRITES, Job, Outcome, Target, command, parse, run
from qrm.enforcement.isolation.io_cost.measured import FORMAT, Measurement, load, path_of, save
from qrm.enforcement.isolation.io_cost.model import Model, Qos
from qrm.enforcement.isolation.io_cost.table import TABLE
from qrm.errors import QrmError
from tests.enforcement.isolation.io_cost.trees import SATA, add_disk, host_in

JOBS = READS + WRITES
MODEL = Model(1, 2, 3, 4, 5, 6)
MEASUREMENT = Measurement(FORMAT, "wwid t10.ATA  X/../y", "sda", "8:0", "read", 1.0, "", MODEL, ("wbps",), 7, 0)


@given(
    job=st.sampled_from(JOBS),
    size=st.integers(64 << 20, 1 << 44),
    most=st.integers(1 << 20, 1 << 36),
    processes=st.integers(1, 4),
)
def test_bounds(job: Job, size: int, most: int, processes: int) -> None:
    """fio stays within the target, the bytes and the time, and is told to write by jobs that write only."""
    words = command(job, Target("/dev/x", size, 2.5, most, processes))
    said = dict(word.removeprefix("--").partition("=")[::2] for word in words[1:])
    parallel = int(said["numjobs"])
    last = int(said["size"]) + int(said.get("offset_increment", 0)) * (parallel - 1)
    assert last <= size
    assert int(said["io_size"]) * parallel <= max(most, parallel * job.block)
    assert int(said["iodepth"]) * parallel <= job.depth
    assert said["runtime"] == "2500ms"
    assert ("readonly" in said) != job.writes
    assert {"direct", "norandommap"} <= set(said)


def _output(**changes: object) -> str:
    side = {"io_bytes": 8192, "bw_bytes": 4096, "iops": 1.5, "clat_ns": {"percentile": {"99.000000": 1001}}, **changes}
    return f"note\n{json.dumps({'jobs': [{'error': 0, 'read': side, 'write': {}}]})}"


def test_fios_answer() -> None:
    """The numbers of the side that was measured; latency in whole microseconds, upwards."""
    assert parse(_output(), READS[0]) == Outcome(8192, 4096.0, 1.5, 2)
    assert parse(_output(clat_ns={}), READS[0]).latency == 0


@pytest.mark.parametrize("text", ["", "{", "{}", '{"jobs": []}', '{"jobs": [3]}', _output(iops="many")])
def test_fios_nonsense(text: str) -> None:
    """What cannot be read is an error that quotes it."""
    with pytest.raises(QrmError, match="fio printed what cannot be read"):
        parse(text, READS[0])


def test_fio_that_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The real fio's complaint is told; one that is missing, with how to get it."""
    target = Target(str(tmp_path / "missing"), 1 << 20, 0.2, 1 << 20, 1)
    with pytest.raises(QrmError, match=r"fio could not measure rseqiops \(exit code 1\): fio: \w"):
        run(READS[1], target, None)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(QrmError, match="cannot run fio") as caught:
        run(READS[1], target, None)
    assert caught.value.hint == "apt-get install fio"


RATES = st.floats(1 << 20, 1 << 36)
OPERATIONS = st.floats(10, 1 << 24)


@given(
    rates=st.tuples(RATES, RATES),
    operations=st.tuples(*[OPERATIONS] * 4),
    writes=st.booleans(),
    kind=st.sampled_from(["", *TABLE]),
)
def test_model(rates: tuple[float, ...], operations: tuple[float, ...], writes: bool, kind: str) -> None:
    """The model is what was measured, bandwidth at least what operations moved, and writes as in the table if not."""
    numbers = [rates[0], *operations[:2], rates[1], *operations[2:]]
    jobs = JOBS if writes else READS
    outcomes = {job.name: Outcome(1, number, number, 1) for job, number in zip(jobs, numbers, strict=False)}
    model, assumed = derive(outcomes, kind)  # type: ignore[arg-type]
    assert (model.rseqiops, model.rrandiops) == (round(operations[0]), round(operations[1]))
    assert model.rbps == max(round(rates[0]), 4096 * model.rseqiops, 4096 * model.rrandiops)
    assert assumed == (() if writes else ("wbps", "wseqiops", "wrandiops"))
    if not writes and not kind:
        assert (model.wbps, model.wseqiops, model.wrandiops) == (model.rbps, model.rseqiops, model.rrandiops)


def test_writes_in_proportion() -> None:
    """A disk that reads twice as fast as the table's is taken to write twice as fast, too."""
    table = TABLE["nvme"].model
    twice = dict(zip(("rbps", "rseqiops", "rrandiops"), (table.rbps, table.rseqiops, table.rrandiops), strict=True))
    outcomes = {name: Outcome(1, 2.0 * value, 2.0 * value, 1) for name, value in twice.items()}
    model, _ = derive(outcomes, "nvme")
    assert model.wrandiops == pytest.approx(2 * table.wrandiops, abs=1)
    assert model.wbps == pytest.approx(model.rbps * table.wbps / table.rbps, abs=1)


@pytest.mark.parametrize(("rate", "operations"), [(1e5, 12.0), (1e8, 9.0), (0.0, 0.0)])
def test_too_little(rate: float, operations: float) -> None:
    """What no disk does is an error with the numbers, and no model."""
    outcomes = {job.name: Outcome(1, rate, operations, 1) for job in READS}
    with pytest.raises(QrmError, match="which is too little"):
        derive(outcomes, "hdd")


def test_doubts() -> None:
    """A measurement that was too short, or not alone, says so."""
    whole, short = Outcome(1000, 100.0, 1.0, 1), Outcome(1000, 10_000.0, 1.0, 1)
    assert doubts({"rbps": whole}, 50, 10.0) == ()
    assert "too short a time for wbps" in doubts({"rbps": whole, "wbps": short}, 0, 10.0)[0]
    assert "it moved 20% more" in doubts({"rbps": whole}, 200, 10.0)[0]


def test_kept(tmp_path: Path) -> None:
    """A measurement is found again by the disk's identity, which is no path, and by no other."""
    path = save(tmp_path / "state", MEASUREMENT)
    assert path.parent == tmp_path / "state"
    assert load(tmp_path / "state", MEASUREMENT.identity) == MEASUREMENT
    assert load(tmp_path / "state", f"{MEASUREMENT.identity}.") is None
    path.write_bytes(msgspec.json.encode(msgspec.structs.replace(MEASUREMENT, format=2)))
    with pytest.raises(QrmError, match="has format 2, this qrm knows 1"):
        load(tmp_path / "state", MEASUREMENT.identity)
    assert path_of(tmp_path, "a/b").name.startswith("io-cost-a-b-")


def test_what_is_not_sure_is_no_bound() -> None:
    """A model that is measured as a whole holds; one that is assumed or doubtful may be exceeded."""
    sure = msgspec.structs.replace(MEASUREMENT, assumed=(), wlat=8)
    assert sure.params().qos == Qos(99_00, 7, 99_00, 8, 75_00, 100_00)
    assert MEASUREMENT.params().qos == Qos(99_00, 7, 0, 0, 75_00, 10_000_00)
    assert msgspec.structs.replace(sure, doubts=("busy",)).params().qos.max == 10_000_00


def test_queue_is_put_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Scheduler and merging are as before when measuring ends, also by an interrupt."""
    _, folder = _disk(tmp_path)
    writes: list[tuple[str, str]] = []
    monkeypatch.setattr(calibrate, "write", lambda path, value, **_: writes.append((path.name, value)))

    def interrupted() -> None:
        with calibrate._bare_queue(folder):
            writes.append(("measuring", ""))
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    bare, normal = [("nomerges", "2"), ("scheduler", "none")], [("nomerges", "1"), ("scheduler", "bfq")]
    assert writes == [*bare, ("measuring", ""), *normal]


def _disk(tmp_path: Path) -> tuple[Host, Path]:
    host = host_in(tmp_path)
    files = {"queue/scheduler": "none mq-deadline [bfq]", "queue/nomerges": "1"}
    return host, add_disk(host, "sda", "8:0", device=SATA, files=files, partitions={"sda1": "8:1"})


def test_refusals(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever is not root, a machine without fio, a disk that is partitioned or stands on others: each is told."""
    host, _ = _disk(tmp_path)
    disk = Disk("sda", "8:0", "hdd", "x", "1", 1 << 40, takes_requests=True, physical=True)
    request = Request(disk, "write", None, 1.0, 1 << 20)
    monkeypatch.setattr(os, "geteuid", lambda: 1)
    with pytest.raises(QrmError, match="only root"):
        calibrate.check(request, host)
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    with pytest.raises(QrmError, match=r"/sda is in use: sda1"):
        calibrate.check(request, host)
    with pytest.raises(QrmError, match=r"is not on sda \(8:0\), but on"):
        calibrate.check(Request(disk, "file", tmp_path, 1.0, 1 << 20), host)
    calibrate.check(Request(disk, "read", None, 1.0, 1 << 20), host)
    mapped = Disk("dm-0", "253:0", "", "y", "1", 1 << 40, takes_requests=False, physical=False)
    with pytest.raises(QrmError, match="passes its I/O on"):
        calibrate.check(Request(mapped, "read", None, 1.0, 1 << 20), host)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(QrmError, match="fio is not installed"):
        calibrate.check(request, host)
