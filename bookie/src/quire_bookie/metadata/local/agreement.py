"""Decides whether the database and the change log have the same history. Pure.

A group commit is written to the database first and to the change log second, both durably, and answered afterwards. So
of two intact copies the log is at most one commit behind, and that commit was not answered. Every other difference
means that a file was damaged, removed or replaced by an older one.
"""

from enum import Enum

from quire_bookie.dataclass import dataclass
from quire_bookie.metadata.local.change_format import LogContent, Position


@dataclass(frozen=True, slots=True)
class DatabaseSeen:
    """State that the database reports, after its content was compared with its digest."""

    store: bytes
    last: Position
    before: bytes
    """The chain of the commit before the last."""


class Verdict(Enum):
    """Action of a start."""

    SERVE = "serve"
    REWRITE_LOG = "rewrite the log"
    """The database has one more commit, because a crash came between the two writes."""
    REFUSE = "refuse"


@dataclass(frozen=True, slots=True)
class Agreement:
    """The verdict. `why`: the reason of a refusal, a sentence without its end."""

    verdict: Verdict
    why: str = ""


def compare(database: DatabaseSeen, log: LogContent) -> Agreement:
    """Compare both copies of a store in this format."""
    if log.base is None or log.last is None:
        return _refuse(f"its change log metadata.log is damaged: {log.problem}")
    if log.store != database.store:
        return _refuse("metadata.log belongs to another store than metadata.db")
    have, logged = database.last, log.last
    if max(logged.sequence, log.seen_beyond) > have.sequence:
        return _refuse(missing_commits(have.sequence, max(logged.sequence, log.seen_beyond)))
    if logged.sequence == have.sequence:
        return _same_place(have, log)
    if logged.sequence == have.sequence - 1 and logged.chain == database.before and log.seen_beyond < 0:
        return Agreement(Verdict.REWRITE_LOG)
    if log.clean_end:
        return _refuse(
            f"its change log ends at commit {logged.sequence} and the database has {have.sequence}: metadata.log was "
            "cut off, or replaced by an older copy"
        )
    return _refuse(f"its change log metadata.log is damaged after commit {logged.sequence} of {have.sequence}")


def _same_place(have: Position, log: LogContent) -> Agreement:
    assert log.last is not None
    if log.last.chain != have.chain:
        return _refuse(f"metadata.log and metadata.db have different commits numbered {have.sequence}")
    if log.last.digest != have.digest:
        return _refuse(f"metadata.db does not have the nodes that commit {have.sequence} left")
    if not log.clean_end:
        return _refuse(
            f"metadata.log has damaged bytes after commit {have.sequence}, the last one of metadata.db: they may be a "
            "later commit"
        )
    return Agreement(Verdict.SERVE)


def missing_commits(have: int, logged: int) -> str:
    """Describe the commits that the database lacks."""
    count = logged - have
    which = f"commit {logged}" if count == 1 else f"commits {have + 1} to {logged}"
    plural = "s" if count > 1 else ""
    return (
        f"{which} of the metadata store {'are' if count > 1 else 'is'} missing from metadata.db: {count} answered "
        f"commit{plural}. metadata.db or metadata.db-wal was damaged, cut off or replaced by an older copy"
    )


def _refuse(why: str) -> Agreement:
    return Agreement(Verdict.REFUSE, why)
