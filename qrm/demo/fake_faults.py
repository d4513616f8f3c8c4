"""What a test makes the fake runtime do wrong."""

from __future__ import annotations

import asyncio
import os
import socket
import stat
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import grpc

Context = grpc.aio.ServicerContext[bytes, bytes]
ALL = "*"
"""In place of a method's name: every method."""


class Hang:
    """A call that does not end. `entered` is set when one has begun to hang, `left` when one does not any more."""

    def __init__(self) -> None:
        self.entered = asyncio.Event()
        self.left = asyncio.Event()
        self._released = asyncio.Event()

    def release(self) -> None:
        """Let the calls that hang go on, and later ones pass."""
        self._released.set()

    async def wait(self) -> None:
        """Hang until `release`."""
        self.entered.set()
        try:
            await self._released.wait()
        finally:
            self.left.set()


@dataclass(slots=True)
class _Fault:
    method: str
    after: bool
    left: int | None
    strike: Callable[[Context], Awaitable[None]]


class Faults:
    """The faults that are waiting for their calls; each strikes the first calls of its method that come.

    `after` tells when: False, before the runtime has done what is asked, so that it is not done unless the fault lets
    the call go on; True, after it has, when only the reply is still missing. `times` is how many calls are struck, None
    for all.
    """

    def __init__(self, socket_path: Path) -> None:
        self._socket_path = socket_path
        self._faults: list[_Fault] = []
        self._hangs: list[Hang] = []
        self._delays: dict[str, float] = {}
        self._late: dict[str, int] = {}

    def fail(
        self,
        method: str,
        code: grpc.StatusCode,
        message: str = "",
        *,
        times: int | None = 1,
        after: bool = False,
        details: bytes = b"",
    ) -> None:
        """Answer with this error; `details` is the content of grpc-status-details-bin."""
        metadata = (("grpc-status-details-bin", details),) if details else ()

        async def strike(context: Context) -> None:
            await context.abort(code, message, metadata)

        self._faults.append(_Fault(method, after, times, strike))

    def hang(self, method: str, *, times: int | None = 1, after: bool = False) -> Hang:
        """Do not answer until the returned Hang is released; a call that its client gives up before is not done."""
        hang = Hang()
        self._hangs.append(hang)

        async def strike(_: Context) -> None:
            await hang.wait()

        self._faults.append(_Fault(method, after, times, strike))
        return hang

    def finish_late(self, method: str, *, times: int = 1) -> None:
        """Do what is asked only once the client has given the call up, by its deadline or otherwise."""
        self._late[method] = times

    def drop(self, method: str, *, times: int | None = 1, after: bool = False) -> None:
        """Cut all connections to the runtime instead of answering."""

        async def strike(_: Context) -> None:
            _cut_connections(self._socket_path)
            # gRPC cancels the call when it notices that nobody is there.
            await asyncio.Event().wait()

        self._faults.append(_Fault(method, after, times, strike))

    def delay(self, method: str, seconds: float) -> None:
        """Let every call of `method`, or of ALL, take this long; 0 ends that."""
        self._delays[method] = seconds

    def clear(self) -> None:
        """Be well again: no more faults, and what hangs goes on."""
        self._faults.clear()
        self._delays.clear()
        self._late.clear()
        for hang in self._hangs:
            hang.release()
        self._hangs.clear()

    def takes_late(self, method: str) -> bool:
        """Whether this call is one to be done late; counts it."""
        left = self._late.get(method, 0)
        self._late[method] = max(left - 1, 0)
        return left > 0

    async def strike(self, method: str, context: Context, *, after: bool) -> None:
        """Do wrong what is to be done wrong at this point of a call."""
        if not after:
            seconds = self._delays.get(method, self._delays.get(ALL, 0.0))
            if seconds:
                await asyncio.sleep(seconds)
        for fault in list(self._faults):
            if fault.after is after and fault.method in {method, ALL}:
                if fault.left is not None:
                    fault.left -= 1
                    if fault.left == 0:
                        self._faults.remove(fault)
                await fault.strike(context)


def _cut_connections(path: Path) -> None:
    """Shut down every connection that this process has accepted on the socket at `path`."""
    for name in os.listdir("/proc/self/fd"):  # noqa: PTH208, the names are numbers
        try:
            if not stat.S_ISSOCK(os.fstat(int(name)).st_mode):
                continue
            duplicate = socket.socket(fileno=os.dup(int(name)))
        except OSError:
            continue
        with duplicate:
            accepted = not duplicate.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
            if duplicate.family == socket.AF_UNIX and accepted and duplicate.getsockname() == str(path):
                with suppress(OSError):  # the client was faster
                    duplicate.shutdown(socket.SHUT_RDWR)
