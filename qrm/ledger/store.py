"""The ledger's file: SQLite in WAL mode with synchronous FULL, written on a thread of its own.

Memory is changed first and at once, so that no two plans can be based on the same free CPUs; `flush` makes what changed
durable. A line whose write failed stays dirty and goes with the next flush.
"""

from __future__ import annotations

import asyncio
import sqlite3
import time
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import structlog

from qrm.allocator import ContainerKey
from qrm.errors import LedgerError
from qrm.ledger.codec import decode, encode
from qrm.ledger.record import Record

SCHEMA_VERSION = 1
_SCHEMA = """CREATE TABLE IF NOT EXISTS records (
    pod_uid TEXT, container TEXT, record BLOB NOT NULL, PRIMARY KEY (pod_uid, container))"""
_NOT_DAMAGE = ("unable to open", "locked", "readonly")
"""In SQLite's messages: the file cannot be used now, which says nothing against its contents."""

log = structlog.get_logger(__name__)


class Ledger:
    """All records, by key, with their file. Use `open_ledger`."""

    def __init__(self, path: Path, connection: sqlite3.Connection, records: Mapping[ContainerKey, Record]) -> None:
        self.path = path
        self._connection = connection
        self._records = dict(records)
        self._by_id = {record.container_id: record.key for record in records.values() if record.container_id}
        self._dirty: set[ContainerKey] = set()
        self._writing: set[ContainerKey] = set()
        self._lock = asyncio.Lock()
        self._thread = ThreadPoolExecutor(1, "ledger")
        self._closed = False

    def __iter__(self) -> Iterator[Record]:
        return iter(tuple(self._records.values()))

    def __len__(self) -> int:
        return len(self._records)

    def get(self, key: ContainerKey) -> Record | None:
        """The record at `key`."""
        return self._records.get(key)

    def find(self, container_id: str) -> Record | None:
        """The record whose current instance is `container_id`; late news of an older instance finds nothing."""
        key = self._by_id.get(container_id)
        return self._records[key] if key else None

    def put(self, record: Record) -> None:
        """Add or replace a record in memory; durable after the next `flush`."""
        self._forget_id(record.key)
        self._records[record.key] = record
        if record.container_id:
            self._by_id[record.container_id] = record.key
        self._dirty.add(record.key)

    def remove(self, key: ContainerKey) -> None:
        """Drop a record in memory; durable after the next `flush`."""
        self._forget_id(key)
        if self._records.pop(key, None) is not None:
            self._dirty.add(key)

    def is_durable(self, key: ContainerKey) -> bool:
        """Whether the line at `key` has reached the disk as it stands, with all that was changed together with it."""
        return key not in self._dirty and key not in self._writing

    async def flush(self) -> None:
        """Make everything that changed durable, in one transaction.

        Raises:
            LedgerError: the file could not be written, and what changed is tried again with the next flush; or it is
                closed, and may be another process's by now.
        """
        async with self._lock:
            if self._closed and self._dirty:
                raise LedgerError(f"{self.path} is closed", hint="this process has retired, another one serves")
            if not self._dirty:
                return
            lines = [(key, encode(self._records[key]) if key in self._records else None) for key in self._dirty]
            keys, self._dirty = self._dirty, set()
            self._writing = keys
            try:
                await asyncio.get_running_loop().run_in_executor(self._thread, self._write, lines)
            except BaseException as error:
                self._dirty |= keys
                if isinstance(error, sqlite3.Error):
                    raise LedgerError(
                        f"cannot write {self.path}: {error}", hint="is its disk full or read-only?"
                    ) from error
                raise
            finally:
                self._writing = set()

    def close(self) -> None:
        """Wait for the writes under way and close the file; what is changed in memory after that stays there."""
        self._closed = True
        self._thread.shutdown()
        self._connection.close()

    def _write(self, lines: Iterable[tuple[ContainerKey, bytes | None]]) -> None:
        with self._connection:
            for key, text in lines:
                place = (key.pod_uid, key.container)
                if text is None:
                    self._connection.execute("DELETE FROM records WHERE pod_uid = ? AND container = ?", place)
                else:
                    self._connection.execute("INSERT OR REPLACE INTO records VALUES (?, ?, ?)", (*place, text))

    def _forget_id(self, key: ContainerKey) -> None:
        old = self._records.get(key)
        if old is not None:
            self._by_id.pop(old.container_id, None)


def open_ledger(path: Path) -> tuple[Ledger, bool]:
    """The ledger in the file at `path`, made where there is none, and whether it is new.

    A file that is damaged or of another schema is set aside under a new name and an empty one takes its place: the
    caller rebuilds from the runtime.

    Raises:
        LedgerError: the folder cannot be used at all.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        new = not path.exists()
        try:
            connection, records = _load(path)
        except (sqlite3.DatabaseError, LedgerError) as error:
            if any(text in str(error) for text in _NOT_DAMAGE):
                raise
            aside = _set_aside(path)
            log.error(
                "ledger set aside", path=str(path), aside=str(aside), reason=str(error), next="rebuild from the runtime"
            )
            new = True
            connection, records = _load(path)
    except (OSError, sqlite3.Error) as error:
        raise LedgerError(f"cannot use {path}: {error}", hint="check state.directory in the configuration") from error
    return Ledger(path, connection, records), new


def _load(path: Path) -> tuple[sqlite3.Connection, dict[ContainerKey, Record]]:
    connection = sqlite3.connect(path, check_same_thread=False, timeout=5)
    try:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = FULL")
        verdict = connection.execute("PRAGMA integrity_check").fetchone()[0]
        if verdict != "ok":
            raise LedgerError(f"integrity check says: {verdict}")
        _migrate(connection)
        rows = connection.execute("SELECT record FROM records ORDER BY rowid").fetchall()
        records = {record.key: record for record in (decode(text) for (text,) in rows)}
    except BaseException:
        connection.close()
        raise
    return connection, records


def _migrate(connection: sqlite3.Connection) -> None:
    version = connection.execute("PRAGMA user_version").fetchone()[0]
    if version not in (0, SCHEMA_VERSION):
        raise LedgerError(f"its schema is version {version}, this qrm knows {SCHEMA_VERSION}")
    with connection:
        connection.execute(_SCHEMA)
        connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")


def _set_aside(path: Path) -> Path:
    aside = path.with_name(
        f"{path.name}.bad-{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}-{time.monotonic_ns() % 10**6}"
    )
    path.rename(aside)
    for suffix in ("-wal", "-shm"):
        leftover = path.with_name(path.name + suffix)
        if leftover.exists():
            leftover.rename(aside.with_name(aside.name + suffix))
    return aside
