"""Small tables of what bookies say: their space, what they hold, what a thorough look at ledgers finds. Only asks."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from quire_bookie.backup.holdings import BookieQuestions
from quire_bookie.errors import LedgerError, MetadataFormatError, NoSuchLedgerError
from quire_bookie.metadata.cookies import Cookies
from quire_bookie.model import BookieId, LedgerId
from quire_bookie.recovery.access import ClusterAccess
from quire_bookie.recovery.fragment_check import Health
from quire_bookie.recovery.ledger_report import report_on
from quire_bookie.recovery.pace import Pace

SPACE_TIMEOUT_S: Final = 10.0
Row = tuple[Any, ...]


@dataclass(slots=True)
class Holdings:
    """Rows of the columns HELD and SILENT."""

    held: list[Row] = field(default_factory=list)
    silent: list[Row] = field(default_factory=list)


@dataclass(slots=True)
class Damages:
    """`found`: ledger, bookie, first, last, what. `unknown`: what could not be looked at, and why."""

    found: list[Row] = field(default_factory=list)
    unknown: dict[str, str] = field(default_factory=dict)


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


async def read_holdings(questions: BookieQuestions) -> Holdings:
    """What each bookie holds, asked of its admin HTTP. MetadataError."""
    said = await questions.holdings()
    held = [
        (int(ledger), bookie, None if one.last is None else int(one.last), one.fenced, one.limbo)
        for bookie, ledgers in sorted(said.of.items())
        for ledger, one in sorted(ledgers.items())
    ]
    return Holdings(held, sorted(said.silent.items()))


async def read_damages(access: ClusterAccess, ledgers: Sequence[int], reads_per_s: float) -> Damages:
    """Every replica of every entry of these ledgers read and its digest checked. A silent bookie is unknown."""
    pace = Pace(reads_per_s)
    damages = Damages()
    for ledger in ledgers:
        try:
            async for piece in report_on(access, LedgerId(ledger), pace):
                for one in piece.damages:
                    if one.health in (Health.GONE, Health.UNKNOWN):
                        damages.unknown[f"ledger {ledger} at bookie {one.bookie}"] = one.reason
                    else:
                        what = f"{one.health.name.lower()}: {one.reason}"
                        damages.found.append((ledger, one.bookie, int(one.first), int(one.last), what))
        except NoSuchLedgerError:
            continue  # deleted meanwhile
        except (LedgerError, MetadataFormatError) as error:
            damages.unknown[f"ledger {ledger}"] = str(error)
    return damages
