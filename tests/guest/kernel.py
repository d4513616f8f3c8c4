"""Provide what a guest boots with: the emulator, Debian's kernel package and a few small tools.

Everything comes from Debian 12 and its backports. The backports entry is derived from the machine's
own package sources, so that a mirror stays a mirror and no host is named here.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

RELEASE = "bookworm"
BACKPORTS = f"{RELEASE}-backports"
BACKPORTS_ENTRY = Path("/etc/apt/sources.list.d/qrm-backports.sources")
ARCHIVE_KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")  # debian-archive-keyring

QEMU = "qemu-system-x86_64"
# Before QEMU 10, multi-threaded emulation corrupts code that the guest's kernel patches at run time.
QEMU_OLDEST = 10
TOOLS = ("busybox-static", "cpio", "kmod", "xz-utils", "zstd")

# Not the cloud flavour: it has no 9p. The preferred version is the one this harness was tried with.
KERNEL_PREFERRED = "linux-image-6.12.95+deb12-amd64"
KERNEL_PATTERN = re.compile(r"linux-image-6\.12\.(\d+)\+deb12-amd64")

DEFAULT_CACHE = Path("/var/cache/qrm-guest")
CACHE_VARIABLE = "QRM_GUEST_CACHE"

_APT = ("apt-get", "-q", "-y", "-o", "DPkg::Lock::Timeout=600")


class GuestError(RuntimeError):
    """The guest could not be prepared, did not boot, or did not finish; the message says what to do."""


@dataclass(frozen=True)
class Kernel:
    """An unpacked kernel package whose module dependencies have been computed."""

    release: str
    root: Path

    @property
    def image(self) -> Path:
        """The bootable kernel."""
        return self.root / "boot" / f"vmlinuz-{self.release}"

    @property
    def modules(self) -> Path:
        """The folder that the guest sees as /lib/modules/<release>."""
        return self.root / "lib" / "modules" / self.release

    def module_files(self, *names: str) -> list[Path]:
        """The files to load for these modules, dependencies first; built-in modules have none."""
        lines = _command(
            *("modprobe", "--dirname", str(self.root), "--set-version", self.release),
            *("--config", "/dev/null", "--show-depends", "--all", *names),
        ).splitlines()
        files = [Path(line.split()[1]) for line in lines if line.startswith("insmod ")]
        return list(dict.fromkeys(files))


def default_cache() -> Path:
    """The folder for unpacked kernels: $QRM_GUEST_CACHE, or /var/cache/qrm-guest."""
    return Path(os.environ.get(CACHE_VARIABLE, DEFAULT_CACHE))


def prepare(cache: Path) -> Kernel:
    """Install the emulator and the tools where missing, and return a kernel unpacked below `cache`.

    Needs root on Debian 12, and the network the first time. A call that finds everything in place asks
    no package source and takes a fraction of a second. Callers in parallel wait for each other.
    """
    _check_machine()
    cache = cache.resolve()
    cache.mkdir(parents=True, exist_ok=True)
    with _locked(cache / "lock"):
        found = _unpacked(cache)
        if found and _qemu_is_new() and not _missing_tools():
            return found
        _enable_backports()
        if tools := _missing_tools():
            _install(tools)
        if not _qemu_is_new():
            _install(["qemu-system-x86"], "-t", BACKPORTS)
        return found or _download(cache)


def _check_machine() -> None:
    if os.geteuid() != 0:
        raise GuestError("the guest needs root, to install packages and to share the host's folders")
    os_release = Path("/etc/os-release").read_text()
    if f"VERSION_CODENAME={RELEASE}\n" not in os_release:
        raise GuestError(f"the guest is prepared on Debian 12 ({RELEASE}) only; deselect with: -m 'not guest'")


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _command(*command: str, cwd: Path | None = None) -> str:
    """Run a command without questions and return its output; GuestError holds its last lines if it fails."""
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive", "LC_ALL": "C"}
    done = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise GuestError(f"{' '.join(command)}: exit {done.returncode}\n{(done.stdout + done.stderr)[-2000:]}")
    return done.stdout


def _qemu_is_new() -> bool:
    if shutil.which(QEMU) is None:
        return False
    version = re.search(r"version (\d+)\.", _command(QEMU, "--version"))
    return version is not None and int(version[1]) >= QEMU_OLDEST


def _missing_tools() -> list[str]:
    status = ("dpkg-query", "--show", "--showformat", "${Package} ${db:Status-Status}\n", *TOOLS)
    listed = subprocess.run(status, capture_output=True, text=True, check=False).stdout.splitlines()
    return [tool for tool in TOOLS if f"{tool} installed" not in listed]


def _install(packages: Sequence[str], *options: str) -> None:
    _command(*_APT, "install", "--no-install-recommends", *options, *packages)


def _enable_backports() -> None:
    """Let apt see the backports: by an entry of our own beside the machine's, unless those have it already.

    apt itself lists the sources, whichever of its two file formats they are written in; but only those that
    it has fetched, hence the first update.
    """
    _command(*_APT, "update")
    sources = _debian_sources()
    if BACKPORTS in sources:
        return
    if RELEASE not in sources:
        raise GuestError(f"apt has no source of {RELEASE}/main: add one to /etc/apt/sources.list")
    entry = f"Types: deb\nURIs: {sources[RELEASE]}\nSuites: {BACKPORTS}\nComponents: main\n"
    if ARCHIVE_KEYRING.exists():
        entry += f"Signed-By: {ARCHIVE_KEYRING}\n"
    BACKPORTS_ENTRY.write_text(f"# For the test guest: QEMU and a kernel.\n{entry}")
    try:
        _command(*_APT, "update")
    except GuestError:
        BACKPORTS_ENTRY.unlink()  # else it would break every later update of this machine
        raise


def _debian_sources() -> dict[str, str]:
    """The URI of each suite of Debian whose main component apt has fetched, by code name."""
    line = "$(LABEL)/$(COMPONENT) $(CODENAME) $(REPO_URI)"
    targets = _command("apt-get", "indextargets", "--format", line, "Created-By: Packages")
    suites: dict[str, str] = {}
    for label, codename, uri in (target.rsplit(maxsplit=2) for target in targets.splitlines()):
        if label in ("Debian/main", "Debian Backports/main"):
            suites.setdefault(codename, uri)
    return suites


def _newest_first(packages: Sequence[str]) -> list[str]:
    """The usable kernel packages among these names: the preferred one first, then the newest."""
    patches = {name: int(match[1]) for name in packages if (match := KERNEL_PATTERN.fullmatch(name))}
    return sorted(patches, key=lambda name: (name == KERNEL_PREFERRED, patches[name]), reverse=True)


def _unpacked(cache: Path) -> Kernel | None:
    for package in _newest_first([entry.name for entry in cache.iterdir()]):
        return Kernel(package.removeprefix("linux-image-"), cache / package)
    return None


def _download(cache: Path) -> Kernel:
    """Unpack the best available kernel package, not install it; it appears in the cache only when complete."""
    matches = _command("apt-cache", "search", "--names-only", r"^linux-image-6\.12\.").splitlines()
    offered = _newest_first([match.split()[0] for match in matches])
    if not offered:
        raise GuestError(f"no linux-image-6.12.*-amd64 in {BACKPORTS}; see: apt-cache policy linux-image-amd64")
    package = offered[0]
    with tempfile.TemporaryDirectory(prefix="unpacking-", dir=cache) as folder:
        work = Path(folder)
        _command(*_APT, "download", package, cwd=work)
        (archive,) = work.glob("*.deb")
        kernel = Kernel(package.removeprefix("linux-image-"), work / "root")
        _command("dpkg", "-x", str(archive), str(kernel.root))
        _command("depmod", "--basedir", str(kernel.root), kernel.release)
        kernel.root.rename(cache / package)
    return Kernel(kernel.release, cache / package)
