"""What is checked before the first pod: classes of traffic that profiles name, and disks that they limit."""

from __future__ import annotations

from pathlib import Path

import pytest

from qrm.config import Config, parse
from qrm.enforcement.isolation.io_cost.disks import Host
from qrm.errors import ConfigError
from qrm.service import isolation
from qrm.service.isolation import check_classes, disk_number
from tests.support import under_test

OWN = '[network.classes.bulk]\nguaranteed = "50%"\n'


def test_the_defaults_fit_together() -> None:
    """Every level's profile names a class that is there."""
    check_classes(Config())


def test_a_class_that_a_level_needs_is_missed() -> None:
    """Whoever writes classes of his own is told which profile still names another."""
    with pytest.raises(
        ConfigError, match=r"network.classes: dedicated is missing, which the profile dedicated_cores names"
    ):
        check_classes(parse(OWN))


def test_profiles_may_name_others() -> None:
    """Or none; and without network isolation nobody asks."""
    levels = ("dedicated", "shared", "reclaimed", "system")
    check_classes(parse(OWN + "".join(f'[profiles.{level}_cores]\nnetwork = "bulk"\n' for level in levels)))
    check_classes(parse(OWN + '[isolation]\nnetwork = "off"\n'))


async def test_a_profile_that_limits_no_disk_is_refused_at_the_start(tmp_path: Path) -> None:
    """By the field's value, and before a socket is there."""
    more = '[profiles.slow.io_max."no/disk"]\nwbps = 9\n'
    with pytest.raises(ConfigError, match="no/disk"):
        async with under_test(tmp_path, more=more):
            raise AssertionError("it has started")


def test_a_disk_that_is_not_there_is_nobodys_mistake(tmp_path: Path) -> None:
    """It may be plugged in later."""
    (tmp_path / "class/block").mkdir(parents=True)
    number = disk_number(parse(f'[host]\nsysfs = "{tmp_path}"\n'))
    assert number("/dev/sdx") is None


def test_a_disk_is_looked_for_once_in_a_round(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All containers of a node ask for the same ones; one that comes or goes is seen in the next round."""
    asked: list[str] = []

    def resolve(device: str, _host: Host) -> str:
        asked.append(device)
        return "8:0"

    monkeypatch.setattr(isolation, "resolve", resolve)
    number = disk_number(parse(f'[host]\nsysfs = "{tmp_path}"\n'))
    assert [number(device) for device in ("sda", "sda", "sdb", "sda")] == ["8:0"] * 4
    assert asked == ["sda", "sdb"]
    monkeypatch.setattr(isolation, "_FRESH", 0.0)
    assert number("sda") == "8:0"
    assert asked == ["sda", "sdb", "sda"]
