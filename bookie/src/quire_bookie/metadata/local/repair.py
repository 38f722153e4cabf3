"""Rebuilds a refused metadata store from the two copies of its nodes. Never guesses; never deletes a file.

Proved are: a database whose nodes match the digest of its last commit, a change log up to its last intact commit, and a
proved database with intact commits that continue it, anywhere in the log. The copy with the latest commit wins. The
plan lists commits that are known to have been made but are in no copy.
"""

import os
import shutil
import sqlite3
from dataclasses import field
from pathlib import Path
from typing import Final

from quire_bookie.dataclass import dataclass
from quire_bookie.env.durable import sync_path
from quire_bookie.env.file_modes import FOLDER_MODE
from quire_bookie.errors import StartupError
from quire_bookie.metadata.local.agreement import DatabaseSeen, Verdict, compare
from quire_bookie.metadata.local.change_format import (
    LogContent,
    Position,
    Value,
    apply,
    checksum,
    commits_after,
    digest_of,
    first_chain,
    read_log,
)
from quire_bookie.metadata.local.change_log import LOG_NAME, load_log, write_log
from quire_bookie.metadata.local.database import connect
from quire_bookie.metadata.local.inspection import (
    FILE_NAME,
    FORMAT_VERSION,
    SHM_NAME,
    WAL_NAME,
    Inspection,
    Rows,
    connect_read_only,
    inspect_database,
)
from quire_bookie.metadata.local.opening import make_tables, random_store_id

NEW_NAME: Final = "metadata.db.new"
_FILES: Final = (FILE_NAME, WAL_NAME, SHM_NAME, LOG_NAME)
Nodes = dict[bytes, Value]


@dataclass(slots=True)
class RepairPlan:
    """Content that a repair would write. `last`: the commit that `nodes` represents; None if nothing is proved."""

    problem: str = ""
    """Why the store was refused; empty if there is nothing to repair."""
    source: str = ""
    """Which files prove the nodes."""
    store: bytes = b""
    nodes: Nodes = field(default_factory=dict)
    last: Position | None = None
    highest_seen: int = 0
    """The highest number of a commit that any file proves to have been made."""
    highest_logged: int = -1
    """The same for the change log alone."""
    end_proved: bool = False
    """Whether two copies, or the log as the last to receive a commit, prove that `highest_seen` is the last commit."""

    @property
    def lost(self) -> tuple[int, int] | None:
        """First and last number of the commits that are in no copy, or None."""
        have = 0 if self.last is None else self.last.sequence
        if self.doubtful is not None:
            return None
        return (have + 1, self.highest_seen) if self.highest_seen > have else None

    @property
    def doubtful(self) -> int | None:
        """A commit that only the damaged database has, directly after the end of an intact log.

        A crash before the commit is answered leaves this state. Only damage to both files could hide an answered one.
        """
        if self.last is None or self.highest_seen != self.last.sequence + 1 or self.highest_logged > self.last.sequence:
            return None
        return self.highest_seen

    @property
    def whole(self) -> bool:
        """Whether `nodes` includes every answered commit."""
        return self.last is not None and self.lost is None and self.doubtful is None and self.end_proved


@dataclass(frozen=True, slots=True)
class _Candidate:
    nodes: Nodes
    last: Position
    source: str


def plan_repair(folder: Path) -> RepairPlan:
    """Inspect the files of a store that no process uses. StartupError: they belong to another program. OSError."""
    inspection = inspect_database(folder)
    data = load_log(folder)
    log = None if data is None else read_log(data, keep=True)
    if inspection.foreign and (log is None or log.last is None):
        raise StartupError(inspection.foreign)
    plan = RepairPlan(problem=_problem(folder, inspection, log))
    if not plan.problem:
        return plan
    plan.store = inspection.seen.store if inspection.seen is not None else (log.store if log is not None else b"")
    if log is not None:
        plan.highest_logged = max(-1 if log.last is None else log.last.sequence, log.seen_beyond)
    plan.highest_seen = max(0 if inspection.seen is None else inspection.seen.last.sequence, plan.highest_logged)
    candidates = [*_from_log(log), *_from_database(folder, inspection, data or b"")]
    if candidates:
        best = max(candidates, key=lambda each: each.last.sequence)
        plan.nodes, plan.last, plan.source = best.nodes, best.last, best.source
    # The log shows a lost tail of the database, and the database one of the log. Without a usable log, a database that
    # lost its newest commits looks complete.
    plan.end_proved = log is not None and log.last is not None
    return plan


def _problem(folder: Path, inspection: Inspection, log: LogContent | None) -> str:
    if inspection.problem:
        return f"metadata.db is damaged: {inspection.problem}"
    if inspection.format == FORMAT_VERSION and inspection.seen is not None:
        if log is None:
            return f"{LOG_NAME} is missing"
        agreement = compare(inspection.seen, log)
        return agreement.why if agreement.verdict is Verdict.REFUSE else ""
    if log is None:
        return ""  # format 1, or no store
    if log.last is None:
        return f"{LOG_NAME} is damaged: {log.problem}"
    if log.last.sequence == 0 and log.seen_beyond < 0 and log.last.digest == inspection.digest:
        return ""  # a crash while the store was created or upgraded
    what = "predates an upgrade" if inspection.exists and inspection.format is not None else "is missing or empty"
    return f"{folder / FILE_NAME} {what}, and {LOG_NAME} has commit {log.last.sequence}"


