"""Offloads one ledger, on an executor: begin, copy, read back, complete. An attempt counts completely or not at all.

    begin     the owning broker records a uuid and keeps the ledger; a note of the attempt is written to the bucket
    copy      entries are copied from the bookies, without recovery, at the given rate, to data and index object
    verify    all objects are read back from the bucket; entries, bytes and CRC32C must match the copied ones
    complete  the note is marked as asked; the broker compares uuid, entries and bytes with its own, checks the objects,
              and lists the ledger as offloaded
    abort     after any failure before that; then the objects are removed

A crash in between leaves an attempt that its broker does not use, objects that no reader opens, and a note by which a
later run finds both. If the response to `complete` is lost, the outcome is unknown, and nothing is removed here.
"""

import asyncio
import contextlib
import logging
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum

from quire_bookie.env.clock import WallClock
from quire_bookie.env.rate_limit import BURST_S, RateLimit
from quire_bookie.errors import NoSuchLedgerError, QuireError
from quire_bookie.limits import MIB
from quire_bookie.model import LedgerId
from quire_bookie.object_store.store import ObjectStore
from quire_broker.errors import OffloadError, SegmentDamagedError
from quire_broker.names import TopicName
from quire_broker.offload.segment_reader import SegmentReader
from quire_broker.offload.segment_writer import SegmentSummary, delete_segment, write_segment
from quire_broker.offload.settings import WindowSettings, WriteSettings
from quire_broker.offload.windows import WindowCache
from quire_jobs.errors import QuireJobError, SourceUnavailableError
from quire_jobs.offload.attempt_notes import AttemptNote, drop_note, write_note
from quire_jobs.offload.broker_admin import Attempt, AttemptRefusedError, BrokerAdmin
from quire_jobs.source.cluster import Cluster

COMPLETE_TRIES = 5
READ_BYTES_MIN = 64 << 10
READ_BACK = WindowSettings(capacity_bytes=32 * MIB, window_bytes=4 * MIB, ahead=2)
READ_BACK_PACED = WindowSettings(capacity_bytes=8 * MIB, window_bytes=MIB, ahead=1)
READ_BACK_FACTOR = 4
"""With a rate, the bucket is read back this many times faster: that costs a fraction of the copy."""
COMPLETE_PAUSE_S = 1.0
log = logging.getLogger("quire.jobs.offload")


class CopyState(StrEnum):
    """Result for one ledger. LEFT: the broker refuses to offload it now, which is not a failure."""

    OFFLOADED = "offloaded"
    LEFT = "left"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class CopyResult:
    """Result for one ledger. `data_bytes`: of both objects."""

    topic: str
    ledger_id: int
    state: CopyState
    entries: int = 0
    size_bytes: int = 0
    data_bytes: int = 0
    seconds: float = 0.0
    reason: str = ""
    retry_helps: bool = False


@dataclass(frozen=True, slots=True)
class CopySettings:
    """Settings for all ledgers of a run. `rate_bytes_s`: of this task. `owner`: begin replaces this owner's
    attempts."""

    owner: str
    cluster: str
    driver: str
    properties: Mapping[str, str]
    write: WriteSettings = field(default_factory=WriteSettings)
    rate_bytes_s: float | None = None
    read_back: bool = True


