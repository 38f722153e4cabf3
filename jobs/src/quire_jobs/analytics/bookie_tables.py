"""Small tables of what bookies say: their space, what they hold, what a thorough look at ledgers finds. Only asks."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any, Final

from quire_bookie.backup.holdings import BookieQuestions
from quire_bookie.errors import BookieUnavailableError, LedgerError, MetadataFormatError, NoSuchLedgerError
from quire_bookie.metadata.cookies import Cookies
from quire_bookie.model import BookieId, LedgerId
from quire_bookie.recovery.access import ClusterAccess
from quire_bookie.recovery.fragment_check import Health
from quire_bookie.recovery.ledger_report import Damage, report_on
from quire_bookie.recovery.pace import Pace

SPACE_TIMEOUT_S: Final = 10.0
UNKNOWN: Final = (Health.GONE, Health.UNKNOWN)
Row = tuple[Any, ...]


async def read_bookies(access: ClusterAccess) -> list[Row]:
    """Rows of the columns BOOKIES: all that are registered or have a cookie. MetadataError."""
    known = sorted({*await Cookies(access.metadata).bookies(), *access.registered})
    return list(await asyncio.gather(*(_bookie(access, bookie) for bookie in known)))


async def _bookie(access: ClusterAccess, bookie: BookieId) -> Row:
    if bookie not in access.registered:
        return bookie, "away", None, None, "it is not registered: stopped, or cannot reach the metadata store"
    state = "writable" if bookie in access.registry.writable else "read-only"
    try:
        space = await access.space_of(bookie, SPACE_TIMEOUT_S)
    except LedgerError as error:
        return bookie, state, None, None, str(error)
    return bookie, state, space.free_bytes, space.total_bytes, None


class PagedQuestions(BookieQuestions):
    """Asks one bookie after the other, without holding all that it says."""

    async def pages(self, bookie: BookieId) -> AsyncIterator[list[Row]]:
        """What a bookie holds: ledger, last entry, fenced, in limbo. BookieUnavailableError, also half-way."""
        after: int | None = -1
        while after is not None:
            page = await self._get(bookie, f"/api/v1/quire/holdings?after={after}")
            yield [(row["ledger"], row["last"], row["fenced"], row["limbo"]) for row in page["ledgers"]]
            after = page["next"]


async def read_said(questions: PagedQuestions, bookie: BookieId, asked: int) -> AsyncIterator[list[Row]]:
    """Rows of the columns SAID, of one bookie."""
    reason = None
    try:
        async for page in questions.pages(bookie):
            if page:
                yield [(bookie, asked, *row, None) for row in page]
    except BookieUnavailableError as error:
        reason = str(error)
    yield [(bookie, asked, None, None, None, None, reason)]


async def read_damages(access: ClusterAccess, ledgers: Sequence[int], reads_per_s: float) -> AsyncIterator[list[Row]]:
    """Rows of the columns LOOKED: every replica of every entry is read and its digest checked. MetadataError."""
    pace = Pace(reads_per_s)
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
    """Rows of the columns LOOKED, of one piece of a ledger; `unknown`, of the ledger's pieces before, grows by it.

    That a bookie is silent is told once. What it lacks for sure counts, also where it was silent before.
    """
    rows = [_looked(ledger, one) for one in damages if one.health not in UNKNOWN or one.bookie not in unknown]
    unknown |= {one.bookie for one in damages if one.health in UNKNOWN}
    return rows


def _looked(ledger: int, one: Damage) -> Row:
    """A silent bookie is unknown, never damaged."""
    if one.health in UNKNOWN:
        return ledger, one.bookie, None, None, None, one.reason
    return ledger, one.bookie, int(one.first), int(one.last), f"{one.health.name.lower()}: {one.reason}", None
