"""`qrm reset`: leaves the node as it was before qrm, without touching what runs.

Every container gets back the CPUs of the whole machine and what kubelet asked for; what isolates pods is taken down;
then the ledger and the sockets go.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

from qrm.config import Config
from qrm.enforcement.cgroup import Cgroups
from qrm.enforcement.channel import open_channel
from qrm.enforcement.isolation.containers import ContainerFiles
from qrm.enforcement.isolation.dimension import Closing, NotEnforced
from qrm.enforcement.processes import Processes
from qrm.enforcement.runtime import MAX_MESSAGE, RuntimeClient
from qrm.ledger.record import Mark
from qrm.ledger.store import open_ledger
from qrm.metrics import Metrics
from qrm.service.api import ResetReport
from qrm.service.giving_back import Giver, Own
from qrm.service.isolation import dimensions, disk_number
from qrm.service.sockets import is_listening, only_instance
from qrm.topology.sysfs import read_machine
from qrm.upkeep.isolation import wanted_files
from qrm.wire import cri_pb2 as cri


async def reset(config: Config) -> ResetReport:
    """Undo everything that qrm has done on this node.

    Raises:
        AlreadyRunning: the service runs, and would do it all again.
        RuntimeUnreachable: the runtime does not answer; nothing was changed.
        LedgerError: the ledger cannot be read.
    """
    machine = read_machine(Path(config.host.sysfs))
    with only_instance(_lock_path(config)):
        channel = open_channel(config.runtime.endpoint, MAX_MESSAGE)
        runtime = RuntimeClient(channel)
        processes = Processes(runtime, Cgroups(Path(config.host.cgroup), Path(config.host.proc)))
        files = ContainerFiles(config.isolation, config.profiles, processes, disk_number(config))
        try:
            done, failed = await Giver(runtime, processes, files, machine).give_back(_asked(config, files))
        finally:
            await channel.close()
        undone, trouble = await asyncio.to_thread(_undo_isolation, config)
        failed += trouble
        removed = [] if failed else _remove_files(config)
    return ResetReport(done, failed, removed, undone)


def _undo_isolation(config: Config) -> tuple[list[str], list[str]]:
    """What was taken down of each dimension, whatever its mode is now, and what could not be."""
    done, failed = list[str](), list[str]()
    for dimension in dimensions(config, Metrics()):
        try:
            done += dimension.reset()
        except NotEnforced as error:
            failed.append(str(error))
        if isinstance(dimension, Closing):
            dimension.close()
    return done, failed


def _asked(config: Config, files: ContainerFiles) -> dict[str, Own]:
    """What containers are to get back by id, as far as the ledger has them."""
    path = _ledger_path(config)
    if not path.exists():
        return {}
    ledger, _ = open_ledger(path)
    try:
        return {
            record.container_id: Own(
                cri.LinuxContainerResources.FromString(record.asked),
                bool(record.mems),
                wanted_files(record, files),
                placed=record.mark is not Mark.ADOPTED,
            )
            for record in ledger
        }
    finally:
        ledger.close()


def _remove_files(config: Config) -> list[str]:
    """What qrm keeps on disk. Set-aside ledgers stay, somebody may want to look at them; so does systemd's socket."""
    ledger = _ledger_path(config)
    paths = [ledger, Path(f"{ledger}-wal"), Path(f"{ledger}-shm")]
    shim = config.shim
    paths += [Path(each) for each in (shim.socket, shim.admin_socket, shim.pod_resources_socket)]
    paths.append(_lock_path(config))
    existing = [path for path in paths if path.exists() and not is_listening(path)]
    for path in existing:
        path.unlink()
    return [str(path) for path in existing]


def _ledger_path(config: Config) -> Path:
    return Path(config.state.directory) / "ledger.db"


def _lock_path(config: Config) -> Path:
    return Path(f"{config.shim.socket}.lock")
