"""`qrm calibrate-io` with what it cannot use; the guest has disks for it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.conftest import assert_told, invoke
from tests.enforcement.isolation.io_cost.trees import SATA, add_disk, host_in


@pytest.fixture
def config(tmp_path: Path) -> str:
    """A node with a partitioned disk."""
    host = host_in(tmp_path)
    add_disk(host, "sda", "8:0", device=SATA, partitions={"sda1": "8:1"})
    file = tmp_path / "qrm.toml"
    file.write_text(f'[host]\nsysfs = "{host.sysfs}"\n[state]\ndirectory = "{tmp_path}/state"\n')
    return str(file)


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (("sdb",), 1, "there is no block device 'sdb' now"),
        (("/dev/sda1",), 1, "is a partition of sda"),
        (("sda", "--write", "--file", "."), 2, "either --file or --write"),
        (("sda", "--file", "/nowhere"), 2, "/nowhere"),
        (("sda", "--bytes", "much"), 2, "'much' is not a quantity"),
        (("sda", "--bytes", "0"), 2, "less than one byte"),
        (("sda", "--seconds", "1000"), 2, "120"),
        ((), 2, "DEVICE"),
    ],
)
def test_mistakes(config: str, arguments: tuple[str, ...], code: int, said: str) -> None:
    """A mistake is told before anything is measured, with what would be right."""
    assert_told(invoke("calibrate-io", "--config", config, *arguments, columns=200), code, said)
