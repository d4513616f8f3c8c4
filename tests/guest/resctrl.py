"""Make the emulated guest's kernel offer a real resctrl file system: two L3 caches of 20 ways, 4 CLOSIDs.

QEMU emulates no RDT. But there is one processor, Haswell-EP (family 6, model 63), that has cache allocation without
announcing it by CPUID, so that the kernel finds out by trying: it writes 0xfffff to MSR 0xc90, and takes it for granted
if the same can be read back (Linux arch/x86/kernel/cpu/resctrl/core.c, cache_alloc_hsw_probe). The emulator drops the
write and reads 0. So the guest is stopped where the kernel compares what it has read, told what it hoped for, and let
go. From there on all is the kernel's own: info, validation, last_cmd_status, tasks. No cache is partitioned: this shows
what is controlled, not what it does.
"""

from __future__ import annotations

import socket
import struct
import subprocess
import time
from contextlib import closing
from pathlib import Path

from .kernel import GuestError

CPU_MODEL = "Haswell-v4,check=off,model=63,stepping=2,-hypervisor"
"""Which the kernel tries."""
KERNEL_OPTIONS = "nokaslr"
"""The code is where the kernel's image says."""

_COMPARE = bytes.fromhex("483dffff0f00")
"""cmp $0xfffff,%rax"""
_REGISTER = (0xC90).to_bytes(4, "little")
_READ_BACK = 0xFFFFF
_NEAR = 120
"""Bytes of code before the compare in which the register is named."""
_CONNECT_SECONDS = 120
_UNPACK = {b"\x28\xb5\x2f\xfd": ("zstd", "-dcq"), b"\xfd7zXZ\0": ("xz", "-dcq")}
_LOAD = 1
"""PT_LOAD, elf(5)."""


def probe_address(image: Path) -> int:
    """Where the kernel in a bzImage compares what its probe has read: the one place that does this with 0xc90.

    Raises:
        GuestError: the image is not understood, or has no such place, or several.
    """
    code = _unpack(image)
    offset, _, count = struct.unpack_from("<Q14xHH", code, 32)
    found = []
    for header in range(count):
        kind, start, base, _, size = struct.unpack_from("<I4xQQQQ", code, offset + 56 * header)
        if kind == _LOAD:
            found += [base + at - start for at in _compares(code, start, start + size)]
    if len(found) != 1:
        raise GuestError(f"{image} has {len(found)} places that look like the probe of Haswell's cache allocation")
    return int(found[0])


def _compares(code: bytes, start: int, end: int) -> list[int]:
    """The offsets of compares with 0xfffff shortly after a mention of the register."""
    found = []
    at = code.find(_COMPARE, start, end)
    while at >= 0:
        if _REGISTER in code[at - _NEAR : at]:
            found.append(at)
        at = code.find(_COMPARE, at + 1, end)
    return found


def _unpack(image: Path) -> bytes:
    """The ELF file in a bzImage (Linux arch/x86/boot.rst: setup_sects, payload_offset, payload_length)."""
    packed = image.read_bytes()
    sectors = packed[0x1F1] or 4
    offset, length = struct.unpack_from("<II", packed, 0x248)
    begin = (sectors + 1) * 512 + offset
    payload = packed[begin : begin + length - 4]  # the last 4 bytes are the size when unpacked
    unpack = next((command for magic, command in _UNPACK.items() if payload.startswith(magic)), None)
    if unpack is None:
        raise GuestError(f"{image} is packed in a way that is neither zstd nor xz: {payload[:6].hex()}")
    done = subprocess.run(unpack, input=payload, capture_output=True, check=False)
    if not done.stdout.startswith(b"\x7fELF\x02"):
        raise GuestError(f"{image} does not unpack to a kernel of 64 bits: {done.stderr.decode()}")
    return done.stdout


def answer_probe(stub: Path, address: int) -> None:
    """Start a guest that waits stopped behind the GDB `stub`, and answer its probe at `address`.

    Raises:
        GuestError: the emulator has no stub there, or ended.
    """
    with closing(_Stub(stub)) as gdb:
        gdb.ask(b"qSupported")
        gdb.ask(b"Z1,%x,1" % address)  # a hardware breakpoint: the code is not in memory yet
        gdb.ask(b"c")
        gdb.ask(b"z1,%x,1" % address)
        gdb.ask(b"P0=" + _READ_BACK.to_bytes(8, "little").hex().encode())  # register 0 is RAX
        gdb.ask(b"D")  # detach: the guest runs on


class _Stub:
    """The little of GDB's remote serial protocol that this needs: a packet is $TEXT#SUM, acknowledged by +."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._buffer = b""
        self._socket = socket.socket(socket.AF_UNIX)
        give_up = time.monotonic() + _CONNECT_SECONDS
        while True:
            try:
                self._socket.connect(str(path))
                break
            except OSError as error:
                if time.monotonic() > give_up:
                    self._socket.close()
                    raise GuestError(f"the emulator offers no GDB stub at {path}: {error}") from None
                time.sleep(0.05)

    def ask(self, packet: bytes) -> bytes:
        try:
            self._socket.sendall(b"$%b#%02x" % (packet, sum(packet) & 255))
            while (end := self._buffer.find(b"#")) < 0 or len(self._buffer) < end + 3:
                more = self._socket.recv(65536)
                if not more:
                    raise ConnectionResetError
                self._buffer += more
            answer = self._buffer[self._buffer.index(b"$") + 1 : end]
            self._buffer = self._buffer[end + 3 :]
            self._socket.sendall(b"+")
        except ConnectionError:  # it may be gone at any of these steps
            raise GuestError(f"the emulator ended before the guest's kernel came to its probe ({self._path})") from None
        return answer

    def close(self) -> None:
        self._socket.close()
