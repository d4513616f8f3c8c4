"""All parts of a running qrm, built in the order of the layers."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import structlog

from qrm.allocation.book import Book
from qrm.allocation.hints import Policy
from qrm.allocation.placements import Placements
from qrm.allocation.planner import Alignment, Planner
from qrm.allocation.registry import load_allocators
from qrm.allocation.remote.client import Timeouts
from qrm.allocation.remote.crew import Crew
from qrm.allocation.remote.registry import PluginRegistry
from qrm.allocation.telling import Teller
from qrm.config import RELOADABLE, Config, PluginsSection
from qrm.enforcement.cgroup import Cgroups
from qrm.enforcement.channel import CallError, open_channel
from qrm.enforcement.isolation.containers import ContainerFiles
from qrm.enforcement.isolation.enforcer import Enforcer
from qrm.enforcement.locks import ContainerLocks
from qrm.enforcement.processes import Processes
from qrm.enforcement.pushes import Pusher
from qrm.enforcement.runtime import MAX_MESSAGE, RuntimeClient
from qrm.ledger.store import Ledger, open_ledger
from qrm.metrics import Metrics
from qrm.pods.kubelet import KubeletPods
from qrm.pods.model import QosLevel
from qrm.pods.request import QosDefaults
from qrm.pods.source import PodSource
from qrm.service import logs
from qrm.service.isolation import check_classes, dimensions, disk_number
from qrm.shim.context import Context
from qrm.topology.sysfs import read_machine
from qrm.upkeep.cycle import Upkeep
from qrm.upkeep.drift import Drift
from qrm.upkeep.growth import Growth
from qrm.upkeep.isolation import IsolationUpkeep, SandboxFinder
from qrm.upkeep.observe import Observer
from qrm.upkeep.plugins import PluginUpkeep
from qrm.upkeep.reach import whenever_reached

log = structlog.get_logger(__name__)

_FIRST_TRY, _LAST_TRY = 0.1, 3.0
"""Seconds between tries until the runtime answers, doubled each time, as kubelet's own dialling."""
_LAST_WORDS = 1.0
"""Seconds that a call to the runtime and a change in the kernel may still take when the node is left."""


