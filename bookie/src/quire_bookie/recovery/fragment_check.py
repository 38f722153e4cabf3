"""Finds which replicas of a ledger are whole. Asks bookies and reports; never changes anything.

For each position of a fragment, the check reads the first and the last entry that it must hold and verifies their
digests. If configured, it does the same with a sample of the entries between them. It compares the rest with the
bookie's own list of entries. A bookie that is not registered is gone; it receives no request. A missing response, or
one that does not describe the data (too many requests, a refused connection), means *unknown*: it never counts as
missing.

Java's DbLedgerStorage does not answer requests for a list. There the check reads the entries between the ends: all of
them if an end is missing or damaged, or if the caller suspects the replica.

A bookie that answers none of the reads sent to it at a time is silent: the same check sends it nothing more. A bookie
whose machine died stays registered until its session ends, and each read of it costs a timeout.
"""

import asyncio
from collections.abc import Collection, Iterable
from enum import Enum

from quire_bookie.client.ledger_handle import LedgerHandle
from quire_bookie.dataclass import dataclass
from quire_bookie.env.rate_limit import RateLimit
from quire_bookie.errors import (
    BookieIoError,
    BookieProtocolError,
    BookieUnavailableError,
    DigestMismatchError,
    ForeignLedgerError,
    LedgerError,
    NoEntryListError,
    NoSuchEntryError,
    NoSuchLedgerError,
    UnknownLedgerStateError,
)
from quire_bookie.limits import CHECK_READS_AT_ONCE
from quire_bookie.model import BookieId, EntryId, LedgerMetadata
from quire_bookie.recovery.access import ClusterAccess
from quire_bookie.recovery.fragments import Fragment, lacking, merged, union
from quire_bookie.wire.availability import Availability, EntryRange

_SAMPLED_MAX = 1000


class Health(Enum):
    """The known state of one replica."""

    WHOLE = "whole"
    GONE = "its bookie is not registered"
    LACKING = "entries are missing or damaged there, provably"
    LEAVING = "its bookie is drained: it must move"
    """Set by `bookie_status`, never by a check."""
    MISPLACED = "it violates the rules of racks and zones"
    """Set by `placement_check`, never by a check."""
    FOREIGN = "its bookie holds another ledger under that id"
    LIMBO = "its bookie lost track of what it held"
    UNKNOWN = "its bookie gave no answer from which its state follows"


@dataclass(frozen=True, slots=True)
class ReplicaReport:
    """The state of one position of one fragment. `to_store`: ranges that cover the missing entries and may cover more.

    `target`: the bookie to which a misplaced replica should move.
    """

    fragment: Fragment
    position: int
    health: Health
    to_store: tuple[EntryRange, ...] = ()
    reason: str = ""
    target: BookieId | None = None

    @property
    def bookie(self) -> BookieId:
        """The bookie of this position."""
        return self.fragment.ensemble[self.position]


