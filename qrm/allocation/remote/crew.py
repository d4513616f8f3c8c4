"""The plugins that are registered now, asked together: hints for a plan, allocations for its outcome, and what changed.

The protocol has no "what if": a plugin that has allocated holds on to it until its pod is removed. So a creation asks
for hints first, plans without awaiting, and lets plugins allocate last; whatever a plugin holds for pods that are not
in the ledger is removed by the next `reconcile`, after a restart too.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import replace
from typing import TypeVar

import structlog

from qrm.allocation.remote.allocations import RemoteAllocation
from qrm.allocation.remote.client import Plugin, Timeouts
from qrm.allocation.remote.errors import PluginError, PluginRefused, PluginUnavailable
from qrm.allocation.remote.registry import PluginState, Standing
from qrm.allocator import Allocation, ContainerKey, PodIdentity, ResourceRequest, TopologyHint
from qrm.topology.machine import Machine

log = structlog.get_logger(__name__)

Answer = TypeVar("Answer")

ALWAYS = ("cpu", "memory")
"""What every container uses, whether it asks for an amount or not."""


class Crew:
    """All plugins that take part.

    Args:
        machine: The machine as it is now.
        local: Resources that are allocated in this process: plugins for them are not asked.
        required: Resources that must come from a plugin; without it a request for one fails.
        original: See `convert.to_wire_request`.
        timeouts: How long a plugin may think.
    """

    def __init__(
        self,
        machine: Callable[[], Machine],
        *,
        local: Iterable[str] = (),
        required: Iterable[str] = (),
        original: bool = True,
        timeouts: Timeouts | None = None,
    ) -> None:
        self._machine = machine
        self._local = frozenset(local)
        self._required = tuple(required)
        self._original = original
        self._timeouts = timeouts
        self._plugins: dict[str, Plugin] = {}
        self._trouble: dict[str, str] = {}
        """By resource, why a plugin was not reconciled; told once."""

    def __bool__(self) -> bool:
        return bool(self._plugins or self._required)

    def changed(self, state: PluginState) -> None:
        """The registry's news of a plugin."""
        if state.resource in self._local:
            log.warning("plugin not used", resource=state.resource, why="an allocator in this process does that")
            return
        old = self._plugins.pop(state.resource, None)
        if old is not None:
            self._close(old)
        if state.state is Standing.REGISTERED:
            self._plugins[state.resource] = Plugin(
                state.resource,
                state.endpoint,
                state.options,
                self._machine,
                timeouts=self._timeouts,
                original=self._original,
            )

    async def hints(self, request: ResourceRequest, *, for_pod: bool = False) -> dict[str, tuple[TopologyHint, ...]]:
        """What the plugins offer for `request`, by resource; `for_pod`: it is the ask of a pod as a whole.

        Raises:
            DoesNotFit, BadRequest: One has no room, or finds the request wrong.
            PluginUnavailable, PluginError: One that is needed is not there, or cannot be understood.
        """
        plugins = self._asked(request)
        ask = (each.pod_hints if for_pod else each.hints for each in plugins)
        found = await asyncio.gather(*(each(request) for each in ask))
        return {plugin.resource: tuple(hints or ()) for plugin, hints in zip(plugins, found, strict=True)}

    async def allocate(self, request: ResourceRequest, chosen: Mapping[str, TopologyHint]) -> dict[str, Allocation]:
        """What the plugins allocate on the chosen nodes, by resource, accompanying ones included.

        Raises:
            As `hints`.
        """
        plugins = self._asked(request)
        found = await asyncio.gather(*(each.allocate(request, chosen.get(each.resource)) for each in plugins))
        return _allocations(held for each in found for held in each.values())

    async def allocate_for_pod(
        self, request: ResourceRequest, chosen: Mapping[str, TopologyHint]
    ) -> dict[str, Allocation]:
        """What the plugins allocate to the pod as a whole, before its first container. Raises as `hints`."""
        plugins = self._asked(request)
        found = await asyncio.gather(*(each.allocate_for_pod(request, chosen.get(each.resource)) for each in plugins))
        return _allocations(held for each in found for held in each.values())

    async def pre_start(self, pod: PodIdentity, container: str, resources: Iterable[str]) -> None:
        """Tell those that want to know, and that the container holds something of, that it is about to start."""
        wanted = [self._plugins[resource] for resource in resources if resource in self._plugins]
        await asyncio.gather(*(each.pre_start(pod, container) for each in wanted))

    async def reconcile(
        self,
        requests: Mapping[ContainerKey, ResourceRequest],
        coming: frozenset[str],
        resources: Iterable[str] | None = None,
    ) -> dict[ContainerKey, dict[str, Allocation]]:
        """What the containers of `requests` hold now; pods that are not among them, nor in `coming`, are removed.

        Only plugins for `resources` are asked, or all. One that does not answer is left out, and asked again next time.
        """
        names = self._plugins if resources is None else [each for each in resources if each in self._plugins]
        plugins = [self._plugins[name] for name in names]
        answers = await asyncio.gather(*(self._cleared(plugin, requests, coming) for plugin in plugins))
        found: dict[ContainerKey, dict[str, Allocation]] = {}
        for plugin, held in zip(plugins, answers, strict=True):
            for key, allocations in held.items() if plugin.options.reconcile else ():
                if key in requests:
                    found.setdefault(key, {}).update(_allocations(allocations.values()))
        return found

    async def held(self, key: ContainerKey) -> dict[str, str]:
        """What the plugins themselves say that a container holds, by resource, in words."""
        uid, container = key.pod_uid, key.container
        calls = {name: each.topology_aware_resources(uid, container) for name, each in self._plugins.items()}
        said, trouble = await _in_words(calls, lambda found: {name: each.total for name, each in found.items()})
        return said | trouble

    async def stock(self) -> tuple[dict[str, str], dict[str, str]]:
        """What the plugins say that there is for containers, and what is wrong with them; by resource, in words."""
        calls = {name: each.topology_aware_allocatable() for name, each in self._plugins.items()}
        return await _in_words(calls, lambda found: {name: each.allocatable.total for name, each in found.items()})

    async def close(self) -> None:
        """End all connections."""
        await asyncio.gather(*(each.close() for each in self._plugins.values()))
        self._plugins.clear()

    async def _cleared(
        self, plugin: Plugin, requests: Mapping[ContainerKey, ResourceRequest], coming: frozenset[str]
    ) -> Mapping[ContainerKey, Mapping[str, RemoteAllocation]]:
        """The plugin's allocations, once gone pods are removed from it; nothing where it does not answer."""
        try:
            held = await plugin.resources_allocation(requests)
            gone = {key.pod_uid for key in held} - {key.pod_uid for key in requests} - coming
            for uid in sorted(gone):
                await plugin.remove_pod(uid)
            held = await plugin.resources_allocation(requests) if gone else held
        except (PluginError, PluginUnavailable) as error:
            if self._trouble.get(plugin.resource) != str(error):
                self._trouble[plugin.resource] = str(error)
                log.warning("plugin not reconciled", resource=plugin.resource, error=str(error))
            return {}
        self._trouble.pop(plugin.resource, None)
        return held

    def _asked(self, request: ResourceRequest) -> list[Plugin]:
        """The plugins that have to do with `request`, in order of their resources' names."""
        wanted = [*ALWAYS, *request.quantities]
        missing = [each for each in wanted if each in self._required and each not in self._plugins]
        if missing:
            raise PluginUnavailable(
                f"no plugin for {', '.join(missing)} is registered", hint="qrm doctor says what is known of it"
            )
        return [self._plugins[each] for each in sorted(set(wanted)) if each in self._plugins]

    def _close(self, plugin: Plugin) -> None:
        task = asyncio.get_running_loop().create_task(plugin.close(), name=f"close {plugin.resource}")
        task.add_done_callback(lambda done: done.cancelled() or done.exception())


async def _in_words(
    calls: Mapping[str, Awaitable[Answer]], totals: Callable[[Answer], Mapping[str, int]]
) -> tuple[dict[str, str], dict[str, str]]:
    """The answers for people, and the trouble of those who gave none. A call that a plugin lacks is no trouble."""
    answers = await asyncio.gather(*calls.values(), return_exceptions=True)
    said: dict[str, str] = {}
    trouble: dict[str, str] = {}
    for plugin, answer in zip(calls, answers, strict=True):
        if isinstance(answer, PluginRefused):
            continue
        if isinstance(answer, BaseException):
            trouble[plugin] = str(answer)
        else:
            said |= {name: str(total) for name, total in totals(answer).items()}
    return said, trouble


def _allocations(held: Iterable[RemoteAllocation]) -> dict[str, Allocation]:
    """With what is to be set besides CPUs and memory nodes, which the allocation itself says."""
    return {each.resource: replace(each.allocation, oci=_others(each.oci)) for each in held}


def _others(oci: Mapping[str, str | int]) -> dict[str, str | int]:
    return {name: value for name, value in oci.items() if name not in ("cpuset_cpus", "cpuset_mems")}
