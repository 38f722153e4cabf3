"""Opens a managed ledger: reads its list, fences the former owner, creates the ledger to write to.

The take-over is safe for two reasons. The last ledger is opened with recovery, so the former owner can store nothing
more in it. The list is changed by compare-and-set before anything is written to the new ledger, so the former owner
can add no ledger of its own. The owner that loses the compare-and-set deletes the ledger that it just created. A
prepared ledger (`preparation`) and nodes that were read ahead are checked by the same compare-and-set.

    read            the list, and with it the node of the claim: who owns it
    at once         the end of the last ledger, recovered if it is not closed; the next ledger
    one write       the list with the new ledger; it also reads the cursors and what earlier owners left to delete
"""

import logging
from asyncio import Task
from collections.abc import Mapping, Sequence
from dataclasses import replace

from quire_bookie.dataclass import dataclass
from quire_bookie.errors import (
    BadVersionError,
    LedgerError,
    MetadataUnavailableError,
    NoSuchLedgerError,
    NotEnoughBookiesError,
)
from quire_bookie.metadata.store import Check, Get, Node, Operation, Under
from quire_broker.limits import CURSORS_READ_MAX
from quire_broker.managed_ledger.appending.ledger_maker import ClosedCounts
from quire_broker.managed_ledger.claim import Claim
from quire_broker.managed_ledger.context import ManagedLedgerContext
from quire_broker.managed_ledger.errors import ManagedLedgerFencedError, ManagedLedgerMissingError, OutdatedError
from quire_broker.managed_ledger.ledger_port import Writer
from quire_broker.managed_ledger.list_store import ListStore, node_path
from quire_broker.managed_ledger.nodes.ledger_list import LedgerList, LedgerRecord
from quire_broker.managed_ledger.nodes.node_codec import SOURCE_PROPERTY, LedgerListNode, decode_list, encode_list
from quire_broker.managed_ledger.nodes.stored_node import StoredNode
from quire_broker.managed_ledger.preparation import Ahead, Preparation
from quire_broker.names import parse_topic

_log = logging.getLogger("quire.managed_ledger")


@dataclass(frozen=True, slots=True)
class Beside:
    """Nodes that the transaction which took over the list read; None: not read, or too many."""

    cursors: Mapping[str, Node] | None = None
    """By their encoded names."""
    ledger_records: Sequence[Node] | None = None
    segment_records: Sequence[Node] | None = None


@dataclass(frozen=True, slots=True)
class Opened:
    """A list that is ours. `writer` is None if it is terminated or a shadow, or if too few bookies are available."""

    lists: ListStore
    writer: Writer | None
    beside: Beside = Beside()
    source: str | None = None
    """Of a shadow: the name of the managed ledger whose entries it shows."""


async def open_list(
    context: ManagedLedgerContext, prepared: Preparation | None, claim: Claim | None, *, create: bool
) -> Opened:
    """Take over the managed ledger. ManagedLedgerMissingError, ManagedLedgerFencedError; errors of client and store.

    Errors of the claim.
    """
    stored = context.node(node_path(context.name))
    ahead = None if prepared is None else prepared.ahead
    node = await _load(context, stored, ahead, claim, create=create)
    if SOURCE_PROPERTY in node.properties:
        return await _open_shadow(context, stored, node)
    if prepared is not None and not prepared.follows(node.ledgers):
        raise OutdatedError(f"{context.name} has a newer ledger than the prepared one")
    begins = prepared is None and node.terminated is None
    making = context.background.spawn(_make_ledger(context), f"next ledger of {context.name}") if begins else None
    try:
        last = await _recover_last(context, node, ahead)
        made = None if making is None else await making
    except BaseException:
        if making is not None:
            context.background.start(_discard_made(context, making), f"discarding the next ledger of {context.name}")
        raise
    records = list(node.ledgers)
    if records and last is None:
        records.pop()  # the ledger was deleted before its removal from the list became known here
    if node.terminated is not None:
        ledgers = LedgerList(records, last.entries if last else None, last.size_bytes if last else 0)
        return Opened(ListStore(context.name, stored, node, ledgers, context.deletions, context.segments), None)
    if last is not None:
        closed_ms = records[-1].closed_ms if records[-1].offloaded else context.clock.now_ms()
        records[-1] = records[-1].closed(last.entries, last.size_bytes, closed_ms)
    writer = made if prepared is None else prepared.writer
    if writer is None:
        # Readers are served, and the next append tries again. The compare-and-set below also fences the former owner.
        dropped = [record.ledger_id for record in records[:-1] if record.entries == 0]
    else:
        dropped = [record.ledger_id for record in records if record.entries == 0]
    kept = [record for record in records if record.ledger_id not in dropped]
    if writer is not None:
        kept.append(LedgerRecord(writer.ledger_id))
    target = replace(node, ledgers=tuple(kept))
    also: list[Operation] = [*context.deletions.record(dropped)]
    checks: list[Check] = []
    if prepared is not None:
        prepared.is_used = True  # a list may contain it, also if this call is cancelled
        also += prepared.operations
        checks = prepared.checks
    reads = _reads_beside(context, stored)
    try:
        found = await stored.write(encode_list(target), also, checks, reads)
    except BadVersionError as error:
        if prepared is not None:
            prepared.is_used = False
            raise OutdatedError(f"{context.name} has changed since it was prepared") from error
        _discard(context, writer)
        raise ManagedLedgerFencedError(f"{context.name} was opened by another owner at the same time") from error
    except MetadataUnavailableError:  # certainly not written: the next attempt creates another ledger
        if prepared is None:
            _discard(context, writer)
        raise
    context.deletions.begin(dropped)
    ledgers = LedgerList(kept, None if writer is None else 0)
    lists = ListStore(context.name, stored, target, ledgers, context.deletions, context.segments)
    return Opened(lists, writer, _beside(reads, found))


