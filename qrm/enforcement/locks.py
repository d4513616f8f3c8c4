"""One lock for each container: what changes a container does not overlap with its start or another change.

containerd loses an update that arrives in the middle of a start (facts of the CRI: it only reaches the stored spec).
"""

from __future__ import annotations

import asyncio
from weakref import WeakValueDictionary


class ContainerLocks:
    """Locks by container id that live only as long as somebody holds or waits for them."""

    def __init__(self) -> None:
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    def of(self, container_id: str) -> asyncio.Lock:
        """The lock of `container_id`, to be used with `async with`."""
        lock = self._locks.get(container_id)
        if lock is None:
            lock = self._locks[container_id] = asyncio.Lock()
        return lock
