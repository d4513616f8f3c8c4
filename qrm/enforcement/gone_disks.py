"""Limits for disks that are gone, which would keep a container from ever being updated again.

With every update the runtime writes all that it keeps for a container, and the kernel refuses a line of io.max for a
disk that is not there (ENODEV). What the runtime keeps cannot be taken away, only replaced: of "" it writes nothing.
"""

from __future__ import annotations

import grpc
import structlog

from qrm.enforcement.channel import CallError
from qrm.enforcement.isolation.containers import ContainerFiles
from qrm.enforcement.isolation.knobs import IO_MAX
from qrm.enforcement.runtime import RuntimeClient
from qrm.wire import cri_pb2 as cri

log = structlog.get_logger(__name__)


async def let_go(error: CallError, container_id: str, runtime: RuntimeClient, files: ContainerFiles) -> bool:
    """Make the runtime forget a container's limits for disks that are gone; whether that was done.

    To be called after an update has failed by `error`, before it is tried again. Never raises CallError. A runtime that
    has not answered is asked nothing: it would be waited for once more.
    """
    if not error.outcome_known or error.code is grpc.StatusCode.NOT_FOUND:
        return False
    try:
        kept = (await runtime.container(container_id)).unified.get(IO_MAX, "").splitlines()
        valid = [line for line in kept if files.has_disk(line.split()[0])]
        if valid == kept:
            return False
        resources = cri.LinuxContainerResources(unified={IO_MAX: "\n".join(valid)})
        async with files.updating(container_id, resources):
            await runtime.update(container_id, resources)
    except CallError as refusal:
        log.info("limits of disks stay", id=container_id, error=refusal.details)
        return False
    log.warning("limits of disks that are gone dropped", id=container_id, left=valid)
    return True
