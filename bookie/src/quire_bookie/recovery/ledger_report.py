"""Checks one ledger thoroughly for an administrator: reads each replica of each entry and verifies digests. Read-only.

Works piece by piece, so that neither memory nor a response grows with the ledger, and progress can be reported.
"""

from collections.abc import AsyncIterator, Iterator
from dataclasses import replace

from quire_bookie.client.reading.lac_read import read_lac
from quire_bookie.dataclass import dataclass
from quire_bookie.env.rate_limit import RateLimit
from quire_bookie.model import BookieId, EntryId, LedgerId, LedgerState
from quire_bookie.recovery.access import ClusterAccess
from quire_bookie.recovery.fragment_check import Health, LedgerCheck, ReplicaReport, open_tail
from quire_bookie.recovery.fragments import Fragment, closed_fragments

PIECE_ENTRIES = 1000


@dataclass(frozen=True, slots=True)
class Damage:
    """Entries that one bookie should serve and does not. `first` to `last` cover them and may cover more."""

    bookie: BookieId
    first: EntryId
    last: EntryId
    health: Health
    reason: str


@dataclass(frozen=True, slots=True)
class Piece:
    """One step of the check: entries done so far, entries in all, and the damage found in this step."""

    entries_done: int
    entries: int
    damages: tuple[Damage, ...]


async def report_on(access: ClusterAccess, ledger: LedgerId, pace: RateLimit) -> AsyncIterator[Piece]:
    """Check all confirmed entries.

    Raises NoSuchLedgerError, MetadataError, and QuorumError if the last confirmed entry cannot be found.
    """
    metadata = (await access.nodes.read(ledger)).value
    handle = access.handle(ledger, metadata)
    fragments = closed_fragments(metadata)
    if metadata.state is not LedgerState.CLOSED:
        lac = (await read_lac(handle.read_way, metadata)).lac
        if lac >= metadata.segments[-1].first_entry:
            fragments.append(open_tail(metadata, lac))
    check = LedgerCheck(access, handle, pace, verified_share=1.0)
    total = sum(one.last - one.first + 1 for one in fragments)
    done = 0
    yield Piece(0, total, ())
    for piece in _pieces(fragments):
        reports = await check.check([piece])
        done += piece.last - piece.first + 1
        yield Piece(done, total, tuple(_damages(reports)))


def _pieces(fragments: list[Fragment]) -> Iterator[Fragment]:
    for fragment in fragments:
        for first in range(fragment.first, fragment.last + 1, PIECE_ENTRIES):
            last = min(first + PIECE_ENTRIES - 1, fragment.last)
            yield replace(fragment, first=EntryId(first), last=EntryId(last))


def _damages(reports: list[ReplicaReport]) -> Iterator[Damage]:
    for report in reports:
        if report.health is Health.WHOLE:
            continue
        reason = report.reason or report.health.value
        for first, last in report.to_store or ((report.fragment.first, report.fragment.last),):
            yield Damage(report.bookie, first, last, report.health, reason)
