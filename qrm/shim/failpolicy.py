"""What happens to a pod when qrm itself fails: one table, from which the documentation is made.

A refusal (a pod that does not fit, an annotation that makes no sense) is not a failure: it is told to kubelet always.
"""

from __future__ import annotations

from enum import StrEnum

from qrm.pods.model import QosLevel


class Cause(StrEnum):
    """How qrm can fail a call."""

    ALLOCATOR = "allocator"
    """An allocator raised an error that is none of its refusals."""
    BUDGET = "budget"
    """The time budget (shim.budget_seconds) was spent before a placement was in force."""
    LEDGER = "ledger"
    """The placement could not be made durable: disk full, file system read-only."""
    SHRINK = "shrink"
    """The runtime would not take a running container off the CPUs that the new one was to get."""


class Action(StrEnum):
    """What is done then."""

    REFUSE = "refuse"
    """The call fails; kubelet shows why and tries again."""
    PASS = "pass unmanaged"  # noqa: S105 - not a password
    """The call goes through as kubelet made it; the container is marked `unmanaged` and repaired later."""


TABLE: dict[tuple[Cause, QosLevel], Action] = {
    (cause, level): Action.REFUSE if level is QosLevel.DEDICATED else Action.PASS
    for cause in Cause
    for level in QosLevel
}
"""Dedicated pods were promised CPUs of their own: without them they must not run. The others can run anywhere."""


def as_markdown() -> str:
    """The table for docs/fail-policy.md."""
    head = "| when | " + " | ".join(QosLevel) + " |\n|---|" + "---|" * len(QosLevel) + "\n"
    return head + "".join(
        f"| {cause} | " + " | ".join(TABLE[cause, level] for level in QosLevel) + " |\n" for cause in Cause
    )
