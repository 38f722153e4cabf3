"""The ledger client: creates, opens, recovers, deletes and lists ledgers. A facade over the other modules.

One client per process is enough: all ledgers share its connections and its knowledge of the bookies.
"""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from typing import Self

from quire_bookie.client.bookie_choice import BookieChoice
from quire_bookie.client.fresh_ids import FreshIds
from quire_bookie.client.hole_marks import HoleMarks
from quire_bookie.client.ledger_handle import LedgerHandle
from quire_bookie.client.links.connection import BookieConnection
from quire_bookie.client.links.pool import ConnectionPool
from quire_bookie.client.opening import Opening
from quire_bookie.client.placement_view import PlacementView
from quire_bookie.client.reading.ledger_reader import LedgerReader
from quire_bookie.client.recovery import recover_ledger
from quire_bookie.client.replica_health import ReplicaHealth
from quire_bookie.client.security import ClientSecurity
from quire_bookie.client.writing.deferred_writer import DeferredSyncWriter
from quire_bookie.client.writing.ledger_writer import LedgerWriter
from quire_bookie.dataclass import dataclass
from quire_bookie.env.chance import Chance, SystemChance
from quire_bookie.env.clock import SystemClock, WallClock
from quire_bookie.env.own_links import OwnLinks
from quire_bookie.errors import LedgerError, LedgerExistsError, MetadataError, UnauthorizedError
from quire_bookie.metadata.ledgers import LedgerNodes
from quire_bookie.metadata.opening import open_metadata_store
from quire_bookie.metadata.rack_map import RackMap
from quire_bookie.metadata.registration import BookieRegistry
from quire_bookie.metadata.store import MetadataStore, Versioned
from quire_bookie.metadata.under_replication import UnderReplication
from quire_bookie.model import LEDGER_TOKEN, BookieId, DigestType, EntryId, LedgerId, LedgerMetadata, Segment
from quire_bookie.quorum.bookie_groups import BookieGroups, groups_of
from quire_bookie.quorum.wanted_copies import missing_copies, narrowed, wanted_mark
from quire_bookie.settings.client import ClientSettings
from quire_bookie.settings.metadata import MetadataSettings

_log = logging.getLogger("quire.client")
_CREATE_ATTEMPTS_MAX = 100


@dataclass(slots=True)
class ClientStats:
    """Counters since the client was opened. Each of `connections` has its own."""

    ledgers_created: int = 0
    ledgers_opened: int = 0
    ledgers_recovered: int = 0
    ledgers_deleted: int = 0


