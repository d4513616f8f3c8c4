"""The memory that the held calls of one connection may take up together: their requests, or the replies to them."""

from __future__ import annotations

from typing import Protocol

from qrm.shim.http2.messages import Unreadable
from qrm.shim.http2.stream import Half


class Collecting(Protocol):
    """Collects a message, whose sender is granted window for it."""

    def regrant(self) -> None:
        """Grant more, if there is room."""


class Room:
    """Bounds what is granted to those whose messages are being collected, by what is kept of those that are whole.

    At the bound, the oldest alone is granted more, so that it gets whole; nobody is while what is kept is above it.
    """

    def __init__(self, size: int) -> None:
        """`size` is in bytes, beyond the window that each call has to begin with."""
        self._size = size
        self._collecting: dict[Collecting, int] = {}
        """What each was granted, the oldest first."""
        self._granted = 0
        self._kept = 0
        self._refused = False
        """Whether somebody waits for room."""

    @property
    def taken(self) -> int:
        """Bytes granted and kept."""
        return self._granted + self._kept

    def enter(self, one: Collecting) -> None:
        """A message is to be collected."""
        self._collecting[one] = 0

    def grants(self, one: Collecting) -> bool:
        """Whether its sender may be granted more."""
        if one not in self._collecting:
            return False
        first = one is next(iter(self._collecting))
        may = self._kept < self._size if first else self.taken < self._size
        self._refused |= not may
        return may

    def granted(self, one: Collecting, extra: int) -> None:
        """So much was granted in all."""
        self._granted += extra - self._collecting[one]
        self._collecting[one] = extra

    def leave(self, one: Collecting) -> None:
        """Nothing more is collected."""
        if one in self._collecting:
            self._granted -= self._collecting.pop(one)
            self._again()

    def keep(self, half: Half, size: int, unpacked: int = 0) -> None:
        """A client's call keeps a message of `size` bytes as it came, and what was unpacked of it, as long as it lasts.

        Raises:
            Unreadable: there is no room for what was unpacked, which no window holds back.
        """
        if unpacked and self._kept + unpacked > self._size:
            raise Unreadable(f"{unpacked} bytes when unpacked, beside {self._kept} of other calls")
        if not half.closed:
            before = half.kept.get(self, 0)
            half.kept = {**half.kept, self: size + unpacked}
            self._kept += size + unpacked - before

    def release(self, size: int) -> None:
        """What a call has kept is gone with it."""
        self._kept -= size
        self._again()

    def _again(self) -> None:
        if not self._refused:
            return
        self._refused = False
        for one in list(self._collecting):
            one.regrant()
            if self._refused:
                return
