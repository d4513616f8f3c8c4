"""Run a script in a guest with two sockets and two NUMA nodes, as root, under a real kernel.

    kernel = prepare(default_cache())
    result = run(kernel, Path("tests/guest/some.sh"), timeout=300)

The guest is emulated, so it needs no KVM; it is slow, and its clock may not be used to judge speed, unless it is
`counted`. It sees the host's folders read-only and keeps what it writes elsewhere in memory. `init.sh` and
`session.sh` are its first process.
"""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
import tempfile
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from . import resctrl as probe
from .kernel import QEMU, GuestError, Kernel, default_cache, prepare

__all__ = ["CHECKOUT", "GuestError", "GuestResult", "Kernel", "default_cache", "prepare", "run"]

CHECKOUT = Path(__file__).resolve().parents[2]
MARKER = "QRM_GUEST_EXIT"

_HERE = Path(__file__).resolve().parent
_BUSYBOX = Path("/bin/busybox")
_SYSTEM_FOLDERS = (Path("/usr"), Path("/opt"), Path("/home"), Path("/root"))
_GUEST_OWN = [Path("/", name) for name in ("mnt", "run", "tmp", "var")]  # init.sh makes these
_ROOT_MODULES = ("9p", "9pnet_virtio")
# Boots two seconds sooner than "max". It has features that QEMU does not emulate: check=off drops them quietly.
_CPU_MODEL = "Haswell-v4,check=off"
# A guest that stops by itself after a panic; and that trusts its clock also when the host is busy.
_KERNEL_OPTIONS = "console=ttyS0 quiet panic=-1 tsc=reliable"
# Distances as on a two-socket server: 10 within a node, 21 between nodes.
_NODE_DISTANCE = 21
_TAIL = 4000


@dataclass(frozen=True)
class GuestResult:
    """The exit code of the script, and all that it and the kernel wrote to the console."""

    exit_code: int
    console: str


def run(
    kernel: Kernel,
    script: Path,
    *,
    mounts: Sequence[Path] = (),
    cpus: int = 8,
    memory_per_node: str = "2G",
    resctrl: bool = False,
    counted: bool = False,
    timeout: float,
) -> GuestResult:
    """Boot a guest, run `script` in it as root from the root of the checkout, and power it off.

    A script without a #! line is run by bash; it is copied, so it may lie anywhere. Its `python` is the one
    that runs this, virtual environment included. Of the host it sees /etc (a copy) and, read-only, the
    top-level folders that hold the system, the checkout, that Python and each folder in `mounts`; of /mnt,
    /run, /tmp and /var, which are the guest's own, only the folder itself. The console is printed as it comes.

    Each node has half of the `cpus` and `memory_per_node` (a number with M or G), and where `resctrl` is asked for, a
    cache whose ways the kernel believes it can allocate. With `counted`, the guest's time is that of its instructions,
    one each nanosecond on all CPUs together, and goes on at once where none has anything to do: rates that are measured
    by its clock are the same however busy the host is. GuestError says that the guest did not end by itself within
    `timeout` seconds (it is then killed) or did not get to the script's end; a script that fails is no error here.
    """
    with tempfile.TemporaryDirectory(prefix="qrm-guest-") as folder:
        initrd = _build_initrd(Path(folder), kernel, script, _shared_folders(mounts))
        stub = Path(folder, "gdb") if resctrl else None
        command = _qemu_command(kernel, initrd, cpus, memory_per_node, stub, counted=counted)
        address = probe.probe_address(kernel.image) if resctrl else 0
        console = _console_of(command, timeout, stub, address)
    found = list(re.finditer(rf"^{MARKER} (\d+)$", console, re.MULTILINE))
    if not found:
        raise GuestError(f"the guest stopped before the script's end; its console ends with:\n{console[-_TAIL:]}")
    return GuestResult(int(found[-1][1]), console[: found[-1].start()].removesuffix("\n"))


def _shared_folders(mounts: Sequence[Path]) -> list[Path]:
    """The host's folders to show in the guest at the same place: top-level ones where that can be."""
    shown = {folder for folder in _SYSTEM_FOLDERS if folder.is_dir()}
    for path in (CHECKOUT, Path(sys.prefix), Path(sys.base_prefix), *mounts):
        real = path.resolve()
        top = Path(*real.parts[:2])
        shown.add(real if top in _GUEST_OWN else top)
    return sorted(folder for folder in shown if shown.isdisjoint(folder.parents))


