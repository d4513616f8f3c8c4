"""What happens to a pod when qrm itself fails: one table, from which the documentation is made.

A refusal (a pod that does not fit, an annotation that makes no sense) is not a failure: it is told to kubelet always.
"""

from __future__ import annotations

from enum import StrEnum

from qrm.pods.model import QosLevel


class Cause(StrEnum):
    """How qrm can fail a call."""

    ALLOCATOR = "allocator"
    PLUGIN = "plugin"
    BUDGET = "budget"
    LEDGER = "ledger"
    SHRINK = "shrink"


class Action(StrEnum):
    """What is done then."""

    REFUSE = "refuse"
    PASS = "pass"  # noqa: S105 - not a password


TABLE: dict[tuple[Cause, QosLevel], Action] = {
    (cause, level): Action.REFUSE if level is QosLevel.DEDICATED else Action.PASS
    for cause in Cause
    for level in QosLevel
}
"""Dedicated pods were promised CPUs of their own: without them they must not run. The others can run anywhere."""

MEANING: dict[Cause | Action, str] = {
    Cause.ALLOCATOR: "an allocator raised an error that is none of its refusals",
    Cause.PLUGIN: "a plugin that the container needs is away, too slow, or answered what cannot be used",
    Cause.BUDGET: "the time budget (`shim.budget_seconds`) was spent before a placement was in force",
    Cause.LEDGER: "the placement could not be made durable: disk full, file system read-only",
    Cause.SHRINK: "the runtime would not take a running container off the CPUs that the new one was to get",
    Action.REFUSE: "the call fails with UNAVAILABLE; kubelet shows why and tries again",
    Action.PASS: "the call goes through as kubelet made it; a new container is marked `unmanaged`, counted, and placed "
    "by upkeep as soon as that works, and one that is resized keeps its cpuset",
}


def as_markdown() -> str:
    """The tables of docs/fail-policy.md."""
    head = "| cause | " + " | ".join(f"`{level}`" for level in QosLevel) + " | meaning |\n"
    rule = "|---" * (len(QosLevel) + 2) + "|\n"
    rows = (
        f"| {cause} | {' | '.join(TABLE[cause, level] for level in QosLevel)} | {MEANING[cause]} |" for cause in Cause
    )
    actions = (f"- **{action}**: {MEANING[action]}." for action in Action)
    return head + rule + "\n".join(rows) + "\n\n" + "\n".join(actions) + "\n"
