"""The ledger's file: durable, checked at the start, set aside where damaged."""

from __future__ import annotations

import os
import sqlite3
from dataclasses import replace
from pathlib import Path

import pytest

from qrm.allocator import Allocation, ContainerKey, PodIdentity, ResourceRequest, TopologyHint
from qrm.cpuset import CPUSet, NodeSet
from qrm.errors import LedgerError
from qrm.ledger.annotation import annotation, read_annotation
from qrm.ledger.codec import decode, encode
from qrm.ledger.record import CPU, Mark, Record
from qrm.ledger.store import open_ledger


def make(name: str, *, container_id: str = "", cpus: str = "4-7", size: int = 0) -> Record:
    request = ResourceRequest(PodIdentity("uid-1", "ns", "pod"), name, cpu_millis=4000)
    held = CPUSet.parse(cpus)
    return Record(
        request.key,
        request,
        "sandbox-1",
        attempt=2,
        container_id=container_id,
        mark=Mark.ADOPTED,
        allocations={CPU: Allocation("dedicated", held, exclusive=held, nodes=NodeSet([1]), why="x" * size)},
        hints={CPU: (TopologyHint(NodeSet([0, 1]), preferred=False),)},
        asked=b"\x08\x01\xf8\x07\x01",
        applied=held,
        created=12.5,
    )


def test_a_record_survives_its_stored_form() -> None:
    """What is read back equals what was written, id sets, bytes and enums included."""
    record = make("main", container_id="abc")
    assert decode(encode(record)) == record
    bare = Record(record.key, record.request, "s")
    assert decode(encode(bare)) == bare


@pytest.mark.parametrize(
    "text",
    [b"", b"{}", b"[1]", b'{"key":{"pod_uid":"u","container":"c"}}', b"\xff", b'{"x":' * 3000, b'{"nodes":5}'],
)
def test_a_line_that_is_no_record_is_an_error_that_quotes_it(text: bytes) -> None:
    """Garbage never becomes a record with defaults."""
    with pytest.raises(LedgerError, match="cannot be read"):
        decode(text)


async def test_what_was_flushed_is_there_after_a_restart(tmp_path: Path) -> None:
    """Puts and removals are durable after flush, and only then needed again."""
    ledger, new = open_ledger(tmp_path / "deep" / "ledger.db")
    assert new
    ledger.put(make("a", container_id="id-a"))
    ledger.put(make("b"))
    await ledger.flush()
    ledger.remove(make("b").key)
    ledger.put(replace(make("a"), container_id="id-a2"))
    await ledger.flush()
    ledger.close()

    ledger, new = open_ledger(tmp_path / "deep" / "ledger.db")
    assert not new
    assert [record.key.container for record in ledger] == ["a"]
    found = ledger.find("id-a2")
    assert found is not None
    assert found.cpus == CPUSet.parse("4-7")
    assert ledger.find("id-a") is None
    ledger.close()


async def test_late_news_of_an_older_instance_finds_nothing(tmp_path: Path) -> None:
    """An id that a newer instance has replaced is not looked up to the newer one's line."""
    ledger, _ = open_ledger(tmp_path / "ledger.db")
    ledger.put(make("a", container_id="old"))
    ledger.put(replace(make("a", container_id="new"), attempt=3))
    assert ledger.find("old") is None
    ledger.remove(make("a").key)
    assert ledger.find("new") is None
    ledger.close()


async def test_a_full_disk_is_an_error_and_the_line_is_written_later(tmp_path: Path) -> None:
    """A write that fails raises, and goes with the next flush that works."""
    ledger, _ = open_ledger(tmp_path / "ledger.db")
    ledger.put(make("a"))
    await ledger.flush()
    pages = ledger._connection.execute("PRAGMA page_count").fetchone()[0]
    ledger._connection.execute(f"PRAGMA max_page_count = {pages}")
    ledger.put(make("b", size=100_000))
    with pytest.raises(LedgerError, match="full"):
        await ledger.flush()
    ledger._connection.execute(f"PRAGMA max_page_count = {pages + 1000}")
    ledger.put(make("c"))
    await ledger.flush()
    ledger.close()
    ledger, _ = open_ledger(tmp_path / "ledger.db")
    assert sorted(record.key.container for record in ledger) == ["a", "b", "c"]
    ledger.close()


async def test_a_line_that_cannot_be_stored_takes_no_other_with_it(tmp_path: Path) -> None:
    """It is an error that names the container, and once it is gone the others are written."""
    ledger, _ = open_ledger(tmp_path / "ledger.db")
    ledger.put(make("a"))
    ledger.put(replace(make("half"), sandbox_id="\ud800"))
    with pytest.raises(LedgerError, match="container half: not storable"):
        await ledger.flush()
    assert not ledger.is_durable(make("a").key)
    ledger.remove(make("half").key)
    await ledger.flush()
    ledger.close()
    ledger, _ = open_ledger(tmp_path / "ledger.db")
    assert [record.key.container for record in ledger] == ["a"]
    ledger.close()


