"""Adds ledgers back to the list of a managed ledger after the metadata was restored from an older backup.

Only while the restore is under review: brokers wait then, so no broker has the list in memory. Positions are ledger and
entry ids, so earlier acknowledgments keep their meaning. Recovers and deletes nothing.
"""

from collections.abc import Sequence
from dataclasses import replace

from quire_bookie.errors import BadVersionError, MetadataFormatError, NoSuchLedgerError
from quire_bookie.metadata.ledgers import LedgerNodes
from quire_bookie.metadata.restoration import RestorationState, read_restoration
from quire_bookie.metadata.store import ABSENT, MetadataStore
from quire_bookie.model import LedgerId, LedgerState
from quire_broker.errors import BrokerError
from quire_broker.managed_ledger.list_store import node_path
from quire_broker.managed_ledger.nodes.ledger_list import LedgerRecord
from quire_broker.managed_ledger.nodes.node_codec import LedgerListNode, decode_list, encode_list


class AttachError(BrokerError):
    """The ledgers cannot be attached; the list is unchanged. The text says what to do first."""


async def attach(
    store: MetadataStore, name: str, ledgers: Sequence[LedgerId], now_ms: int, *, create: bool = False
) -> LedgerListNode:
    """Add closed ledgers to the list of the managed ledger `name` and return the new list. Repeating it changes
    nothing.

    `create`: create the list if it does not exist. AttachError, MetadataFormatError, MetadataError.
    """
    restoration = await read_restoration(store)
    if restoration is None or restoration.value.state is not RestorationState.REVIEW:
        raise AttachError(
            "no restore is under review: a broker may have the list of ledgers in memory, nothing was changed"
        )
    stored = await store.get(node_path(name))
    if stored is None and not create:
        raise AttachError(
            f"there is no topic {name} in the metadata: check the name, or give --create if the metadata lost the topic"
        )
    node = LedgerListNode() if stored is None else decode_list(stored.value)
    records = {record.ledger_id: record for record in node.ledgers}
    for ledger in ledgers:
        records.setdefault(ledger, LedgerRecord(ledger))
    # A ledger that was being written at the time of the backup has no counts yet; only the last of a list may be so.
    # A ledger that is named again may have been adopted again and be longer now.
    filled = [
        record if record.closed_ms and record.ledger_id not in ledgers else await _closed(store, record, now_ms)
        for _, record in sorted(records.items())
    ]
    changed = replace(node, ledgers=tuple(filled))
    if changed == node:
        return node
    try:
        version = ABSENT if stored is None else stored.version
        await store.put(node_path(name), encode_list(changed), expected=version)
    except BadVersionError as error:
        raise AttachError(f"the list of {name} was changed meanwhile: stop the brokers and try again") from error
    return changed


async def _closed(store: MetadataStore, record: LedgerRecord, now_ms: int) -> LedgerRecord:
    ledger = LedgerId(record.ledger_id)
    try:
        metadata = (await LedgerNodes(store).read(ledger)).value
    except NoSuchLedgerError as error:
        raise AttachError(f"ledger {ledger} is not in the metadata: `quire metadata orphans adopt {ledger}`") from error
    except MetadataFormatError as error:
        raise AttachError(f"the metadata of ledger {ledger} cannot be read: {error}") from error
    if metadata.state is not LedgerState.CLOSED:
        # Not by a plain recovery: that would close the ledger at the end of the backup's ensemble.
        raise AttachError(f"ledger {ledger} is not closed: `quire metadata orphans adopt {ledger}` closes it")
    if record.closed_ms and record.entries == metadata.last_entry + 1:
        return record
    return record.closed(metadata.last_entry + 1, metadata.length, now_ms)
