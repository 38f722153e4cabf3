"""Reads one entry from one of its replicas: chooses the next replica and combines their responses.

Returns the first response whose digest matches. If no replica returns the entry, the error contains the response of
each replica. Its type is that of the first error that is not *no such entry* or *no such ledger*, because a damaged or
silent replica may have held the entry; the result is *no such entry* only if all replicas report that they lack it. A
recovery uses the stricter `EntrySearch` instead.
Uses no futures and no tasks, because many reads run at once.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import field
from functools import partial
from typing import TypeAlias

from quire_bookie.client.ledger_entry import LedgerEntry
from quire_bookie.client.links.bookie_link import Links, Purpose
from quire_bookie.client.speculation import Speculation
from quire_bookie.dataclass import dataclass
from quire_bookie.errors import LedgerError, NoSuchEntryError, NoSuchLedgerError, QuorumError
from quire_bookie.model import ENTRY_HEADER_BYTES, BookieId, Buffer, DigestType, EntryId, LedgerId
from quire_bookie.quorum.recovery_plan import EntrySearch, Verdict
from quire_bookie.wire.digest import Digest
from quire_bookie.wire.packed_entries import PackedEntries

EntryDone: TypeAlias = Callable[[EntryId, LedgerEntry | LedgerError], None]
MISSING_ERRORS = (NoSuchEntryError, NoSuchLedgerError)


@dataclass(frozen=True, slots=True)
class ReadWay:
    """Keys, links and options for reading entries of one ledger. A recovery sets `fence_key` and `high_priority`."""

    ledger: LedgerId
    digest: Digest
    links: Links
    purpose: Purpose = Purpose.READ
    fence_key: bytes | None = field(default=None, repr=False)
    high_priority: bool = False

    async def ask(self, bookie: BookieId, entry: EntryId) -> Buffer:
        """Return the unverified stored bytes of an entry (NO_ENTRY: the last one) from one bookie. LedgerError."""
        answered: asyncio.Future[Buffer | LedgerError] = asyncio.get_running_loop().create_future()

        def resolve(answer: Buffer | LedgerError) -> None:
            if not answered.done():
                answered.set_result(answer)

        link = self.links.link(bookie, self.purpose)
        link.read(self.ledger, entry, resolve, fence_key=self.fence_key, high_priority=self.high_priority)
        answer = await answered
        if isinstance(answer, LedgerError):
            raise answer
        return answer

    def decode(self, data: Buffer, entry: EntryId) -> LedgerEntry:
        """Decode an entry from its stored bytes. DigestMismatchError."""
        found = self.digest.decode_entry(data, self.ledger, entry)
        return LedgerEntry(found.ledger, found.entry, found.lac, found.length, found.payload)

    def decode_batch(self, stored: Sequence[Buffer], first: EntryId) -> tuple[list[LedgerEntry], LedgerError | None]:
        """Decode consecutive entries up to the first invalid one. Return them and the error of the invalid one."""
        entries = [*stored]
        heads = iter(self.digest.check_entries(entries, self.ledger, first))
        payload_at = ENTRY_HEADER_BYTES + self.digest.size
        found = [
            LedgerEntry(self.ledger, EntryId(entry), EntryId(lac), length, memoryview(data)[payload_at:])
            for entry, (data, lac, length) in enumerate(zip(entries, heads, heads, strict=False), first)
        ]
        try:
            for at in range(len(found), len(entries)):
                found.append(self.decode(entries[at], EntryId(first + at)))
        except LedgerError as error:
            return found, error
        return found, None

    def check_batch(self, stored: Sequence[Buffer], first: EntryId) -> tuple[Sequence[Buffer], LedgerError | None]:
        """Verify consecutive entries as `decode_batch` does, but return their stored bytes."""
        packed = stored if isinstance(stored, PackedEntries) and self.digest.type is DigestType.CRC32C else None
        if packed is not None and packed.are_valid(self.ledger, first):
            return packed, None
        entries = [*stored]
        right = len(self.digest.check_entries(entries, self.ledger, first)) // 2
        try:
            for at in range(right, len(entries)):
                self.decode(entries[at], EntryId(first + at))
                right += 1
        except LedgerError as error:
            return entries[:right], error
        return entries, None


class EntryRead:
    """Reads from one replica after the other, and from a further one while some are slow; calls `done` once."""

    __slots__ = ("_asked", "_done", "_entry", "_errors", "_finished", "_replicas", "_search", "_speculation", "_way")

    def __init__(
        self,
        way: ReadWay,
        entry: EntryId,
        replicas: Sequence[BookieId],
        done: EntryDone,
        *,
        search: EntrySearch | None = None,
        speculation: Speculation | None = None,
    ) -> None:
        self._way = way
        self._entry = entry
        self._replicas = replicas
        self._done = done
        self._search = search
        self._speculation = speculation
        self._asked = 0
        self._finished = False
        self._errors: list[tuple[BookieId, LedgerError]] = []

    def start(self) -> None:
        """Send the read to the first replica."""
        if self._speculation is not None and len(self._replicas) > 1:
            self._speculation.began(self)
        self._ask()

    def speculate(self, waited_s: float) -> bool:
        """See SpeculativeRead."""
        if self._finished or self._asked >= len(self._replicas):
            return False
        self._way.links.health.overdue(self._replicas[self._asked - 1], waited_s)
        self._ask()
        return not self._finished

    def _ask(self) -> None:
        bookie = self._replicas[self._asked]
        self._asked += 1
        way = self._way
        way.links.link(bookie, way.purpose).read(
            way.ledger,
            self._entry,
            partial(self._answered, bookie),
            fence_key=way.fence_key,
            high_priority=way.high_priority,
        )

    def _answered(self, bookie: BookieId, answer: Buffer | LedgerError) -> None:
        if self._finished:
            return  # another replica was faster
        if not isinstance(answer, LedgerError):
            try:
                found = self._way.decode(answer, self._entry)
            except LedgerError as error:
                answer = error
            else:
                self._finish(found)
                return
        self._errors.append((bookie, answer))
        assert len(self._errors) <= self._asked <= len(self._replicas), "each replica responds once"
        if isinstance(answer, MISSING_ERRORS):
            verdict = self._search.missing() if self._search else Verdict.OPEN
        else:
            self._way.links.health.failed(bookie)
            verdict = self._search.failed() if self._search else Verdict.OPEN
        if verdict is Verdict.MISSING:
            self._finish(NoSuchEntryError(f"entry {self._entry} of ledger {self._way.ledger} is missing"))
        elif verdict is Verdict.OPEN and self._asked < len(self._replicas):
            self._ask()
        elif verdict is not Verdict.OPEN or len(self._errors) == self._asked:
            self._finish(self._failure())

    def _finish(self, result: LedgerEntry | LedgerError) -> None:
        self._finished = True
        if self._speculation is not None:
            self._speculation.ended(self)
        self._done(self._entry, result)

    def _failure(self) -> LedgerError:
        name = f"entry {self._entry} of ledger {self._way.ledger}"
        first = next((error for _, error in self._errors if not isinstance(error, MISSING_ERRORS)), None)
        if self._search is not None:
            failure = QuorumError(f"too few replicas responded to decide whether {name} exists: {first}")
            failure.__cause__ = first
            return failure
        if first is not None:
            if len(self._errors) == 1:
                return first
            errors = "; ".join(f"{bookie}: {error}" for bookie, error in self._errors)
            unreadable = type(first)(f"{name}: none of its {len(self._replicas)} replicas can be read: {errors}")
            unreadable.__cause__ = first
            return unreadable
        failure_missing = NoSuchEntryError(f"{name}: none of its {len(self._replicas)} replicas has it")
        failure_missing.__cause__ = self._errors[-1][1]
        return failure_missing
