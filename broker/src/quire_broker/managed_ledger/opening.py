"""Opens a managed ledger: reads its list, fences the former owner, makes the ledger to write to.

The take-over rests on two things: the last ledger is opened with recovery, so the former owner can store nothing more
in it, and the list is changed by compare-and-set before anything is written to the new ledger, so the former owner can
make no ledger of its own. Whoever loses the compare-and-set deletes the ledger just made.
"""

import logging
from dataclasses import dataclass, replace

from quire_bookie.errors import BadVersionError, LedgerError, NoSuchLedgerError, NotEnoughBookiesError
from quire_broker.managed_ledger.errors import ManagedLedgerFencedError, ManagedLedgerMissingError
from quire_broker.managed_ledger.ledger_list import LedgerList, LedgerRecord
from quire_broker.managed_ledger.ledger_maker import ClosedCounts
from quire_broker.managed_ledger.ledger_port import Writer
from quire_broker.managed_ledger.list_store import ListStore, node_path
from quire_broker.managed_ledger.node_codec import LedgerListNode, decode_list, encode_list
from quire_broker.managed_ledger.room import Room
from quire_broker.managed_ledger.stored_node import StoredNode

_log = logging.getLogger("quire.managed_ledger")


@dataclass(frozen=True, slots=True)
class Opened:
    """A list that is ours. `writer` None: terminated, or no ledger can be made for want of bookies."""

    lists: ListStore
    writer: Writer | None


async def open_list(room: Room, *, create: bool) -> Opened:
    """Take the managed ledger over. ManagedLedgerMissingError, ManagedLedgerFencedError; errors of client and store."""
    stored = room.node(node_path(room.name))
    node = await _load(room, stored, create=create)
    last = await _recover_last(room, node)
    records = list(node.ledgers)
    if records and last is None:
        records.pop()  # the ledger does not exist: it was deleted before its removal from the list came to be known
    if node.terminated is not None:
        ledgers = LedgerList(records, last.entries if last else None, last.size_bytes if last else 0)
        return Opened(ListStore(room.name, stored, node, ledgers, room.deletions, room.segments), None)
    if last is not None:
        closed_ms = records[-1].closed_ms if records[-1].offloaded else room.clock.now_ms()
        records[-1] = records[-1].closed(last.entries, last.size_bytes, closed_ms)
    writer = await _make_ledger(room)
    if writer is None:
        # Readers are served and the next append tries again. The compare-and-set below fences the former owner too.
        dropped = [record.ledger_id for record in records[:-1] if record.entries == 0]
    else:
        dropped = [record.ledger_id for record in records if record.entries == 0]
    kept = [record for record in records if record.ledger_id not in dropped]
    if writer is not None:
        kept.append(LedgerRecord(writer.ledger_id))
    target = replace(node, ledgers=tuple(kept))
    try:
        await stored.write(encode_list(target), room.deletions.record(dropped))
    except BadVersionError as error:
        if writer is not None:
            room.background.spawn(room.maker.discard(writer), f"discarding ledger {writer.ledger_id}")
        raise ManagedLedgerFencedError(f"{room.name} was opened by another owner at the same time") from error
    room.deletions.begin(dropped)
    ledgers = LedgerList(kept, None if writer is None else 0)
    return Opened(ListStore(room.name, stored, target, ledgers, room.deletions, room.segments), writer)


async def _load(room: Room, stored: StoredNode, *, create: bool) -> LedgerListNode:
    value = await stored.load()
    if value is None:
        if not create:
            raise ManagedLedgerMissingError(f"{room.name} does not exist")
        try:
            await stored.write(b"")
        except BadVersionError:
            value = await stored.load()
    return decode_list(value or b"")


async def _recover_last(room: Room, node: LedgerListNode) -> ClosedCounts | None:
    if not node.ledgers:
        return None
    last = node.ledgers[-1].ledger_id
    try:
        return await room.maker.recover(last)
    except NoSuchLedgerError:
        if node.ledgers[-1].offloaded:  # a bucket has it: nothing is lost, and its record says how much there is
            return ClosedCounts(node.ledgers[-1].entries, node.ledgers[-1].size_bytes)
        _log.warning("the last ledger %d of %s does not exist and is dropped from its list", last, room.name)
        return None


async def _make_ledger(room: Room) -> Writer | None:
    try:
        return await room.maker.create()
    except NotEnoughBookiesError as error:
        _log.warning("%s opens without a ledger to append to: %s", room.name, error)
        return None
    except LedgerError as error:
        _log.warning("%s opens without a ledger to append to: %s", room.name, error)
        return None
