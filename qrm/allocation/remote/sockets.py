"""Unix sockets of plugins: who is behind one, and how to put one's own in place."""

from __future__ import annotations

import asyncio
import os
import socket
import stat
import struct
from dataclasses import dataclass
from pathlib import Path

from qrm.allocation.remote.errors import PluginError, PluginUnavailable
from qrm.errors import QrmError

LONGEST = 107
"""Bytes that fit into sockaddr_un's sun_path with its closing zero (unix(7))."""

_CREDENTIALS = struct.Struct("3i")
"""The kernel's struct ucred: pid, uid, gid."""


@dataclass(frozen=True, slots=True)
class Identity:
    """Which socket file it is: another one at the same path has another identity."""

    device: int
    inode: int
    made: int
    """When it was bound, in ns: file systems use inode numbers again at once."""


def identity(path: Path) -> Identity | None:
    """The identity of the socket at `path`; None where there is none. A link to one does not count."""
    try:
        found = path.lstat()
    except OSError:
        return None
    return Identity(found.st_dev, found.st_ino, found.st_mtime_ns) if stat.S_ISSOCK(found.st_mode) else None


def peer_uid(connection: socket.socket) -> int:
    """The user that connected, or that listens on the other side."""
    size = _CREDENTIALS.size
    uid: int = _CREDENTIALS.unpack(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size))[1]
    return uid


async def check_owner(path: Path, allowed: frozenset[int], seconds: float) -> None:
    """Make sure that the socket's file and the process that listens on it belong to one of `allowed`.

    Raises:
        PluginError: One of them does not.
        PluginUnavailable: Nobody listens.
    """
    owner = _owner(path)
    if owner not in allowed:
        raise PluginError(f"{path} belongs to uid {owner}", hint=_who(allowed))
    try:
        async with asyncio.timeout(seconds):
            _, writer = await asyncio.open_unix_connection(path)
    except (OSError, TimeoutError) as error:
        raise PluginUnavailable(f"nobody listens on {path}: {_reason(error)}") from None
    try:
        uid = peer_uid(writer.get_extra_info("socket"))
    finally:
        writer.close()
    if uid not in allowed:
        raise PluginError(f"a process of uid {uid} listens on {path}", hint=_who(allowed))


def bind_name(public: Path) -> Path:
    """Where to bind a socket that is to appear at `public`; hidden, so that watchers pass it over.

    Raises:
        QrmError: The path is too long for a unix socket.
    """
    name = public.with_name(f".{public.name}.{os.getpid()}")
    if len(os.fsencode(name)) > LONGEST:
        raise QrmError(f"{public}: too long for a unix socket", hint=f"at most {LONGEST - 10} bytes")
    name.unlink(missing_ok=True)
    return name


def appear(bound: Path, public: Path, uid: int | None = None) -> Identity | None:
    """Let the socket at `bound` appear at `public` in one step, for its owner alone: `uid`, or who we are."""
    if uid is not None and uid != os.geteuid():
        os.chown(bound, uid, -1)
    bound.chmod(0o600)
    bound.rename(public)
    return identity(public)


def vanish(public: Path, mine: Identity | None) -> None:
    """Remove the socket at `public` unless it is another one by now."""
    if mine is not None and identity(public) == mine:
        public.unlink(missing_ok=True)


def _owner(path: Path) -> int:
    try:
        return path.lstat().st_uid
    except OSError as error:
        raise PluginUnavailable(f"{path} is not there: {_reason(error)}") from None


def _who(allowed: frozenset[int]) -> str:
    return f"allowed: uid {' and '.join(map(str, sorted(allowed)))}"


def _reason(error: Exception) -> str:
    return getattr(error, "strerror", None) or str(error) or "no answer"
