"""What `qrm calibrate-io` found out about a disk: one small JSON file for each in the state directory."""

from __future__ import annotations

import hashlib
import os
import re
from pathlib import Path
from typing import Literal

import msgspec

from qrm.enforcement.isolation.io_cost.model import Model, Params, Qos
from qrm.enforcement.isolation.io_cost.table import UNBOUNDED
from qrm.errors import QrmError

Way = Literal["read", "file", "write"]
"""The disk was read; a file on it was written and read; the disk itself was written and read."""

FORMAT = 1
PERCENTILE = 99_00
"""Hundredths of a percent. With the two below, what systemd's iocost uses for models that fio measured ("naive")."""
SLOWEST = 75_00
FASTEST = 100_00


class Measurement(msgspec.Struct, frozen=True):
    """The file's content, and the answer of `qrm calibrate-io --json`."""

    format: int
    identity: str
    """Of the disk, as in `Disk.identity`."""
    disk: str
    """What the disk was called then."""
    number: str
    """Its major:minor then."""
    way: Way
    seconds: float
    """How long each of the measurements could take."""
    finished: str
    """When, as in RFC 3339."""
    model: Model
    assumed: tuple[str, ...]
    """Parts of the model that were not measured, but are to the measured ones as in the table."""
    rlat: int
    """Microseconds: the 99th percentile of random 4 KiB reads under load."""
    wlat: int
    """The same of writes; 0: not measured."""
    doubts: tuple[str, ...] = ()
    """Why the numbers may be wrong."""

    def params(self) -> Params:
        """What the disk is to have.

        The latency of what was not measured does not count; and a model that may be too low, since it is assumed in
        part or doubtful, is no bound.
        """
        qos = Qos(
            rpct=PERCENTILE if self.rlat else 0,
            rlat=self.rlat,
            wpct=PERCENTILE if self.wlat else 0,
            wlat=self.wlat,
            min=SLOWEST,
            max=UNBOUNDED if self.assumed or self.doubts else FASTEST,
        )
        return Params(self.model, qos)


def path_of(state: Path, identity: str) -> Path:
    """The file of the disk with this identity in the state directory."""
    readable = re.sub(r"[^A-Za-z0-9.]+", "-", identity).strip("-")[:60]
    return state / f"io-cost-{readable}-{hashlib.sha256(identity.encode()).hexdigest()[:8]}.json"


def load(state: Path, identity: str) -> Measurement | None:
    """What was measured of the disk with this identity; None where nothing was.

    Raises:
        QrmError: the file is there and cannot be used.
    """
    path = path_of(state, identity)
    try:
        found = msgspec.json.decode(path.read_bytes(), type=Measurement)
    except FileNotFoundError:
        return None
    except (OSError, msgspec.MsgspecError) as error:
        raise QrmError(f"cannot read {path}: {error}", hint="measure again with `qrm calibrate-io`") from error
    if found.format != FORMAT:
        raise QrmError(
            f"{path} has format {found.format}, this qrm knows {FORMAT}", hint="measure again with `qrm calibrate-io`"
        )
    return found


def save(state: Path, measurement: Measurement) -> Path:
    """Put the file in its place, and return its path; raises OSError."""
    path = path_of(state, measurement.identity)
    replace_file(path, msgspec.json.format(msgspec.json.encode(measurement), indent=2) + b"\n")
    return path


def replace_file(path: Path, content: bytes) -> None:
    """Durably, and whole or not at all; its directory is made where there is none. Raises OSError."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    new = path.with_name(f"{path.name}.new")
    with new.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    new.rename(path)
