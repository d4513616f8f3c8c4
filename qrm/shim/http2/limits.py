"""What one connection may cost."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds in bytes unless said otherwise; what is above one is named with each."""

    max_message_bytes: int = 16 << 20
    """The largest message of a held call, compressed and not; kubelet and containerd end at 16 MiB too. A larger
    request passes to the runtime unseen, and a larger reply to kubelet: what we cannot look at we do not judge. The
    handler of such a reply is told UNAVAILABLE, which stands for an outcome that it does not know."""
    max_held_bytes: int = 64 << 20
    """What the held calls of one connection may have in memory of requests, and as much of replies: granted to those
    that are being collected, beyond the window that each has to begin with, and kept of those that are whole until the
    call is over. Above it, only the oldest is granted more, and with so much kept none is."""
    max_header_bytes: int = 1 << 20
    """A header list, as SETTINGS_MAX_HEADER_LIST_SIZE counts; above, the connection ends. grpc's default of 8 to 16 KiB
    is less than a long runc error needs."""
    max_streams: int = 4096
    """Calls at a time on a connection (RFC 9113, 5.1.2); above, they are refused. kubelet has some hundreds."""
    max_frame_bytes: int = 256 << 10
    """The largest frame that we send, and let a peer send where the other side takes as large ones: a frame is passed
    on when it is there as a whole."""
    window_bytes: int = 4 << 20
    """What a peer may send on a connection ahead of the other side's readiness (RFC 9113, 6.9): the bound on DATA that
    waits here."""
    buffer_bytes: int = 1 << 20
    """Bytes that wait for a socket before nothing more is read for it. A peer that makes us answer without reading the
    answers, up to eight times as much, loses its connection."""
