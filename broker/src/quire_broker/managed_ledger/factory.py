"""Opens, finds and deletes managed ledgers. Owns what they share: the cache, the periodic tick, the availability."""

import asyncio
import logging
from collections.abc import Mapping
from functools import partial

from quire_bookie.env.background import Background
from quire_bookie.env.chance import Chance
from quire_bookie.env.clock import WallClock
from quire_bookie.env.connection_memory import ConnectionMemory
from quire_bookie.env.slow_log import SlowLog
from quire_bookie.errors import BadVersionError, MetadataUnavailableError
from quire_bookie.metadata.retrying import retry_unavailable
from quire_bookie.metadata.store import ABSENT, MetadataStore
from quire_broker.errors import ServiceNotReadyError
from quire_broker.limits import PREPARED_LEDGER_S, PREPARED_LEDGERS_MAX
from quire_broker.managed_ledger.appending.ledger_maker import Availability, LedgerMaker
from quire_broker.managed_ledger.claim import Claim
from quire_broker.managed_ledger.context import ManagedLedgerContext
from quire_broker.managed_ledger.deletion import Deletions
from quire_broker.managed_ledger.errors import ManagedLedgerClosedError, ManagedLedgerFencedError, OutdatedError
from quire_broker.managed_ledger.ledger_port import Ledgers
from quire_broker.managed_ledger.list_store import node_path
from quire_broker.managed_ledger.loading import open_managed_ledger
from quire_broker.managed_ledger.managed_ledger import ManagedLedger, ManagedLedgerState
from quire_broker.managed_ledger.nodes.node_codec import LedgerListNode, encode_list
from quire_broker.managed_ledger.preparation import Preparation, prepare
from quire_broker.managed_ledger.reading.catch_up_turns import CatchUpTurns
from quire_broker.managed_ledger.reading.entry_cache import EntryCache
from quire_broker.managed_ledger.removal import Removal
from quire_broker.managed_ledger.segment_deletion import SegmentDeletions
from quire_broker.managed_ledger.stored_view import StoredView, stored_view
from quire_broker.managed_ledger.upkeep import Upkeep
from quire_broker.offload.tier import Tier
from quire_broker.settings.managed_ledger import ManagedLedgerSettings
from quire_broker.traced_entries import Traces

_log = logging.getLogger("quire.managed_ledger")
_DISCARD_S = 5.0  # to delete a ledger that was created for an opening which failed


