"""What two runs of the same thing may differ in: ids, times, addresses, sizes, and what qrm is there to change."""

from __future__ import annotations

import json
import re
from typing import Any

PLACED = frozenset({"qrm.io/allocation", "cpus", "mems", "cpuset_cpus", "cpuset_mems", "cpusetCpus", "cpusetMems"})
"""JSON keys of a placement: qrm's annotation, and CPUs and memory nodes as CRI and the OCI specification name them."""

_UNSTABLE = (
    (re.compile(r"\b[0-9a-f]{64}\b|\b[0-9a-f]{13}\b"), "<id>"),
    (re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}"), "<uuid>"),
    (re.compile(r"\b[EWIF]\d{4} [\d:.]+ +\d+ "), "<klog> "),
    (re.compile(r"\d{4}-\d\d-\d\d[T ][\d:.]+( ?(Z|[+-]\d\d:?\d\d))?( UTC)?|\b\d{19}\b"), "<time>"),
    (re.compile(r"(\d+|About an?|Less than a) (second|minute)s? ago"), "<age>"),
    (re.compile(r"\b10(\.\d+){3}\b"), "<address>"),
    (re.compile(r"(/proc/|\"pid\": )\d+"), r"\1<pid>"),
    (re.compile(r"/[^ \"]*/qrm-conformance-[^/ \"]*"), "<folder>"),
    (re.compile(r"0x[0-9a-f]+"), "<pointer>"),
    (re.compile(r"\b[0-9a-f]{2}(:[0-9a-f]{2}){5}\b|\bveth[0-9a-f]+\b"), "<link>"),
    (re.compile(r"unix:///[^ \"]+\.sock"), "<endpoint>"),
    (re.compile(r"127\.0\.0\.1:\d+ ->|\[::1\]:\d+ ->"), "<local> ->"),
    (re.compile(r" +"), " "),
)
_NUMBER = re.compile(r"\d+(\.\d+)?(e[+-]?\d+)?( ?[kKMGTP]?i?B\b)?")


def normal(text: str, *, numbers: bool = True) -> str:
    """`text` without what changes from run to run; without any number where `numbers` is false."""
    if text.startswith("{"):
        # A reply that qrm is meant to change is compared in everything else.
        text = json.dumps(_without_placement(json.loads(text)), indent=1, sort_keys=True)
    for pattern, name in _UNSTABLE:
        text = pattern.sub(name, text)
    return text if numbers else _NUMBER.sub("<number>", text).replace("<time>", "<number>")


def _without_placement(value: Any) -> Any:
    """`value` without the placement, and without what is empty then: to CRI that is as good as absent."""
    if isinstance(value, list):
        return [_without_placement(each) for each in value]
    if not isinstance(value, dict):
        return value
    kept = {key: _without_placement(each) for key, each in value.items() if key not in PLACED}
    return {key: each for key, each in kept.items() if each not in ({}, [])}
