"""Opens the database of a folder once it and the change log prove each other. Refuses before it changes anything.

* New store: write the change log first, then the tables. A crash in between leaves a log without commits or nodes.
* Store of format 1: write a change log with its nodes first, then add the history to the tables in one transaction.
* Store of format 2: both files exist; `agreement` compares them.
"""

import errno
import logging
import os
import sqlite3
from collections.abc import Callable
from pathlib import Path

from quire_bookie.errors import StartupError
from quire_bookie.metadata.local.agreement import DatabaseSeen, Verdict, compare, missing_commits
from quire_bookie.metadata.local.change_format import LogContent, Position, first_chain, read_log
from quire_bookie.metadata.local.change_log import LOG_NAME, NEW_LOG_NAME, ChangeLog, load_log, write_log
from quire_bookie.metadata.local.database import Database, connect, write_history
from quire_bookie.metadata.local.inspection import (
    APPLICATION_ID,
    FILE_NAME,
    FORMAT_VERSION,
    FORMAT_WITHOUT_LOG,
    Inspection,
    Rows,
    inspect_database,
)
from quire_bookie.metadata.local.space import MetadataReserve

_log = logging.getLogger("quire.metadata.local")
STORE_ID_BYTES = 16


def random_store_id() -> bytes:
    """Return an id for a new store."""
    return os.urandom(STORE_ID_BYTES)


def open_database(folder: Path, new_id: Callable[[], bytes] = random_store_id) -> Database:
    """Open or create; on a full disk use the reserve. StartupError, one line, for any problem with the files."""
    reserve = MetadataReserve(folder)
    while True:
        try:
            return _open(folder, new_id)
        except sqlite3.Error as error:
            full = getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_FULL
            if not (full and reserve.release()):
                raise StartupError(f"{folder / FILE_NAME} cannot be used as the metadata store: {error}") from error
        except OSError as error:
            if not (error.errno == errno.ENOSPC and reserve.release()):
                raise StartupError(f"the metadata folder {folder} cannot be used: {error.strerror or error}") from error


def _open(folder: Path, new_id: Callable[[], bytes]) -> Database:
    (folder / NEW_LOG_NAME).unlink(missing_ok=True)  # left by a rewrite that a crash interrupted
    inspection = inspect_database(folder)
    data = load_log(folder)
    log = None if data is None else read_log(data)
    del data
    if inspection.format is None and not inspection.problem:
        return _create(folder, inspection, log, new_id)
    if inspection.foreign and (log is None or log.last is None):
        raise StartupError(inspection.foreign)
    if inspection.problem:
        raise refusal(folder, f"{folder / FILE_NAME} is damaged: {inspection.problem}")
    if inspection.format == FORMAT_WITHOUT_LOG:
        return _upgrade(folder, inspection, log, new_id)
    if log is None:
        raise refusal(folder, f"the change log {folder / LOG_NAME} is missing; without it metadata.db is not proved")
    assert inspection.seen is not None
    agreement = compare(inspection.seen, log)
    if agreement.verdict is Verdict.REFUSE:
        raise refusal(folder, agreement.why)
    if agreement.verdict is Verdict.REWRITE_LOG:
        _log.info("a crash came between the last commit and the change log: writing the change log again")
        return _with_new_log(folder, inspection.seen)
    opened = ChangeLog.open(folder, base_end=log.base_end, end=log.end)
    return _database(folder, opened, inspection.seen)


def refusal(folder: Path, why: str) -> StartupError:
    """Return the error for a store that must not be used in its present state; it names the next step."""
    where = f"--data {folder.parent}" if folder.name == "metadata" else f"--folder {folder}"
    return StartupError(
        f"the metadata store {folder} cannot be trusted: {why}. Run `quire metadata repair {where} --dry-run` to see "
        "the nodes that can be rebuilt, or restore a backup of the folder"
    )