class ManagedLedgerFactory:
    """Opens the managed ledgers of one broker. Needs a running event loop."""

    def __init__(
        self,
        client: Ledgers,
        metadata: MetadataStore,
        settings: ManagedLedgerSettings,
        clock: WallClock,
        chance: Chance,
        tier: Tier | None = None,
        memory: ConnectionMemory | None = None,
        slow: SlowLog | None = None,
        traces: Traces | None = None,
    ) -> None:
        """Create a factory. `tier`.

        The buckets of this broker, none by default. `memory`: bounds the bytes of reads. `slow`: logs slow operations.
        `traces`: None if nothing is traced.
        """
        self._memory = memory or ConnectionMemory()
        self.slow = slow or SlowLog()
        self.traces = traces
        self.tier = tier or Tier()
        self.cache = EntryCache(settings.cache_bytes, settings.read_cache_bytes)
        self.turns = CatchUpTurns(settings.catch_up_reads_at_once, settings.catch_up_wait_s)
        self._client = client
        self._store = metadata
        self._settings = settings
        self._clock = clock
        self._chance = chance
        self._availability = Availability(client, metadata)
        self._open: dict[str, asyncio.Task[ManagedLedger]] = {}
        self._prepared: dict[str, Preparation] = {}
        self._background = Background()
        self._closed = False
        self._loop = asyncio.get_running_loop()
        self._upkeep = Upkeep(self._tend, settings.tick_interval_s)
        client.on_bookies_changed(self._bookies_changed)
        self._timer = self._loop.call_later(settings.tick_interval_s, self._tick)

    @property
    def opened(self) -> list[ManagedLedger]:
        """The managed ledgers that are open."""
        return [task.result() for task in self._open.values() if task.done() and not _has_failed(task)]

    async def open(
        self,
        name: str,
        *,
        create: bool = True,
        settings: ManagedLedgerSettings | None = None,
        claim: Claim | None = None,
    ) -> ManagedLedger:
        """Open the managed ledger `name` (`<tenant>/<namespace>/persistent/<encoded topic>`).

        Returns the same one if it is already open, and opens it again if it was fenced or closed.
        ManagedLedgerMissingError without `create`; ManagedLedgerFencedError if another owner opened it meanwhile;
        CursorStateError. `claim`: checked before anything is changed, unless it is already open or being opened.
        """
        if self._closed:
            raise ManagedLedgerClosedError("the factory is closed")
        task = self._open.get(name)
        if task is not None and self._finished(task):
            del self._open[name]
            task = None
        if task is None:
            work = self._open_one(name, claim, create=create, settings=settings or self._settings)
            task = self._open[name] = self._background.spawn(work, f"opening of {name}")
        try:
            return await asyncio.shield(task)
        except BaseException:
            if task.done() and self._open.get(name) is task:
                del self._open[name]
            raise

    @staticmethod
    def _finished(task: "asyncio.Task[ManagedLedger]") -> bool:
        if not task.done():
            return False
        return _has_failed(task) or task.result().state in (ManagedLedgerState.FENCED, ManagedLedgerState.CLOSED)

    async def _open_one(
        self, name: str, claim: Claim | None, *, create: bool, settings: ManagedLedgerSettings
    ) -> ManagedLedger:
        prepared = self._prepared.pop(name, None)
        if prepared is not None:
            try:
                if prepared.context.settings == settings:
                    return await self._take_over(name, prepared, claim, create=create, settings=settings)
            except OutdatedError as error:
                _log.info("opening it without preparation: %s", error)
            finally:
                if not prepared.is_used:
                    self._discard(prepared)
        return await self._take_over(name, None, claim, create=create, settings=settings)

    async def _take_over(
        self,
        name: str,
        prepared: Preparation | None,
        claim: Claim | None,
        *,
        create: bool,
        settings: ManagedLedgerSettings,
    ) -> ManagedLedger:
        context, limit_s = self._context(name, settings), self._settings.open_s
        try:
            async with asyncio.timeout(limit_s):
                ledger = await open_managed_ledger(context, self.cache, prepared, claim, create=create)
        except BaseException as error:
            self._background.start(_end(context), f"the end of an opening of {name}")
            if isinstance(error, TimeoutError):
                raise ServiceNotReadyError(f"{name} was not opened within {limit_s:g} s; try again") from error
            raise
        self._upkeep.add(ledger)
        ledger.on_event = partial(self._upkeep.wake, ledger)
        return ledger

    async def prepare(self, name: str, settings: ManagedLedgerSettings | None = None) -> None:
        """Create the ledger that the next `open` writes to, while another owner still writes. See `preparation`.

        Does nothing for a managed ledger that does not exist. Errors of client and store.
        """
        if self._closed or name in self._prepared or len(self._prepared) >= PREPARED_LEDGERS_MAX:
            return
        opened = self._open.get(name)
        prepared = await prepare(self._context(name, settings or self._settings))
        if prepared is None:
            return
        if self._closed or name in self._prepared or self._open.get(name) is not opened:  # it was opened meanwhile
            self._discard(prepared)
            return
        self._prepared[name] = prepared
        self._loop.call_later(PREPARED_LEDGER_S, self._expire, name, prepared)

    async def look_ahead(self, name: str) -> bool:
        """Read what opening a managed ledger needs: its other owner has closed it. False if it is not prepared.

        MetadataError.
        """
        prepared = self._prepared.get(name)
        if prepared is None:
            return False
        await prepared.look_ahead()
        return prepared.ahead is not None

    def _expire(self, name: str, prepared: Preparation) -> None:
        if self._prepared.get(name) is prepared:
            del self._prepared[name]
            self._discard(prepared)

    def _discard(self, prepared: Preparation) -> None:
        self._background.start(prepared.discard(), f"discarding ledger {prepared.writer.ledger_id}")

    def _context(self, name: str, settings: ManagedLedgerSettings) -> ManagedLedgerContext:
        background = Background()
        deletions = Deletions(name, self._client, self._store, background, self._chance, settings.retry_backoff_s)
        return ManagedLedgerContext(
            name,
            self._client,
            self._store,
            LedgerMaker(name, self._client, self._availability, settings),
            self._availability,
            deletions,
            SegmentDeletions(name, self.tier, self._store, background, self._chance),
            self.tier,
            background,
            self._clock,
            self._chance,
            settings,
            self._memory,
            self.slow,
            self.turns,
            self.traces,
        )

    def find(self, name: str) -> ManagedLedger | None:
        """Return the managed ledger `name` if it is open."""
        task = self._open.get(name)
        if task is None or not task.done() or self._finished(task):
            return None
        return task.result()

    async def exists(self, name: str) -> bool:
        """Return whether the managed ledger exists."""
        return await self._store.get(node_path(name)) is not None

    async def create(self, name: str, properties: Mapping[str, str]) -> bool:
        """Store a managed ledger without ledgers, which is not opened. False if there is one. MetadataError."""
        try:
            await self._store.put(node_path(name), encode_list(LedgerListNode(properties=properties)), expected=ABSENT)
        except BadVersionError:
            return False
        return True

    async def stored(self, name: str) -> StoredView | None:
        """Return the stored metadata of a managed ledger, open at any broker or none; None if it does not exist."""
        return await stored_view(self._store, name)

    async def list(self, prefix: str) -> list[str]:
        """Return the names of the managed ledgers under `<tenant>/<namespace>/persistent`, sorted."""
        prefix = prefix.strip("/")
        return [f"{prefix}/{child}" for child in await self._store.children(node_path(prefix))]

    async def delete(self, name: str) -> None:
        """Delete the managed ledger, open or not, with its cursors and entries. ManagedLedgerMissingError.

        ManagedLedgerFencedError: another owner has written it. If a step fails, the node remains, so that the deletion
        can be repeated.
        """
        task, version = self._open.pop(name, None), None
        if task is not None and not _has_failed(task):
            version = await self._stop(await task)
        context = self._context(name, self._settings)
        removal = Removal(context, version)
        try:
            await retry_unavailable(removal.run, context.backoff(), self._settings.metadata_retry_s)
        finally:
            await context.background.close()

    async def _stop(self, ledger: ManagedLedger) -> int | None:
        """Stop a managed ledger and return the version of its list; None if it was closed before."""
        if ledger.state is ManagedLedgerState.FENCED:
            raise ManagedLedgerFencedError(f"{ledger.name} belongs to another owner: it is not deleted")
        if ledger.state is ManagedLedgerState.CLOSED:
            return None
        ledger.stop()
        try:
            async with asyncio.timeout(self._settings.metadata_retry_s):
                return await ledger.end_list()
        except TimeoutError as error:
            raise MetadataUnavailableError(f"the last change of {ledger.name} has no answer yet") from error
        finally:
            await ledger.release()

    async def close(self) -> None:
        """Close every managed ledger."""
        self._closed = True
        self._timer.cancel()
        await asyncio.gather(*(ledger.close() for ledger in self.opened))
        unused, self._prepared = list(self._prepared.values()), {}
        await asyncio.gather(*(prepared.discard() for prepared in unused), return_exceptions=True)
        self._open.clear()
        await self._background.close()
        await self.tier.close()
        self._availability.close()

    def _bookies_changed(self, *_: object) -> None:
        if not self._closed:
            self._loop.call_soon(partial(self._upkeep.round, everyone=True))

    def _tick(self) -> None:
        self._timer = self._loop.call_later(self._settings.tick_interval_s, self._tick)
        self.cache.expire(self._loop.time() - self._settings.cache_age_max_s)
        self._upkeep.round()

    def _tend(self, ledger: ManagedLedger) -> float | None:
        if ledger.state not in (ManagedLedgerState.FENCED, ManagedLedgerState.CLOSED):
            return ledger.tick()
        task = self._open.get(ledger.name)
        if task is not None and self._finished(task):
            del self._open[ledger.name]
        return None


async def _end(context: ManagedLedgerContext) -> None:
    """End the tasks of an opening that failed; a ledger that it created is deleted before, if that takes no time."""
    await context.background.settle(_DISCARD_S)
    await context.background.close()


def _has_failed(task: "asyncio.Task[ManagedLedger]") -> bool:
    """Return whether an opening has ended without a managed ledger."""
    return task.done() and (task.cancelled() or task.exception() is not None)
