"""A systemd of one's own: the installed one as the first process of namespaces, with qrm's units and nothing else.

It sees the machine's files, but /etc, /run and /var/lib are empty and its own, and so is its cgroup. Units keep their
hardening; what is added is what a checkout needs that lies where an installation does not.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from tests.support import PATIENCE

UNITS = Path(__file__).parents[2] / "systemd"
CHECKOUT = Path(__file__).resolve().parents[2]
_SYSTEMD = "/lib/systemd/systemd"
_TARGETS = ("basic", "multi-user", "shutdown", "sockets", "sysinit", "umount")
_ETC = ("group", "ld.so.cache", "os-release", "passwd")

_BOOT = """
set -e
mount -t proc proc /proc
mount --bind /proc/sys /proc/sys
mount -o remount,ro,bind /proc/sys
umount --lazy --recursive /sys/fs/cgroup
mount -t cgroup2 cgroup2 /sys/fs/cgroup
mount --bind "$FOLDER/etc" /etc
mount --bind "$FOLDER/lib" /var/lib
mount -t tmpfs -o mode=755 run /run
exec env -i container=test SYSTEMD_UNIT_PATH=/etc/systemd/system PATH="$PATH" \
    {systemd} --system --log-target=null --show-status=no --unit=multi-user.target
"""

_DROP_IN = """
[Service]
ExecStart=
ExecStart={python} -m qrm.cli.main serve --config /etc/qrm/qrm.toml
WorkingDirectory={checkout}
Environment=PYTHONDONTWRITEBYTECODE=1
StandardError=append:{folder}/qrm.log
# As ProtectHome=yes, but with Python in it where it is installed there.
ProtectHome=tmpfs
BindReadOnlyPaths={shown}
BindPaths={folder}
{more}
"""


@dataclass
class Systemd:
    """The manager; its units are `qrm.service` and `qrm.socket`."""

    folder: Path
    pid: int

    @property
    def said(self) -> str:
        """What qrm has said."""
        return (self.folder / "qrm.log").read_text()

    @property
    def socket(self) -> Path:
        """kubelet's socket, as seen from outside."""
        return Path(f"/proc/{self.pid}/root/run/qrm/qrm.sock")

    async def control(self, *arguments: str) -> str:
        """`systemctl`; its output. Raises AssertionError where it fails."""
        command = ["nsenter", "--target", str(self.pid), "--mount", "--pid", "systemctl", *arguments]
        process = await asyncio.create_subprocess_exec(
            *command, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
        )
        async with asyncio.timeout(PATIENCE):
            output, _ = await process.communicate()
        assert process.returncode == 0, f"{arguments}: {output.decode()}"
        return output.decode()

    async def show(self, name: str, unit: str = "qrm.service") -> str:
        """A property of a unit."""
        return (await self.control("show", "--value", f"--property={name}", unit)).strip()

    def add(self, unit: str, name: str, text: str) -> None:
        """Write a drop-in of a unit, which holds from the next daemon-reload on."""
        Path(self.folder, "etc/systemd/system", f"{unit}.d", f"{name}.conf").write_text(text)

    def signal(self, pid: str, number: signal.Signals) -> None:
        """Send a signal to a process, named as systemd names it."""
        command = ["nsenter", "--target", str(self.pid), "--mount", "--pid", "sh", "-c", f"kill -{int(number)} {pid}"]
        subprocess.run(command, check=True)


@asynccontextmanager
async def systemd(folder: Path, configuration: str, *, more: str = "") -> AsyncIterator[Systemd]:
    """Boot with the units and `configuration` as qrm.toml; `more` goes into qrm.service. Nothing is started yet."""
    _install(folder, configuration, more)
    mount = next(line.split()[1] for line in Path("/proc/mounts").read_text().splitlines() if " cgroup2 " in line)
    cgroup = Path(mount, f"qrm-systemd-{os.getpid()}")
    cgroup.mkdir()
    script = f'echo $$ >"{cgroup}/cgroup.procs"; exec "$@"'
    spaces = ["unshare", "--pid", "--fork", "--mount", "--cgroup", "--uts", "--ipc", "--kill-child"]
    command = ["sh", "-c", script, "sh", *spaces, "sh", "-c", _BOOT.format(systemd=_SYSTEMD)]
    environment = {**os.environ, "FOLDER": str(folder)}
    process = await asyncio.create_subprocess_exec(*command, env=environment)
    try:
        yield Systemd(folder, await _first_child(process.pid))
    finally:
        with suppress(ProcessLookupError):
            process.kill()
        await process.wait()
        await _remove(cgroup)


def _install(folder: Path, configuration: str, more: str) -> None:
    etc = folder / "etc"
    units = etc / "systemd/system"
    for each in (folder / "lib", units, etc / "qrm"):
        each.mkdir(parents=True)
    for name in _ETC:
        (etc / name).write_bytes(Path("/etc", name).read_bytes())
    (etc / "machine-id").write_text(f"{os.getpid():032x}\n")  # else it is a first boot, at which all is enabled
    (etc / "qrm/qrm.toml").write_text(configuration)
    for name in _TARGETS:
        (units / f"{name}.target").write_text("[Unit]\nDefaultDependencies=no\nAllowIsolate=yes\n")
    for name in ("qrm.service", "qrm.socket"):
        (units / name).write_bytes((UNITS / name).read_bytes())
    shown = {Path(each).resolve() for each in (CHECKOUT, sys.prefix, sys.base_prefix)}
    (units / "qrm.service.d").mkdir()
    (units / "qrm.service.d/test.conf").write_text(
        _DROP_IN.format(
            python=Path(sys.prefix, "bin/python"),
            checkout=CHECKOUT,
            folder=folder,
            shown=" ".join(str(each) for each in sorted(shown)),
            more=more,
        )
    )


async def _first_child(parent: int) -> int:
    """The process that unshare has forked, once it is systemd and answers."""
    async with asyncio.timeout(PATIENCE):
        while True:
            with suppress(OSError, ValueError):
                child = int(Path(f"/proc/{parent}/task/{parent}/children").read_text())
                if Path(f"/proc/{child}/root/run/systemd/private").is_socket():
                    return child
            await asyncio.sleep(0.02)


async def _remove(cgroup: Path) -> None:
    """The cgroups of what has been killed; they are empty in a moment."""
    async with asyncio.timeout(PATIENCE):
        while cgroup.exists():
            for each in [*sorted(cgroup.rglob("*/"), reverse=True), cgroup]:
                with suppress(OSError):
                    each.rmdir()
            await asyncio.sleep(0.02)