def _create(folder: Path, inspection: Inspection, log: LogContent | None, new_id: Callable[[], bytes]) -> Database:
    if log is None:
        store = new_id()
        write_log(folder, store, (), Position(0, first_chain(store), 0)).close()
    elif log.base is None or log.last is None:
        raise refusal(folder, f"{FILE_NAME} has no content, and {LOG_NAME} is damaged: {log.problem}")
    elif log.last.sequence > 0 or log.seen_beyond > 0 or log.last.digest:
        what = "is missing" if not inspection.exists else "has no content"
        lost = missing_commits(0, max(log.last.sequence, log.seen_beyond))
        raise refusal(folder, f"{FILE_NAME} {what}: {lost}")
    else:
        store = log.store
    seen = DatabaseSeen(store, Position(0, first_chain(store), 0), b"")
    connection = connect(folder / FILE_NAME)
    try:
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute("BEGIN IMMEDIATE")
        make_tables(connection, seen)
        connection.execute("COMMIT")
    finally:
        connection.close()
    return _with_new_log(folder, seen)


def make_tables(connection: sqlite3.Connection, seen: DatabaseSeen) -> None:
    """Create the tables of an empty database, in the open transaction."""
    connection.execute(f"PRAGMA application_id={APPLICATION_ID}")
    connection.execute(
        "CREATE TABLE nodes (key BLOB PRIMARY KEY, value BLOB NOT NULL, version INTEGER NOT NULL, "
        "ephemeral INTEGER NOT NULL) WITHOUT ROWID"
    )
    _make_history(connection, seen)


def _make_history(connection: sqlite3.Connection, seen: DatabaseSeen) -> None:
    connection.execute(f"PRAGMA user_version={FORMAT_VERSION}")
    connection.execute(
        "CREATE TABLE history (id INTEGER PRIMARY KEY, store BLOB NOT NULL, sequence INTEGER NOT NULL, "
        "chain BLOB NOT NULL, before BLOB NOT NULL, digest BLOB NOT NULL, checksum BLOB NOT NULL)"
    )
    write_history(connection, seen)


def _upgrade(folder: Path, inspection: Inspection, log: LogContent | None, new_id: Callable[[], bytes]) -> Database:
    """Add the history to a store of format 1. Its nodes are accepted unchanged: nothing can prove them."""
    if log is not None and (log.last is None or log.last.sequence > 0 or log.seen_beyond > 0):
        lost = log.problem if log.last is None else missing_commits(0, max(log.last.sequence, log.seen_beyond))
        raise refusal(folder, f"{FILE_NAME} predates an upgrade, and {LOG_NAME} has later commits: {lost}")
    if log is not None and log.last is not None and log.last.digest != inspection.digest:
        raise refusal(folder, f"{FILE_NAME} has changed since its upgrade to format {FORMAT_VERSION} began")
    store = new_id() if log is None else log.store
    seen = DatabaseSeen(store, Position(0, first_chain(store), inspection.digest), b"")
    connection = connect(folder / FILE_NAME)
    try:
        if log is None:
            write_log(folder, store, Rows(connection), seen.last).close()
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute("BEGIN IMMEDIATE")
        connection.execute("DROP INDEX IF EXISTS ephemeral_nodes")
        _make_history(connection, seen)
        connection.execute("COMMIT")
    finally:
        connection.close()
    _log.info("the metadata store %s now has a change log (format %d)", folder, FORMAT_VERSION)
    return _with_new_log(folder, seen)


def _with_new_log(folder: Path, seen: DatabaseSeen) -> Database:
    connection = connect(folder / FILE_NAME)
    try:
        log = write_log(folder, seen.store, Rows(connection), seen.last)
    finally:
        connection.close()
    return _database(folder, log, seen)


def _database(folder: Path, log: ChangeLog, seen: DatabaseSeen) -> Database:
    try:
        return Database(folder, log, seen)
    except sqlite3.Error:
        log.close()
        raise
