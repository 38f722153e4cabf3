"""Writes the compacted ledger of one topic, and asks the topic's broker to use it. Owns the steps of one attempt:

    create    a new ledger, recorded as unreferenced: unless the broker uses it, that record deletes it
    write     the kept entries, in order; then the ledger is closed
    record    POST .../{topic}/compaction/ledger: the broker checks the ledger, uses it, and deletes the former one

Only the owner writes the topic's metadata. A job that dies before `record` leaves a ledger with its record; the next
owner of the topic deletes both. After an error here the ledger is deleted at once, unless it is in use.
"""

import asyncio
import logging
from collections.abc import Iterator
from dataclasses import dataclass

from quire_bookie.client.writing.ledger_writer import LedgerWriter
from quire_bookie.env.background import Background
from quire_bookie.env.chance import SystemChance
from quire_bookie.errors import NoSuchLedgerError, QuireError
from quire_bookie.model import LedgerId, LedgerMetadata
from quire_bookie.quorum.bookie_groups import PLACEMENT
from quire_broker.compaction.compacted_output import CompactedOutput, custom_of
from quire_broker.managed_ledger.appending.ledger_maker import APPLICATION, compacted_custom
from quire_broker.managed_ledger.deletion import Deletions
from quire_jobs.compaction.phases import Output
from quire_jobs.compaction.planning import Plan
from quire_jobs.errors import NotFoundError, QuireJobError, SourceUnavailableError
from quire_jobs.source.broker_http import BrokerHttp, reason_of, require_success, topic_path
from quire_jobs.source.cluster import Cluster

RECORD_TRIES = 5
RECORD_PAUSE_S = 1.0
_DELETE_PAUSES_S = (0.1, 1.0)
log = logging.getLogger("quire.jobs.compaction")


class CompactionRefusedError(QuireJobError):
    """The broker refuses to use the ledger; the text is its reason. The topic is as before, a later run may succeed."""


@dataclass(frozen=True, slots=True)
class Written:
    """The compacted ledger in use, with its entries and bytes."""

    ledger_id: int
    entries: int
    size_bytes: int


async def write(cluster: Cluster, brokers: BrokerHttp, plan: Plan, output: Iterator[Output]) -> Written:
    """Write the ledger and have it recorded. `output` blocks, so a thread asks for its items.

    CompactionRefusedError, SourceUnavailableError; errors of client, store and `output`.
    """
    deletions = Deletions(
        plan.topic.ledger_name, cluster.client, cluster.metadata, Background(), SystemChance(), _DELETE_PAUSES_S
    )
    writer = await _create(cluster, plan)
    recorded = False
    try:
        for operation in deletions.record([writer.ledger_id]):
            await cluster.metadata.put(operation.key, operation.value)
        ledger, read = CompactedOutput(writer), 0
        while (some := await asyncio.to_thread(next, output, None)) is not None:
            read += some.read
            for position, data in some.entries:
                await ledger.add((data,), position)
        if read != plan.entries:
            raise SourceUnavailableError(f"the tasks read {read} of {plan.entries} entries of {plan.topic}")
        await ledger.finish()
        await record(brokers, plan, writer.ledger_id)
        recorded = True
    finally:
        if not recorded:
            writer.abandon()
            await _discard(deletions, writer.ledger_id)
    return Written(writer.ledger_id, ledger.entries, ledger.size_bytes)


async def _create(cluster: Cluster, plan: Plan) -> LedgerWriter:
    """Create a ledger with the quorums, digest and bookie groups of the topic's last ledger."""
    like = await _last_metadata(cluster, plan)
    custom = compacted_custom(plan.topic.ledger_name, custom_of(plan.topic, plan.horizon))
    placement = {PLACEMENT: like.custom[PLACEMENT]} if PLACEMENT in like.custom else {}
    return await cluster.client.create_ledger(
        ensemble_size=like.ensemble_size,
        write_quorum=like.write_quorum,
        ack_quorum=like.ack_quorum,
        digest_type=like.digest_type,
        password=like.password if like.has_password else cluster.password,
        custom={**custom, **placement, **APPLICATION},
        fewer_bookies=True,
    )


async def _last_metadata(cluster: Cluster, plan: Plan) -> LedgerMetadata:
    for ledger_id in reversed(plan.ledgers):
        try:
            return await cluster.client.read_metadata(LedgerId(ledger_id))
        except NoSuchLedgerError:
            log.info("ledger %d of %s is only in the bucket, or being created", ledger_id, plan.topic)
    raise NotFoundError(f"no ledger of {plan.topic} is on bookies: the quorums of the compacted ledger are unknown")


async def record(brokers: BrokerHttp, plan: Plan, ledger_id: int) -> None:
    """Have the broker use the ledger; asks again if it does not answer, which changes nothing.

    CompactionRefusedError: it will not be used. SourceUnavailableError: unknown.
    """
    horizon = {"ledgerId": plan.horizon.ledger_id, "entryId": plan.horizon.entry_id}
    body = {"ledgerId": ledger_id, "formerLedgerId": plan.former, "horizon": horizon}
    for tried in range(RECORD_TRIES):
        try:
            status, value = await brokers.ask("POST", f"{topic_path(plan.topic)}/compaction/ledger", body)
            if status in (404, 405, 409):
                raise CompactionRefusedError(f"the broker does not use ledger {ledger_id}: {reason_of(value)}")
            require_success(status, value, f"compacted ledger {ledger_id} of {plan.topic}")
            return
        except SourceUnavailableError:
            if tried == RECORD_TRIES - 1:
                raise
            await asyncio.sleep(RECORD_PAUSE_S * 2**tried)


async def _discard(deletions: Deletions, ledger_id: LedgerId) -> None:
    try:
        await deletions.delete_now(ledger_id)
    except QuireError as error:
        log.warning("could not delete ledger %d; the next owner of the topic deletes it: %s", ledger_id, error)
