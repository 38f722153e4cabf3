"""Broken variants: rules of the embedded metadata store, each removed."""

from pathlib import Path
from typing import Any

from quire_bookie.metadata.local import inspection, opening, repair
from quire_bookie.metadata.local.agreement import Agreement, DatabaseSeen, Verdict
from quire_bookie.metadata.local.change_format import LogContent
from quire_bookie.metadata.local.change_log import ChangeLog
from quire_bookie.metadata.local.database import Database
from quire_bookie.metadata.store import Event
from tests.sim.broken.variant import Variant, replaced


def _answered_before_the_log_is_synced() -> tuple[Any, ...]:
    def broken(self: ChangeLog, frame: bytes) -> None:
        self._file.write(self._end, frame)
        self._end += len(frame)

    return (replaced(ChangeLog, "append", broken),)


def _mismatch_ignored() -> tuple[Any, ...]:
    def broken(database: DatabaseSeen, log: LogContent) -> Agreement:
        return Agreement(Verdict.SERVE)

    return (replaced(opening, "compare", broken),)


def _log_before_the_database() -> tuple[Any, ...]:
    commit = Database.commit

    def logged_first(self: Database) -> list[Event]:
        if self._frame is not None:
            self._log.append(self._frame)
        return commit(self)

    def nothing(self: Database) -> None:
        if self._frame is not None:
            self._logged = self._seen.last.sequence
            self._frame = None

    return (replaced(Database, "commit", logged_first), replaced(Database, "log", nothing))


def _digest_ignored() -> tuple[Any, ...]:
    inspect_database = inspection.inspect_database

    def trusting(folder: Path) -> inspection.Inspection:
        found = inspect_database(folder)
        if found.seen is not None:
            found.problem = ""
        return found

    return (replaced(opening, "inspect_database", trusting), replaced(repair, "inspect_database", trusting))


METADATA_RULES = (
    Variant(
        "metadata answered before the change log is synced", "metadata files", 4, _answered_before_the_log_is_synced
    ),
    Variant("missing metadata commits ignored", "metadata files", 0, _mismatch_ignored),
    Variant("metadata logged before it is committed", "metadata files", 12, _log_before_the_database),
    Variant("damaged metadata nodes trusted", "metadata files", 2, _digest_ignored),
)
