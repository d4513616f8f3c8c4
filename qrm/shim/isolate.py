"""Isolation of a pod as a whole, for the calls that need it to be in force."""

from __future__ import annotations

import asyncio

import structlog

from qrm.enforcement.channel import CallError
from qrm.enforcement.isolation.dimension import NotEnforced
from qrm.shim.context import Context

log = structlog.get_logger(__name__)


async def isolate(context: Context, sandbox_id: str) -> None:
    """Put in force what a pod is to have; what cannot be is logged, and upkeep tries again.

    Raises:
        NotEnforced: the pod must not run without it.
    """
    try:
        async with asyncio.timeout(context.budget_seconds):
            sandbox = await context.find_sandbox(sandbox_id)
            if sandbox is not None:
                await context.enforcer.admit(sandbox)
    except (CallError, TimeoutError, NotEnforced) as error:
        log.warning("pod not isolated", sandbox=sandbox_id, error=repr(error))
        if context.enforcer.required:
            raise NotEnforced(str(error) or f"not done within {context.budget_seconds:g} s") from error


async def isolate_unknown(context: Context, sandbox_id: str) -> None:
    """As `isolate`, for a pod that has come about in another process, whose place this one has taken."""
    if context.enforcer.active and not context.enforcer.knows(sandbox_id):
        await isolate(context, sandbox_id)