def _build_initrd(work: Path, kernel: Kernel, script: Path, shared: Sequence[Path]) -> Path:
    """Pack what the guest needs before it sees the host's folders, and what it is to do then."""
    tree = work / "tree"
    for name in ("bin", "dev", "guest", "host", "modules", "newroot", "proc"):
        (tree / name).mkdir(parents=True)
    executables = {_BUSYBOX: "bin/busybox", _HERE / "init.sh": "init", _HERE / "session.sh": "guest/session.sh"}
    for source, target in (executables | {script: "guest/script"}).items():
        (tree / target).write_bytes(source.read_bytes())
        (tree / target).chmod(0o755)
    settings = {"MODULES": str(kernel.modules), "CHECKOUT": str(CHECKOUT), "MARKER": MARKER}
    settings["PYTHON_BIN"] = str(Path(sys.prefix, "bin").resolve())
    lines = [f"{name}={shlex.quote(value)}\n" for name, value in settings.items()]
    (tree / "guest" / "settings").write_text("".join(lines))
    (tree / "guest" / "shared").write_text("".join(f"{folder}\n" for folder in shared))
    # Copying /etc file by file in the guest would take longer than all else in init.sh.
    _write_output(tree / "etc.tar", "tar", "--create", "--directory=/", "etc")
    for position, module in enumerate(kernel.module_files(*_ROOT_MODULES)):
        # busybox's insmod reads no compressed modules
        unpack = ("xz", "--decompress", "--stdout") if module.suffix == ".xz" else ("cat",)
        _write_output(tree / "modules" / f"{position}-{module.name.removesuffix('.xz')}", *unpack, str(module))
    names = "\n".join(str(path.relative_to(tree)) for path in sorted(tree.rglob("*")))
    initrd = work / "initrd"
    _write_output(initrd, "cpio", "--create", "--format=newc", "--quiet", "--directory", str(tree), stdin=names)
    return initrd


def _write_output(target: Path, *command: str, stdin: str = "") -> None:
    with target.open("wb") as output:
        subprocess.run(command, input=stdin.encode(), stdout=output, check=True)


def _qemu_command(
    kernel: Kernel, initrd: Path, cpus: int, memory_per_node: str, stub: Path | None, *, counted: bool
) -> list[str]:
    """An emulated machine that ends when the guest powers off or panics, or when this process dies.

    With `stub`, it waits stopped until GDB's protocol is spoken there.
    """
    amount = re.fullmatch(r"(\d+)([MG])", memory_per_node)
    if amount is None or cpus < 2 or cpus % 2:
        raise GuestError(f"two equal nodes cannot be made of {cpus} CPUs and {memory_per_node} of memory each")
    half = cpus // 2
    command = ["setpriv", "--pdeathsig", "KILL", QEMU, "-nodefaults", "-no-user-config", "-display", "none"]
    command += (
        ["-accel", "tcg,thread=single", "-icount", "shift=0,sleep=off"] if counted else ["-accel", "tcg,thread=multi"]
    )
    command += ["-cpu", probe.CPU_MODEL if stub else _CPU_MODEL, "-smp", f"{cpus},sockets=2,cores={half}"]
    command += ["-m", f"{2 * int(amount[1])}{amount[2]}"]
    for node in (0, 1):
        command += ["-object", f"memory-backend-ram,id=memory{node},size={memory_per_node}"]
        command += ["-numa", f"node,nodeid={node},cpus={node * half}-{node * half + half - 1},memdev=memory{node}"]
    command += ["-numa", f"dist,src=0,dst=1,val={_NODE_DISTANCE}"]
    command += ["-virtfs", "local,path=/,mount_tag=host,security_model=none,readonly=on,multidevs=remap"]
    command += ["-kernel", str(kernel.image), "-initrd", str(initrd), "-no-reboot", "-serial", "stdio"]
    if stub is None:
        return [*command, "-append", _KERNEL_OPTIONS]
    command += ["-append", f"{_KERNEL_OPTIONS} {probe.KERNEL_OPTIONS}"]
    return [*command, "-S", "-gdb", f"unix:{stub},server=on,wait=off"]


def _console_of(command: Sequence[str], timeout: float, stub: Path | None, address: int) -> str:
    """Run the emulator, print its console as it comes, and return all of it.

    With `stub`, the kernel's probe at `address` is answered first.
    """
    expired = threading.Event()
    lines: list[str] = []
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as qemu:
        assert qemu.stdout is not None

        def expire() -> None:
            expired.set()
            qemu.kill()

        timer = threading.Timer(timeout, expire)
        timer.start()
        try:
            if stub is not None:
                probe.answer_probe(stub, address)
            for raw in qemu.stdout:
                line = raw.decode(errors="replace").replace("\r", "")
                print(line, end="", flush=True)
                lines.append(line)
        finally:
            timer.cancel()
            qemu.kill()
    console = "".join(lines)
    if expired.is_set():
        raise GuestError(f"the guest did not end within {timeout:.0f} s; its console ends with:\n{console[-_TAIL:]}")
    return console
