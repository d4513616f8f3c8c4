"""What all handlers share, and the two ways in which they say no."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

import grpc
import structlog

from qrm.allocation.placements import Placements
from qrm.allocation.remote.errors import PluginError, PluginUnavailable
from qrm.allocation.telling import ShrinkFailed
from qrm.enforcement.channel import CallError
from qrm.enforcement.isolation.containers import ContainerFiles
from qrm.enforcement.isolation.dimension import NotEnforced
from qrm.enforcement.isolation.enforcer import Enforcer, Find
from qrm.enforcement.runtime import RuntimeClient
from qrm.errors import BadRequest, DoesNotFit, LedgerError
from qrm.ledger.record import Record
from qrm.pods.model import QosLevel
from qrm.pods.request import QosDefaults
from qrm.pods.source import PodSource
from qrm.shim.failpolicy import TABLE, Action, Cause
from qrm.shim.under_way import UnderWay
from qrm.upkeep.observe import Observer

log = structlog.get_logger(__name__)


@dataclass(slots=True)
class Context:
    """The parts of the service that handlers work with."""

    placements: Placements
    observer: Observer
    runtime: RuntimeClient
    files: ContainerFiles
    enforcer: Enforcer
    find_sandbox: Find
    source: PodSource
    """Completes what CRI tells of a request."""
    defaults: Callable[[], QosDefaults]
    """The node's QoS defaults, which a reload may change."""
    budget_seconds: float
    ready: asyncio.Event = field(default_factory=asyncio.Event)
    """Set once ledger and runtime have been compared: before that nothing can be promised."""
    under_way: UnderWay = field(default_factory=UnderWay)

    async def record(self, container_id: str) -> Record | None:
        """A container's line in the ledger.

        One whose creation was answered to a process before this one is looked for at the runtime first.
        """
        ledger = self.placements.book.ledger
        if ledger.find(container_id) is None and self.observer.uncertain():
            asked = time.monotonic()
            with suppress(CallError):
                self.observer.judge_containers(await self.runtime.list_containers(), asked)
        return ledger.find(container_id)

    @contextmanager
    def refusals(self) -> Iterator[None]:
        """Turn what a pod may not have into the status that kubelet shows its users."""
        try:
            yield
        except BadRequest as error:
            raise self.refusal("bad request", grpc.StatusCode.INVALID_ARGUMENT, error) from None
        except DoesNotFit as error:
            raise self.refusal("does not fit", grpc.StatusCode.RESOURCE_EXHAUSTED, error) from None
        except NotEnforced as error:
            raise self.refusal("not isolated", grpc.StatusCode.FAILED_PRECONDITION, error) from None

    def refusal(self, reason: str, code: grpc.StatusCode, error: Exception) -> CallError:
        """A refusal to be raised; counted and logged."""
        log.warning("refused", reason=reason, error=str(error))
        self.placements.metrics.refusals.labels(reason).inc()
        return CallError(code, f"qrm: {error}")

    def failure(self, error: Exception, level: QosLevel) -> Action:
        """What the fail table says to an error of qrm's own; counted and logged."""
        cause = _cause(error)
        action = TABLE[cause, level]
        self.placements.metrics.failures.labels(cause, level, action).inc()
        expected = cause is not Cause.ALLOCATOR
        log.error("qrm failed a call", cause=cause, qos=level, action=action, error=repr(error), exc_info=not expected)
        return action

    def failed(self, error: Exception) -> CallError:
        """The status for a call that the fail table refuses."""
        self.placements.metrics.refusals.labels("own failure").inc()
        detail = str(error) or f"no placement within {self.budget_seconds:g} s"
        return CallError(grpc.StatusCode.UNAVAILABLE, f"qrm: cannot place the container now: {detail}")


def _cause(error: Exception) -> Cause:
    if isinstance(error, TimeoutError):
        return Cause.BUDGET
    known: tuple[tuple[type[Exception], Cause], ...] = (
        (LedgerError, Cause.LEDGER),
        (ShrinkFailed, Cause.SHRINK),
        (PluginError, Cause.PLUGIN),
        (PluginUnavailable, Cause.PLUGIN),
    )
    return next((cause for kind, cause in known if isinstance(error, kind)), Cause.ALLOCATOR)