async def _open_shadow(context: ManagedLedgerContext, stored: StoredNode, node: LedgerListNode) -> Opened:
    """Take over the node of a shadow, which has cursors and no ledgers. InvalidTopicNameError: that of its source."""
    source = parse_topic(node.properties[SOURCE_PROPERTY]).ledger_name
    reads = _reads_beside(context, stored)
    try:
        found = await stored.write(encode_list(node), reads=reads)
    except BadVersionError as error:
        raise ManagedLedgerFencedError(f"{context.name} was opened by another owner at the same time") from error
    parts = (stored, node, LedgerList(()), context.deletions, context.segments)
    lists = ListStore(context.name, *parts, is_shadow=True)
    return Opened(lists, None, _beside(reads, found), source)


def _reads_beside(context: ManagedLedgerContext, stored: StoredNode) -> list[Under]:
    """Return what the write that takes a list over reads: its cursors, and what earlier owners left to delete."""
    cursors = Under(f"{stored.key}/", CURSORS_READ_MAX + 1)
    return [cursors, context.deletions.records, context.segments.records]


def _beside(reads: Sequence[Under], found: Sequence[list[Node]] | None) -> Beside:
    """Return the nodes of each read of `_reads_beside` that is complete."""
    if found is None:
        return Beside()
    nodes, ledgers, segments = (
        None if len(each) >= read.nodes_max else each for read, each in zip(reads, found, strict=True)
    )
    named = None if nodes is None else {node.key.removeprefix(reads[0].prefix): node for node in nodes}
    return Beside(named, ledgers, segments)


async def _load(
    context: ManagedLedgerContext, stored: StoredNode, ahead: Ahead | None, claim: Claim | None, *, create: bool
) -> LedgerListNode:
    """Return the list; an empty one if there is none and it may be created."""
    keys = [stored.key] if ahead is None else []
    keys += [] if claim is None else [claim.key]
    read = await context.store.read([Get(key) for key in keys]) if keys else []
    nodes = {node.key: node for found in read for node in found}
    if claim is not None:
        claim.check(nodes.get(claim.key))
    value = stored.adopt(nodes.get(stored.key) if ahead is None else ahead.node)
    if value is None and not create:
        raise ManagedLedgerMissingError(f"{context.name} does not exist")
    return decode_list(value or b"")


async def _recover_last(
    context: ManagedLedgerContext, node: LedgerListNode, ahead: Ahead | None
) -> ClosedCounts | None:
    if not node.ledgers:
        return None
    last = node.ledgers[-1].ledger_id
    if ahead is not None and ahead.closed is not None and ahead.closed[0] == last:
        return ahead.closed[1]
    try:
        return await context.maker.recover(last)
    except NoSuchLedgerError:
        if node.ledgers[-1].offloaded:  # a bucket has it: nothing is lost, and its record has the counts
            return ClosedCounts(node.ledgers[-1].entries, node.ledgers[-1].size_bytes)
        _log.warning("the last ledger %d of %s does not exist and is removed from the list", last, context.name)
        return None


def _discard(context: ManagedLedgerContext, writer: Writer | None) -> None:
    if writer is not None:
        context.background.start(context.maker.discard(writer), f"discarding ledger {writer.ledger_id}")


async def _discard_made(context: ManagedLedgerContext, making: "Task[Writer | None]") -> None:
    _discard(context, await making)


async def _make_ledger(context: ManagedLedgerContext) -> Writer | None:
    try:
        return await context.maker.create()
    except NotEnoughBookiesError as error:
        _log.warning("%s opens without a ledger to append to: %s", context.name, error)
        return None
    except LedgerError as error:
        _log.warning("%s opens without a ledger to append to: %s", context.name, error)
        return None
