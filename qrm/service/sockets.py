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


class AlreadyRunning(QrmError):
    """Another qrm holds the lock."""


@contextmanager
def only_instance(lock: Path) -> Iterator[None]:
    """Hold the file at `lock` for as long as this process serves. Raises AlreadyRunning, OSError."""
    private_directory(lock.parent)
    descriptor = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.read(descriptor, 32).decode(errors="replace").strip()
            raise AlreadyRunning(f"another qrm (pid {holder}) holds {lock}", hint="stop it first") from None
        os.ftruncate(descriptor, 0)
        os.write(descriptor, f"{os.getpid()}\n".encode())
        yield
    finally:
        os.close(descriptor)


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
    private = private_name(public)
    made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        made.bind(str(private))
        made.listen(_BACKLOG)
        publish(private, public)
    except BaseException:
        made.close()
        raise
    return made
