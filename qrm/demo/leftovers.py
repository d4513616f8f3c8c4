"""Removing what a private containerd leaves behind: its containers, their shims, mounts and files."""

from __future__ import annotations

import re
import shutil
import subprocess
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import psutil

from qrm.errors import QrmError

_SHIM = "containerd-shim-runc-v2"
_PATIENCE = 60.0
_INTERVAL = 0.02
_SOCKET = re.compile(r"unix://(/[\w./-]+)")


def remove_leftovers(folder: Path, socket: Path, environment: Mapping[str, str]) -> None:
    """Undo what the containerd of `folder`, which no longer runs, left on the machine, `folder` included.

    Only containers in runc's state under `folder` and shims that were started for `socket` are touched.

    Raises:
        QrmError: a shim or a mount stays.
    """
    for runc_root in (folder / "runc").glob("*"):
        for container in runc_root.iterdir():
            # A container that is half made is no error here: what it holds goes with its shim and its mounts.
            command = ["runc", "--root", str(runc_root), "delete", "--force", container.name]
            with suppress(subprocess.TimeoutExpired):
                subprocess.run(command, check=False, capture_output=True, env=environment, timeout=_PATIENCE)
    shims = [process for process in psutil.process_iter() if _is_shim_of(process, socket)]
    for shim in shims:
        with suppress(psutil.NoSuchProcess):
            shim.kill()
    deadline = time.monotonic() + _PATIENCE
    while alive := [shim for shim in shims if not _has_ended(shim)]:
        if time.monotonic() > deadline:
            raise QrmError(f"containerd-shim {alive[0].pid} does not end", hint=f"end it, then remove {folder}")
        time.sleep(_INTERVAL)
    for record in (folder / "state").glob("*/*/*/*"):
        # Shims listen in a folder that all containerds of a machine share; containerd 2 notes it in the JSON.
        if record.name in {"address", "bootstrap.json"} and (address := _SOCKET.search(record.read_text())):
            Path(address[1]).unlink(missing_ok=True)
    _unmount_below(folder)
    if folder.exists():
        shutil.rmtree(folder)


def _is_shim_of(process: psutil.Process, socket: Path) -> bool:
    try:
        arguments = process.cmdline()
    except psutil.Error:
        return False
    return bool(arguments) and Path(arguments[0]).name == _SHIM and str(socket) in arguments


def _has_ended(process: psutil.Process) -> bool:
    try:
        # Shims are the children of init, which may take its time to bury them.
        return process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def _unmount_below(folder: Path) -> None:
    """Detach every mount under `folder`, the newest first."""
    for partition in reversed(psutil.disk_partitions(all=True)):
        if Path(partition.mountpoint).is_relative_to(folder):
            command = ["umount", "--lazy", partition.mountpoint]
            done = subprocess.run(command, check=False, capture_output=True, text=True)
            if done.returncode != 0:
                raise QrmError(f"cannot unmount {partition.mountpoint}: {done.stderr.strip()}")
