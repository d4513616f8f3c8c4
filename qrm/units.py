"""Conversions between Kubernetes quantities and the numbers that CRI and the kernel carry.

Sources of the constants: kubelet `pkg/kubelet/cm/helpers_linux.go` (MinShares, MaxShares, SharesPerCPU,
MilliCPUToCPU, QuotaPeriod, MinQuotaPeriod); of quantities: apimachinery `pkg/api/resource/quantity.go`.
"""

from __future__ import annotations

import re
from decimal import Decimal

from qrm.errors import ParseError

MILLIS_PER_CPU = 1000
SHARES_PER_CPU = 1024
MIN_SHARES = 2
"""What kubelet sends for a request of 0, 1 or 2 millicores: too little to tell them apart."""
MAX_SHARES = 262144
"""The kernel's upper bound: a request of 256 CPUs and anything above it."""
DEFAULT_PERIOD = 100_000
"""The CFS period in microseconds where a message has none (kubelet's QuotaPeriod)."""

LARGEST = 2**63 - 1
"""The API server's upper bound of a quantity."""

_SUFFIXES = {
    "": Decimal(1),
    **{suffix: Decimal(1000) ** power for power, suffix in enumerate(("k", "M", "G", "T", "P", "E"), 1)},
    **{suffix: Decimal(1024) ** power for power, suffix in enumerate(("Ki", "Mi", "Gi", "Ti", "Pi", "Ei"), 1)},
    **{suffix: Decimal(1000) ** -power for power, suffix in enumerate(("m", "u", "n"), 1)},
}
_QUANTITY = re.compile(r"(\d+(?:\.\d*)?|\.\d+)(?:([eE][+-]?\d{1,2})|([numkMGTPE]|[KMGTPE]i))?", re.ASCII)


def shares_from_millis(millis: int) -> int:
    """The cpu.shares that kubelet sends for a request of `millis` millicores."""
    return min(max(millis * SHARES_PER_CPU // MILLIS_PER_CPU, MIN_SHARES), MAX_SHARES)


def millis_from_shares(shares: int) -> int:
    """The request in millicores behind `shares`; exact from 3 to 255999, 0 for the shares of "nothing asked"."""
    return 0 if shares <= MIN_SHARES else -(-shares * MILLIS_PER_CPU // SHARES_PER_CPU)


def millis_from_quota(quota: int, period: int) -> int | None:
    """The limit in millicores behind a CFS quota and period in microseconds; None where there is no limit.

    A period of 0 or less is none that the kernel takes, and reads as not said; the result ends at `LARGEST`.
    """
    if quota <= 0:
        return None
    return min(quota * MILLIS_PER_CPU // (period if period > 0 else DEFAULT_PERIOD), LARGEST)


def request_millis(shares: int, quota: int, period: int) -> int:
    """The CPU request in millicores behind the numbers of a CRI message.

    Shares end at 256 CPUs, so there the quota, which does not, decides if it says more.
    """
    asked = millis_from_shares(shares)
    if shares >= MAX_SHARES:
        return max(asked, millis_from_quota(quota, period) or 0)
    return asked


def whole_cpus(millis: int) -> int:
    """The number of CPUs that cover `millis` millicores."""
    return -(-millis // MILLIS_PER_CPU)


def parse_quantity(text: str) -> Decimal:
    """The value of a Kubernetes quantity such as "2", "500m", "1.5Gi", "129e6"; negative ones do not occur here.

    Raises:
        ParseError: `text` is no quantity; the message quotes it.
    """
    match = _QUANTITY.fullmatch(text.strip())
    if match is None:
        raise ParseError(f"{text!r} is not a quantity", hint="write it like 2, 500m or 1.5Gi")
    return Decimal(match[1] + (match[2] or "")) * _SUFFIXES[match[3] or ""]


def parse_millis(text: str) -> int:
    """A CPU quantity in millicores, rounded up as Kubernetes does; raises ParseError."""
    return int((parse_quantity(text) * MILLIS_PER_CPU).to_integral_value(rounding="ROUND_CEILING"))
