"""Asks each bookie what it holds: its ledgers over its admin HTTP port, and its entries of one ledger by the wire
protocol. Changes nothing.
"""

import asyncio
import ssl
from collections.abc import Mapping
from dataclasses import field
from types import TracebackType
from typing import Any, Final, Self

from quire_bookie.dataclass import dataclass
from quire_bookie.errors import (
    BookieUnavailableError,
    LedgerError,
    MetadataFormatError,
    NoSuchLedgerError,
)
from quire_bookie.metadata.cookies import Cookie, Cookies, decode_cookie
from quire_bookie.metadata.restoration import returning
from quire_bookie.model import BookieId, EntryId, LedgerId
from quire_bookie.recovery.access import ClusterAccess
from quire_bookie.recovery.bookie_http import BookieHttp
from quire_bookie.storage.entry_ranges import EntryRange, join_ranges

RANGES_MAX: Final = 1_000_000


@dataclass(frozen=True, slots=True)
class Held:
    """A ledger on one bookie. `last`: the last entry; None when nothing is held or damage hides it. `quarantined_ms`:
    when its quarantine there began, in ms since the epoch; None when it is not in quarantine.
    """

    last: EntryId | None
    fenced: bool
    limbo: bool
    quarantined_ms: int | None = None


@dataclass(slots=True)
class Holdings:
    """The answers of all bookies. `silent`: bookies that did not answer, with the reason."""

    of: dict[BookieId, dict[LedgerId, Held]] = field(default_factory=dict)
    silent: dict[BookieId, str] = field(default_factory=dict)

    def holders(self) -> dict[LedgerId, list[BookieId]]:
        """Return the holders of each ledger."""
        found: dict[LedgerId, list[BookieId]] = {}
        for bookie, ledgers in sorted(self.of.items()):
            for ledger in ledgers:
                found.setdefault(ledger, []).append(bookie)
        return found

    @property
    def highest(self) -> LedgerId:
        """The highest ledger id that any bookie holds; -1 without any."""
        return LedgerId(max((ledger for ledgers in self.of.values() for ledger in ledgers), default=-1))

    @property
    def highest_short(self) -> LedgerId:
        """The highest short ledger id that any bookie holds; -1 without any."""
        return LedgerId(max((one for held in self.of.values() for one in held if one < 2**31 - 1), default=-1))


class BookieQuestions:
    """Asks bookies about their ledgers, with the token of `access`. An asynchronous context manager.

    `tls`: the context for HTTPS; None: the one that `access` uses for the bookie protocol.
    """

    def __init__(self, access: ClusterAccess, tls: ssl.SSLContext | None = None) -> None:
        self._access = access
        self._http = BookieHttp(access.registry, access.security, tls)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._http.close()

    async def known(self) -> list[BookieId]:
        """Return all bookies that may hold entries: with a cookie, registered, or accepted and not started yet.

        MetadataError.
        """
        store = self._access.metadata
        return sorted({*await Cookies(store).bookies(), *self._access.registered, *await returning(store)})

    async def holdings(self) -> Holdings:
        """Ask every known bookie. MetadataError."""
        found = Holdings()

        async def ask(bookie: BookieId) -> None:
            try:
                found.of[bookie] = await self._ledgers(bookie)
            except BookieUnavailableError as error:
                found.silent[bookie] = str(error)

        await asyncio.gather(*map(ask, await self.known()))
        return found

    async def details(self, bookie: BookieId, ledger: LedgerId) -> Mapping[str, Any]:
        """Return length and last entry of a ledger on a bookie. BookieUnavailableError, also when it is not held
        there."""
        return await self._get(bookie, f"/api/v1/quire/holdings/{ledger}")

    async def cookie(self, bookie: BookieId) -> Cookie:
        """Return the cookie in the bookie's own storage. BookieUnavailableError."""
        answer = await self._get(bookie, "/api/v1/quire/cookie")
        try:
            return decode_cookie(str(answer["cookie"]).encode())
        except (KeyError, MetadataFormatError) as error:
            raise BookieUnavailableError(f"bookie {bookie} did not return a valid cookie: {error}") from error

    async def ranges(self, bookie: BookieId, ledger: LedgerId) -> list[EntryRange]:
        """Return the entries that the bookie holds of a ledger; empty when it has no such ledger. LedgerError."""
        try:
            listed = await self._access.entries_of(ledger, bookie)
        except NoSuchLedgerError:
            return []
        found: list[EntryRange] = []
        for group in listed.groups:
            found += group.ranges()
            if len(found) > RANGES_MAX:
                raise LedgerError(f"ledger {ledger} at bookie {bookie}: more than {RANGES_MAX} runs of entries")
        return join_ranges([found])

    async def token(self, bookie: BookieId, ledger: LedgerId) -> bytes:
        """Return the token of a ledger on the bookie; empty when it has none. LedgerError."""
        return await self._access.token_of(ledger, bookie)

    async def _ledgers(self, bookie: BookieId) -> dict[LedgerId, Held]:
        found: dict[LedgerId, Held] = {}
        after: int | None = -1
        while after is not None:
            page = await self._get(bookie, f"/api/v1/quire/holdings?after={after}")
            for row in page["ledgers"]:
                last = None if row["last"] is None else EntryId(row["last"])
                found[LedgerId(row["ledger"])] = Held(last, row["fenced"], row["limbo"], row.get("quarantinedMs"))
            after = page["next"]
        return found

    async def _get(self, bookie: BookieId, path: str) -> Mapping[str, Any]:
        if bookie not in self._access.registered:
            raise BookieUnavailableError(f"bookie {bookie} is not registered: it is stopped, or cannot reach etcd")
        found: Mapping[str, Any] = await self._http.get(bookie, path, "report what it stores")
        return found