class Node:
    """All parts of a running qrm. Made by `build`."""

    def __init__(self, config: Config, ledger: Ledger, metrics: Metrics) -> None:
        self.config = config
        self.started = time.time()
        self.metrics = metrics
        machine = read_machine(Path(config.host.sysfs))
        topology = config.topology
        alignment = Alignment(Policy(topology.policy), topology.aligned, whole_pod=topology.scope == "pod")
        self.planner = Planner(machine, load_allocators(config.allocators), alignment)
        self.book = Book(self.planner, ledger)
        self.channel = open_channel(config.runtime.endpoint, MAX_MESSAGE)
        self.runtime = RuntimeClient(self.channel)
        self.crew = Crew(
            lambda: machine,
            local=[each.resource for each in self.planner.allocators],
            required=config.plugins.required,
            original=config.plugins.original_names,
            # A plugin is asked for hints and then to allocate: both are to fit into what a creation may take.
            timeouts=Timeouts(call=min(10.0, config.shim.budget_seconds * 0.4)),
        )
        self.registry = _registry(config.plugins, self.crew)
        self.processes = Processes(self.runtime, Cgroups(Path(config.host.cgroup), Path(config.host.proc)))
        self.files = ContainerFiles(config.isolation, config.profiles, self.processes, disk_number(config))
        find = SandboxFinder(self.runtime, self.files, self.defaults)
        self.enforcer = Enforcer(dimensions(config, metrics), config.isolation, metrics, find)
        pusher = Pusher(self.runtime, self.files, metrics)
        self.placements = Placements(self.book, Teller(self.book, pusher, ContainerLocks()), metrics, self.crew)
        self.observer = Observer(self.placements, uncertain_seconds=config.upkeep.uncertain_seconds)
        drift = Drift(self.placements, self.processes)
        self.upkeep = Upkeep(self.placements, self.runtime, self.observer, drift, self.defaults)
        self.isolation = IsolationUpkeep(self.placements, self.runtime, self.enforcer, self.files)
        self.growth = Growth(self.placements)
        self.plugins = PluginUpkeep(self.placements)
        self.kubelet = KubeletPods(config.kubelet) if config.kubelet.pods_url else None
        source = PodSource(self.kubelet)
        self.context = Context(
            self.placements,
            self.observer,
            self.runtime,
            self.files,
            self.enforcer,
            find,
            source,
            self.defaults,
            config.shim.budget_seconds,
        )

    def defaults(self) -> QosDefaults:
        """The level of pods that name none."""
        qos = self.config.qos
        return QosDefaults(QosLevel(qos.default_level), QosLevel(qos.guaranteed_whole_cpus))

    def apply(self, config: Config) -> None:
        """Take over from `config` what can change while running; what cannot is named in the log."""
        for section in Config.__struct_fields__:
            if section not in RELOADABLE and getattr(config, section) != getattr(self.config, section):
                log.warning("setting needs a restart", section=section)
        self.config = Config(
            **{
                section: getattr(config if section in RELOADABLE else self.config, section)
                for section in Config.__struct_fields__
            }
        )
        self.observer.uncertain_seconds = self.config.upkeep.uncertain_seconds
        logs.configure(self.config.log)

    async def prepare(self) -> None:
        """Bring about what isolates pods, as far as it is the node's; raises NotEnforced as the modes say."""
        check_classes(self.config)
        self.files.check()
        await self.enforcer.prepare()

    async def follow_runtime(self) -> None:
        """Compare with the runtime whenever it is reached, for the first time and after each of its restarts."""
        await whenever_reached(self.channel, self.reached)

    async def reached(self) -> None:
        """Bring the ledger up to date with the runtime as soon as that answers; then let pods in, or catch up."""
        pause = _FIRST_TRY
        while True:
            try:
                adopted = await self.upkeep.compare_with_runtime()
                break
            except CallError as error:
                log.info("runtime does not answer yet", error=str(error))
            await asyncio.sleep(pause)
            pause = min(pause * 2, _LAST_TRY)
        await self.placements.flush_or_log()
        self.upkeep.count()
        if not self.context.ready.is_set():
            self.context.ready.set()
            log.info("ready", containers=len(self.book.ledger), adopted=adopted)
        else:
            log.info("runtime is back", adopted=adopted)
        self.placements.due.set()
        did = [await self.upkeep.repair(), await self.isolation.cycle()]
        if any(did):
            log.info("caught up", did=", ".join(filter(None, did)))

    async def fall_silent(self) -> None:
        """Tell nothing more to the runtime and the kernel; what is being told may end."""
        await asyncio.gather(self.runtime.retire(_LAST_WORDS), self.enforcer.retire(_LAST_WORDS))

    async def leave(self, until: float) -> None:
        """Write the ledger for the last time.

        Creations that were sent to the runtime may be answered to this process until the Unix time `until`, which the
        ledger then says.
        """
        self.placements.leave_behind(until)
        await self.placements.flush_or_log()
        self.book.ledger.close()

    async def reconcile(self) -> None:
        """Let plugins be compared with the ledger once that is known to be complete: they forget what is not in it."""
        await self.context.ready.wait()
        await self.plugins.run()

    async def isolate(self) -> str:
        """A round of isolation's upkeep, once it is known who runs."""
        await self.context.ready.wait()
        return await self.isolation.cycle()

    async def grow(self) -> None:
        """Let growth begin once it is known who runs where: a ledger that was behind would give away their CPUs."""
        await self.context.ready.wait()
        await self.growth.run()


def _registry(section: PluginsSection, crew: Crew) -> PluginRegistry | None:
    """Where plugins are looked for; None where nobody shall look."""
    if not section.directory and not section.registration_socket:
        return None
    desk = Path(section.registration_socket) if section.registration_socket else None
    directory = Path(section.directory or section.registration_socket + ".d")
    return PluginRegistry(directory, desk, section.allowed_uid, crew.changed)


@asynccontextmanager
async def build(config: Config, metrics: Metrics) -> AsyncIterator[Node]:
    """A node with its ledger open, and everything closed again afterwards.

    Raises:
        ConfigError, LedgerError, TopologyError: what cannot be used.
    """
    ledger, new = open_ledger(Path(config.state.directory) / "ledger.db")
    try:
        node = Node(config, ledger, metrics)
        if new:
            log.info("new ledger", path=str(ledger.path))
        try:
            yield node
        finally:
            if node.kubelet is not None:
                node.kubelet.close()
            node.enforcer.close()
            await node.crew.close()
            await node.channel.close()
    finally:
        ledger.close()
