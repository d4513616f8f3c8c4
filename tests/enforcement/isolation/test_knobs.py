"""Profiles and the files that they come to: nothing that the kernel would refuse, and nothing that nobody asked for."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import UNSET

from qrm.config import IoLimits, Profile
from qrm.enforcement.isolation.knobs import FILES, PAGE, Amounts, knobs, same
from qrm.enforcement.isolation.legacy import translated
from qrm.enforcement.isolation.profile import DEFAULTS, profile_for
from qrm.errors import BadRequest
from qrm.pods.model import CpuEnhancement, Qos, QosLevel

ALL = frozenset(FILES)
DISKS = {"/dev/sda": "8:0", "/dev/nvme0n1": "259:1"}
MIB = 1 << 20

profiles = st.builds(
    Profile,
    cpu_weight=st.integers(0, 10_000),
    cpu_idle=st.booleans(),
    cpu_burst_percent=st.integers(0, 100),
    memory_high=st.sampled_from(["", "50%", "150%", "2Gi", "5000"]),
    memory_low=st.sampled_from(["", "1%", "10M"]),
    memory_min=st.sampled_from(["", "100%"]),
    io_weight=st.integers(0, 10_000),
    io_max=st.dictionaries(
        st.sampled_from([*DISKS, "/dev/gone"]), st.builds(IoLimits, st.integers(2, 1 << 40) | st.just(0)), max_size=3
    ),
)
amounts = st.builds(Amounts, st.integers(-1, 10_000_000), st.integers(0, 1 << 44))


HAS = Amounts(100_000, 64 * MIB)


def of(profile: Profile, has: Amounts = HAS) -> dict[str, str]:
    return dict(knobs(profile, Qos(), has, ALL, DISKS.get).files)


@given(profiles, amounts, st.frozensets(st.sampled_from(sorted(FILES))))
def test_what_the_kernel_would_refuse_is_never_there(profile: Profile, has: Amounts, able: frozenset[str]) -> None:
    """No weight beside an idle of 1, no burst beyond the quota, whole pages, known disks, and only files that exist."""
    made = knobs(profile, Qos(), has, able, DISKS.get)
    assert made.files.keys() <= able
    assert "cpu.weight" not in made.files or made.files.get("cpu.idle", "0") == "0"
    assert 0 <= int(made.files.get("cpu.max.burst", "0")) <= max(has.quota, 0)
    for name in ("memory.high", "memory.low", "memory.min"):
        assert int(made.files.get(name, "0")) % PAGE == 0
    assert {line.split()[0] for line in made.files.get("io.max", "").splitlines()} <= set(DISKS.values())
    assert not made.files.keys() & made.missing.keys()


@given(profiles, amounts)
def test_all_that_a_profile_says_is_either_there_or_said_to_be_missing(profile: Profile, has: Amounts) -> None:
    """Nothing is dropped in silence."""
    made = knobs(profile, Qos(), has, ALL, DISKS.get)
    told = made.files.keys() | {name.split()[0] for name in made.missing}
    assert bool(profile.memory_high) == ("memory.high" in told)
    assert bool(profile.io_weight) == ("io.weight" in told)
    assert bool(profile.cpu_idle) == (made.files.get("cpu.idle") == "1")
    limits = profile.io_max if isinstance(profile.io_max, dict) else {}
    assert ("io.max /dev/gone" in made.missing) == ("/dev/gone" in limits)


@pytest.mark.parametrize(
    ("policy", "percent", "burst"),
    [(None, None, "20000"), ("closed", 50, None), ("static", 50, "50000"), ("default", 50, "20000")],
)
def test_katalysts_burst_annotation_is_over_the_profile(
    policy: str | None, percent: int | None, burst: str | None
) -> None:
    """`closed` takes it away, `static` brings its own percentage, the others leave it to the node."""
    qos = Qos(cpu=CpuEnhancement(cpu_burst_policy=policy, cpu_burst_percent=percent))
    made = knobs(Profile(cpu_burst_percent=20), qos, Amounts(100_000, 0), ALL, DISKS.get)
    assert made.files.get("cpu.max.burst") == burst


def test_a_pods_own_limits_are_over_the_profiles() -> None:
    """By device; a limit of nothing is no line."""
    profile = Profile(io_max={"/dev/sda": IoLimits(wbps=5), "/dev/nvme0n1": IoLimits(riops=7)})
    qos = Qos(io_max={"/dev/sda": IoLimits(wbps=9), "/dev/nvme0n1": IoLimits()})
    made = knobs(profile, qos, Amounts(0, 0), ALL, DISKS.get)
    assert made.files == {"io.max": "8:0 rbps=max wbps=9 riops=max wiops=max"}


def test_a_disk_has_one_line_whatever_it_is_called() -> None:
    """Of two lines the kernel would keep the last, and the other would be written again in each round."""
    profile = Profile(io_max={"/dev/sda": IoLimits(wbps=5)})
    made = knobs(profile, Qos(io_max={"8:0": IoLimits(wbps=9)}), Amounts(0, 0), ALL, {**DISKS, "8:0": "8:0"}.get)
    assert made.files == {"io.max": "8:0 rbps=max wbps=9 riops=max wiops=max"}
    twice = Qos(io_max={"8:0": IoLimits(wbps=9), "/dev/sda": IoLimits(wbps=7)})
    made = knobs(Profile(), twice, Amounts(0, 0), ALL, {**DISKS, "8:0": "8:0"}.get)
    assert made.files == {"io.max": "8:0 rbps=max wbps=7 riops=max wiops=max"}
    assert made.missing == {"io.max 8:0": "the disk 8:0 is named twice"}


def test_a_file_with_lines_for_others_agrees() -> None:
    """io.weight and io.max have a line for each device; those that are not ours are nobody's drift."""
    assert same("io.weight", "default 10", "default 10\n8:16 200\n")
    assert not same("io.weight", "default 10", "default 100\n8:16 10\n")
    assert same("io.max", "8:0 rbps=max wbps=9", "8:16 rbps=1 wbps=1\n8:0 rbps=max wbps=9 \n")
    assert same("blkio.throttle.read_bps_device", "8:0 5\n8:16 7", "8:16 7\n8:0 5\n8:32 9\n")
    assert same("cpu.idle", "1", "1\n")
    assert not same("memory.high", "4096", "max\n")


