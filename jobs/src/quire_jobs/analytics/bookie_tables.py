"""Rows for small tables from bookies: their space, their ledgers, and a thorough check of ledgers. Read-only."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any, Final

from quire_bookie.backup.holdings import BookieQuestions
from quire_bookie.env.rate_limit import RateLimit
from quire_bookie.errors import BookieUnavailableError, LedgerError, MetadataFormatError, NoSuchLedgerError
from quire_bookie.metadata.cookies import Cookies
from quire_bookie.model import BookieId, LedgerId
from quire_bookie.recovery.access import ClusterAccess
from quire_bookie.recovery.fragment_check import Health
from quire_bookie.recovery.ledger_report import Damage, report_on

SPACE_TIMEOUT_S: Final = 10.0
UNKNOWN: Final = (Health.GONE, Health.UNKNOWN)
Row = tuple[Any, ...]


async def read_bookies(access: ClusterAccess) -> list[Row]:
    """Return rows of the columns BOOKIES, for all bookies that are registered or have a cookie. MetadataError."""
    known = sorted({*await Cookies(access.metadata).bookies(), *access.registered})
    return list(await asyncio.gather(*(_bookie(access, bookie) for bookie in known)))


async def _bookie(access: ClusterAccess, bookie: BookieId) -> Row:
    if bookie not in access.registered:
        return bookie, "away", None, None, "not registered: it is stopped, or cannot reach the metadata store"
    state = "writable" if bookie in access.registry.writable else "read-only"
    try:
        space = await access.space_of(bookie, SPACE_TIMEOUT_S)
    except LedgerError as error:
        return bookie, state, None, None, str(error)
    return bookie, state, space.free_bytes, space.total_bytes, None


class PagedQuestions(BookieQuestions):
    """Asks one bookie for its ledgers page by page, without keeping all of them in memory."""

    async def pages(self, bookie: BookieId) -> AsyncIterator[list[Row]]:
        """Yield a bookie's ledgers: ledger, last entry, fenced, in limbo. BookieUnavailableError, also after some
        pages."""
        after: int | None = -1
        while after is not None:
            page = await self._get(bookie, f"/api/v1/quire/holdings?after={after}")
            yield [(row["ledger"], row["last"], row["fenced"], row["limbo"]) for row in page["ledgers"]]
            after = page["next"]


async def read_responses(questions: PagedQuestions, bookie: BookieId, asked: int) -> AsyncIterator[list[Row]]:
    """Yield rows of the columns RESPONSES, of one bookie."""
    reason = None
    try:
        async for page in questions.pages(bookie):
            if page:
                yield [(bookie, asked, *row, None) for row in page]
    except BookieUnavailableError as error:
        reason = str(error)
    yield [(bookie, asked, None, None, None, None, reason)]


async def read_damages(access: ClusterAccess, ledgers: Sequence[int], reads_per_s: float) -> AsyncIterator[list[Row]]:
    """Yield rows of the columns CHECKED: read every replica of every entry and check its digest. MetadataError."""
    pace = RateLimit(reads_per_s)
    for ledger in ledgers:
        unknown: set[BookieId] = set()
        try:
            async for piece in report_on(access, LedgerId(ledger), pace):
                if rows := rows_of(ledger, piece.damages, unknown):
                    yield rows
        except NoSuchLedgerError:
            continue  # deleted meanwhile
        except (LedgerError, MetadataFormatError) as error:
            yield [(ledger, None, None, None, None, str(error))]


def rows_of(ledger: int, damages: Sequence[Damage], unknown: set[BookieId]) -> list[Row]:
    """Return rows of the columns CHECKED for one part of a ledger. `unknown`: silent bookies so far, extended by this
    part.

    A silent bookie is reported once. Entries that it certainly lacks count, even if it was silent before.
    """
    rows = [_checked_row(ledger, one) for one in damages if one.health not in UNKNOWN or one.bookie not in unknown]
    unknown |= {one.bookie for one in damages if one.health in UNKNOWN}
    return rows


def _checked_row(ledger: int, one: Damage) -> Row:
    """Return the row of a damage. A silent bookie is unknown, never damaged."""
    if one.health in UNKNOWN:
        return ledger, one.bookie, None, None, None, one.reason
    return ledger, one.bookie, int(one.first), int(one.last), f"{one.health.name.lower()}: {one.reason}", None
