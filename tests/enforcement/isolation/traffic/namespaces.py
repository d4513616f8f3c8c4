"""Network namespaces of this machine's kernel for tests: one to play the host in, others to play pods."""

from __future__ import annotations

import ctypes
import subprocess
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

_CLONE_NEWNET = 0x40000000

Result = TypeVar("Result")


def apart(play: Callable[[], Result]) -> Result:
    """What `play` returns, run in a thread that has a network namespace of its own, which ends with it."""

    def enter() -> None:
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.unshare(_CLONE_NEWNET) != 0:
            raise OSError(ctypes.get_errno(), "unshare")

    with ThreadPoolExecutor(1, initializer=enter) as thread:
        return thread.submit(play).result()


def sh(command: str) -> str:
    """Run a command line in the namespace of this thread and return its output."""
    return subprocess.run(command, shell=True, check=True, text=True, stdout=subprocess.PIPE).stdout  # noqa: S602


class PodNamespace:
    """A namespace with its path, without a name on the machine: a sleeping process holds it."""

    def __init__(self) -> None:
        self._holder = subprocess.Popen(["unshare", "--net", "sleep", "3600"])
        host = Path("/proc/thread-self/ns/net").readlink()
        while Path(self.path).readlink() == host:  # until it has unshared
            pass

    @property
    def path(self) -> str:
        """Where it is."""
        return f"/proc/{self._holder.pid}/ns/net"

    @property
    def pid(self) -> int:
        """For iproute2."""
        return self._holder.pid

    def ip(self, command: str) -> None:
        """Run `ip` in it."""
        subprocess.run(["nsenter", f"--net={self.path}", "ip", *command.split()], check=True)

    def end(self) -> None:
        """End the namespace and with it its veths."""
        self._holder.kill()
        self._holder.wait()

    def __enter__(self) -> PodNamespace:
        return self

    def __exit__(self, *_: object) -> None:
        if Path(self.path).exists():
            self.end()
