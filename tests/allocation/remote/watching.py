"""A running registry for tests, and processes of somebody else."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from qrm.allocation.remote.client import Timeouts
from qrm.allocation.remote.registry import PluginRegistry, PluginState, Standing
from tests.support import until

NOBODY = 65534
ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="needs another user")
REGISTERED, STOPPED, REFUSED = Standing


@dataclass
class Watched:
    """A running registry and what it told."""

    registry: PluginRegistry
    folder: Path
    desk: Path
    changes: list[PluginState] = field(default_factory=list)

    def state(self, name: str) -> PluginState | None:
        return self.registry.plugins.get(name)

    async def becomes(self, name: str, state: Standing) -> PluginState:
        await until(lambda: (found := self.state(name)) is not None and found.state is state)
        return self.registry.plugins[name]

    async def refused(self, path: Path) -> str:
        return (await self.becomes(str(path), REFUSED)).why

    def told(self) -> list[tuple[str, str]]:
        return [(each.resource, str(each.state)) for each in self.changes]


@asynccontextmanager
async def watched(
    tmp_path: Path, uid: int | None = None, period: float = 0.05, patience: float = 60.0
) -> AsyncIterator[Watched]:
    """A registry that runs; a plugin has `patience` seconds to answer, less of them where the test is about silence."""
    folder, desk = tmp_path / "plugins", tmp_path / "desk" / "kubelet.sock"
    folder.mkdir(exist_ok=True)
    desk.parent.mkdir(exist_ok=True)
    changes: list[PluginState] = []
    allowed = os.geteuid() if uid is None else uid
    timeouts = Timeouts(call=patience)
    registry = PluginRegistry(folder, desk, allowed, changes.append, period=period, timeouts=timeouts)
    task = asyncio.create_task(registry.run())
    try:
        await until(lambda: desk.exists() or task.done())
        yield Watched(registry, folder, desk, changes)
    finally:
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert list(desk.parent.iterdir()) == []


def as_nobody(script: str, *arguments: str) -> subprocess.Popen[str]:
    command = ["setpriv", f"--reuid={NOBODY}", "--clear-groups", sys.executable, "-S", "-c", script, *arguments]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def open_for_all(folder: Path) -> None:
    """pytest's folders are for their owner alone."""
    folder.chmod(0o777)
    for each in (folder.parent, folder.parent.parent, folder.parent.parent.parent):
        if each.stat().st_mode & 0o077 == 0:
            each.chmod(0o711)
