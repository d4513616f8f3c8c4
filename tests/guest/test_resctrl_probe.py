"""The place at which the kernel's probe is answered is found in any kernel, or it is said that it was not."""

from __future__ import annotations

import socket
import threading
from pathlib import Path

import pytest

from .kernel import GuestError, default_cache, prepare
from .resctrl import answer_probe, probe_address

pytestmark = pytest.mark.guest


def test_the_place_is_in_the_kernels_init_code() -> None:
    """The address is one of the kernel's own (Linux Documentation/arch/x86/x86_64/mm.rst)."""
    assert probe_address(prepare(default_cache()).image) >> 31 == 0x1FFFFFFFF


@pytest.mark.parametrize(
    ("payload", "message"),
    [(b"\x1f\x8b something in gzip", "neither zstd nor xz"), (b"\x28\xb5\x2f\xfd garbage", "does not unpack")],
)
def test_another_image_is_refused(tmp_path: Path, payload: bytes, message: str) -> None:
    """What cannot be unpacked is named."""
    image = bytearray(0x400)
    image[0x1F1] = 1
    image[0x248:0x250] = (0).to_bytes(4, "little") + (len(payload) + 4).to_bytes(4, "little")
    (tmp_path / "vmlinuz").write_bytes(bytes(image) + payload + b"size")
    with pytest.raises(GuestError, match=message):
        probe_address(tmp_path / "vmlinuz")


def test_an_emulator_that_ends_is_an_error(tmp_path: Path) -> None:
    """Nobody waits for an answer that will not come."""
    path = tmp_path / "gdb"
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))
        server.listen()
        ends = threading.Thread(target=lambda: server.accept()[0].close())
        ends.start()
        with pytest.raises(GuestError, match="ended before"):
            answer_probe(path, 0x1000)
        ends.join()