async def written(path: Path) -> bytes:
    ledger, _ = open_ledger(path)
    for each in range(20):
        ledger.put(make(f"c{each}", container_id=f"id{each}", size=500))
    await ledger.flush()
    ledger.close()
    return path.read_bytes()


@pytest.mark.parametrize("tenths", range(10))
async def test_a_truncated_file_is_set_aside_or_read(tmp_path: Path, tenths: int) -> None:
    """Cut at any length, the ledger opens: with all its lines or empty, and then with the bad file kept."""
    path = tmp_path / "ledger.db"
    content = await written(path)
    path.write_bytes(content[: len(content) * tenths // 10 + 7])
    ledger, new = open_ledger(path)
    assert new
    assert len(ledger) == 0
    ledger.put(make("again"))
    await ledger.flush()
    ledger.close()
    assert len(list(tmp_path.glob("ledger.db.bad-*"))) == 1


async def test_garbage_in_the_middle_is_found_at_the_start(tmp_path: Path) -> None:
    """The integrity check sees a page that was overwritten."""
    path = tmp_path / "ledger.db"
    content = bytearray(await written(path))
    content[8192:12288] = os.urandom(4096)
    path.write_bytes(content)
    ledger, new = open_ledger(path)
    ledger.close()
    assert new
    assert list(tmp_path.glob("ledger.db.bad-*"))


async def test_another_schema_is_set_aside_untouched(tmp_path: Path) -> None:
    """A newer qrm's ledger is neither misread nor lost."""
    path = tmp_path / "ledger.db"
    await written(path)
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA user_version = 99")
    connection.close()
    ledger, new = open_ledger(path)
    ledger.close()
    assert new
    (aside,) = tmp_path.glob("ledger.db.bad-*[0-9]")
    connection = sqlite3.connect(aside)
    assert connection.execute("SELECT count(*) FROM records").fetchone() == (20,)
    connection.close()


def test_a_folder_that_cannot_be_used_is_an_error(tmp_path: Path) -> None:
    """What is no damage is not treated as damage: nothing is set aside, the setting is named."""
    (tmp_path / "file").write_text("")
    with pytest.raises(LedgerError, match=r"state\.directory"):
        open_ledger(tmp_path / "file" / "ledger.db")
    (tmp_path / "ledger.db").mkdir()
    with pytest.raises(LedgerError, match=r"state\.directory"):
        open_ledger(tmp_path / "ledger.db")
    assert (tmp_path / "ledger.db").is_dir()


def test_the_annotation_keeps_what_cannot_be_learned_elsewhere() -> None:
    """Pool, CPUs, exclusiveness, the pod's total and kubelet's own numbers come back."""
    record = make("main")
    record = replace(record, request=replace(record.request, pod_cpu_millis=4500))
    kept = read_annotation(annotation(record))
    assert kept is not None
    assert (kept.pool, kept.cpuset, kept.exclusive) == ("dedicated", CPUSet.parse("4-7"), True)
    assert (kept.pod_cpu, kept.asked_bytes) == (4500, record.asked)
    assert len(annotation(record)) < 200


@pytest.mark.parametrize(
    "text",
    ["", "x", "{}", '{"v":2,"pool":"share","cpus":"0"}', '{"v":1,"pool":"share","cpus":"a-b"}',
     '{"v":1,"pool":"share","cpus":"0","asked":"%"}', '{"v":1,"pool":"share","cpus":"0","asked":"////"}',
     '{"v":1,"pool":"share","cpus":"0","pod_cpu":-1}',
     '{"v":1,"pool":"share","cpus":"0","others":{"memory":{"pool":"m","amounts":{"memory":{"-1":1}}}}}',
     '{"v":1,"pool":"share","cpus":"0","others":{"memory":{"pool":"m","amounts":{"memory":{"0":-1}}}}}',
     '{"v":1,"pool":"share","cpus":"0","x":' + "[" * 3000],
)  # fmt: skip
def test_an_annotation_of_others_is_no_annotation(text: str) -> None:
    """Whatever is not in our format is ignored rather than guessed at."""
    assert read_annotation(text) is None


def test_keys_without_a_container_stand_for_the_pod() -> None:
    """A pod's own line is told apart from its containers' and is never pending."""
    record = make("main")
    pod = replace(record, key=ContainerKey("uid-1", ""))
    assert pod.is_pod
    assert not pod.pending
    assert record.pending


async def test_a_closed_ledger_is_not_written(tmp_path: Path) -> None:
    """It may be another process's by then: memory goes on, and who wants to be sure of the disk is told."""
    ledger, _ = open_ledger(tmp_path / "ledger.db")
    ledger.put(make("c0"))
    await ledger.flush()
    ledger.close()
    ledger.put(make("c1"))
    with pytest.raises(LedgerError, match="is closed"):
        await ledger.flush()
    ledger, _ = open_ledger(tmp_path / "ledger.db")
    assert [each.key.container for each in ledger] == ["c0"]
    ledger.close()
