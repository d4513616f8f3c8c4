"""What pods use of cache and memory bandwidth, as Prometheus sees it; as old as the last round of repair."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from qrm.enforcement.isolation.rdt.monitor import Reading
from qrm.pods.model import PodIdentity

_LABELS = ("namespace", "pod", "cache")
_OCCUPANCY = "llc_occupancy"
_TRAFFIC = {"mbm_total_bytes": "total", "mbm_local_bytes": "local"}
"""Events of mon_features to the label `memory`: all of it, or that of the cache's own NUMA node."""


class Usage(Collector):
    """Register it with the registry of the metrics. Nothing is shown on a node that monitors nothing."""

    def __init__(self) -> None:
        self._latest: Mapping[PodIdentity, Sequence[Reading]] = {}

    def update(self, latest: Mapping[PodIdentity, Sequence[Reading]]) -> None:
        """Show these from now on, instead of those before."""
        self._latest = latest

    def describe(self) -> Sequence[Metric]:
        """Nothing that is fixed, so that registering reads nothing."""
        return ()

    def collect(self) -> Iterator[Metric]:
        """One gauge and one counter for each pod and L3 cache, and how many values the kernel had no number for."""
        occupancy = GaugeMetricFamily("qrm_rdt_cache_bytes", "L3 cache that a pod occupies", labels=_LABELS)
        traffic = CounterMetricFamily(
            "qrm_rdt_memory_bytes", "Bytes between the L3 cache and memory for a pod", labels=(*_LABELS, "memory")
        )
        unread: Counter[str] = Counter()
        for pod, readings in self._latest.items():
            for each in readings:
                labels = (pod.namespace, pod.name, str(each.domain))
                if each.value is None:
                    unread[each.said] += 1
                elif each.event == _OCCUPANCY:
                    occupancy.add_metric(labels, each.value)
                elif each.event in _TRAFFIC:
                    traffic.add_metric((*labels, _TRAFFIC[each.event]), each.value)
        without = GaugeMetricFamily("qrm_rdt_unread", "Values that the kernel had no number for", labels=("said",))
        for said, count in unread.items():
            without.add_metric((said,), count)
        yield from (family for family in (occupancy, traffic, without) if family.samples)
