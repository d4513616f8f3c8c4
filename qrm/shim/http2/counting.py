"""What Prometheus is told of calls."""

from __future__ import annotations

import re
import time

import grpc
from prometheus_client import Counter, Histogram

from qrm.metrics import Metrics
from qrm.shim.http2.stream import Call

_MOST = 128
"""Method names that are told apart, in the order in which they come; CRI has some forty. A client's nonsense becomes no
more label values than that."""
_OTHER = "other"
_NAME = re.compile(rb"/[\w.]{1,128}/([A-Za-z]\w{0,63})", re.ASCII)


class Counting:
    """Counts ended calls by method and code, and their seconds by method."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._names: dict[bytes, str] = {}
        self._calls: dict[tuple[str, grpc.StatusCode], Counter] = {}
        self._seconds: dict[str, Histogram] = {}

    def ended(self, call: Call) -> None:
        """A call is over."""
        name = self._names.get(call.path) or self._name(call.path)
        code = call.code if call.code is not None else grpc.StatusCode.UNKNOWN
        counter = self._calls.get((name, code))
        if counter is None:
            counter = self._calls[name, code] = self._metrics.calls.labels(name, code.name)
        counter.inc()
        seconds = self._seconds.get(name)
        if seconds is None:
            seconds = self._seconds[name] = self._metrics.call_seconds.labels(name)
        seconds.observe(time.perf_counter() - call.started)

    def _name(self, path: bytes) -> str:
        found = _NAME.fullmatch(path)
        if found is None or len(self._names) >= _MOST:
            return _OTHER
        return self._names.setdefault(path, found[1].decode())
