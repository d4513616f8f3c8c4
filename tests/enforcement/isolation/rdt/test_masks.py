"""What classes come to: masks and bandwidth on every width and platform, and the count of CLOSIDs."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qrm.config import Profile, RdtClass, RdtSection
from qrm.enforcement.isolation.dimension import NotEnforced
from qrm.enforcement.isolation.rdt.info import BandwidthInfo, CacheInfo, RdtInfo
from qrm.enforcement.isolation.rdt.masks import bandwidth, cache_mask, class_schemata, plan, shortage, used_classes

PERCENT = BandwidthInfo("percent", 10, 10, 100)
EIGHTHS = BandwidthInfo("1/8 GB/s", 0, 1, 2048)
MIB = BandwidthInfo("MiB/s", 0, 1, 0xFFFF_FFFF)
L3 = CacheInfo(ways=11, shareable=0x600)


@st.composite
def caches(draw: st.DrawFn) -> CacheInfo:
    """Of every width that a mask of 32 bits allows."""
    ways = draw(st.integers(1, 32))
    return CacheInfo(ways, draw(st.integers(1, ways)), draw(st.booleans()), draw(st.integers(0, (1 << ways) - 1)))


def info(*names: str, closids: int = 16, memory: BandwidthInfo | None = None) -> RdtInfo:
    return RdtInfo(Path("/r"), True, closids, dict.fromkeys(names, L3), memory)


@given(caches(), st.integers(0, 99), st.booleans())
def test_a_share_is_one_row_of_ways(cache: CacheInfo, percent: int, from_top: bool) -> None:
    """Within the cache, at its end, no fewer than must be, and else no more than the share."""
    mask = cache_mask(f"{percent}%", cache, from_top=from_top)
    assert mask & ~cache.full == 0
    row = mask // (mask & -mask)
    assert row & (row + 1) == 0
    assert mask >> (cache.ways - 1) & 1 if from_top else mask & 1
    assert mask.bit_count() == max(cache.min_bits, cache.ways * percent // 100)


@given(caches(), st.integers(0, 99), st.data())
def test_shares_from_both_ends_do_not_overlap(cache: CacheInfo, low: int, data: st.DataObject) -> None:
    """As long as they are no more than the whole, and neither is raised to what a mask needs."""
    high = data.draw(st.integers(0, min(100 - low, 99)))
    masks = [cache_mask(f"{low}%", cache, from_top=False), cache_mask(f"{high}%", cache, from_top=True)]
    if all(cache.ways * each // 100 >= cache.min_bits for each in (low, high)):
        assert masks[0] & masks[1] == 0


@given(caches(), st.integers(0, 1 << 33))
def test_a_mask_is_as_written_or_refused(cache: CacheInfo, mask: int) -> None:
    """What is let through obeys all that resctrl.rst asks of a mask."""
    row = mask // (mask & -mask) if mask else 0
    fits = mask & ~cache.full == 0 and mask.bit_count() >= cache.min_bits and (cache.sparse or row & (row + 1) == 0)
    if fits:
        assert cache_mask(f"{mask:#x}", cache, from_top=True) == mask
    else:
        with pytest.raises(NotEnforced, match=r"ways|bits|gaps"):
            cache_mask(f"{mask:#x}", cache, from_top=True)


@given(caches())
def test_nothing_said_is_the_whole_cache(cache: CacheInfo) -> None:
    """As is 100 %."""
    assert cache_mask("", cache, from_top=False) == cache_mask("100%", cache, from_top=True) == cache.full


@pytest.mark.parametrize(
    ("amount", "unit", "value"),
    [
        ("", PERCENT, 100),
        ("45%", PERCENT, 50),
        ("1%", PERCENT, 10),
        ("41", PERCENT, 50),
        ("100", PERCENT, 100),
        ("", EIGHTHS, 2048),
        ("40%", EIGHTHS, 819),
        ("0%", EIGHTHS, 1),
        ("16", EIGHTHS, 16),
        ("5000", MIB, 5000),
        ("100%", MIB, 0xFFFF_FFFF),
        ("96%", BandwidthInfo("percent", 5, 7, 100), 98),
        ("99%", BandwidthInfo("percent", 5, 7, 100), 100),
    ],
)
def test_bandwidth_is_in_the_platforms_unit(amount: str, unit: BandwidthInfo, value: int) -> None:
    """Rounded up to the step, and not below the smallest."""
    assert bandwidth(amount, unit) == value


@pytest.mark.parametrize(
    ("amount", "unit", "hint"),
    [
        ("5", PERCENT, "10 to 100"),
        ("101", PERCENT, "10 to 100"),
        ("0", EIGHTHS, "1 to 2048"),
        ("4096", EIGHTHS, "1 to 2048"),
        ("40%", MIB, "write MiB/s"),
    ],
)
def test_bandwidth_that_is_not_there_is_refused(amount: str, unit: BandwidthInfo, hint: str) -> None:
    """With what would be right."""
    with pytest.raises(NotEnforced, match=hint):
        bandwidth(amount, unit)


def test_what_is_left_open_is_whole() -> None:
    """Every resource has a value, so that a foreign write to any of them is found."""
    assert class_schemata("a", RdtClass(l3="30%"), info("L3", "L2", memory=PERCENT)) == {
        "L3": 0x7,
        "L2": 0x7FF,
        "MB": 100,
    }


def test_with_cdp_one_key_stands_for_both() -> None:
    """Unless code or data has one of its own."""
    cdp = info("L3CODE", "L3DATA", "L2")
    assert class_schemata("a", RdtClass(l3="30%"), cdp) == {"L3CODE": 0x7, "L3DATA": 0x7, "L2": 0x7FF}
    wanted = RdtClass(l3="30%", l3_code="0x600", l2="50%", from_top=True)
    assert class_schemata("a", wanted, cdp) == {"L3CODE": 0x600, "L3DATA": 0x700, "L2": 0x7C0}


@pytest.mark.parametrize(
    ("wanted", "message"),
    [
        (RdtClass(l3_code="50%"), r"rdt.classes.a.l3_code = '50%': resctrl is mounted without cdp"),
        (RdtClass(l2="50%"), r"rdt.classes.a.l2 = '50%': /r/info has no L2"),
        (RdtClass(l2_data="0x1"), r"rdt.classes.a.l2_data = '0x1': /r/info has no L2"),
        (RdtClass(memory_bandwidth="10%"), r"rdt.classes.a.memory_bandwidth = '10%': /r/info has no MB"),
        (RdtClass(l3="0x5"), r"rdt.classes.a.l3 = '0x5': .* gaps"),
        (RdtClass(l3="0xfff"), r"rdt.classes.a.l3 = '0xfff': the cache has 11 ways \(stay within 0x7ff\)"),
    ],
)
def test_what_the_node_lacks_is_named(wanted: RdtClass, message: str) -> None:
    """Class, key, value, and why."""
    with pytest.raises(NotEnforced, match=message):
        class_schemata("a", wanted, info("L3"))


def test_the_whole_of_what_is_not_there_is_nothing_to_complain_of() -> None:
    """100 % of it has everybody."""
    assert class_schemata("a", RdtClass(l2="100%", memory_bandwidth="100%"), info("L3")) == {"L3": 0x7FF}


def test_a_class_that_sets_nothing_needs_no_group() -> None:
    """It is the default group; from which end it takes nothing is nothing."""
    classes = {"a": RdtClass(l3="30%"), "none": RdtClass(), "top": RdtClass(from_top=True)}
    assert plan(classes, info("L3")) == {"qrm-a": {"L3": 0x7}}


def test_only_classes_that_a_profile_names_count() -> None:
    """The defaults' reclaimed, unless the configuration says otherwise."""
    classes = RdtSection(classes={"half": RdtClass(l3="50%"), "nobodys": RdtClass(l3="1%")}).classes
    assert list(used_classes(classes, {})) == ["reclaimed"]
    assert list(used_classes(classes, {"mine": Profile(rdt="half"), "plain": Profile()})) == ["half", "reclaimed"]
    assert list(used_classes(classes, {"reclaimed_cores": Profile(rdt="")})) == []
    with pytest.raises(NotEnforced, match="'typo'"):
        used_classes(classes, {"mine": Profile(rdt="typo")})


@given(st.integers(1, 32), st.integers(0, 32), st.integers(0, 32), st.integers(0, 32))
def test_groups_are_short_of_closids_when_they_are(closids: int, needed: int, others: int, stale: int) -> None:
    """One is the default group's, others keep theirs, and what is ours and not needed gives it back."""
    wanted = [f"qrm-{each}" for each in range(needed)]
    existing = [*(f"other{each}" for each in range(others)), *(f"qrm-old{each}" for each in range(stale))]
    short = shortage(info("L3", closids=closids), wanted, existing)
    assert (short is None) == (needed == 0 or 1 + others + needed <= closids)
