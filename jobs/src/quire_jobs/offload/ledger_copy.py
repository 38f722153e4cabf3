"""Offloads one ledger, on an executor: begin, copy, read back, complete. Never leaves an attempt half-believed.

    begin     the owning broker notes a uuid and keeps the ledger; our note of it goes into the bucket
    copy      entries from the bookies, without recovery, at the given rate, into data and index object
    verify    everything is read back from the bucket: entries, bytes and CRC32C must be those that were copied
    complete  our note says that it is asked for; the broker compares uuid, entries and bytes with what it has, looks at
              the objects, and lists the ledger as offloaded
    abort     after any failure before that; then the objects go

A crash in between leaves an attempt that its broker does not believe, objects that no reader looks for, and a note by
which a later run finds both. When the answer to `complete` is lost it may have happened: then nothing is removed here.
"""

import asyncio
import contextlib
import logging
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum

from quire_bookie.env.clock import WallClock
from quire_bookie.errors import NoSuchLedgerError, QuireError
from quire_bookie.limits import MIB
from quire_bookie.model import LedgerId
from quire_bookie.places.place import Place
from quire_broker.offload.errors import OffloadError, SegmentDamagedError
from quire_broker.offload.segment_reader import SegmentReader
from quire_broker.offload.segment_writer import SegmentSummary, WriteSettings, delete_segment, write_segment
from quire_broker.offload.windows import WindowCache, WindowSettings
from quire_broker.topic.topic_names import TopicName
from quire_jobs.errors import QuireJobError, SourceUnavailableError
from quire_jobs.offload.attempt_notes import AttemptNote, drop_note, write_note
from quire_jobs.offload.broker_admin import Attempt, AttemptRefusedError, BrokerAdmin
from quire_jobs.offload.byte_rate import BURST_S, ByteRate
from quire_jobs.source.cluster import Cluster

COMPLETE_TRIES = 5
READ_BYTES_MIN = 64 << 10
READ_BACK = WindowSettings(capacity_bytes=32 * MIB, window_bytes=4 * MIB, ahead=2)
READ_BACK_PACED = WindowSettings(capacity_bytes=8 * MIB, window_bytes=MIB, ahead=1)
READ_BACK_FACTOR = 4
"""With a rate, so much faster is the bucket read back: it costs a fraction of the copy."""
COMPLETE_PAUSE_S = 1.0
log = logging.getLogger("quire.jobs.offload")


class CopyState(StrEnum):
    """What became of one ledger. LEFT: the broker does not want it offloaded now, which is no failure."""

    OFFLOADED = "offloaded"
    LEFT = "left"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class CopyResult:
    """One ledger's end. `data_bytes`: of both objects."""

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
    """The same for all ledgers of a run. `rate_bytes_s`: of this task. `owner`: whose abandoned attempts are ours."""

    owner: str
    cluster: str
    driver: str
    properties: Mapping[str, str]
    write: WriteSettings = field(default_factory=WriteSettings)
    rate_bytes_s: float | None = None
    read_back: bool = True


class LedgerCopy:
    """Ledgers of one executor's task, one after the other."""

    def __init__(
        self, admin: BrokerAdmin, cluster: Cluster, place: Place, settings: CopySettings, clock: WallClock
    ) -> None:
        self._admin = admin
        self._cluster = cluster
        self._place = place
        self._settings = settings
        self._clock = clock
        rate = settings.rate_bytes_s
        self._rate = ByteRate(rate)
        self._rate_back = ByteRate(None if rate is None else rate * READ_BACK_FACTOR)
        self._write = settings.write
        if rate is not None:  # many small steps: publishers on the same bookies wait for one at a time
            read_bytes = min(settings.write.read_bytes, max(READ_BYTES_MIN, int(rate * BURST_S)))
            self._write = replace(settings.write, read_bytes=read_bytes)

    async def offload(self, topic: TopicName, ledger_id: LedgerId) -> CopyResult:
        """Whatever happens is in the result; only what nobody foresaw is raised."""
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
            await write_note(self._place, note)
            summary = await self._copy(attempt)
            if given.read_back:
                await self._read_back(attempt, summary)
            await write_note(self._place, replace(note, asked=True))
        except BaseException:
            await self._give_up(topic, attempt, note)
            raise
        await self._complete(topic, attempt, note)
        with contextlib.suppress(QuireError):  # a note too many costs the next sweep a look
            await drop_note(self._place, note)
        return summary

    async def _copy(self, attempt: Attempt) -> SegmentSummary:
        try:
            async with await self._cluster.open_ledger(attempt.ledger_id) as reader:
                summary = await write_segment(self._place, reader, attempt.uuid, self._write, pace=self._rate.take)
        except NoSuchLedgerError as error:
            raise OffloadError(
                f"ledger {attempt.ledger_id} is listed by its topic, but its metadata is gone"
            ) from error
        if (summary.entries, summary.payload_bytes) != (attempt.entries, attempt.size_bytes):
            raise OffloadError(
                f"ledger {attempt.ledger_id} has {summary.entries} entries of {summary.payload_bytes} bytes in all; "
                f"its broker counts {attempt.entries} of {attempt.size_bytes}"
            )
        return summary

    async def _read_back(self, attempt: Attempt, summary: SegmentSummary) -> None:
        cache = WindowCache(READ_BACK if self._settings.rate_bytes_s is None else READ_BACK_PACED)
        try:
            reader = await SegmentReader.open(self._place, attempt.ledger_id, attempt.uuid, cache)
            found = await reader.verify(self._rate_back.take)
        finally:
            await cache.close()
        written = (summary.entries, summary.payload_bytes, summary.crc)
        if (found.entries, found.payload_bytes, found.crc) != written:
            raise SegmentDamagedError(
                f"ledger {attempt.ledger_id}: read back were {found.entries} entries of {found.payload_bytes} bytes "
                f"with CRC32C {found.crc:08x}; written were {written[0]} of {written[1]} with {written[2]:08x}"
            )

    async def _complete(self, topic: TopicName, attempt: Attempt, note: AttemptNote) -> None:
        """Ask until there is an answer: a second time changes nothing. What is refused is left to a sweep."""
        for tried in range(COMPLETE_TRIES):
            try:
                return await self._admin.complete(topic, attempt)
            except AttemptRefusedError:
                if tried == 0:  # else one that was not answered may have made it complete
                    with contextlib.suppress(QuireError):  # the objects stay then
                        await write_note(self._place, note)
                raise
            except SourceUnavailableError:
                if tried == COMPLETE_TRIES - 1:
                    raise
                await asyncio.sleep(COMPLETE_PAUSE_S * 2**tried)
        raise AssertionError("not reached")

    async def _give_up(self, topic: TopicName, attempt: Attempt, note: AttemptNote) -> None:
        """Before `complete`: have the broker forget the attempt, then its objects go. What fails is left to a sweep."""
        try:
            if await self._admin.abort(topic, attempt):
                await delete_segment(self._place, attempt.ledger_id, attempt.uuid)
                await drop_note(self._place, note)
        except (QuireError, QuireJobError) as error:
            log.warning("attempt %s of ledger %d is left to a sweep: %s", attempt.uuid, attempt.ledger_id, error)