def test_every_default_is_complete() -> None:
    """What nobody configures has a value for each key, and only lent CPU makes a cgroup's files differ."""
    for level, profile in DEFAULTS.items():
        assert all(getattr(profile, name) is not UNSET for name in Profile.__struct_fields__)
        assert bool(of(profile)) == (level is QosLevel.RECLAIMED)


def test_a_profile_lies_over_its_level() -> None:
    """Configured keys over qrm's own, a named profile over both."""
    configured = {"reclaimed_cores": Profile(io_weight=20, rdt=""), "fast": Profile(io_weight=500)}
    plain = profile_for(QosLevel.RECLAIMED, "", configured)
    assert (plain.io_weight, plain.rdt, plain.cpu_idle, plain.network) == (20, "", True, "reclaimed")
    named = profile_for(QosLevel.RECLAIMED, "fast", configured)
    assert (named.io_weight, named.cpu_idle) == (500, True)
    assert profile_for(QosLevel.SHARED, "fast", configured).cpu_idle is False
    assert profile_for(QosLevel.SHARED, "shared_cores", {}) == DEFAULTS[QosLevel.SHARED]


@pytest.mark.parametrize("named", ["slow", "reclaimed_cores"])
def test_a_pod_cannot_name_what_is_not_for_it(named: str) -> None:
    """Neither a profile that does not exist nor another level's."""
    with pytest.raises(BadRequest, match=r"qrm.io/profile is .*, allowed: fast"):
        profile_for(QosLevel.SHARED, named, {"fast": Profile()})


@given(profiles, amounts)
def test_on_v1_every_value_has_a_place_or_none_exists(profile: Profile, has: Amounts) -> None:
    """Weights are within v1's scales, and limits have a file for each direction."""
    files = of(profile, has)
    told = translated(files)
    assert {controller for controller, _ in told} <= {"cpu", "blkio"}
    if "io.weight" in files:
        assert 1 <= int(told["blkio", "blkio.bfq.weight"]) <= 1000
    if "cpu.weight" in files:
        assert 2 <= int(told["cpu", "cpu.shares"]) <= 102_400
    lines = [line for (_, name), value in told.items() if "throttle" in name for line in value.splitlines()]
    wanted = [
        key for line in files.get("io.max", "").splitlines() for key in line.split()[1:] if not key.endswith("max")
    ]
    assert len(lines) == len(wanted)
