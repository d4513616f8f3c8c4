"""Flow control (RFC 9113, 6.9): windows as plain numbers, and those that we grant."""

from __future__ import annotations

from qrm.shim.http2.frames import FLOW_CONTROL_ERROR, LARGEST_WINDOW, ProtocolError


def widened(window: int, increment: int) -> int:
    """A peer's window after its WINDOW_UPDATE or a change of its initial size. Raises ProtocolError if it is too large.

    It may be negative, after the peer has made its initial size smaller.
    """
    window += increment
    if window > LARGEST_WINDOW:
        raise ProtocolError(FLOW_CONTROL_ERROR, f"window of {window} bytes")
    return window


class Granted:
    """A window that we grant: what is taken out of it is given back, in few large steps."""

    __slots__ = ("_low", "_size", "extra", "left", "owed")

    def __init__(self, left: int, size: int, low: int) -> None:
        """`left` is what the peer has to begin with; it is to have `size` again where it has less than `low`."""
        self.left = left
        self._size = size
        self._low = low
        self.owed = 0
        """Bytes that have come in and were not used up yet."""
        self.extra = 0
        """Bytes granted in all."""

    def take(self, count: int) -> None:
        """`count` bytes have come in."""
        self.left -= count
        self.owed += count

    def used(self, count: int) -> None:
        """`count` bytes of what has come in are used up."""
        self.owed -= count

    def due(self) -> int:
        """What is to be granted now: nothing as long as enough is left, then all that the window lacks."""
        return self.grant() if self.left < self._low else 0

    def grant(self) -> int:
        """What is to be granted to have the window at its size, apart from what is not used up."""
        increment = max(self._size - self.left - self.owed, 0)
        self.left += increment
        self.extra += increment
        return increment

    def shift(self, change: int) -> None:
        """The peer was told another initial size."""
        self.left += change
