"""The one image of demo and tests: static busybox as an OCI layout tar, made without a registry and without tools.

It serves as pause image and as workload: by itself it sleeps until SIGTERM and then exits with code 0.
"""

from __future__ import annotations

import hashlib
import io
import json
import platform
import struct
import tarfile
from pathlib import Path

from qrm.errors import QrmError

IMAGE = "localhost/qrm-demo:1"
BUSYBOX = Path("/bin/busybox")
SLEEP_UNTIL_TERM = ("/bin/sh", "-c", 'trap "exit 0" TERM; while :; do sleep 3600 & wait $!; done')
"""Process 1 of a pid namespace gets only the signals it handles, so a plain sleep would not end on SIGTERM."""

# fmt: off
_APPLETS = (
    "awk", "cat", "date", "dd", "echo", "env", "false", "free", "grep", "head", "hostname", "id", "ip", "kill", "ls",
    "md5sum", "mkdir", "nc", "nproc", "printf", "ps", "renice", "rm", "sed", "seq", "sh", "sleep", "sort", "stat",
    "tail", "taskset", "tee", "test", "time", "timeout", "top", "touch", "true", "uname", "uptime", "usleep", "wc",
    "wget", "yes",
)
# fmt: on
_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
_EPOCH = "1970-01-01T00:00:00Z"
_HEADER_SIZE = 64
_INTERPRETER_SEGMENT = 3


def is_static(program: Path) -> bool:
    """Whether `program` is a 64-bit ELF file that runs without libraries; False where it is absent or anything else."""
    try:
        with program.open("rb") as file:
            header = file.read(_HEADER_SIZE)
            if len(header) < _HEADER_SIZE or not header.startswith(b"\x7fELF\x02"):
                return False
            (table,) = struct.unpack_from("<Q", header, 32)
            size, count = struct.unpack_from("<HH", header, 54)
            file.seek(table)
            segments = file.read(size * count)
    except OSError:
        return False
    return all(struct.unpack_from("<I", segments, at)[0] != _INTERPRETER_SEGMENT for at in range(0, size * count, size))


def write_image(path: Path, *, name: str = IMAGE, busybox: Path = BUSYBOX) -> None:
    """Write the image to `path`, for `ctr images import`. The same busybox gives the same bytes.

    Raises:
        QrmError: `busybox` is absent or needs libraries.
    """
    if not is_static(busybox):
        raise QrmError(f"{busybox} is not a static busybox", hint="install the package busybox-static")
    layer = _layer(busybox.read_bytes())
    config = _json(
        {
            "architecture": _ARCHITECTURES.get(platform.machine(), platform.machine()),
            "os": "linux",
            "created": _EPOCH,
            "config": {"Cmd": list(SLEEP_UNTIL_TERM), "Env": ["PATH=/bin"], "WorkingDir": "/"},
            "rootfs": {"type": "layers", "diff_ids": [_digest(layer)]},
        }
    )
    manifest = _json(
        {
            "schemaVersion": 2,
            "mediaType": "application/vnd.oci.image.manifest.v1+json",
            "config": _descriptor("application/vnd.oci.image.config.v1+json", config),
            "layers": [_descriptor("application/vnd.oci.image.layer.v1.tar", layer)],
        }
    )
    entry = _descriptor("application/vnd.oci.image.manifest.v1+json", manifest)
    entry["annotations"] = {"io.containerd.image.name": name, "org.opencontainers.image.ref.name": name}
    files = {
        "oci-layout": _json({"imageLayoutVersion": "1.0.0"}),
        "index.json": _json({"schemaVersion": 2, "manifests": [entry]}),
        **{f"blobs/sha256/{_digest(blob).removeprefix('sha256:')}": blob for blob in (config, manifest, layer)},
    }
    with tarfile.open(path, "w", format=tarfile.USTAR_FORMAT) as archive:
        for member, content in sorted(files.items()):
            _add_file(archive, member, content, 0o644)


def _layer(busybox: bytes) -> bytes:
    """The root file system as a tar."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        for name in ("bin", "dev", "etc", "proc", "sys", "tmp"):
            folder = tarfile.TarInfo(name)
            folder.type, folder.mode = tarfile.DIRTYPE, 0o1777 if name == "tmp" else 0o755
            archive.addfile(folder)
        _add_file(archive, "bin/busybox", busybox, 0o755)
        for applet in _APPLETS:
            link = tarfile.TarInfo(f"bin/{applet}")
            link.type, link.linkname = tarfile.SYMTYPE, "busybox"
            archive.addfile(link)
        _add_file(archive, "etc/passwd", b"root:x:0:0:root:/:/bin/sh\n", 0o644)
        _add_file(archive, "etc/group", b"root:x:0:\n", 0o644)
    return buffer.getvalue()


def _add_file(archive: tarfile.TarFile, name: str, content: bytes, mode: int) -> None:
    """Add a regular file of root's; a TarInfo's time stamp is 0 by itself."""
    member = tarfile.TarInfo(name)
    member.size, member.mode = len(content), mode
    archive.addfile(member, io.BytesIO(content))


def _json(value: object) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()


def _digest(blob: bytes) -> str:
    return "sha256:" + hashlib.sha256(blob).hexdigest()


def _descriptor(media_type: str, blob: bytes) -> dict[str, object]:
    return {"mediaType": media_type, "digest": _digest(blob), "size": len(blob)}