def _from_log(log: LogContent | None) -> list[_Candidate]:
    if log is None or log.last is None or digest_of_nodes(log.nodes) != log.last.digest:
        return []
    return [_Candidate(log.nodes, log.last, f"{LOG_NAME} up to commit {log.last.sequence}")]


def _from_database(folder: Path, inspection: Inspection, log: bytes) -> list[_Candidate]:
    if inspection.problem or inspection.seen is None:
        return []
    connection = connect_read_only(folder / FILE_NAME)
    try:
        nodes: Nodes = {key: (version, value) for key, version, value in Rows(connection)}
    finally:
        connection.close()
    first = last = inspection.seen.last
    for position, changes in commits_after(log, last):
        apply(nodes, changes)
        last = position
    if digest_of_nodes(nodes) != last.digest:
        return []
    source = f"{FILE_NAME} at commit {first.sequence}"
    if last.sequence > first.sequence:
        source += f", and commits {first.sequence + 1} to {last.sequence} of {LOG_NAME}"
    return [_Candidate(nodes, last, source)]


def digest_of_nodes(nodes: Nodes) -> int:
    """Return the digest of nodes by key."""
    return digest_of((key, version, value) for key, (version, value) in nodes.items())


def carry_out(folder: Path, plan: RepairPlan, now: str) -> Path:
    """Write the nodes of the plan as a new store; return the folder that keeps the original files. OSError.

    A crash at any step leaves a store that is refused and that another repair completes: until the last step the new
    log and the old database contradict each other.
    """
    assert plan.problem, "there is nothing to repair"
    aside = _keep_aside(folder, now)
    store = plan.store or random_store_id()
    chain = first_chain(store) if plan.last is None else plan.last.chain
    # Use a new number, so that no file from before the repair matches the commits after it.
    position = Position(plan.highest_seen + 1, checksum(chain, f"repaired {now}".encode()), digest_of_nodes(plan.nodes))
    new = folder / NEW_NAME
    _write_database(new, plan.nodes, DatabaseSeen(store, position, b""))
    rows = ((key, version, value) for key, (version, value) in sorted(plan.nodes.items()))
    write_log(folder, store, rows, position).close()
    for name in (WAL_NAME, SHM_NAME):
        (folder / name).unlink(missing_ok=True)
    sync_path(folder)
    os.rename(new, folder / FILE_NAME)
    sync_path(folder)
    return aside


def _keep_aside(folder: Path, now: str) -> Path:
    aside = folder / f"damaged-{now}"
    number = 1
    while aside.exists():
        number += 1
        aside = folder / f"damaged-{now}-{number}"
    aside.mkdir(FOLDER_MODE)
    for name in _FILES:
        if (folder / name).exists():
            try:
                os.link(folder / name, aside / name)
            except OSError:  # a file system without links
                shutil.copy2(folder / name, aside / name)
    sync_path(aside)
    sync_path(folder)
    return aside


def _write_database(path: Path, nodes: Nodes, seen: DatabaseSeen) -> None:
    for suffix in ("", "-wal", "-shm", "-journal"):
        path.with_name(path.name + suffix).unlink(missing_ok=True)
    try:
        connection = connect(path)
        try:
            connection.execute("PRAGMA journal_mode=WAL")
            connection.execute("BEGIN IMMEDIATE")
            make_tables(connection, seen)
            connection.executemany(
                "INSERT INTO nodes (key, value, version, ephemeral) VALUES (?, ?, ?, 0)",
                ((key, value, version) for key, (version, value) in sorted(nodes.items())),
            )
            connection.execute("COMMIT")
        finally:
            connection.close()
    except sqlite3.Error as error:
        raise StartupError(f"{path} cannot be written: {error}") from error
    sync_path(path)


def describe(plan: RepairPlan) -> list[str]:
    """Describe the result in lines: rebuilt nodes, and missing commits."""
    if not plan.problem:
        return ["nothing to repair: metadata.db and metadata.log prove each other"]
    lines = [f"found: {plan.problem}"]
    if plan.last is None:
        lines.append("not rebuilt: any node of the store. Neither metadata.db nor metadata.log proves its nodes")
    else:
        lines.append(f"rebuilt: {len(plan.nodes)} nodes as of commit {plan.last.sequence}, proved by {plan.source}")
    if plan.lost is not None:
        first, last = plan.lost
        lines.append(f"not rebuilt: commits {first} to {last} ({last - first + 1} answered commits) are in no file")
    elif plan.doubtful is not None:
        lines.append(
            f"not rebuilt: commit {plan.doubtful}, which is in no intact file. A crash came before it was answered, "
            "unless metadata.log was cut off as well"
        )
    elif not plan.end_proved:
        lines.append(
            "not proved: that this was the last commit, since metadata.log is missing or damaged; if "
            "metadata.db was not changed as well, nothing is lost"
        )
    return lines
