"""Finds ledgers of topics and cursors that no bookie holds, and removes them from the metadata. For a new cluster that
has a backup of the metadata, and of the data only the offloaded ledgers.

Only while a restore is under review: brokers wait then, so no broker has a list in memory. Two kinds of
ledgers are never removed from their list: those in a bucket, and those with an attempt to offload, since the next
attempt may find all of it in the bucket.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from enum import Enum
from typing import Final
from urllib.parse import unquote_plus

from quire_bookie.dataclass import dataclass
from quire_bookie.errors import BadVersionError
from quire_bookie.limits import METADATA_TRANSACTION_OPERATIONS_MAX
from quire_bookie.metadata import layout
from quire_bookie.metadata.ledgers import LedgerNodes
from quire_bookie.metadata.store import Delete, MetadataStore
from quire_bookie.model import LedgerId
from quire_broker.errors import BrokerError
from quire_broker.managed_ledger.cursors.cursor_state import NO_CURSOR_LEDGER, decode_node
from quire_broker.managed_ledger.list_store import ROOT, node_path
from quire_broker.managed_ledger.nodes.ledger_list import LedgerRecord
from quire_broker.managed_ledger.nodes.node_codec import LedgerListNode, decode_list, encode_list
from quire_broker.names import PERSISTENT

_TOPIC_PARTS: Final = 4
"""Parts of the name of a topic's managed ledger: tenant, namespace, domain and topic."""


class LostLedgersError(BrokerError):
    """The ledgers of a topic cannot be removed from the metadata; they are unchanged."""


class Fate(Enum):
    """What remains of a ledger that no bookie holds."""

    LOST = "lost"
    IN_BUCKET = "in the bucket"
    ATTEMPT = "offload incomplete"
    CURSOR = "cursor goes back"


@dataclass(frozen=True, slots=True)
class Absent:
    """A ledger that no bookie holds. `entries`: None for one that was open in the backup, or belongs to a cursor."""

    topic: str
    """Name of the managed ledger."""
    ledger: LedgerId
    fate: Fate
    entries: int | None = None
    cursor: str = ""


async def absent_ledgers(store: MetadataStore, held: Collection[LedgerId]) -> list[Absent]:
    """Return the ledgers of all topics and cursors that are not in `held`, in order of topics.

    MetadataFormatError, MetadataError.
    """
    known = {ledger async for page in LedgerNodes(store).ids() for ledger in page}
    lists: dict[str, LedgerListNode] = {}
    cursors: list[tuple[str, str, bytes]] = []
    async for page in store.scan(f"{ROOT}/"):
        for node in page:
            parts = node.key.removeprefix(f"{ROOT}/").split("/")
            if len(parts) == _TOPIC_PARTS and parts[2] == PERSISTENT:
                lists["/".join(parts)] = decode_list(node.value)
            elif len(parts) == _TOPIC_PARTS + 1 and parts[2] == PERSISTENT:
                cursors.append(("/".join(parts[:-1]), unquote_plus(parts[-1]), node.value))
    found = [
        Absent(topic, LedgerId(record.ledger_id), _fate(record), record.entries if record.closed_ms else None)
        for topic, node in lists.items()
        for record in node.ledgers
        if record.ledger_id not in held and not _is_empty(record)
    ]
    for topic, cursor, value in cursors:
        ledger = LedgerId(decode_node(value).ledger_id)
        if ledger != NO_CURSOR_LEDGER and ledger in known and ledger not in held:
            found.append(Absent(topic, ledger, Fate.CURSOR, cursor=cursor))
    return sorted(found, key=lambda one: (one.topic, one.cursor, one.ledger))


async def forget(store: MetadataStore, absent: Sequence[Absent]) -> None:
    """Remove lost ledgers from their topics' lists, and the metadata of every absent ledger but those with an attempt.

    Ledgers in the bucket are read only there from then on, and a cursor continues from its node. It can be repeated.
    LostLedgersError, MetadataFormatError, MetadataError.
    """
    by_topic: dict[str, dict[LedgerId, Fate]] = {}
    for one in absent:
        if one.fate is not Fate.ATTEMPT:
            by_topic.setdefault(one.topic, {})[one.ledger] = one.fate
    for topic, fates in by_topic.items():
        # The list comes last: until then a repetition finds the same ledgers.
        deleted = [Delete(layout.ledger_path(ledger)) for ledger in fates]
        for first in range(0, len(deleted), METADATA_TRANSACTION_OPERATIONS_MAX):
            await store.transact([], deleted[first : first + METADATA_TRANSACTION_OPERATIONS_MAX])
        key = node_path(topic)
        stored = await store.get(key)
        if stored is None:
            continue
        node = decode_list(stored.value)
        kept = [changed for record in node.ledgers if (changed := _kept(record, fates)) is not None]
        try:
            await store.put(key, encode_list(replace(node, ledgers=tuple(kept))), expected=stored.version)
        except BadVersionError as error:
            raise LostLedgersError(
                f"the list of {topic} was changed meanwhile: stop the brokers and try again"
            ) from error


def _is_empty(record: LedgerRecord) -> bool:
    return record.closed_ms > 0 and record.entries == 0


def _fate(record: LedgerRecord) -> Fate:
    if record.offload is None:
        return Fate.LOST
    return Fate.IN_BUCKET if record.offloaded else Fate.ATTEMPT


def _kept(record: LedgerRecord, fates: Mapping[LedgerId, Fate]) -> LedgerRecord | None:
    """Return the record that stays in the list; None if the ledger is lost."""
    fate = fates.get(LedgerId(record.ledger_id))
    if fate is Fate.LOST:
        return None
    if fate is Fate.IN_BUCKET and record.offload is not None:
        return replace(record, offload=replace(record.offload, bookies_deleted=True))
    return record
