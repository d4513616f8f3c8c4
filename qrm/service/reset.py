"""`qrm reset`: leaves the node as it was before qrm, without touching what runs.

Every container gets back the CPUs of the whole machine and the CFS quota that kubelet asked for; then the ledger and
the sockets go. Containers are found by the runtime's list, so this works with the ledger lost.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import grpc
import structlog

from qrm.allocator import MEMORY
from qrm.config import Config
from qrm.cpuset import NodeSet
from qrm.enforcement.channel import CallError, open_channel
from qrm.enforcement.runtime import MAX_MESSAGE, RuntimeClient
from qrm.errors import RuntimeUnreachable
from qrm.ledger.annotation import KEY, Kept, read_annotation
from qrm.ledger.store import open_ledger
from qrm.service.api import ResetReport
from qrm.service.sockets import only_instance
from qrm.topology.machine import Machine
from qrm.topology.sysfs import read_machine
from qrm.wire import cri_pb2 as cri

log = structlog.get_logger(__name__)

_LIVE = (cri.ContainerState.CONTAINER_CREATED, cri.ContainerState.CONTAINER_RUNNING)


async def reset(config: Config) -> ResetReport:
    """Undo everything that qrm has done on this node.

    Raises:
        AlreadyRunning: the service runs, and would do it all again.
        RuntimeUnreachable: the runtime does not answer; nothing was changed.
        LedgerError: the ledger cannot be read.
    """
    machine = read_machine(Path(config.host.sysfs))
    with only_instance(_lock_path(config)):
        asked = _asked(config)
        channel = open_channel(config.runtime.endpoint, MAX_MESSAGE)
        try:
            done, failed = await _release(RuntimeClient(channel), machine, asked)
        finally:
            await channel.close()
        removed = [] if failed else _remove_files(config)
    return ResetReport(done, failed, removed)


@dataclass(frozen=True, slots=True)
class _Own:
    """What a container is to get back."""

    asked: cri.LinuxContainerResources
    """kubelet's own numbers."""
    mems: bool
    """Whether its memory nodes were ours."""


def _asked(config: Config) -> dict[str, _Own]:
    """What containers are to get back by id, as far as the ledger has them."""
    path = _ledger_path(config)
    if not path.exists():
        return {}
    ledger, _ = open_ledger(path)
    try:
        return {
            record.container_id: _Own(cri.LinuxContainerResources.FromString(record.asked), bool(record.mems))
            for record in ledger
        }
    finally:
        ledger.close()


async def _release(runtime: RuntimeClient, machine: Machine, asked: dict[str, _Own]) -> tuple[int, list[str]]:
    try:
        containers = await runtime.list_containers()
    except CallError as error:
        raise RuntimeUnreachable(
            f"the runtime does not answer: {error.details}", hint="reset needs it, to give containers their CPUs back"
        ) from None
    done, failed = 0, []
    for container in containers:
        kept = read_annotation(container.annotations.get(KEY, ""))
        if container.state not in _LIVE or (kept is None and container.id not in asked):
            continue
        own = asked.get(container.id) or _kept(kept)
        try:
            await runtime.update(container.id, _given_back(own, machine))
            done += 1
        except CallError as error:
            if error.code is not grpc.StatusCode.NOT_FOUND:
                failed.append(f"{container.id}: {error.details}")
    return done, failed


def _kept(kept: Kept | None) -> _Own:
    asked = cri.LinuxContainerResources.FromString(kept.asked_bytes if kept else b"")
    return _Own(asked, kept is not None and MEMORY in kept.others)


def _given_back(own: _Own, machine: Machine) -> cri.LinuxContainerResources:
    """What undoes our changes. Empty fields would mean "unchanged", so everything is named."""
    memory = NodeSet(node.id for node in machine.nodes.values() if node.memory)
    return cri.LinuxContainerResources(
        cpuset_cpus=own.asked.cpuset_cpus or str(machine.online),
        cpuset_mems=(own.asked.cpuset_mems or str(memory)) if own.mems else "",
        cpu_quota=own.asked.cpu_quota,
    )


def _remove_files(config: Config) -> list[str]:
    """What qrm keeps on disk; set-aside ledgers stay, somebody may want to look at them."""
    ledger = _ledger_path(config)
    paths = [ledger, Path(f"{ledger}-wal"), Path(f"{ledger}-shm")]
    shim = config.shim
    paths += [Path(each) for each in (shim.socket, shim.admin_socket, shim.pod_resources_socket)]
    paths.append(_lock_path(config))
    existing = [path for path in paths if path.exists()]
    for path in existing:
        path.unlink()
    return [str(path) for path in existing]


def _ledger_path(config: Config) -> Path:
    return Path(config.state.directory) / "ledger.db"


def _lock_path(config: Config) -> Path:
    return Path(f"{config.shim.socket}.lock")
