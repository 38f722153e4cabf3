"""Creates and recovers the ledgers of one managed ledger: quorums, digest and custom metadata in one place."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import NamedTuple

from quire_bookie.errors import (
    BadVersionError,
    LedgerClosedError,
    LedgerError,
    LedgerFencedError,
    LedgerIdInUseError,
    MetadataError,
    MetadataUnavailableError,
    NoSuchLedgerError,
    NotEnoughBookiesError,
)
from quire_bookie.metadata.store import MetadataStore, SessionState
from quire_bookie.model import LedgerId
from quire_broker.managed_ledger.errors import ManagedLedgerFencedError
from quire_broker.managed_ledger.ledger_port import Ledgers, Writer
from quire_broker.managed_ledger.patience import Backoff
from quire_broker.managed_ledger.rollover import Surroundings, may_roll
from quire_broker.managed_ledger.settings import ManagedLedgerSettings
from quire_broker.managed_ledger.stored_passwords import MANAGED_LEDGER, to_recover

_AWAY_S = 5.0  # after a failed call the metadata store counts as away for so long


class ClosedCounts(NamedTuple):
    """What a closed ledger holds for ever."""

    entries: int
    size_bytes: int


class Availability:
    """Whether the metadata store is known to be away, and how many bookies take new ledgers."""

    def __init__(self, client: Ledgers, store: MetadataStore) -> None:
        self._client = client
        self._lost = False
        self._away_until_s = 0.0
        self._remove: Callable[[], None] = store.on_session(self._session_changed)

    def _session_changed(self, state: SessionState) -> None:
        self._lost = state is SessionState.LOST
        if not self._lost:
            self._away_until_s = 0.0

    def note(self, error: BaseException) -> None:
        """A call failed."""
        if isinstance(error, MetadataUnavailableError):
            self._away_until_s = asyncio.get_running_loop().time() + _AWAY_S

    def now(self) -> Surroundings:
        """What a roll would find."""
        reachable = not self._lost and asyncio.get_running_loop().time() >= self._away_until_s
        return Surroundings(reachable, len(self._client.writable_bookies))

    def close(self) -> None:
        """Stop listening."""
        self._remove()


class LedgerMaker:
    """Of one managed ledger."""

    def __init__(self, name: str, client: Ledgers, availability: Availability, settings: ManagedLedgerSettings) -> None:
        self._name = name
        self._client = client
        self._availability = availability
        self._settings = settings

    async def create(self, cursor: str | None = None) -> Writer:
        """A new ledger for entries, or for the positions of `cursor`. Errors of the ledger client.

        While fewer than E bookies take ledgers but at least Qa do, the ledger is created on those: each entry still has
        Qa copies when it is acknowledged. With fewer than Qw copies it counts as under-replicated. It gets a successor
        as soon as E bookies take ledgers, and auto-recovery gives it the copies that it lacks.
        """
        custom = {"component": b"managed-ledger", MANAGED_LEDGER: self._name.encode()}
        if cursor is not None:
            custom["pulsar/cursor"] = cursor.encode()
        custom["application"] = b"pulsar"
        settings = self._settings
        try:
            return await self._client.create_ledger(
                ensemble_size=settings.ensemble_size,
                write_quorum=settings.write_quorum,
                ack_quorum=settings.ack_quorum,
                digest_type=settings.digest_type,
                password=settings.password,
                custom=custom,
                fewer_bookies=True,
            )
        except (MetadataError, NotEnoughBookiesError) as error:
            self._availability.note(error)
            raise

    def should_replace(self, writer: Writer) -> bool:
        """Whether the ledger was created while fewer than E bookies took ledgers, and E do now."""
        is_reduced = writer.metadata.ensemble_size < self._settings.ensemble_size
        return is_reduced and may_roll(self._availability.now(), self._settings)

    async def discard(self, writer: Writer) -> None:
        """Delete a ledger that never came into use. What fails here leaves an empty ledger behind, nothing worse."""
        writer.abandon()  # else its client keeps it for ever
        await self._client.delete_ledger(writer.ledger_id)

    async def recover(self, ledger_id: int) -> ClosedCounts:
        """Fence whoever writes the ledger, close it and count. NoSuchLedgerError; errors of the ledger client."""
        reader = await self._client.open_ledger(
            LedgerId(ledger_id),
            password=self._settings.password,
            recover=True,
            accept_stored=to_recover(self._name),
        )
        counts = ClosedCounts(reader.last_add_confirmed + 1, reader.length)
        await reader.close()
        return counts

    async def close(
        self, writer: Writer, backoff: Backoff, *, failure: LedgerError | None, owned: Callable[[], Awaitable[bool]]
    ) -> ClosedCounts:
        """Close the ledger of `writer`, which ended with `failure`, however long it takes.

        A ledger of which nothing was confirmed is closed by its writer where that can be: its bookies may hold another
        ledger with the same id, and a recovery would take over that one's entries.
        A fenced ledger is recovered only while `owned()`: auto-recovery may have fenced it, or the next owner.
        ManagedLedgerFencedError when it is not ours, or the store does not answer; NoSuchLedgerError: no retry helps.
        """
        fenced = isinstance(failure, LedgerFencedError)
        in_use = isinstance(failure, LedgerIdInUseError)
        recover = fenced and writer.last_add_confirmed >= 0
        while True:
            try:
                if fenced and not await self._proved(owned):
                    raise ManagedLedgerFencedError(
                        f"{self._name}: ledger {writer.ledger_id} was fenced by another client"
                    )
                if recover:
                    return await self.recover(writer.ledger_id)
                metadata = await writer.close()
                return ClosedCounts(metadata.last_entry + 1, metadata.length)
            except NoSuchLedgerError:
                raise
            except (LedgerFencedError, LedgerClosedError, BadVersionError):
                recover = fenced = True
            except (MetadataError, LedgerError) as error:
                self._availability.note(error)
                # Closing needs only the metadata, recovery also the bookies: whichever comes back first helps.
                recover = not in_use and (fenced or not recover)
            await backoff.wait()

    async def _proved(self, owned: Callable[[], Awaitable[bool]]) -> bool:
        """Whether the store says now that the managed ledger is ours."""
        if not self._availability.now().metadata_reachable:
            return False
        try:
            return await owned()
        except MetadataError as error:
            self._availability.note(error)
            return False
