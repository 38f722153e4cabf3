"""Creates, closes and recovers the ledgers of one managed ledger, with its quorums, digest and custom metadata."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import NamedTuple

from quire_bookie.env.backoff import Backoff
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
    PlacementError,
)
from quire_bookie.metadata.store import MetadataStore, SessionState
from quire_bookie.model import LedgerId
from quire_broker.managed_ledger.appending.rollover import RollConditions, may_roll
from quire_broker.managed_ledger.errors import ManagedLedgerFencedError
from quire_broker.managed_ledger.ledger_port import Ledgers, Writer
from quire_broker.managed_ledger.stored_passwords import CURSOR, MANAGED_LEDGER, to_recover
from quire_broker.settings.managed_ledger import ManagedLedgerSettings

APPLICATION = {"application": b"pulsar"}
"""Custom metadata of every ledger of a broker."""
_AWAY_S = 5.0  # after a failed call the metadata store counts as unavailable for this time


def compacted_custom(managed_ledger: str, custom: Mapping[str, bytes]) -> dict[str, bytes]:
    """Return `custom` with the keys of a compacted ledger: its purpose and its managed ledger."""
    return {"component": b"compacted-topic", MANAGED_LEDGER: managed_ledger.encode(), **custom}


class ClosedCounts(NamedTuple):
    """Final counts of a closed ledger."""

    entries: int
    size_bytes: int


class Availability:
    """Tracks whether the metadata store is available, and how many bookies accept new ledgers."""

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
        """Note that a call failed with `error`."""
        if isinstance(error, MetadataUnavailableError):
            self._away_until_s = asyncio.get_running_loop().time() + _AWAY_S

    def now(self, settings: ManagedLedgerSettings) -> RollConditions:
        """Return the present conditions for a rollover of a managed ledger with these settings."""
        largest = self._client.ensemble_max_in(settings.groups, settings.ensemble_size)
        return RollConditions(self.metadata_reachable, largest)

    @property
    def metadata_reachable(self) -> bool:
        """Whether the metadata store is available."""
        return not self._lost and asyncio.get_running_loop().time() >= self._away_until_s

    def close(self) -> None:
        """Stop listening to session changes."""
        self._remove()


class LedgerMaker:
    """Creates, closes and recovers the ledgers of one managed ledger."""

    def __init__(self, name: str, client: Ledgers, availability: Availability, settings: ManagedLedgerSettings) -> None:
        self._name = name
        self._client = client
        self._availability = availability
        self._settings = settings
        self.obstacle = ""
        """Why the last ledger could not be created, if enforced rules of placement allow none; else empty."""

    def use(self, settings: ManagedLedgerSettings) -> None:
        """Create the next ledgers with these settings."""
        self._settings = settings

    async def create(self, cursor: str | None = None) -> Writer:
        """Create a ledger for entries, or for the positions of `cursor`. Raises errors of the ledger client.

        If fewer than E but at least Qa bookies accept ledgers, the ledger is created on those: each acknowledged entry
        still has Qa copies. With fewer than Qw copies the ledger counts as under-replicated. It gets a successor as
        soon as E bookies accept ledgers, and auto-recovery creates the missing copies.
        """
        custom = {"component": b"managed-ledger", MANAGED_LEDGER: self._name.encode()}
        if cursor is not None:
            custom[CURSOR] = cursor.encode()
        return await self._create(custom)

    async def create_compacted(self, custom: Mapping[str, bytes]) -> Writer:
        """Create a ledger for the entries that compaction keeps; `custom` has Pulsar's keys. Errors as `create`."""
        return await self._create(compacted_custom(self._name, custom))

    async def _create(self, custom: Mapping[str, bytes]) -> Writer:
        settings = self._settings
        placement = {} if settings.groups is None else settings.groups.custom()
        try:
            writer = await self._client.create_ledger(
                ensemble_size=settings.ensemble_size,
                write_quorum=settings.write_quorum,
                ack_quorum=settings.ack_quorum,
                digest_type=settings.digest_type,
                password=settings.password,
                custom={**custom, **placement, **APPLICATION},
                fewer_bookies=True,
            )
        except (MetadataError, NotEnoughBookiesError) as error:
            self._availability.note(error)
            if isinstance(error, PlacementError):
                self.obstacle = str(error)
            raise
        self.obstacle = ""
        return writer

    def should_replace(self, writer: Writer) -> bool:
        """Return whether the ledger was created with fewer than E bookies, and E bookies accept ledgers now."""
        return writer.metadata.ensemble_size < self._settings.ensemble_size and self.has_bookies

    @property
    def has_bookies(self) -> bool:
        """Whether E bookies accept ledgers now, and the metadata store is available."""
        return may_roll(self._availability.now(self._settings), self._settings)

    async def discard(self, writer: Writer) -> None:
        """Delete a ledger that was never used. A failure leaves only an empty ledger behind."""
        writer.abandon()  # otherwise the ledger client would keep it
        await self._client.delete_ledger(writer.ledger_id)

    async def recover(self, ledger_id: int) -> ClosedCounts:
        """Fence the present writer, close the ledger and count its entries. NoSuchLedgerError.

        Errors of the ledger client.
        """
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
        """Close the ledger of `writer`, which ended with `failure`. Retries without a time limit.

        A ledger without confirmed entries is closed by its writer if possible: its bookies may hold another ledger with
        the same id, and a recovery would adopt the entries of that one. A fenced ledger is recovered only while
        `owned()`: the client that fenced it may be auto-recovery or the next owner. Raises ManagedLedgerFencedError if
        the ledger is not ours or the store does not answer, and NoSuchLedgerError; a retry of the latter does not help.
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
                # Closing needs only the metadata, recovery also the bookies. Alternate, since either may become
                # available first.
                recover = not in_use and (fenced or not recover)
            await backoff.wait()

    async def _proved(self, owned: Callable[[], Awaitable[bool]]) -> bool:
        """Return whether the store confirms now that the managed ledger is ours."""
        if not self._availability.metadata_reachable:
            return False
        try:
            return await owned()
        except MetadataError as error:
            self._availability.note(error)
            return False
