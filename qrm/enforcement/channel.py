"""gRPC channels to the runtime and what a failed call says."""

from __future__ import annotations

import grpc
import grpc.aio

from qrm.config import socket_path

Metadata = tuple[tuple[str, str | bytes], ...]

MAX_METADATA = 1 << 20
"""Bytes; grpc-core's default of 8 to 16 KiB turns a long runc error into ResourceExhausted."""


class CallError(Exception):
    """A call ended with a status other than OK. Carries it whole, so that it can be passed on unchanged."""

    def __init__(self, code: grpc.StatusCode, details: str = "", trailing: Metadata = ()) -> None:
        super().__init__(f"{code.name}: {details}")
        self.code = code
        self.details = details
        self.trailing = trailing

    @classmethod
    def of(cls, error: grpc.aio.AioRpcError) -> CallError:
        """What grpc.aio raised, without its machinery."""
        return cls(error.code(), error.details() or "", pairs(error.trailing_metadata()))

    @property
    def outcome_known(self) -> bool:
        """Whether the runtime itself has answered that it did not do it."""
        return self.code not in _UNKNOWN_OUTCOME

    @property
    def runtime_away(self) -> bool:
        """Whether the next call would fail too; other errors are about what was asked for."""
        return self.code in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED)


_UNKNOWN_OUTCOME = frozenset(
    {grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.CANCELLED, grpc.StatusCode.UNAVAILABLE}
)


def pairs(metadata: grpc.aio.Metadata | None) -> Metadata:
    """Metadata as plain pairs."""
    return tuple((key, value) for key, value in metadata) if metadata else ()


def open_channel(endpoint: str, max_message_bytes: int) -> grpc.aio.Channel:
    """A channel to `endpoint`, which need not exist yet: grpc keeps dialling and calls fail at once until then.

    For our own calls: large messages and metadata, and quick reconnects, which cost little on a unix socket.
    """
    options = [
        ("grpc.max_receive_message_length", max_message_bytes),
        ("grpc.max_send_message_length", -1),
        ("grpc.max_metadata_size", MAX_METADATA),
        ("grpc.absolute_max_metadata_size", MAX_METADATA),
        ("grpc.initial_reconnect_backoff_ms", 100),
        # Also bounds a connection attempt: with less, a loaded machine fails before the runtime's SETTINGS frame.
        ("grpc.min_reconnect_backoff_ms", 5000),
        ("grpc.max_reconnect_backoff_ms", 500),
        ("grpc.enable_retries", 0),
        # One process may hold several channels to the same socket; each keeps a connection of its own.
        ("grpc.use_local_subchannel_pool", 1),
    ]
    return grpc.aio.insecure_channel(f"unix://{socket_path(endpoint)}", options=options)
