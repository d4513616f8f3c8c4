"""The listening sockets' files, and the lock that keeps a second instance out."""

from __future__ import annotations

import fcntl
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from qrm.errors import QrmError

_LONGEST = 107
"""Bytes that fit into sockaddr_un's sun_path with its closing zero (unix(7))."""

_BACKLOG = 4096
"""Connections that may wait to be accepted; the kernel's own limit is net.core.somaxconn, 4096 since Linux 5.4."""

_ACCEPTS = 1 << 16
"""__SO_ACCEPTCON in the flags of /proc/net/unix."""


class AlreadyRunning(QrmError):
    """Another qrm holds the lock."""


class Lock:
    """Says that this process serves. It is let go with `release`, or by the kernel at the process's end."""

    def __init__(self, path: Path) -> None:
        """Open the file at `path`; nothing is held yet. Raises OSError."""
        private_directory(path.parent)
        self._path = path
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)

    def take(self) -> None:
        """Hold it. Raises AlreadyRunning."""
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(self._descriptor, 32, 0).decode(errors="replace").strip()
            hint = "stop it first, or take its place with qrm serve --take-over"
            raise AlreadyRunning(f"another qrm (pid {holder}) holds {self._path}", hint=hint) from None
        os.ftruncate(self._descriptor, 0)
        os.pwrite(self._descriptor, f"{os.getpid()}\n".encode(), 0)

    def release(self) -> None:
        """Let it go, for good."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


@contextmanager
def only_instance(path: Path) -> Iterator[None]:
    """Hold the lock at `path` while the context is open. Raises AlreadyRunning, OSError."""
    lock = Lock(path)
    try:
        lock.take()
        yield
    finally:
        lock.release()


def private_directory(path: Path) -> None:
    """Make `path` a folder that only its owner can enter."""
    path.mkdir(parents=True, exist_ok=True)
    path.chmod(0o700)


def private_name(public: Path) -> Path:
    """Where to bind a socket that is to appear at `public`; a leftover of an earlier process is removed.

    A server that binds the public name itself would take it from a server that still runs, and would remove it from
    under its successor when it stops; a rename replaces it in one step instead.

    Raises:
        QrmError: the path is too long for a unix socket.
    """
    name = public.with_name(f".{public.name}.{os.getpid()}")
    if len(os.fsencode(name)) > _LONGEST:
        raise QrmError(f"{public}: too long for a unix socket", hint=f"at most {_LONGEST - 10} bytes")
    name.unlink(missing_ok=True)
    return name


def publish(private: Path, public: Path) -> None:
    """Let the socket that is bound at `private` appear at `public`, for its owner only."""
    private.chmod(0o600)
    private.rename(public)


def listening(public: Path) -> socket.socket:
    """A socket at `public` that listens, for its owner only, in place of any that was there.

    Raises:
        QrmError, OSError: it cannot be made.
    """
    made = listening_aside(private_name(public))
    try:
        publish(Path(made.getsockname()), public)
    except BaseException:
        made.close()
        raise
    return made


def listening_aside(private: Path) -> socket.socket:
    """A socket that listens at `private`, for its owner only, to be published later. Raises OSError."""
    made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        made.bind(str(private))
        private.chmod(0o600)
        made.listen(_BACKLOG)
    except BaseException:
        made.close()
        raise
    return made


def is_listening(path: Path) -> bool:
    """Whether some process listens on the unix socket at `path`, by the kernel's list (unix(7), proc(5))."""
    for line in Path("/proc/net/unix").read_text().splitlines()[1:]:
        fields = line.split(maxsplit=7)
        if len(fields) == 8 and fields[7] == str(path) and int(fields[3], 16) & _ACCEPTS:
            return True
    return False
