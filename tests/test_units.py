"""Numbers that Kubernetes, CRI and the kernel write differently mean the same after conversion."""

from __future__ import annotations

from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qrm import units
from qrm.errors import ParseError


def test_shares_are_exact() -> None:
    """Every request of 3 to 255999 millicores is what its shares are read as."""
    assert all(units.millis_from_shares(units.shares_from_millis(millis)) == millis for millis in range(3, 256_000))


@pytest.mark.parametrize(
    ("millis", "shares"),
    [(0, 2), (1, 2), (2, 2), (3, 3), (1000, 1024), (1500, 1536), (255_999, 262_142), (256_000, 262_144)],
)
def test_shares_from_millis(millis: int, shares: int) -> None:
    """Shares are those that kubelet computes, rounded down between its bounds."""
    assert units.shares_from_millis(millis) == shares


def test_shares_end_at_the_kernels_bound() -> None:
    """A request of more than 256 CPUs has the same shares as one of 256."""
    assert units.shares_from_millis(1_000_000) == 262_144


@pytest.mark.parametrize(("shares", "millis"), [(0, 0), (1, 0), (2, 0), (3, 3), (1024, 1000), (262_144, 256_000)])
def test_millis_from_shares(shares: int, millis: int) -> None:
    """The least shares mean that nothing was asked, the most mean 256 CPUs."""
    assert units.millis_from_shares(shares) == millis


@pytest.mark.parametrize(
    ("quota", "period", "millis"),
    [
        (50_000, 100_000, 500),
        (400_000, 100_000, 4000),
        (10_000, 50_000, 200),
        (30_000_000, 100_000, 300_000),
        (25_000, 0, 250),
        (25_000, -1, 250),
        (2**63 - 1, 1, 2**63 - 1),
        (0, 100_000, None),
        (-1, 100_000, None),
    ],
)
def test_quota(quota: int, period: int, millis: int | None) -> None:
    """A quota is a limit in terms of its period, which is 100 ms if none is given; without a quota there is none."""
    assert units.millis_from_quota(quota, period) == millis


@given(st.integers(10, 1_000_000))
def test_quota_is_exact(millis: int) -> None:
    """Every limit from kubelet's least quota of 1 ms on is what its quota of the default period is read as."""
    assert units.millis_from_quota(millis * units.DEFAULT_PERIOD // 1000, units.DEFAULT_PERIOD) == millis


@pytest.mark.parametrize(
    ("shares", "quota", "period", "millis"),
    [
        (2, 0, 0, 0),
        (2048, 0, 0, 2000),
        (2048, 800_000, 100_000, 2000),
        (262_144, 0, 100_000, 256_000),
        (262_144, -1, 100_000, 256_000),
        (262_144, 30_000_000, 100_000, 300_000),
        (262_144, 25_600_000, 100_000, 256_000),
        (262_143, 30_000_000, 100_000, 256_000),
    ],
)
def test_request(shares: int, quota: int, period: int, millis: int) -> None:
    """The request is in the shares; only where they end, a higher quota says more."""
    assert units.request_millis(shares, quota, period) == millis


@pytest.mark.parametrize(("millis", "cpus"), [(0, 0), (1, 1), (999, 1), (1000, 1), (1001, 2), (64_000, 64)])
def test_whole_cpus(millis: int, cpus: int) -> None:
    """A part of a CPU takes a whole one."""
    assert units.whole_cpus(millis) == cpus


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("0", "0"),
        ("2", "2"),
        ("1.5", "1.5"),
        (".5", "0.5"),
        ("3.", "3"),
        (" 4 ", "4"),
        ("500m", "0.5"),
        ("5u", "0.000005"),
        ("100n", "0.0000001"),
        ("1k", "1000"),
        ("129M", "129000000"),
        ("2G", "2000000000"),
        ("1T", "1000000000000"),
        ("1P", "1000000000000000"),
        ("1E", "1000000000000000000"),
        ("1Ki", "1024"),
        ("1.5Gi", "1610612736"),
        ("123Mi", "128974848"),
        ("1Ti", "1099511627776"),
        ("1Pi", "1125899906842624"),
        ("8Ei", "9223372036854775808"),
        ("128974848000m", "128974848"),
        ("129e6", "129000000"),
        ("1E3", "1000"),
        ("5e-1", "0.5"),
        ("2e+2", "200"),
    ],
)
def test_quantity(text: str, value: str) -> None:
    """Quantities are read in every form that the Kubernetes API server stores them in."""
    assert units.parse_quantity(text) == Decimal(value)


@pytest.mark.parametrize(
    "text",
    [
        "",
        " ",
        ".",
        "m",
        "Gi",
        "-1",
        "1 Gi",
        "1,5",
        "1K",
        "1ki",
        "1Mb",
        "1mi",
        "1e",
        "1e3k",
        "1e999",
        "0x10",
        "٣",
        "inf",
        "nan",
    ],
)
def test_no_quantity(text: str) -> None:
    """Anything else is refused with the text quoted."""
    with pytest.raises(ParseError) as error:
        units.parse_quantity(text)
    assert error.value.message.startswith(repr(text))


@given(st.integers(0, 10**15))
def test_quantity_of_bytes_is_exact(number: int) -> None:
    """A number of bytes or of Ki is exact, however large."""
    assert units.parse_quantity(str(number)) == number
    assert units.parse_quantity(f"{number}Ki") == number * 1024


@pytest.mark.parametrize(
    ("text", "millis"), [("2", 2000), ("500m", 500), ("0.1", 100), ("1.0005", 1001), ("100n", 1), ("1e-3", 1), ("0", 0)]
)
def test_parse_millis(text: str, millis: int) -> None:
    """A CPU quantity is in millicores, a part of one counting as a whole one."""
    assert units.parse_millis(text) == millis


def test_parse_millis_error() -> None:
    """What is no quantity is no number of millicores either."""
    with pytest.raises(ParseError, match="'two'"):
        units.parse_millis("two")
