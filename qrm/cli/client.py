"""Asks the running service, over its admin socket."""

from __future__ import annotations

import socket
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn, TypeVar

import grpc
import msgspec

from qrm.errors import QrmError
from qrm.service import api

SOCKET = Path("/run/qrm/admin.sock")
TIMEOUT = 40.0
"""Seconds for one answer; in some of them the service itself waits for the container runtime, at most 30."""

Answer = TypeVar("Answer")


class NotRunning(QrmError):
    """Nothing listens on the admin socket."""


@dataclass(frozen=True, slots=True)
class Client:
    """One method for each question. All raise QrmError, and NotRunning where there is no service."""

    path: Path
    timeout: float = TIMEOUT

    def status(self) -> api.Status:
        """The service at a glance."""
        return self._ask("status", b"", api.Status)

    def topology(self) -> api.Topology:
        """The machine and who holds it."""
        return self._ask("topology", b"", api.Topology)

    def pods(self) -> list[api.Container]:
        """All containers."""
        return self._ask("pods", b"", list[api.Container])

    def explain(self, wanted: str) -> list[api.Explanation]:
        """The containers that `wanted` names."""
        return self._ask("explain", msgspec.json.encode(wanted), list[api.Explanation])

    def plan(self, asked: api.PlanRequest) -> api.PlanReply:
        """What would happen to a pod."""
        return self._ask("plan", msgspec.json.encode(asked), api.PlanReply)

    def doctor(self) -> api.Doctor:
        """What works, and what does not."""
        return self._ask("doctor", b"", api.Doctor)

    def _ask(self, method: str, request: bytes, answer: type[Answer]) -> Answer:
        self._knock()
        options = [
            ("grpc.max_receive_message_length", -1),
            # By default a service that accepts and says nothing is taken to be away after 20 s.
            ("grpc.min_reconnect_backoff_ms", int(self.timeout * 1000) + 1000),
        ]
        with grpc.insecure_channel(f"unix:{self.path}", options=options) as channel:
            call: grpc.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(api.PREFIX + method)
            try:
                reply = call(request, timeout=self.timeout)
            except grpc.RpcError as error:
                self._refused(method, error)
        try:
            return msgspec.json.decode(reply, type=answer)
        except msgspec.MsgspecError as error:
            raise QrmError(f"{method}: the answer makes no sense here: {error}", hint=_OTHER_VERSION) from error

    def _knock(self) -> None:
        """Connect once: unlike gRPC's, the operating system's error says why a socket cannot be used."""
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
                probe.settimeout(self.timeout)
                probe.connect(str(self.path))
        except (FileNotFoundError, ConnectionRefusedError) as error:
            raise self._not_running() from error
        except PermissionError as error:
            raise QrmError(f"no permission to use {self.path}", hint="run qrm as root") from error
        except OSError as error:
            raise QrmError(f"{self.path} is no socket to connect to: {error}", hint=_NAME_SOCKET) from error

    def _refused(self, method: str, error: grpc.RpcError) -> NoReturn:
        """Say for people what a failed call says."""
        code, details = (error.code(), error.details()) if isinstance(error, grpc.Call) else (None, str(error))
        if code is grpc.StatusCode.UNAVAILABLE:
            raise self._not_running() from error
        if code is grpc.StatusCode.INVALID_ARGUMENT:
            raise QrmError(details) from error
        if code is grpc.StatusCode.DEADLINE_EXCEEDED:
            hint = "its log may say what it is waiting for"
            raise QrmError(f"{method}: the qrm service did not answer within {self.timeout:g} s", hint=hint) from error
        if code is grpc.StatusCode.UNIMPLEMENTED:
            raise QrmError(f"what listens on {self.path} knows no {method}", hint=_OTHER_VERSION) from error
        raise QrmError(f"{method}: {details or code}") from error

    def _not_running(self) -> NotRunning:
        message = f"the qrm service is not running (no answer at {self.path})"
        return NotRunning(message, hint=f"systemctl start qrm, or {_NAME_SOCKET}")


_NAME_SOCKET = "name its socket with --socket"
_OTHER_VERSION = "the command and the service should be of the same version"
