"""What classes come to on this node: masks of ways, bandwidth, and whether there are CLOSIDs enough. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from qrm.config import Profile, RdtClass
from qrm.enforcement.isolation.dimension import NotEnforced
from qrm.enforcement.isolation.profile import profile_for
from qrm.enforcement.isolation.rdt.info import BandwidthInfo, CacheInfo, RdtInfo
from qrm.enforcement.isolation.rdt.schemata import BANDWIDTH
from qrm.pods.model import QosLevel

ALL = ("", "100%")
PREFIX = "qrm-"
"""Of the names of all groups that are ours."""


def class_schemata(name: str, wanted: RdtClass, info: RdtInfo) -> dict[str, int]:
    """The value of each resource that the class `name` is to have in every domain; what it leaves open it has whole.

    Raises:
        NotEnforced: this node cannot give it; with the class, the key, the value and what it can.
    """
    where = f"rdt.classes.{name}"
    values: dict[str, int] = {}
    for level in ("L3", "L2"):
        for resource, (key, ways) in _ways(where, level, wanted, info).items():
            try:
                values[resource] = cache_mask(ways, info.caches[resource], from_top=wanted.from_top)
            except NotEnforced as error:
                raise NotEnforced(f"{where}.{key} = {ways!r}: {error.message}", hint=error.hint) from None
    amount = wanted.memory_bandwidth
    if info.bandwidth is not None:
        try:
            values[BANDWIDTH] = bandwidth(amount, info.bandwidth)
        except NotEnforced as error:
            raise NotEnforced(f"{where}.memory_bandwidth = {amount!r}: {error.message}", hint=error.hint) from None
    elif amount not in ALL:
        raise _missing(f"{where}.memory_bandwidth", amount, f"{info.root}/info has no {BANDWIDTH}")
    return values


def _ways(where: str, level: str, wanted: RdtClass, info: RdtInfo) -> dict[str, tuple[str, str]]:
    """The key and the value in the configuration for each resource of a cache level that this node has."""
    plain, code, data = (f"{level.lower()}{end}" for end in ("", "_code", "_data"))
    asked = {key: str(getattr(wanted, key)) for key in (plain, code, data)}
    if level in info.caches:
        for key in (code, data):
            if asked[key]:
                raise _missing(f"{where}.{key}", asked[key], f"resctrl is mounted without {_CDP[level]}")
        return {level: (plain, asked[plain])}
    found = {}
    for key, resource in ((code, f"{level}CODE"), (data, f"{level}DATA")):
        if resource in info.caches:
            chosen = key if asked[key] else plain
            found[resource] = (chosen, asked[chosen])
    if not found:
        for key, ways in asked.items():
            if ways not in ALL:
                raise _missing(f"{where}.{key}", ways, f"{info.root}/info has no {level}")
    return found


_CDP = {"L3": "cdp", "L2": "cdpl2"}
"""The mount options that divide a cache into code and data."""


def _missing(field: str, value: str, why: str) -> NotEnforced:
    return NotEnforced(f"{field} = {value!r}: {why}", hint="leave it out on this node")


def cache_mask(ways: str, cache: CacheInfo, *, from_top: bool) -> int:
    """The mask of a share such as "30%", or of a mask such as "0x3f"; of "" it is the whole cache.

    A share is rounded down to whole ways, but has as many as a mask needs.

    Raises:
        NotEnforced: the hardware would refuse the mask.
    """
    if ways in ALL:
        return cache.full
    if ways.endswith("%"):
        bits = max(cache.ways * int(ways.removesuffix("%")) // 100, cache.min_bits)
        mask = (1 << bits) - 1
        return mask << (cache.ways - bits) if from_top else mask
    mask = int(ways, 16)
    if mask & ~cache.full:
        raise NotEnforced(f"the cache has {cache.ways} ways", hint=f"stay within {cache.full:#x}")
    if mask.bit_count() < cache.min_bits or not mask:
        raise NotEnforced(f"a mask must have {max(cache.min_bits, 1)} bits", hint="add some")
    run = mask // (mask & -mask)
    if run & (run + 1) and not cache.sparse:
        raise NotEnforced("this processor takes no mask with gaps", hint="choose bits that lie side by side")
    return mask


def bandwidth(amount: str, info: BandwidthInfo) -> int:
    """The value of a share such as "40%", or of a number in the platform's unit; of "" it is no limit.

    A share is of the scale's end: on Intel of the memory's bandwidth; on AMD of 256 GB/s, since nobody tells what the
    memory gives. It is raised to the smallest value there is; every value is rounded up as the kernel does.

    Raises:
        NotEnforced: the number is out of range, or it is a share where there is nothing to take it of.
    """
    if amount in ALL:
        return info.full
    if amount.endswith("%"):
        if info.unit == "MiB/s":
            raise NotEnforced("with mba_MBps there is nothing to take a share of", hint="write MiB/s")
        value = max(info.full * int(amount.removesuffix("%")) // 100, info.low, 1)
    else:
        value = int(amount)
        if not max(info.low, 1) <= value <= info.full:
            allowed = f"{max(info.low, 1)} to {info.full}"
            raise NotEnforced(f"out of range in {info.unit}", hint=f"{allowed}, or a share such as 40%")
    return min(-(-value // info.step) * info.step, info.full)


def used_classes(classes: Mapping[str, RdtClass], profiles: Mapping[str, Profile]) -> dict[str, RdtClass]:
    """Those of `classes` that a profile names: one that nobody can be in needs no CLOSID.

    Raises:
        NotEnforced: a profile names one that there is not.
    """
    named = {profile_for(level, "", profiles).rdt for level in QosLevel} | {each.rdt for each in profiles.values()}
    names = sorted(name for name in named if isinstance(name, str) and name)
    if missing := [name for name in names if name not in classes]:
        raise NotEnforced(f"no class of [rdt.classes] is called {missing[0]!r}")
    return {name: classes[name] for name in names}


def plan(classes: Mapping[str, RdtClass], info: RdtInfo) -> dict[str, dict[str, int]]:
    """The schemata of each class that needs a group, by the group's name. Raises NotEnforced as `class_schemata`."""
    nothing = RdtClass()
    plain = {name: wanted for name, wanted in classes.items() if _without_direction(wanted) != nothing}
    return {f"{PREFIX}{name}": class_schemata(name, wanted, info) for name, wanted in plain.items()}


def _without_direction(wanted: RdtClass) -> RdtClass:
    return RdtClass(
        **{key: getattr(wanted, key) for key in wanted.__struct_fields__ if key != "from_top"}, from_top=False
    )


def shortage(info: RdtInfo, needed: Collection[str], existing: Collection[str]) -> NotEnforced | None:
    """The error that says that there are not enough CLOSIDs for the groups `needed`; None where there are.

    `existing` are all control groups but the default one; those of ours that are not needed give theirs back.
    """
    others = sorted(name for name in existing if not name.startswith(PREFIX))
    free = max(info.closids - 1 - len(others), 0)
    if len(needed) <= free:
        return None
    taken = f", {len(others)} of other groups ({', '.join(others)})" if others else ""
    names = ", ".join(sorted(name.removeprefix(PREFIX) for name in needed))
    return NotEnforced(
        f"[rdt.classes] needs {len(needed)} CLOSIDs ({names}), {free} are free:"
        f" the hardware has {info.closids}, 1 is the default group's{taken}",
        hint=WAY_OUT,
    )


WAY_OUT = "configure fewer classes, let several profiles name the same class, or remove groups nobody needs"
