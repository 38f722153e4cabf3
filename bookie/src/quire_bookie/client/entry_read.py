"""One entry from one of its replicas: who is asked next, and what the answers mean together.

An entry is returned only when its digest matches. When no replica has it readable, the first error that is not
*no such entry* or *no such ledger* wins, because a damaged or silent replica may have held it; only when all replicas
say that they do not have it is the answer *no such entry*. A recovery uses the stricter `EntrySearch` instead.
No futures and no tasks here: many of these run at once.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from quire_bookie.client.bookie_link import Links, Purpose
from quire_bookie.client.ledger_entry import LedgerEntry
from quire_bookie.errors import LedgerError, NoSuchEntryError, NoSuchLedgerError, QuorumError
from quire_bookie.model import BookieId, Buffer, EntryId, LedgerId
from quire_bookie.quorum.recovery_plan import EntrySearch, Verdict
from quire_bookie.wire.digest import Digest

EntryDone: TypeAlias = Callable[[EntryId, LedgerEntry | LedgerError], None]
MISSING_ERRORS = (NoSuchEntryError, NoSuchLedgerError)


@dataclass(frozen=True, slots=True)
class ReadWay:
    """How entries of one ledger are asked for. `fence_key` and `high_priority`: a recovery."""

    ledger: LedgerId
    digest: Digest
    links: Links
    purpose: Purpose = Purpose.READ
    fence_key: bytes | None = None
    high_priority: bool = False

    def decode(self, data: Buffer, entry: EntryId) -> LedgerEntry:
        """The entry in stored bytes. DigestMismatchError."""
        found = self.digest.decode_entry(data, self.ledger, entry)
        return LedgerEntry(found.ledger, found.entry, found.lac, found.length, found.payload)


class EntryRead:
    """Asks the replicas one after the other and calls `done` once."""

    __slots__ = ("_asked", "_done", "_entry", "_error", "_last_missing", "_replicas", "_search", "_way")

    def __init__(
        self,
        way: ReadWay,
        entry: EntryId,
        replicas: Sequence[BookieId],
        done: EntryDone,
        *,
        search: EntrySearch | None = None,
    ) -> None:
        self._way = way
        self._entry = entry
        self._replicas = replicas
        self._done = done
        self._search = search
        self._asked = 0
        self._error: LedgerError | None = None
        self._last_missing: LedgerError | None = None

    def start(self) -> None:
        """Ask the first replica."""
        self._ask()

    def _ask(self) -> None:
        bookie = self._replicas[self._asked]
        self._asked += 1
        way = self._way
        way.links.link(bookie, way.purpose).read(
            way.ledger, self._entry, self._answered, fence_key=way.fence_key, high_priority=way.high_priority
        )

    def _answered(self, answer: Buffer | LedgerError) -> None:
        if not isinstance(answer, LedgerError):
            try:
                found = self._way.decode(answer, self._entry)
            except LedgerError as error:
                answer = error
            else:
                self._done(self._entry, found)
                return
        if isinstance(answer, MISSING_ERRORS):
            self._last_missing = answer
            verdict = self._search.missing() if self._search else Verdict.OPEN
        else:
            self._error = self._error or answer
            verdict = self._search.failed() if self._search else Verdict.OPEN
        if verdict is Verdict.MISSING:
            self._done(self._entry, NoSuchEntryError(f"entry {self._entry} of ledger {self._way.ledger} is missing"))
        elif verdict is Verdict.OPEN and self._asked < len(self._replicas):
            self._ask()
        else:
            self._done(self._entry, self._failure())

    def _failure(self) -> LedgerError:
        name = f"entry {self._entry} of ledger {self._way.ledger}"
        if self._search is not None:
            failure = QuorumError(f"too few replicas of {name} answered to tell whether it exists: {self._error}")
            failure.__cause__ = self._error
            return failure
        if self._error is not None:
            return self._error
        failure_missing = NoSuchEntryError(f"{name}: none of its {len(self._replicas)} replicas has it")
        failure_missing.__cause__ = self._last_missing
        return failure_missing
