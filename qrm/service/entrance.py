"""How a process comes to serve the node: the lock, and kubelet's socket. And how it gives both to the next one.

kubelet's socket never goes away in between. systemd's stays; without systemd the next process binds another one, and
the running one renames it over its own before it sends its clients away: whoever comes from then on waits there.
"""

from __future__ import annotations

import asyncio
import socket
import time
from pathlib import Path

import grpc
import grpc.aio
import msgspec
import structlog

from qrm.config import Config
from qrm.errors import BadRequest, QrmError
from qrm.service import api
from qrm.service.activation import inherited
from qrm.service.notify import by_systemd
from qrm.service.sockets import AlreadyRunning, Lock, listening_aside, private_name, publish
from qrm.shim.http2.edge import connect

log = structlog.get_logger(__name__)

_ANSWER = 5.0
"""Seconds that a running qrm may take to say whether it gives way."""
_LEAVE = 20.0
"""Seconds that it may take to leave the node then: it waits for a few calls, and writes its ledger."""
_GLANCE = 0.002
"""Seconds between two looks at the lock."""


class TakeOverFailed(QrmError):
    """The running qrm does not give way; it goes on."""


class Entrance:
    """The lock, held, and the socket that kubelet connects to."""

    def __init__(self, public: Path, lock: Lock, listener: socket.socket | None) -> None:
        self.public = public
        self.listener = listener
        """None: to be made at `public` when all else is there."""
        self.given_away = asyncio.Event()
        """Set when another process has taken the public name."""
        self._lock = lock

    def give_way(self, private: Path) -> None:
        """Let the socket that another process listens on at `private` take the public name, and the process follow.

        Raises:
            BadRequest: it cannot be; everything stays.
        """
        if by_systemd():
            raise BadRequest("this qrm is run by systemd", hint="systemctl restart qrm does the same")
        if self.given_away.is_set():
            raise BadRequest("this qrm gives way to another one already")
        if private.parent != self.public.parent:
            raise BadRequest(f"{private} is not beside {self.public}")
        try:
            connect(private).close()  # who has asked may have died since, and nobody would serve then
            publish(private, self.public)
        except OSError as error:
            raise BadRequest(f"{private} cannot become {self.public}: {error}") from error
        self.given_away.set()

    def close(self) -> None:
        """Let the lock go; a listener that nobody listens on is closed."""
        if self.listener is not None:
            self.listener.close()
        self._lock.release()


def enter(config: Config) -> Entrance:
    """Enter a node that nobody serves, with systemd's socket where it has passed one.

    Raises:
        QrmError, OSError: another process serves; or the lock, or what systemd has passed, cannot be used.
    """
    public = Path(config.shim.socket)
    lock = Lock(_lock_path(public))
    try:
        lock.take()
        return Entrance(public, lock, inherited(public))
    except BaseException:
        lock.release()
        raise


async def take_over(config: Config) -> Entrance:
    """Enter a node in place of the process that serves it, if there is one.

    Raises:
        TakeOverFailed: that one does not give way; nothing was taken from it.
        QrmError, OSError: as `enter`; or it has given way, and does not end.
    """
    public = Path(config.shim.socket)
    lock = Lock(_lock_path(public))
    try:
        try:
            lock.take()
        except AlreadyRunning:
            pass
        else:
            return Entrance(public, lock, inherited(public))
        private = private_name(public)
        listener = listening_aside(private)
        try:
            await _ask(Path(config.shim.admin_socket), private)
            await _taken(lock)
        except BaseException:
            private.unlink(missing_ok=True)
            listener.close()
            raise
        return Entrance(public, lock, listener)
    except BaseException:
        lock.release()
        raise


async def _ask(admin: Path, private: Path) -> None:
    """Have the running process rename the socket at `private` over its own."""
    hint = "stop it, then start this one"
    request = msgspec.json.encode(api.GiveWay(str(private)))
    async with grpc.aio.insecure_channel(f"unix:{admin}") as channel:
        call: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(f"{api.PREFIX}give_way")
        try:
            reply = await call(request, timeout=_ANSWER)
        except grpc.aio.AioRpcError as error:
            if _is_taken(private):
                return  # only the answer was lost
            raise TakeOverFailed(f"the running qrm does not give way: {_said(error, admin)}", hint=hint) from None
    log.info("taking over", pid=msgspec.json.decode(reply, type=int))


def _is_taken(private: Path) -> bool:
    """Whether the socket has its public name already. If not, it cannot be given it any more."""
    try:
        private.unlink()
    except FileNotFoundError:
        return True
    return False


def _said(error: grpc.aio.AioRpcError, admin: Path) -> str:
    if error.code() is grpc.StatusCode.UNIMPLEMENTED:
        return "its version cannot"
    if error.code() in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED):
        return f"no answer at {admin} within {_ANSWER:g} s"
    return error.details() or error.code().name


async def _taken(lock: Lock) -> None:
    """Wait until the process that has given way lets the lock go. Raises AlreadyRunning."""
    end = time.monotonic() + _LEAVE
    while True:
        try:
            lock.take()
        except AlreadyRunning:
            if time.monotonic() > end:
                raise
            await asyncio.sleep(_GLANCE)
        else:
            return


def _lock_path(public: Path) -> Path:
    return Path(f"{public}.lock")
