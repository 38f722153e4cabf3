"""Holds what auditor and workers share: registrations, connections, metadata and settings. Makes no decisions."""

import asyncio
import contextlib
from collections.abc import Collection

from quire_bookie.client.bookie_choice import BookieChoice
from quire_bookie.client.hole_marks import HoleMarks
from quire_bookie.client.ledger_handle import LedgerHandle
from quire_bookie.client.links.pool import ConnectionPool
from quire_bookie.client.links.single_requests import BookieSpace, ask_entries, ask_id_report, ask_space, ask_token
from quire_bookie.client.placement_view import PlacementView
from quire_bookie.client.security import ClientSecurity
from quire_bookie.env.chance import Chance
from quire_bookie.env.clock import WallClock
from quire_bookie.env.own_links import OwnLinks
from quire_bookie.errors import BookieUnavailableError, NoEntryListError, StartupError
from quire_bookie.limits import NO_ENTRY_LIST_S
from quire_bookie.metadata import layout
from quire_bookie.metadata.drains import Drains
from quire_bookie.metadata.initialise import read_instance_id
from quire_bookie.metadata.ledgers import LedgerNodes
from quire_bookie.metadata.rack_map import RackMap
from quire_bookie.metadata.registration import BookieRegistry
from quire_bookie.metadata.store import MetadataStore
from quire_bookie.metadata.under_replication import UnderReplication
from quire_bookie.model import BookieId, IdReport, LedgerId, LedgerMetadata
from quire_bookie.quorum.bookie_groups import groups_of
from quire_bookie.quorum.placement import Cluster, SpreadRules
from quire_bookie.recovery.bookie_absences import BookieAbsences
from quire_bookie.recovery.bookie_http import BookieHttp
from quire_bookie.recovery.repair_progress import RepairProgress
from quire_bookie.settings.client import ClientSettings
from quire_bookie.settings.recovery import RecoverySettings
from quire_bookie.wire.availability import Availability


