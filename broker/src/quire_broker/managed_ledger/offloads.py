"""Offloads one managed ledger: performs the decisions of `offload_attempts`, and runs the broker's own offloads.

    begin      the uuid of an attempt is stored in the ledger's record and pins it; earlier objects are deleted
    complete   the objects are checked, then the record marks them as valid
    abort      the uuid is removed from the record, its objects are deleted
    later      the record marks the bookies' copy as deleted, then that copy is deleted

Each step is one compare-and-set of the list. A crash between two steps leaves an attempt that a later one replaces. The
bookies' copy must never be deleted before the objects were checked, nor objects that may be a ledger's only copy.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from quire_bookie.dataclass import dataclass
from quire_bookie.errors import (
    ConfigError,
    LedgerError,
    MetadataError,
    NoSuchEntryError,
    NoSuchLedgerError,
    ObjectStoreError,
    QuireError,
)
from quire_bookie.model import EntryId, LedgerId
from quire_broker.errors import ConflictError, OffloadError, SegmentDamagedError, SegmentMissingError
from quire_broker.managed_ledger.context import ManagedLedgerContext
from quire_broker.managed_ledger.errors import ManagedLedgerFencedError
from quire_broker.managed_ledger.list_store import ListStore
from quire_broker.managed_ledger.nodes import offload_attempts as rules
from quire_broker.managed_ledger.nodes.ledger_list import LedgerRecord
from quire_broker.managed_ledger.nodes.offload_context import OffloadContext
from quire_broker.managed_ledger.position import Position
from quire_broker.managed_ledger.stored_passwords import to_read
from quire_broker.offload.format import new_uuid
from quire_broker.offload.segment_reader import SegmentReader
from quire_broker.offload.segment_writer import SegmentSummary, write_segment
from quire_broker.offload.settings import OffloadSettings
from quire_broker.offload.target import OffloadTarget

_log = logging.getLogger("quire.offload")
_COPIES_AT_ONCE = 20


@dataclass(frozen=True, slots=True)
class OffloadStatus:
    """Status of the broker's own offloading. `state` has Pulsar's values."""

    state: str = "NOT_RUN"
    last_error: str = ""
    first_left: Position | None = None
    """The first position that is not offloaded, after a run."""


class Offloads:
    """Performs the offload steps of one managed ledger; see the module docstring."""

    def __init__(
        self,
        context: ManagedLedgerContext,
        lists: ListStore,
        trimming: asyncio.Lock,
        lost_list: Callable[[ManagedLedgerFencedError], None],
    ) -> None:
        """Initialise; `lost_list` is called when a write shows that another owner took over."""
        self.status = OffloadStatus()
        self._context = context
        self._lists = lists
        self._trimming = trimming
        self._lost_list = lost_list
        self._run: asyncio.Task[None] | None = None

    @property
    def _settings(self) -> OffloadSettings:
        """Those in force now: policies may change between two ledgers of a run."""
        return self._context.settings.offload

    def _record(self, ledger_id: int) -> LedgerRecord | None:
        return self._lists.ledgers.record(ledger_id)

    async def _update(
        self,
        change: Callable[[tuple[LedgerRecord, ...]], tuple[LedgerRecord, ...]],
        dropped: Sequence[int] = (),
    ) -> None:
        try:
            await self._lists.update(lambda node: replace(node, ledgers=change(node.ledgers)), dropped=dropped)
        except ManagedLedgerFencedError as error:
            self._lost_list(error)
            raise

    @property
    def target(self) -> OffloadTarget | None:
        """Destination of its ledgers; None if the broker offloads none."""
        return self._settings.target

    # ---- attempts
    async def begin(
        self, ledger_id: int, target: OffloadTarget, extra: Mapping[str, str], owner: str = ""
    ) -> tuple[str, LedgerRecord]:
        """Pin the ledger for an attempt.

        Return its uuid and the ledger's record. OffloadRefusedError; errors of the list.
        """
        await self._keep_only_copy(ledger_id)
        uuid = new_uuid(self._context.chance.token(16))
        async with self._trimming:  # a ledger that is about to be trimmed must not get an attempt

            def change(records: tuple[LedgerRecord, ...]) -> tuple[LedgerRecord, ...]:
                context = rules.new_attempt(
                    next((record for record in records if record.ledger_id == ledger_id), None),
                    ledger_id,
                    tail=self._lists.ledgers.tail,
                    uuid=uuid,
                    target=target,
                    extra=extra,
                    owner=owner,
                    now_ms=self._context.clock.now_ms(),
                    settings=self._settings,
                )
                return rules.with_offload(records, {ledger_id: context})

            await self._update(change)
        record = self._record(ledger_id)
        assert record is not None
        return uuid, record

    async def _keep_only_copy(self, ledger_id: int) -> None:
        """Complete an intact attempt of a ledger that no bookie has. OffloadRefusedError if that cannot be determined.

        Metadata restored from before `complete` show only an attempt. If it were replaced, its objects would be
        deleted.
        """
        record = self._record(ledger_id)
        known = None if record is None else record.offload
        if record is None or not record.entries or known is None or known.complete or not known.uuid:
            return
        try:
            if await self._in_bookies(record):
                return
            await self._read_whole(record, known)
        except (SegmentMissingError, SegmentDamagedError) as error:
            _log.warning("no bookie has ledger %d, and the objects of its attempt are incomplete: %s", ledger_id, error)
            return
        except (LedgerError, OffloadError, ObjectStoreError, ConfigError) as error:
            raise rules.OffloadRefusedError(
                f"ledger {ledger_id}: attempt {known.uuid} may be its only copy and cannot be checked now: {error}"
            ) from error
        _log.warning(
            "no bookie has ledger %d: its attempt %s is intact and now counts as complete", ledger_id, known.uuid
        )
        await self.complete(ledger_id, known.uuid, record.entries, record.size_bytes)

    async def _in_bookies(self, record: LedgerRecord) -> bool:
        """Return whether the bookies have its first and its last entry."""
        ledger_id, password = LedgerId(record.ledger_id), self._context.settings.password
        try:
            reader = await self._context.client.open_ledger(
                ledger_id, password=password, recover=False, accept_stored=to_read
            )
            try:
                for entry in {0, record.entries - 1}:
                    await reader.read(EntryId(entry), EntryId(entry))
            finally:
                await reader.close()
        except (NoSuchLedgerError, NoSuchEntryError):
            return False
        return True

    async def _read_whole(self, record: LedgerRecord, context: OffloadContext) -> None:
        reader = await self._context.tier.open(record.ledger_id, context.uuid, context.driver, dict(context.properties))
        try:
            found = await reader.verify()
        finally:
            await reader.close()
        if (found.entries, found.payload_bytes) != (record.entries, record.size_bytes):
            raise SegmentDamagedError(f"{context.uuid} holds {found.entries} entries of {found.payload_bytes} bytes")

    async def complete(self, ledger_id: int, uuid: str, entries: int, size_bytes: int) -> None:
        """Mark the objects as valid; repeating it changes nothing. OffloadRefusedError; errors of the list."""
        counts = (entries, size_bytes)
        record = self._record(ledger_id)
        if not rules.check_complete(record, ledger_id, uuid, counts):
            return
        assert record is not None and record.offload is not None
        await self._verify_objects(record, record.offload)
        async with self._trimming:

            def change(records: tuple[LedgerRecord, ...]) -> tuple[LedgerRecord, ...]:
                present = next((record for record in records if record.ledger_id == ledger_id), None)
                if not rules.check_complete(present, ledger_id, uuid, counts):
                    return records
                assert present is not None and present.offload is not None
                completed = present.offload.completed(self._context.clock.now_ms())
                return rules.with_offload(records, {ledger_id: completed})

            await self._update(change)
        self._context.tier.stats.offloaded_ledgers += 1
        self._context.tier.stats.offloaded_bytes += size_bytes

    async def _verify_objects(self, record: LedgerRecord, context: OffloadContext) -> None:
        try:
            await self._check(record, context)
        except (OffloadError, ObjectStoreError, ConfigError) as error:
            raise rules.OffloadRefusedError(
                f"ledger {record.ledger_id}: this broker could not verify the objects: {error}"
            ) from error

    async def _check(self, record: LedgerRecord, context: OffloadContext) -> None:
        counts = (record.entries, record.size_bytes)
        await self._context.tier.check(record.ledger_id, context.uuid, context.driver, dict(context.properties), counts)

    async def abort(self, ledger_id: int, uuid: str) -> None:
        """Abort an attempt and delete its objects. An unknown or complete attempt remains unchanged."""

        def change(records: tuple[LedgerRecord, ...]) -> tuple[LedgerRecord, ...]:
            known = next((record.offload for record in records if record.ledger_id == ledger_id), None)
            if known is None or known.uuid != uuid or known.complete:
                return records
            return rules.with_offload(records, {ledger_id: None})

        async with self._trimming:
            if change(self._lists.node.ledgers) != self._lists.node.ledgers:
                await self._update(change)

    # ---- the bookies' copies
    async def drop_copies(self) -> None:
        """Delete the bookies' copies whose lag is over and whose objects are intact."""
        away: set[tuple[str, str]] = set()
        while True:
            expired = rules.expired_copies(
                self._lists.ledgers.records(),
                tail=self._lists.ledgers.tail,
                now_ms=self._context.clock.now_ms(),
                settings=self._settings,
            )
            changes: dict[int, OffloadContext | None] = {}
            for record in expired:
                assert record.offload is not None
                bucket = (record.offload.driver, dict(record.offload.properties).get("bucket", ""))
                if len(changes) == _COPIES_AT_ONCE:
                    break
                if bucket not in away and not await self._check_copy(record, changes):
                    away.add(bucket)  # skip its other ledgers, which would each wait for the timeout
            if not changes:
                return
            await self._store_copies(changes)

    async def _check_copy(self, record: LedgerRecord, changes: dict[int, OffloadContext | None]) -> bool:
        """Check the objects of one ledger and add the resulting change. Return False if they could not be checked."""
        assert record.offload is not None
        try:
            await self._check(record, record.offload)
        except (SegmentMissingError, SegmentDamagedError) as error:
            _log.warning("ledger %d stays in the bookies and counts as not offloaded: %s", record.ledger_id, error)
            changes[record.ledger_id] = None
        except (ObjectStoreError, OffloadError, ConfigError) as error:
            _log.info(
                "could not check the objects of ledger %d, its copy in the bookies stays: %s", record.ledger_id, error
            )
            return False
        else:
            changes[record.ledger_id] = replace(record.offload, bookies_deleted=True)
        return True

    async def _store_copies(self, changes: dict[int, OffloadContext | None]) -> None:
        async with self._trimming:
            # The check of the objects took time: change only ledgers that still have the same attempt.
            present = {record.ledger_id: record.offload for record in self._lists.ledgers.records()}
            agreed = {
                ledger_id: context
                for ledger_id, context in changes.items()
                if (known := present.get(ledger_id)) is not None
                and known.complete
                and not known.bookies_deleted
                and (context is None or context.uuid == known.uuid)
            }
            gone = [ledger_id for ledger_id, context in agreed.items() if context is not None]
            await self._update(lambda records: rules.with_offload(records, agreed), gone)
        self._context.tier.stats.bookie_copies_deleted += len(gone)

    # ---- the broker's own offloading
    @property
    def running(self) -> bool:
        """Whether the broker offloads this managed ledger now."""
        return self._run is not None

    def run_due(self) -> None:
        """Offload the ledgers that the thresholds require, unless a run is in progress."""
        settings = self._settings
        if settings.target is None or self.running:
            return
        tail, now_ms = self._lists.ledgers.tail, self._context.clock.now_ms()
        found = rules.due(self._lists.ledgers.records(), tail=tail, now_ms=now_ms, settings=settings)
        if found:
            self._start(found)

    def run_up_to(self, ledger_id: int) -> None:
        """Offload all ledgers before this one. ConflictError.

        A run is in progress; OffloadError: no target is configured.
        """
        if self.running:
            raise ConflictError("Offload already in progress")
        settings = self._settings
        if settings.target is None:
            raise OffloadError(
                "no offload target: set managedLedgerOffloadDriver and a bucket, or the namespace's offload policies"
            )
        tail, now_ms = self._lists.ledgers.tail, self._context.clock.now_ms()
        records = self._lists.ledgers.records()
        self._start(rules.up_to(records, ledger_id, tail=tail, now_ms=now_ms, settings=settings))

    def _start(self, ledger_ids: list[int]) -> None:
        self.status = OffloadStatus("RUNNING")
        self._run = self._context.background.spawn(self._offload_all(ledger_ids), f"offload of {self._context.name}")
        self._run.add_done_callback(self._ended)

    def _ended(self, task: "asyncio.Task[None]") -> None:
        self._run = None
        left = self._first_left()
        if task.cancelled():
            self.status = OffloadStatus("ERROR", "cancelled: the topic was unloaded", left)
        elif (error := task.exception()) is not None:
            self.status = OffloadStatus("ERROR", str(error), left)
        else:
            self.status = OffloadStatus("SUCCESS", first_left=left)

    def _first_left(self) -> Position:
        for record in self._lists.ledgers.records():
            if not record.offloaded:
                return Position(record.ledger_id, 0)
        return self._lists.ledgers.last_confirmed

    async def _offload_all(self, ledger_ids: list[int]) -> None:
        failure: QuireError | None = None
        for ledger_id in ledger_ids:
            async with self._context.tier.turns:
                try:
                    await self._offload(ledger_id)
                except rules.OffloadRefusedError as error:
                    _log.info("%s", error)
                    failure = failure or error
                except (LedgerError, OffloadError, ObjectStoreError, ConfigError) as error:
                    _log.warning("could not offload ledger %d: %s", ledger_id, error)
                    self._context.tier.stats.offload_failures += 1
                    failure = failure or error
        if failure is not None:
            raise failure

    async def _offload(self, ledger_id: int) -> None:
        """Write one ledger, read it back and complete it.

        After an error the attempt is aborted if the metadata allow it.
        """
        target = self._settings.target
        if target is None:
            raise OffloadError("the policies in force have no offload target any more")
        objects = self._context.tier.objects(target)
        uuid, _ = await self.begin(ledger_id, target, {}, rules.OWN)
        try:
            password = self._context.settings.password
            source = await self._context.client.open_ledger(
                LedgerId(ledger_id), password=password, recover=False, accept_stored=to_read
            )
            try:
                summary = await write_segment(objects, source, uuid, self._settings.write)
            finally:
                await source.close()
            reader = await SegmentReader.open(objects, LedgerId(ledger_id), uuid, self._context.tier.windows)
            try:
                await self._compare(reader, summary)
            finally:
                await reader.close()
            await self.complete(ledger_id, uuid, summary.entries, summary.payload_bytes)
        except (LedgerError, OffloadError, ObjectStoreError):
            try:
                await self.abort(ledger_id, uuid)
            except MetadataError as error:
                _log.info("could not abort an attempt of ledger %d, a later one replaces it: %s", ledger_id, error)
            raise

    @staticmethod
    async def _compare(reader: SegmentReader, summary: SegmentSummary) -> None:
        found = await reader.verify()
        if (found.entries, found.payload_bytes, found.crc) != (summary.entries, summary.payload_bytes, summary.crc):
            raise SegmentDamagedError(f"ledger {summary.ledger_id} was written as {summary} and read back as {found}")

    async def stop(self) -> None:
        """Cancel a run. The next offload of the ledger replaces its attempt."""
        if self._run is not None:
            self._run.cancel()
            await asyncio.wait([self._run])