class LedgerCheck:
    """Checks one ledger once. Requests each bookie's list of entries only once."""

    def __init__(
        self, access: ClusterAccess, handle: LedgerHandle, pace: RateLimit, *, verified_share: float | None = None
    ) -> None:
        """`verified_share`: the share of the entries between first and last that is read; None: as configured."""
        self._access = access
        self._handle = handle
        self._pace = pace
        self._share = access.settings.verified_share if verified_share is None else verified_share
        self._lists: dict[BookieId, Availability | LedgerError] = {}
        self._suspected: Collection[BookieId] = ()
        self._silent: dict[BookieId, BookieUnavailableError] = {}
        """Bookies that answered none of the reads sent to them at a time, with the error of one."""

    async def check(
        self,
        fragments: Iterable[Fragment],
        *,
        listed: Collection[BookieId] | None = None,
        suspected: Collection[BookieId] = (),
    ) -> list[ReplicaReport]:
        """Check all positions of all fragments.

        `listed`: bookies whose lists of entries are compared (None: all). `suspected`: if such a bookie does not answer
        requests for lists, every entry is read.
        """
        self._suspected = suspected if listed is None else listed
        reports = []
        for fragment in fragments:
            self._access.progress.step(self._handle.ledger, f"checking entries {fragment.first} to {fragment.last}")
            positions = range(len(fragment.ensemble))
            reports += await asyncio.gather(*(self._check(fragment, position, listed) for position in positions))
        return reports

    async def _check(self, fragment: Fragment, position: int, listed: Collection[BookieId] | None) -> ReplicaReport:
        bookie = fragment.ensemble[position]
        ends = fragment.ends(position)
        if bookie not in self._access.registered:
            # Also if it stores no entry of this fragment: readers of the metadata expect the bookie to exist.
            return ReplicaReport(fragment, position, Health.GONE, ((fragment.first, fragment.last),))
        if ends is None:
            return ReplicaReport(fragment, position, Health.WHOLE)
        probes = [*dict.fromkeys((*ends, *self._sample(fragment, position)))]
        failures = await self.read_all(bookie, probes)
        if bookie in self._silent:
            return replica_report(fragment, position, failures, ())
        foreign = next((str(error) for error in failures.values() if isinstance(error, ForeignLedgerError)), None)
        if foreign is not None:  # its list of entries is that of the other ledger
            return ReplicaReport(fragment, position, Health.FOREIGN, ((fragment.first, fragment.last),), foreign)
        damaged = any(isinstance(error, (BookieIoError, DigestMismatchError)) for error in failures.values())
        missing = any(_is_missing(error) for error in failures.values())
        if damaged or missing or listed is None or bookie in listed:
            return await self._compare(fragment, position, failures, damaged=damaged, missing=missing)
        return replica_report(fragment, position, failures, ())

    async def _compare(
        self, fragment: Fragment, position: int, failures: dict[EntryId, LedgerError], *, damaged: bool, missing: bool
    ) -> ReplicaReport:
        """Compare with the bookie's list of entries, and verify every digest if one was wrong."""
        bookie = fragment.ensemble[position]
        whole = ((fragment.first, fragment.last),)
        found = await self._list(bookie)
        if isinstance(found, UnknownLedgerStateError):
            return ReplicaReport(fragment, position, Health.LIMBO, whole, str(found))
        if isinstance(found, (NoSuchLedgerError, NoSuchEntryError)):
            return ReplicaReport(fragment, position, Health.LACKING, whole, str(found))
        if isinstance(found, NoEntryListError):
            if any(isinstance(error, NoSuchLedgerError) for error in failures.values()):
                return ReplicaReport(fragment, position, Health.LACKING, whole, "it does not have the ledger")
            if damaged or missing or bookie in self._suspected:
                failures = failures | await self._read_rest(fragment, position, (), failures)
            return replica_report(fragment, position, failures, ())
        if isinstance(found, BookieProtocolError) and not damaged:
            # the bookie is too old to list entries: rely on the first and the last
            return replica_report(fragment, position, failures, ())
        if isinstance(found, LedgerError) and not isinstance(found, BookieIoError):
            if any(_is_missing(error) for error in failures.values()):
                return ReplicaReport(fragment, position, Health.LACKING, whole, f"extent unknown: {found}")
            return ReplicaReport(fragment, position, Health.UNKNOWN, reason=str(found))
        gaps = lacking(fragment, position, found) if isinstance(found, Availability) else ()
        if damaged or isinstance(found, BookieIoError):
            failures = failures | await self._read_rest(fragment, position, gaps, failures)
        return replica_report(fragment, position, failures, gaps)

    async def _read_rest(
        self, fragment: Fragment, position: int, gaps: tuple[EntryRange, ...], known: Collection[EntryId]
    ) -> dict[EntryId, LedgerError]:
        """Read every entry that the replica should hold and that was not read yet. Return the errors by entry."""
        bookie = fragment.ensemble[position]
        failures: dict[EntryId, LedgerError] = {}
        part: list[EntryId] = []
        for first, last in fragment.stored(position):
            for number in range(first, last + 1):
                entry = EntryId(number)
                if entry in known or any(low <= entry <= high for low, high in gaps):
                    continue
                part.append(entry)
                if len(part) == CHECK_READS_AT_ONCE:
                    failures |= await self.read_all(bookie, part)
                    part = []
                    if bookie in self._silent:
                        return failures
        return failures | await self.read_all(bookie, part)

    def _sample(self, fragment: Fragment, position: int) -> list[EntryId]:
        share = self._share
        count = fragment.last - fragment.first + 1
        if share <= 0 or count <= 2:
            return []
        if share >= 1:
            return [EntryId(entry) for first, last in fragment.stored(position) for entry in range(first, last + 1)]
        wanted = min(max(1, int(count * share)), _SAMPLED_MAX, count)
        chosen = self._access.chance.sample(range(fragment.first, fragment.last + 1), wanted)
        return [EntryId(entry) for entry in chosen if fragment.holds(position, EntryId(entry))]

    async def _list(self, bookie: BookieId) -> Availability | LedgerError:
        found = self._lists.get(bookie)
        if found is None:
            await self._pace.take(1)
            try:
                found = await self._access.entries_of(self._handle.ledger, bookie)
            except LedgerError as error:
                found = error
            self._lists[bookie] = found
        return found

    async def read_all(self, bookie: BookieId, entries: list[EntryId]) -> dict[EntryId, LedgerError]:
        """Read these entries from the bookie and return the errors by entry.

        Once the bookie is silent, all further entries have the error of its last reads.
        """
        failures: dict[EntryId, LedgerError] = {}
        for at in range(0, len(entries), CHECK_READS_AT_ONCE):
            silence = self._silent.get(bookie)
            if silence is not None:
                return failures | dict.fromkeys(entries[at:], silence)
            part = entries[at : at + CHECK_READS_AT_ONCE]
            await self._pace.take(len(part))
            answers = await asyncio.gather(*(self._read(bookie, entry) for entry in part))
            failures |= {entry: error for entry, error in zip(part, answers, strict=True) if error is not None}
            unavailable = [error for error in answers if isinstance(error, BookieUnavailableError)]
            if len(unavailable) == len(part):
                self._silent[bookie] = unavailable[0]
            else:
                self._access.progress.advanced(self._handle.ledger)
        return failures

    async def _read(self, bookie: BookieId, entry: EntryId) -> LedgerError | None:
        way = self._handle.read_way
        try:
            way.decode(await way.ask(bookie, entry), entry)
        except LedgerError as error:
            return error
        return None


