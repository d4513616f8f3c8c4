"""Frames that lie side by side in what was read from one socket, and go to another as they are."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from qrm.shim.http2.sending import Sending


class Run:
    """One piece of bytes for as many frames as possible."""

    __slots__ = ("_data", "_first", "_to")

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._first = 0
        self._to: Sending | None = None

    def take(self, to: Sending, position: int) -> None:
        """A frame that begins at `position` goes to `to`."""
        if self._to is not to:
            self.end(position)
            self._to, self._first = to, position

    def end(self, position: int) -> None:
        """Something else begins at `position`."""
        if self._to is not None:
            self._to.out.append(self._piece(position))
            self._to = None

    def _piece(self, position: int) -> bytes | memoryview:
        """What is most of the data is not copied; less of it shall not keep all of it in memory."""
        size = position - self._first
        if len(self._data) > size > len(self._data) // 2:
            return memoryview(self._data)[self._first : position]
        return self._data[self._first : position]