class ClusterAccess:
    """Shared access to the cluster.

    Create it with `open` and end it with `close`; the caller keeps the metadata store.
    """

    def __init__(
        self,
        metadata: MetadataStore,
        registry: BookieRegistry,
        settings: RecoverySettings,
        client_settings: ClientSettings,
        clock: WallClock,
        chance: Chance,
        security: ClientSecurity | None,
        instance_id: str,
        racks: RackMap,
        own_links: OwnLinks | None,
    ) -> None:
        """Use `open` instead."""
        self.metadata = metadata
        self.registry = registry
        self.settings = settings
        self.client_settings = client_settings
        self.clock = clock
        self.chance = chance
        self.nodes = LedgerNodes(metadata)
        self.pool = ConnectionPool(registry.address_of, client_settings, security, own_links)
        self._racks = racks
        self._placement = PlacementView(registry, racks, client_settings, security)
        self.bookies = BookieChoice(
            registry,
            lambda: self.pool.suspects,
            lambda: self.pool.quarantined,
            chance,
            self._placement,
        )
        self.marks = UnderReplication(metadata, clock)
        self.drains = Drains(metadata)
        self.progress = RepairProgress()
        self.absences = BookieAbsences(self.registered, asyncio.get_running_loop().time())
        registry.on_change(self._bookies_changed)
        self._hole_marks = HoleMarks(self.marks)
        self.security = security
        self.http = BookieHttp(registry, security)
        self._instance_id = instance_id
        self._no_list_until_s: dict[BookieId, float] = {}

    @classmethod
    async def open(
        cls,
        metadata: MetadataStore,
        settings: RecoverySettings,
        client_settings: ClientSettings,
        *,
        clock: WallClock,
        chance: Chance,
        own_links: OwnLinks | None = None,
    ) -> "ClusterAccess":
        """Connect to the cluster.

        Raises MetadataUnavailableError; ConfigError for invalid TLS files; StartupError if the metadata store holds no
        cluster.
        """
        instance_id = await read_instance_id(metadata)
        if instance_id is None:
            raise StartupError(
                "the metadata store holds no cluster yet: start a bookie first, or configure another store"
            )
        security = await ClientSecurity.open(client_settings.security, clock)
        registry = await BookieRegistry.open(metadata)
        async with contextlib.AsyncExitStack() as undo:
            undo.push_async_callback(registry.close)
            racks = await RackMap.open(metadata)
            undo.pop_all()
        return cls(
            metadata, registry, settings, client_settings, clock, chance, security, instance_id, racks, own_links
        )

    def bookies_for(self, metadata: LedgerMetadata) -> BookieChoice:
        """Return the choice among the bookies that may hold a ledger."""
        return self.bookies.within(groups_of(metadata.custom))

    @property
    def cluster(self) -> Cluster:
        """The machines and racks of the bookies, and their free space if placement uses it."""
        return self._placement.cluster

    @property
    def rules(self) -> SpreadRules:
        """The rules of placement for the bookies that are writable now."""
        return self._placement.rules

    def permitted_beside(self, members: Collection[BookieId], metadata: LedgerMetadata) -> frozenset[BookieId]:
        """Return the writable bookies that placement and the groups of a ledger let join these."""
        permitted = self._placement.permitted_beside(members)
        return self.bookies_for(metadata).members(permitted, metadata.ensemble_size)

    @property
    def registered(self) -> frozenset[BookieId]:
        """The bookies that serve reads, according to the registrations followed so far."""
        return self.registry.writable | self.registry.read_only

    async def registered_in_store(self) -> frozenset[BookieId]:
        """Read the registered bookies from the store; `registered` may lag behind it.

        Raises MetadataUnavailableError.
        """
        writable = set(await self.metadata.children(layout.AVAILABLE)) - {layout.READ_ONLY.rpartition("/")[2]}
        read_only = await self.metadata.children(layout.READ_ONLY)
        return frozenset(map(BookieId, (*writable, *read_only)))

    async def is_same_cluster(self) -> bool:
        """Return whether the store still holds the cluster that was opened, not a new or restored one."""
        return await read_instance_id(self.metadata) == self._instance_id

    def handle(self, ledger: LedgerId, metadata: LedgerMetadata) -> LedgerHandle:
        """Return a handle for a ledger. Metadata without a password (version 1) means an empty password."""
        return LedgerHandle.of(
            ledger,
            metadata.digest_type,
            metadata.password,
            metadata.token,
            links=self.pool,
            nodes=self.nodes,
            settings=self.client_settings,
            bookies=self.bookies_for(metadata),
            marks=self._hole_marks,
        )

    async def entries_of(self, ledger: LedgerId, bookie: BookieId) -> Availability:
        """Return the ids of the entries that a bookie holds of a ledger. Raises LedgerError, see `ask_entries`.

        After one request without a response, the bookie gets no further such request for NO_ENTRY_LIST_S;
        NoEntryListError is raised instead.
        """
        now_s = asyncio.get_running_loop().time()
        if now_s < self._no_list_until_s.get(bookie, now_s):
            raise NoEntryListError(f"bookie {bookie} does not answer requests for lists of entries")
        address = self.registry.address_of(bookie)
        if address is None:
            raise BookieUnavailableError(f"bookie {bookie} was never registered: cannot read its list of entries")
        try:
            found = await ask_entries(address, ledger, self.settings.list_timeout_s, self.security)
        except NoEntryListError:
            self._no_list_until_s[bookie] = asyncio.get_running_loop().time() + NO_ENTRY_LIST_S
            raise
        self._no_list_until_s.pop(bookie, None)
        return found

    async def space_of(self, bookie: BookieId, timeout_s: float) -> BookieSpace:
        """Return the free and total bytes of a bookie. Raises LedgerError, see `ask_space`."""
        address = self.registry.address_of(bookie)
        if address is None:
            raise BookieUnavailableError(f"bookie {bookie} was never registered: cannot read its free space")
        return await ask_space(address, timeout_s, self.security)

    async def id_report_of(self, bookie: BookieId, timeout_s: float) -> IdReport | None:
        """Return a bookie's report on ledger ids; None for a Java bookie. Raises LedgerError, see `ask_id_report`."""
        address = self.registry.address_of(bookie)
        if address is None:
            raise BookieUnavailableError(f"bookie {bookie} was never registered: cannot read its ledger ids")
        return await ask_id_report(address, timeout_s, self.security)

    async def token_of(self, ledger: LedgerId, bookie: BookieId) -> bytes:
        """Return a bookie's token for a ledger; empty if it has none. Raises LedgerError, see `ask_token`."""
        address = self.registry.address_of(bookie)
        if address is None:
            raise BookieUnavailableError(f"bookie {bookie} was never registered: cannot read a token")
        return await ask_token(address, ledger, self.settings.list_timeout_s, self.security)

    def _bookies_changed(self) -> None:
        self.absences.update(self.registered, asyncio.get_running_loop().time())

    async def close(self) -> None:
        """Close the connections and stop following the registrations."""
        await self._hole_marks.close()
        await self.http.close()
        await self.pool.close()
        await self._placement.close()
        await self._racks.close()
        await self.registry.close()