def _is_missing(error: LedgerError) -> bool:
    return isinstance(error, (NoSuchEntryError, NoSuchLedgerError))


def replica_report(
    fragment: Fragment, position: int, failures: dict[EntryId, LedgerError], gaps: tuple[EntryRange, ...]
) -> ReplicaReport:
    """Return the state of one replica that follows from failed reads and from gaps in the bookie's list."""
    bad = [
        (entry, entry)
        for entry, error in sorted(failures.items())
        if _is_missing(error) or isinstance(error, (BookieIoError, DigestMismatchError))
    ]
    if bad or gaps:
        reason = str(failures[bad[0][0]]) if bad else f"entries {gaps[0][0]} to {gaps[0][1]} are not in its list"
        return ReplicaReport(fragment, position, Health.LACKING, merged(union([*gaps, *bad])), reason)
    if failures:
        return ReplicaReport(fragment, position, Health.UNKNOWN, reason=str(next(iter(failures.values()))))
    return ReplicaReport(fragment, position, Health.WHOLE)


def open_tail(metadata: LedgerMetadata, last: EntryId) -> Fragment:
    """Return the last segment of an open ledger up to `last`: a confirmed entry, or the segment's first entry."""
    segment = metadata.segments[-1]
    return Fragment(segment.first_entry, last, segment.ensemble, metadata.write_quorum)


def with_limbo(reports: list[ReplicaReport]) -> list[ReplicaReport]:
    """Return the reports with every replica on a bookie in limbo marked as possibly lacking any entry.

    Entries that such a bookie serves are right, but an entry that it does not serve may still have been lost there.
    Ending its limbo claims that it holds all that it must hold of the ledger.
    """
    limbo = {report.bookie for report in reports if report.health is Health.LIMBO}
    return [
        ReplicaReport(
            report.fragment,
            report.position,
            Health.LIMBO,
            ((report.fragment.first, report.fragment.last),),
            report.reason,
        )
        if report.bookie in limbo
        else report
        for report in reports
    ]