class LedgerCopy:
    """Copies the ledgers of one task, one after the other."""

    def __init__(
        self, admin: BrokerAdmin, cluster: Cluster, objects: ObjectStore, settings: CopySettings, clock: WallClock
    ) -> None:
        self._admin = admin
        self._cluster = cluster
        self._objects = objects
        self._settings = settings
        self._clock = clock
        rate = settings.rate_bytes_s
        self._rate = RateLimit(rate or 0)
        self._rate_back = RateLimit((rate or 0) * READ_BACK_FACTOR)
        self._write = settings.write
        if rate is not None:  # small steps, so that publishers on the same bookies wait for one small read at a time
            read_bytes = min(settings.write.read_bytes, max(READ_BYTES_MIN, int(rate * BURST_S)))
            self._write = replace(settings.write, read_bytes=read_bytes)

    async def offload(self, topic: TopicName, ledger_id: LedgerId) -> CopyResult:
        """Offload a ledger. Expected failures are in the result; only unexpected ones are raised."""
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        try:
            summary = await self._attempt(topic, ledger_id)
        except AttemptRefusedError as error:
            return CopyResult(str(topic), ledger_id, CopyState.LEFT, reason=str(error))
        except (QuireError, QuireJobError) as error:
            helps = isinstance(error, SourceUnavailableError) or not isinstance(error, (OffloadError, QuireJobError))
            return CopyResult(str(topic), ledger_id, CopyState.FAILED, reason=str(error), retry_helps=helps)
        return CopyResult(
            str(topic),
            ledger_id,
            CopyState.OFFLOADED,
            summary.entries,
            summary.payload_bytes,
            summary.data_bytes + summary.index_bytes,
            loop.time() - began_s,
        )

    async def _attempt(self, topic: TopicName, ledger_id: LedgerId) -> SegmentSummary:
        given = self._settings
        attempt = await self._admin.begin(
            topic, ledger_id, driver=given.driver, properties=given.properties, owner=given.owner
        )
        note = AttemptNote(given.cluster, topic.ledger_name, ledger_id, attempt.uuid, given.owner, self._clock.now_ms())
        try:
            await write_note(self._objects, note)
            summary = await self._copy(attempt)
            if given.read_back:
                await self._read_back(attempt, summary)
            await write_note(self._objects, replace(note, asked=True))
        except BaseException:
            await self._abort(topic, attempt, note)
            raise
        await self._complete(topic, attempt, note)
        with contextlib.suppress(QuireError):  # the next sweep removes a remaining note
            await drop_note(self._objects, note)
        return summary

    async def _copy(self, attempt: Attempt) -> SegmentSummary:
        try:
            async with await self._cluster.open_ledger(attempt.ledger_id) as reader:
                summary = await write_segment(self._objects, reader, attempt.uuid, self._write, pace=self._rate.take)
        except NoSuchLedgerError as error:
            raise OffloadError(
                f"ledger {attempt.ledger_id} is listed by its topic, but its metadata no longer exist"
            ) from error
        if (summary.entries, summary.payload_bytes) != (attempt.entries, attempt.size_bytes):
            raise OffloadError(
                f"ledger {attempt.ledger_id} has {summary.entries} entries with {summary.payload_bytes} bytes in all; "
                f"its broker counts {attempt.entries} with {attempt.size_bytes} bytes"
            )
        return summary

    async def _read_back(self, attempt: Attempt, summary: SegmentSummary) -> None:
        cache = WindowCache(READ_BACK if self._settings.rate_bytes_s is None else READ_BACK_PACED)
        try:
            reader = await SegmentReader.open(self._objects, attempt.ledger_id, attempt.uuid, cache)
            found = await reader.verify(self._rate_back.take)
        finally:
            await cache.close()
        written = (summary.entries, summary.payload_bytes, summary.crc)
        if (found.entries, found.payload_bytes, found.crc) != written:
            raise SegmentDamagedError(
                f"ledger {attempt.ledger_id}: the bucket returned {found.entries} entries with {found.payload_bytes} "
                f"bytes and CRC32C {found.crc:08x}; the job wrote {written[0]} with {written[1]} and {written[2]:08x}"
            )

    async def _complete(self, topic: TopicName, attempt: Attempt, note: AttemptNote) -> None:
        """Request the completion until the broker responds; repetitions have no effect. A sweep handles a refused
        attempt."""
        for tried in range(COMPLETE_TRIES):
            try:
                return await self._admin.complete(topic, attempt)
            except AttemptRefusedError:
                if tried == 0:  # otherwise an earlier request without a response may have completed it
                    with contextlib.suppress(QuireError):  # the objects remain then
                        await write_note(self._objects, note)
                raise
            except SourceUnavailableError:
                if tried == COMPLETE_TRIES - 1:
                    raise
                await asyncio.sleep(COMPLETE_PAUSE_S * 2**tried)
        raise AssertionError("not reached")

    async def _abort(self, topic: TopicName, attempt: Attempt, note: AttemptNote) -> None:
        """Before `complete`: have the broker drop the attempt, then remove its objects. A sweep handles failures of
        this."""
        try:
            if await self._admin.abort(topic, attempt):
                await delete_segment(self._objects, attempt.ledger_id, attempt.uuid)
                await drop_note(self._objects, note)
        except (QuireError, QuireJobError) as error:
            log.warning(
                "could not abort attempt %s of ledger %d; a later sweep removes its objects: %s",
                attempt.uuid,
                attempt.ledger_id,
                error,
            )
