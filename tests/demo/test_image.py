"""The image that needs no registry."""

from __future__ import annotations

import io
import json
import os
import tarfile
from hashlib import sha256
from pathlib import Path

import pytest

from qrm.demo.image import BUSYBOX, IMAGE, is_static, write_image
from qrm.errors import QrmError

needs_busybox = pytest.mark.skipif(not is_static(BUSYBOX), reason="busybox-static is not installed")


def read(path: Path) -> dict[str, bytes]:
    with tarfile.open(path) as archive:
        files = [(member.name, archive.extractfile(member)) for member in archive]
        return {name: file.read() for name, file in files if file}


@needs_busybox
def test_the_same_busybox_gives_the_same_bytes(tmp_path: Path) -> None:
    for name in ("a.tar", "b.tar"):
        write_image(tmp_path / name)
    assert (tmp_path / "a.tar").read_bytes() == (tmp_path / "b.tar").read_bytes()


@needs_busybox
def test_every_digest_and_size_is_true(tmp_path: Path) -> None:
    write_image(tmp_path / "image.tar")
    files = read(tmp_path / "image.tar")
    (entry,) = json.loads(files["index.json"])["manifests"]
    assert entry["annotations"]["io.containerd.image.name"] == IMAGE

    def blob(descriptor: dict[str, object]) -> bytes:
        content = files["blobs/sha256/" + str(descriptor["digest"]).removeprefix("sha256:")]
        assert descriptor["digest"] == "sha256:" + sha256(content).hexdigest()
        assert descriptor["size"] == len(content)
        return content

    manifest = json.loads(blob(entry))
    (layer,) = manifest["layers"]
    config = json.loads(blob(manifest["config"]))
    assert config["rootfs"]["diff_ids"] == [layer["digest"]]
    with tarfile.open(fileobj=io.BytesIO(blob(layer))) as root:
        assert root.getmember("bin/busybox").mode == 0o755
        assert root.getmember("bin/sh").linkname == "busybox"
        assert all((member.uid, member.gid, member.mtime) == (0, 0, 0) for member in root)


def test_a_program_that_needs_libraries_is_refused(tmp_path: Path) -> None:
    interpreter = Path(os.path.realpath("/proc/self/exe"))
    assert not is_static(interpreter)
    with pytest.raises(QrmError, match="busybox-static"):
        write_image(tmp_path / "image.tar", busybox=interpreter)
    assert not (tmp_path / "image.tar").exists()


@pytest.mark.parametrize("content", [None, b"", b"#!/bin/sh\n", b"\x7fELF\x02"])
def test_what_is_no_program_is_not_static(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "program"
    if content is not None:
        path.write_bytes(content)
    assert not is_static(path)