class LedgerClient:
    """Manages ledgers. Open it with `connect`, or with `open` if the caller owns the metadata store."""

    def __init__(
        self,
        metadata: MetadataStore,
        registry: BookieRegistry,
        settings: ClientSettings,
        clock: WallClock,
        chance: Chance,
        security: ClientSecurity | None = None,
        racks: RackMap | None = None,
        own_links: OwnLinks | None = None,
    ) -> None:
        """Use `open`."""
        self._settings = settings
        self._clock = clock
        self._chance = chance
        self._nodes = LedgerNodes(metadata)
        self._registry = registry
        self._own_metadata: MetadataStore | None = None
        self._pool = ConnectionPool(registry.address_of, settings, security, own_links)
        self._ids = FreshIds(metadata, registry, self._pool)
        self._racks = racks
        self._placement = PlacementView(registry, racks, settings, security)
        self._bookies = BookieChoice(
            registry,
            lambda: self._pool.suspects,
            lambda: self._pool.quarantined,
            chance,
            self._placement,
        )
        self._under_replication = UnderReplication(metadata, clock)
        self._marks = HoleMarks(self._under_replication)
        self._writers: dict[LedgerId, LedgerWriter] = {}
        self._recovering: dict[LedgerId, tuple[asyncio.Lock, int]] = {}
        self._known_writable = registry.writable
        self._listeners: list[Callable[[], None]] = []
        registry.on_change(self._registered)
        self._pool.on_suspects_changed(self._notify)

        self.stats = ClientStats()

    @classmethod
    async def open(
        cls,
        metadata: MetadataStore,
        settings: ClientSettings | None = None,
        *,
        clock: WallClock,
        chance: Chance,
        own_links: OwnLinks | None = None,
    ) -> "LedgerClient":
        """Open a client and load the registered bookies. MetadataUnavailableError; ConfigError for its TLS files.

        `own_links`: connections to the bookies in this process.
        """
        settings = settings or ClientSettings()
        security = await ClientSecurity.open(settings.security, clock)
        async with contextlib.AsyncExitStack() as undo:
            registry = await BookieRegistry.open(metadata)
            undo.push_async_callback(registry.close)
            racks = await RackMap.open(metadata)
            undo.pop_all()
        return cls(metadata, registry, settings, clock, chance, security, racks, own_links)

    @classmethod
    def connect(
        cls,
        metadata_url: str,
        settings: ClientSettings | None = None,
        metadata_settings: MetadataSettings | None = None,
    ) -> "Opening[LedgerClient]":
        """Open a client of the cluster whose metadata are at `metadata_url` ("etcd://host:2379", "local:folder").

        Await the result or enter it with `async with`. The client closes its metadata store when it is closed.
        ConfigError, StartupError, MetadataUnavailableError.
        """
        return Opening(cls._connect(metadata_url, settings, metadata_settings))

    @classmethod
    async def _connect(
        cls, metadata_url: str, settings: ClientSettings | None, metadata_settings: MetadataSettings | None
    ) -> "LedgerClient":
        async with contextlib.AsyncExitStack() as undo:
            metadata = await open_metadata_store(metadata_url, metadata_settings)
            undo.push_async_callback(metadata.close)
            client = await cls.open(metadata, settings, clock=SystemClock(), chance=SystemChance())
            client._own_metadata = metadata
            undo.pop_all()
        return client

    async def __aenter__(self) -> Self:
        """Return the client."""
        return self

    async def __aexit__(self, *_: object) -> None:
        """Close the client."""
        await self.close()

    async def close(self) -> None:
        """Drop all connections. Open writers fail; their ledgers remain open until they are recovered."""
        for writer in list(self._writers.values()):
            writer.abandon()
        self._ids.close()
        await self._marks.close()
        await self._pool.close()
        await self._placement.close()
        if self._racks is not None:
            await self._racks.close()
        await self._registry.close()
        if self._own_metadata is not None:
            await self._own_metadata.close()

    # ---- bookies
    @property
    def writable_bookies(self) -> frozenset[BookieId]:
        """Bookies registered as writable, except those that were recently unreachable or failed too often."""
        return self._registry.writable - frozenset(self._pool.suspects) - frozenset(self._pool.quarantined)

    @property
    def ensemble_max(self) -> int:
        """The size of the largest ensemble now: `writable_bookies`, or their machines if those must be distinct."""
        return self._placement.ensemble_max(self.writable_bookies)

    def ensemble_max_in(self, groups: BookieGroups | None, wanted: int) -> int:
        """Return the size of the largest ensemble now in the groups of a ledger that wants one of `wanted` bookies."""
        return self._placement.ensemble_max(self._bookies.within(groups).members(self.writable_bookies, wanted))

    @property
    def replica_health(self) -> ReplicaHealth:
        """Read statistics of the bookies: latencies, and the number of speculative reads."""
        return self._pool.health

    @property
    def connections(self) -> Collection[BookieConnection]:
        """The connections to all bookies, for their counters."""
        return self._pool.connections

    def on_bookies_changed(self, listener: Callable[[], None]) -> Callable[[], None]:
        """Call `listener` after each change of `writable_bookies` or an address. Return a function that removes it."""
        self._listeners.append(listener)

        def remove() -> None:
            if listener in self._listeners:
                self._listeners.remove(listener)

        return remove

    # ---- ledgers
    def create_ledger(
        self,
        *,
        ensemble_size: int = 3,
        write_quorum: int = 3,
        ack_quorum: int = 2,
        digest_type: DigestType = DigestType.CRC32C,
        password: bytes = b"",
        custom: Mapping[str, bytes] | None = None,
        bookies: Sequence[BookieId] | None = None,
        deferred_sync: bool = False,
        fewer_bookies: bool = False,
    ) -> Opening[LedgerWriter]:
        """Create an empty ledger and return its writer, to be awaited or entered with `async with`.

        `custom`: additional keys of the owner in the metadata. `bookies`: exactly these bookies in this order, whether
        or not they are registered. `deferred_sync`: appends return before they are durable; `force` makes them durable,
        and only then are they confirmed. `fewer_bookies`: if fewer than `ensemble_size` bookies are
        writable (or machines, if those must be distinct), but at least `ack_quorum`, the ledger is created on those. If
        it then has fewer copies than `write_quorum`, its metadata contain the wanted number, and it is marked as
        under-replicated before its first entry; auto-recovery adds the copies after it is closed.

        NotEnoughBookiesError if fewer than `ensemble_size` are registered as writable, LedgerError for invalid quorums,
        MetadataUnavailableError, MetadataUnknownError (an empty ledger may be left behind), MetadataOutdatedError,
        QuorumError if too few bookies report which ledger ids they know.
        """
        kept = dict(custom or {})
        if fewer_bookies:
            largest = self.ensemble_max_in(groups_of(kept), ensemble_size)
            size, copies = narrowed(ensemble_size, write_quorum, ack_quorum, largest)
            if copies < write_quorum:
                kept |= wanted_mark(write_quorum)
            ensemble_size, write_quorum = size, copies
        quorums = (ensemble_size, write_quorum, ack_quorum)
        return Opening(self._create(quorums, digest_type, password, kept, bookies, deferred_sync))

    async def _create(
        self,
        quorums: tuple[int, int, int],
        digest_type: DigestType,
        password: bytes,
        custom: Mapping[str, bytes],
        bookies: Sequence[BookieId] | None,
        deferred_sync: bool,
    ) -> LedgerWriter:
        ensemble_size, write_quorum, ack_quorum = quorums
        if not ensemble_size >= write_quorum >= ack_quorum >= 1:
            raise LedgerError(
                f"quorums {ensemble_size}/{write_quorum}/{ack_quorum}: use ensemble >= write quorum >= ack quorum >= 1"
            )
        if bookies is not None and (len(bookies) != ensemble_size or len(set(bookies)) != ensemble_size):
            raise LedgerError(f"bookies={', '.join(bookies)}: name {ensemble_size} different bookies for the ensemble")
        choice = self._bookies.within(groups_of(custom))
        for _ in range(_CREATE_ATTEMPTS_MAX):
            ensemble = tuple(bookies) if bookies is not None else choice.new_ensemble(ensemble_size, write_quorum)
            ledger = await self._ids.next_id(ensemble)
            metadata = LedgerMetadata(
                ensemble_size=ensemble_size,
                write_quorum=write_quorum,
                ack_quorum=ack_quorum,
                segments=(Segment(EntryId(0), ensemble),),
                digest_type=digest_type,
                password=password,
                custom={**custom, **self._new_token()},
                # Makes the bytes unique: a create of unknown outcome took effect if exactly these bytes are stored.
                c_token=int.from_bytes(self._chance.token(8), "big") >> 1,
            )
            try:
                stored = await self._nodes.create(ledger, metadata)
            except LedgerExistsError:
                continue  # another client allocated this id, for instance after the counter was lost
            handle = self._handle(ledger, digest_type, password, metadata)
            in_use = await handle.links.declare(ensemble)
            if in_use:
                _log.warning("skipping ledger id %d: bookie %s holds another ledger with this id", ledger, in_use)
                with contextlib.suppress(LedgerError, MetadataError):
                    await self._nodes.delete(ledger)  # it has no entries and only this call knows about it
                continue
            kind = DeferredSyncWriter if deferred_sync else LedgerWriter
            writer = kind(handle, stored, self._finished)
            self._writers[ledger] = writer
            if missing_copies(metadata):
                # Before its first entry, so that an entry with too few copies is marked even if this process dies.
                # After `writer_of` knows it: who watches the marks finds the writer.
                try:
                    await self._under_replication.mark(ledger, ())
                except BaseException:
                    writer.abandon()
                    raise
            self.stats.ledgers_created += 1
            return writer
        raise LedgerExistsError(f"{_CREATE_ATTEMPTS_MAX} consecutive new ledger ids were already taken")

    def open_ledger(
        self,
        ledger: LedgerId,
        *,
        password: bytes = b"",
        recover: bool,
        digest_type: DigestType | None = None,
        accept_stored: Callable[[LedgerMetadata], bool] | None = None,
    ) -> Opening[LedgerReader]:
        """Open a ledger for reading; the result is awaited or entered with `async with`.

        With `recover` the ledger is first taken over from its writer and closed. Otherwise it is left unchanged and can
        be read as far as its bookies are known to have confirmed entries.
        `digest_type` is used only if the metadata does not contain one. `accept_stored`: a ledger for which it returns
        true is opened with the password in its metadata instead of `password`. UnauthorizedError for a wrong password,
        NoSuchLedgerError, QuorumError (retry), MetadataError.
        """
        return Opening(self._open_ledger(ledger, password, recover, digest_type, accept_stored))

    async def _open_ledger(
        self,
        ledger: LedgerId,
        password: bytes,
        recover: bool,
        digest_type: DigestType | None,
        accept_stored: Callable[[LedgerMetadata], bool] | None,
    ) -> LedgerReader:
        stored = await self._nodes.read(ledger)
        if accept_stored is not None and stored.value.has_password and accept_stored(stored.value):
            password = stored.value.password
        handle = self._handle_of(ledger, stored.value, password, digest_type)
        if recover:
            stored = await self._recover(handle, stored)
            self.stats.ledgers_recovered += 1
        self.stats.ledgers_opened += 1
        return await LedgerReader.open(handle, stored.value)

    def writer_of(self, ledger: LedgerId) -> LedgerWriter | None:
        """Return the writer of a ledger that this client created, until all its bookies have what it sent."""
        return self._writers.get(ledger)

    async def delete_ledger(self, ledger: LedgerId) -> None:
        """Delete the metadata; the bookies free the space later. NoSuchLedgerError, MetadataError."""
        await self._nodes.delete(ledger)
        self.stats.ledgers_deleted += 1

    async def list_ledgers(self) -> AsyncIterator[LedgerId]:
        """Yield all ledgers at one revision, in no particular order. An error means that the listing is incomplete."""
        async for page in self._nodes.ids():
            for ledger in page:
                yield ledger

    async def read_metadata(self, ledger: LedgerId) -> LedgerMetadata:
        """Return the metadata with a linearizable read. NoSuchLedgerError."""
        return (await self._nodes.read(ledger)).value

    # ---- inside
    async def _recover(self, handle: LedgerHandle, stored: Versioned[LedgerMetadata]) -> Versioned[LedgerMetadata]:
        """Recover a ledger, one recovery of it at a time: responses on a connection identify only ledger and entry."""
        ledger = handle.ledger
        # Users are counted, because a lock between its release and the next waiter's turn appears to be free.
        lock, users = self._recovering.get(ledger, (asyncio.Lock(), 0))
        self._recovering[ledger] = lock, users + 1
        try:
            async with lock:
                return await recover_ledger(handle, stored)
        finally:
            _, users = self._recovering[ledger]
            assert users > 0
            if users == 1:
                del self._recovering[ledger]
            else:
                self._recovering[ledger] = lock, users - 1

    def _handle_of(
        self, ledger: LedgerId, metadata: LedgerMetadata, password: bytes, digest_type: DigestType | None
    ) -> LedgerHandle:
        if not metadata.has_password:
            return self._handle(ledger, digest_type or metadata.digest_type, password, metadata)
        if metadata.password != password:
            raise UnauthorizedError(f"wrong password for ledger {ledger}")
        return self._handle(ledger, metadata.digest_type, password, metadata)

    def _new_token(self) -> dict[str, bytes]:
        """Return the custom metadata with the token of a new ledger. Hexadecimal, so that tools can print it."""
        return {LEDGER_TOKEN: self._chance.token(8).hex().encode()}

    def _handle(
        self, ledger: LedgerId, digest_type: DigestType, password: bytes, metadata: LedgerMetadata
    ) -> LedgerHandle:
        return LedgerHandle.of(
            ledger,
            digest_type,
            password,
            metadata.token,
            links=self._pool,
            nodes=self._nodes,
            settings=self._settings,
            bookies=self._bookies.within(groups_of(metadata.custom)),
            marks=self._marks,
        )

    def _finished(self, writer: LedgerWriter) -> None:
        self._writers.pop(writer.ledger_id, None)

    def _registered(self) -> None:
        writable = self._registry.writable
        for bookie in writable - self._known_writable:
            self._pool.trust(bookie)
        self._known_writable = writable
        self._notify()

    def _notify(self) -> None:
        # The writers first, so that listeners find ensemble changes in progress that a new bookie makes possible.
        for writer in list(self._writers.values()):
            writer.bookies_changed()
        for listener in list(self._listeners):
            listener()
