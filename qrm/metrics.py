"""What qrm counts and times, as Prometheus sees it. Everybody gets the same `Metrics` passed in; nothing is global."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

_CALL_BUCKETS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 120)
_STEP_BUCKETS = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.5, 1, 10)


class Metrics:
    """All instruments, in a registry of their own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.calls = Counter(
            "qrm_calls", "CRI calls by method and status code", ["method", "code"], registry=self.registry
        )
        self.call_seconds = Histogram(
            "qrm_call_seconds",
            "Whole time of a CRI call, the runtime's share included",
            ["method"],
            buckets=_CALL_BUCKETS,
            registry=self.registry,
        )
        self.step_seconds = Histogram(
            "qrm_step_seconds",
            "Own time by step of a container's creation (design, section 5)",
            ["step"],
            buckets=_STEP_BUCKETS,
            registry=self.registry,
        )
        self.refusals = Counter("qrm_refusals", "Calls refused by reason", ["reason"], registry=self.registry)
        self.failures = Counter(
            "qrm_own_failures", "Times the fail table applied", ["cause", "qos", "action"], registry=self.registry
        )
        self.drift = Counter(
            "qrm_drift_repaired", "Kernel values put back, by dimension", ["dimension"], registry=self.registry
        )
        self.repairs = Counter(
            "qrm_isolation_repaired",
            "Kernel values of isolation put back, one for each write",
            ["dimension", "cause"],
            registry=self.registry,
        )
        self.not_enforced = Gauge(
            "qrm_isolation_failed", "Pods for which a dimension is not in force", ["dimension"], registry=self.registry
        )
        self.pushes = Counter(
            "qrm_pushes", "Changes sent to running containers by outcome", ["outcome"], registry=self.registry
        )
        self.allocations = Gauge(
            "qrm_allocations", "Containers in the ledger by QoS level", ["qos"], registry=self.registry
        )
        self.unmanaged = Gauge(
            "qrm_unmanaged_containers", "Running containers that qrm does not place", registry=self.registry
        )
        self.adopted = Gauge("qrm_adopted_containers", "Containers that ran before qrm", registry=self.registry)
        self.free = Gauge(
            "qrm_free_millicores", "CPU that nobody holds, by NUMA node", ["node"], registry=self.registry
        )
        self.pool = Gauge("qrm_pool_cpus", "CPUs by pool", ["pool"], registry=self.registry)

    @contextmanager
    def step(self, name: str) -> Iterator[None]:
        """Time a step of qrm's own."""
        started = time.perf_counter()
        try:
            yield
        finally:
            self.step_seconds.labels(name).observe(time.perf_counter() - started)
