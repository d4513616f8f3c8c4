"""Which plugins there are: found by their sockets in a folder, or registered on a socket of ours.

A plugin that hangs, lies or belongs to somebody else costs nobody anything: each is met in a task of its own.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from types import MappingProxyType

import structlog

from qrm.allocation.remote.client import Options, Timeouts
from qrm.allocation.remote.desk import serve_desk
from qrm.allocation.remote.errors import PluginRefused, PluginUnavailable
from qrm.allocation.remote.interview import Found, NotForUs, ask_options, meet
from qrm.allocation.remote.sockets import Identity, check_owner, identity
from qrm.errors import QrmError

log = structlog.get_logger(__name__)

_LONGEST_PAUSE = 60.0
"""Seconds between two tries to reach a plugin that does not answer."""
_CALLBACKS = 6
"""How often a plugin that has registered itself is called back in vain."""


class Standing(StrEnum):
    """How it is with a plugin."""

    REGISTERED = "registered"
    STOPPED = "stopped"
    """It was registered, and its socket is gone; what it allocated stands."""
    REFUSED = "refused"


@dataclass(frozen=True, slots=True)
class PluginState:
    """A plugin as it is now."""

    resource: str
    """Empty where it is refused before it could say."""
    endpoint: str
    state: Standing
    why: str = ""
    """Why it is not registered."""
    since: float = 0.0
    """Seconds since the epoch."""
    options: Options = field(default_factory=Options)


@dataclass
class _Candidate:
    """A socket that is looked at again and again until it is registered."""

    seen: Identity | None
    called: tuple[str, Options | None] | None = None
    """The resource and options of a plugin that has registered itself."""
    task: asyncio.Task[None] | None = None
    tries: int = 0
    due: float = 0.0
    """When to try next, on the monotonic clock."""


class PluginRegistry:
    """Finds plugins and keeps watch over them.

    Args:
        directory: Where plugins put their sockets, such as kubelet's plugins_registry. Need not exist yet.
        own_socket: Where plugins register themselves; None for nowhere.
        allowed_uid: Whose plugins are taken besides root's; None for nobody's.
        on_change: Called with the new state of a plugin that has been registered or has stopped.
        period: Seconds between two looks at the folder.
        timeouts: How long a plugin may think.
    """

    def __init__(
        self,
        directory: Path,
        own_socket: Path | None,
        allowed_uid: int | None,
        on_change: Callable[[PluginState], None],
        *,
        period: float = 1.0,
        timeouts: Timeouts | None = None,
    ) -> None:
        self._directory = directory
        self._own_socket = own_socket
        self._owner = allowed_uid
        self._allowed = frozenset({0} if allowed_uid is None else {0, allowed_uid})
        self._on_change = on_change
        self._period = period
        self._seconds = (timeouts or Timeouts()).call
        self._plugins: dict[str, PluginState] = {}
        self._sources: dict[str, tuple[Path, Identity]] = {}
        """By resource: the socket with whose disappearance a registered plugin ends."""
        self._candidates: dict[Path, _Candidate] = {}

    @property
    def plugins(self) -> Mapping[str, PluginState]:
        """All plugins by resource; refused ones by their socket's path."""
        return MappingProxyType(self._plugins)

    async def run(self) -> None:
        """Watch and take registrations, without end. Raises QrmError where the own socket cannot be made."""
        try:
            if self._own_socket is None:
                await self._watch()
            else:
                async with serve_desk(self._own_socket, self._allowed, self.register, owner=self._owner):
                    await self._watch()
        finally:
            tasks = [each.task for each in self._candidates.values() if each.task is not None]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            self._candidates.clear()

    def register(self, resource: str, endpoint: Path, options: Options | None) -> None:
        """Look at a plugin that has registered itself; without `options` it is asked for them."""
        self._forget(endpoint)
        self._candidates[endpoint] = _Candidate(identity(endpoint), (resource, options))
        self._try(endpoint, self._candidates[endpoint])

    def scan(self) -> None:
        """Compare with what is there now, once. What is new is met in the background."""
        for resource, (path, seen) in list(self._sources.items()):
            if identity(path) != seen:
                self._stopped(resource, f"{path} is gone or is another socket")
        present = self._present()
        for path, candidate in list(self._candidates.items()):
            if candidate.called is None and present.get(path) != candidate.seen:
                self._forget(path)
        taken = {state.endpoint for state in self._plugins.values() if state.state is Standing.REGISTERED}
        for path, seen in present.items():
            if path not in self._candidates and str(path) not in taken:
                self._candidates[path] = _Candidate(seen)
        for path, candidate in list(self._candidates.items()):
            if candidate.task is None and candidate.due <= time.monotonic():
                self._try(path, candidate)

    async def _watch(self) -> None:
        while True:
            self.scan()
            await asyncio.sleep(self._period)

    def _present(self) -> dict[Path, Identity]:
        """The sockets in the folder, besides hidden ones and ours."""
        try:
            paths = sorted(self._directory.iterdir())
        except OSError:
            return {}
        candidates = (path for path in paths if not path.name.startswith(".") and path != self._own_socket)
        found = {path: identity(path) for path in candidates}
        return {path: seen for path, seen in found.items() if seen is not None}

    def _forget(self, path: Path) -> None:
        """Look at the socket no more; what was refused about it is over."""
        candidate = self._candidates.pop(path, None)
        if candidate is not None and candidate.task is not None:
            candidate.task.cancel()
        self._plugins.pop(str(path), None)

    def _try(self, path: Path, candidate: _Candidate) -> None:
        candidate.tries += 1
        candidate.task = asyncio.create_task(self._outcome(path, candidate))

    async def _meet(self, path: Path, candidate: _Candidate) -> Found:
        if candidate.called is None:
            return await meet(path, candidate.seen, self._allowed, self._seconds)
        resource, options = candidate.called
        candidate.seen = identity(path)
        await check_owner(path, self._allowed, self._seconds)
        if options is None:
            options = await ask_options(resource, path, self._seconds)
        return Found(resource, path, options)

    async def _outcome(self, path: Path, candidate: _Candidate) -> None:
        """Meet a plugin, note how it went, and when to try again."""
        again = False
        try:
            found = await self._meet(path, candidate)
        except NotForUs as error:
            self._refused(path, candidate, str(error), quiet=True)
        except QrmError as error:
            again = isinstance(error, PluginUnavailable | PluginRefused)
            again = again and (candidate.called is None or candidate.tries < _CALLBACKS)
            self._refused(path, candidate, str(error))
        except Exception as error:
            log.exception("plugin could not be met", socket=str(path))
            self._refused(path, candidate, f"{type(error).__name__}: {error}", quiet=True)
        else:
            self._registered(path, candidate, found)
        candidate.task = None
        pause = min(self._period * 2 ** min(candidate.tries - 1, 16), _LONGEST_PAUSE)
        candidate.due = time.monotonic() + pause if again else float("inf")

    def _registered(self, path: Path, candidate: _Candidate, found: Found) -> None:
        seen = candidate.seen
        if candidate.called is not None:
            self._candidates.pop(path, None)
        if seen is None or identity(path) != seen:
            return
        old = self._plugins.get(found.resource)
        state = PluginState(
            found.resource, str(found.endpoint), Standing.REGISTERED, since=time.time(), options=found.options
        )
        for each in (path, found.endpoint):
            self._plugins.pop(str(each), None)
        self._plugins[found.resource] = state
        self._sources[found.resource] = path, seen
        replaced = old.endpoint if old and old.state is Standing.REGISTERED else ""
        log.info("plugin registered", resource=found.resource, endpoint=state.endpoint, replaced=replaced)
        self._tell(state)

    def _stopped(self, resource: str, why: str) -> None:
        old = self._plugins[resource]
        state = PluginState(resource, old.endpoint, Standing.STOPPED, why, time.time(), old.options)
        self._plugins[resource] = state
        del self._sources[resource]
        for path, candidate in self._candidates.items():
            if str(path) not in self._plugins and candidate.task is None:
                candidate.due = 0.0  # It may be an older plugin of the same name, which has only been replaced.
        log.warning("plugin stopped", resource=resource, endpoint=old.endpoint, why=why)
        self._tell(state)

    def _refused(self, path: Path, candidate: _Candidate, why: str, *, quiet: bool = False) -> None:
        resource = candidate.called[0] if candidate.called else ""
        old = self._plugins.get(str(path))
        if old is not None and old.why == why:
            return
        self._plugins[str(path)] = PluginState(resource, str(path), Standing.REFUSED, why, time.time())
        write = log.debug if quiet else log.warning
        write("plugin refused", socket=str(path), resource=resource, why=why)

    def _tell(self, state: PluginState) -> None:
        try:
            self._on_change(state)
        except Exception:
            log.exception("a plugin's change was not taken", resource=state.resource)
