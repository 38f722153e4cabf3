"""Rows for small tables from a cluster's metadata: ledgers, cursors, expected entries of bookies. Read-only.

Open ledgers are read without recovery, so that their writers continue. The lists of managed ledgers and the metadata of
ledgers are read one after the other, so differences are read again before they count.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence, Set
from dataclasses import dataclass, field
from datetime import UTC, datetime
from fnmatch import fnmatchcase
from typing import Any, Final, Protocol
from urllib.parse import unquote_plus

from quire_bookie.errors import LedgerError, MetadataFormatError, NoSuchEntryError, NoSuchLedgerError
from quire_bookie.metadata import layout
from quire_bookie.metadata.ledger_metadata import decode_ledger_metadata
from quire_bookie.metadata.store import MetadataStore, Node
from quire_bookie.model import BookieId, EntryId, LedgerId, LedgerMetadata, LedgerState
from quire_bookie.quorum.write_set import holds
from quire_broker.managed_ledger.cursors.cursor_state import NO_CURSOR_LEDGER, CursorState, decode_node, decode_position
from quire_broker.managed_ledger.list_store import ROOT, node_path
from quire_broker.managed_ledger.nodes.ledger_list import LedgerList, LedgerRecord
from quire_broker.managed_ledger.nodes.node_codec import decode_list
from quire_broker.names import PERSISTENT, TopicName, parse_topic, topic_of_ledger
from quire_broker.offload.format import data_key, index_key

AT_ONCE: Final = 16
"""Number of ledgers read concurrently."""
_OWNER = "pulsar/managed-ledger"
_CURSOR = "pulsar/cursor"
Row = tuple[Any, ...]


class OpenLedger(Protocol):
    """The used part of a ledger reader that was opened without recovery."""

    @property
    def length(self) -> int:
        """Payload bytes up to the last entry that is known to be confirmed."""
        ...

    async def read_explicit_lac(self) -> EntryId:
        """Return the last entry that is known to be confirmed."""
        ...

    async def read(self, first: EntryId, last: EntryId) -> Sequence[Any]:
        """Return entries with a `payload`."""
        ...

    async def close(self) -> None:
        """Release the reader."""
        ...


Open = Callable[[int], Awaitable[OpenLedger]]


@dataclass(slots=True)
class MetadataTables:
    """Rows in the order of the columns in `quire_jobs.analytics.columns`. `unreadable`: omitted objects, with
    reasons."""

    ledgers: list[Row] = field(default_factory=list)
    cursors: list[Row] = field(default_factory=list)
    acked: list[Row] = field(default_factory=list)
    stored: list[Row] = field(default_factory=list)
    expected: list[Row] = field(default_factory=list)
    cursor_ledgers: list[Row] = field(default_factory=list)
    targets: set[tuple[str, tuple[tuple[str, str], ...]]] = field(default_factory=set)
    """Drivers and properties of the buckets in offload contexts."""
    unreadable: dict[str, str] = field(default_factory=dict)
    unknown_owners: set[str] = field(default_factory=set)
    """Managed ledgers whose list or cursors cannot be read, so that the ledgers that belong to them are unknown."""


@dataclass(slots=True)
class _Managed:
    """One managed ledger according to its nodes."""

    topic: TopicName
    records: tuple[LedgerRecord, ...] = ()
    cursors: dict[str, bytes] = field(default_factory=dict)

    @property
    def place(self) -> tuple[str, int]:
        return str(self.topic.partitioned), self.topic.partition


def matches(topic: TopicName, patterns: Sequence[str]) -> bool:
    """Return whether a pattern (`tenant/namespace/name` with * and ?) matches the topic; no patterns match all."""
    whole = topic.partitioned
    name = f"{whole.namespace}/{whole.local}"
    return not patterns or any(fnmatchcase(name, pattern.removeprefix("persistent://")) for pattern in patterns)


async def read_tables(store: MetadataStore, open_ledger: Open, patterns: Sequence[str] = ()) -> MetadataTables:
    """Return all tables, for matching topics; `stored` and `expected` cover all ledgers. MetadataError."""
    tables = MetadataTables()
    known: dict[int, LedgerMetadata] = {}
    async for page in store.scan(f"{layout.ROOT}/"):
        for node in page:
            _take_ledger(tables, known, node)
    found = await _managed_ledgers(store, tables)
    gate = asyncio.Semaphore(AT_ONCE)
    chosen = [one for one in found.values() if matches(one.topic, patterns)]
    for one in found.values():  # for all topics: cursor ledgers of topics that do not match are in use, too
        try:
            tables.cursor_ledgers += [(ledger,) for ledger in _cursor_ledgers(one)]
        except MetadataFormatError:  # reported when the cursor is read
            tables.unknown_owners.add(one.topic.ledger_name)
    await asyncio.gather(*(_take_managed(tables, store, one, known, open_ledger, gate) for one in chosen))
    for rows in (tables.ledgers, tables.cursors, tables.acked, tables.stored, tables.expected):
        rows.sort(key=lambda row: tuple((value is None, value) for value in row[:3] if not isinstance(value, bool)))
    return tables


async def unmark_trimmed(store: MetadataStore, tables: MetadataTables, keys: Set[str]) -> None:
    """Treat ledgers as not offloaded if their objects were not listed and their topics no longer refer to them.

    `keys`: the names of all objects, listed after the tables were read. MetadataError.
    """
    named: dict[str, dict[int, str]] = {}
    for at, row in enumerate(tables.ledgers):
        topic, partition, ledger, offloaded, uuid = *row[:3], row[8], row[10]
        if not offloaded or not uuid or {data_key(uuid, ledger), index_key(uuid, ledger)} <= keys:
            continue
        whole = parse_topic(topic)
        name = (whole if partition < 0 else whole.partition_of(partition)).ledger_name
        if name not in named:
            node = await store.get(node_path(name))
            records = () if node is None else decode_list(node.value).ledgers
            named[name] = {one.ledger_id: one.offload.uuid for one in records if one.offload is not None}
        if named[name].get(ledger) != uuid:
            tables.ledgers[at] = (*row[:8], False, *row[9:])


# ---- ledgers of BookKeeper
def _take_ledger(tables: MetadataTables, known: dict[int, LedgerMetadata], node: Node) -> None:
    ledger = layout.ledger_of_path(node.key)
    if ledger is None:
        return
    try:
        metadata = decode_ledger_metadata(node.value)
    except MetadataFormatError as error:
        tables.unreadable[f"ledger {ledger}"] = str(error)
        return
    known[ledger] = metadata
    closed = metadata.state is LedgerState.CLOSED
    owner, cursor = (metadata.custom.get(key) for key in (_OWNER, _CURSOR))
    tables.stored.append(
        (
            int(ledger),
            "closed" if closed else "open",
            metadata.last_entry + 1 if closed else None,
            metadata.length if closed else None,
            None if owner is None else owner.decode("utf-8", "replace"),
            None if cursor is None else cursor.decode("utf-8", "replace"),
            _time(metadata.ctime_ms),
        )
    )
    tables.expected += [(int(ledger), bookie, last, closed) for bookie, last in expected_last(metadata).items()]


def expected_last(metadata: LedgerMetadata) -> dict[BookieId, int]:
    """Return the highest entry that each bookie of the ledger must hold; -1 for none, and for all of an open ledger."""
    found: dict[BookieId, int] = {}
    for index, segment in enumerate(metadata.segments):
        if metadata.state is not LedgerState.CLOSED:
            end = -1
        elif index + 1 < len(metadata.segments):
            end = metadata.segments[index + 1].first_entry - 1
        else:
            end = metadata.last_entry
        end = min(end, metadata.last_entry)
        for position, bookie in enumerate(segment.ensemble):
            last = next((entry for entry in _backwards(metadata, segment.first_entry, end, position)), -1)
            found[bookie] = max(found.get(bookie, -1), last)
    return found


def _backwards(metadata: LedgerMetadata, first: int, end: int, position: int) -> Iterator[int]:
    """Yield entries of a position, from the end of its segment back; at most one stripe is searched."""
    for entry in range(end, max(first, end - metadata.ensemble_size + 1) - 1, -1):
        if holds(position, EntryId(entry), metadata.ensemble_size, metadata.write_quorum):
            yield entry


# ---- managed ledgers
async def _managed_ledgers(store: MetadataStore, tables: MetadataTables) -> dict[str, _Managed]:
    found: dict[str, _Managed] = {}
    async for page in store.scan(f"{ROOT}/"):
        for node in page:
            parts = node.key.removeprefix(f"{ROOT}/").split("/")
            if len(parts) not in (4, 5) or parts[2] != PERSISTENT:
                continue
            name = "/".join(parts[:4])
            one = found.setdefault(name, _Managed(topic_of_ledger(name)))
            if len(parts) == 5:
                one.cursors[unquote_plus(parts[4])] = node.value
                continue
            try:
                one.records = decode_list(node.value).ledgers
            except MetadataFormatError as error:
                tables.unreadable[str(one.topic)] = str(error)
                tables.unknown_owners.add(name)
    return found


def _cursor_ledgers(one: _Managed) -> Iterator[int]:
    for value in one.cursors.values():
        node = decode_node(value)
        if node.ledger_id != NO_CURSOR_LEDGER:
            yield node.ledger_id
        yield from (bucket.ledger_id for bucket in node.buckets)


async def _take_managed(
    tables: MetadataTables,
    store: MetadataStore,
    one: _Managed,
    known: dict[int, LedgerMetadata],
    open_ledger: Open,
    gate: asyncio.Semaphore,
) -> None:
    async with gate:
        tail = one.records[-1] if one.records and not one.records[-1].closed_ms else None
        counted = await _tail_counts(tables, one, tail, open_ledger)
        for record in one.records:
            metadata = known.get(record.ledger_id)
            missing = metadata is None and not _only_in_bucket(record)
            if missing:
                try:
                    metadata, missing = await _read_again(store, one, record)
                except MetadataFormatError as error:
                    missing = False  # it exists, but its content is unreadable
                    tables.unreadable[f"ledger {record.ledger_id}"] = str(error)
            tables.ledgers.append(_ledger_row(one, record, metadata, missing, counted if record is tail else None))
            if record.offload is not None and record.offload.driver:
                tables.targets.add((record.offload.driver, record.offload.properties))
        ledgers = LedgerList(one.records, *(() if tail is None else (counted[0] or 0, counted[1] or 0)))
        for cursor, value in sorted(one.cursors.items()):
            await _take_cursor(tables, one, cursor, value, ledgers, open_ledger)


def _only_in_bucket(record: LedgerRecord) -> bool:
    return record.offload is not None and record.offload.bookies_deleted


async def _read_again(store: MetadataStore, one: _Managed, record: LedgerRecord) -> tuple[LedgerMetadata | None, bool]:
    """Read a ledger again that the first scan lacked: it was created since, trimmed since, or is really missing."""
    node = await store.get(layout.ledger_path(LedgerId(record.ledger_id)))
    if node is not None:
        return decode_ledger_metadata(node.value), False
    stored = await store.get(f"{ROOT}/{one.topic.ledger_name}")
    listed = () if stored is None else decode_list(stored.value).ledgers
    again = next((each for each in listed if each.ledger_id == record.ledger_id), None)
    return None, again is not None and not _only_in_bucket(again)


async def _tail_counts(
    tables: MetadataTables, one: _Managed, tail: LedgerRecord | None, open_ledger: Open
) -> tuple[int | None, int | None]:
    """Return entries and bytes of the open ledger; None if they cannot be read."""
    if tail is None:
        return None, None
    try:
        reader = await open_ledger(tail.ledger_id)
        try:
            last = await reader.read_explicit_lac()
            return last + 1, reader.length
        finally:
            await reader.close()
    except NoSuchLedgerError:
        return 0, 0  # it is being created
    except LedgerError as error:
        tables.unreadable[f"{one.topic}, ledger {tail.ledger_id}"] = f"could not count the newest entries: {error}"
        return None, None


def _ledger_row(
    one: _Managed,
    record: LedgerRecord,
    metadata: LedgerMetadata | None,
    missing: bool,
    counted: tuple[int | None, int | None] | None,
) -> Row:
    entries, size_bytes = counted or (record.entries, record.size_bytes)
    offload = record.offload
    return (
        *one.place,
        record.ledger_id,
        entries,
        size_bytes,
        _time(None if metadata is None else metadata.ctime_ms),
        _time(record.closed_ms or None),
        "missing" if missing else "closed" if record.closed_ms else "open",
        record.offloaded,
        _only_in_bucket(record),
        None if offload is None or not offload.uuid else offload.uuid,
        None if metadata is None else metadata.ensemble_size,
        None if metadata is None else metadata.write_quorum,
        None if metadata is None else metadata.ack_quorum,
        None if metadata is None else sorted({one for segment in metadata.segments for one in segment.ensemble}),
    )


# ---- cursors
async def _take_cursor(
    tables: MetadataTables, one: _Managed, cursor: str, value: bytes, ledgers: LedgerList, open_ledger: Open
) -> None:
    unreadable = None
    try:
        node = decode_node(value, ledgers)
    except MetadataFormatError as error:
        tables.unreadable[f"{one.topic}, cursor {cursor}"] = str(error)
        return
    state = node.state
    if node.ledger_id != NO_CURSOR_LEDGER:
        try:
            state = await _last_snapshot(node.ledger_id, ledgers, open_ledger) or state
        except (LedgerError, MetadataFormatError) as error:
            unreadable = f"its ledger {node.ledger_id}: {error}"
    mark = state.mark_delete
    tables.cursors.append(
        (*one.place, cursor, mark.ledger_id, mark.entry_id, _time(node.last_active_ms or None), unreadable)
    )
    tables.acked += [(*one.place, cursor, known.ledger_id, known.first, known.last) for known in state.ranges]


async def _last_snapshot(ledger_id: int, ledgers: LedgerList, open_ledger: Open) -> CursorState | None:
    """Return the newest state that is known to be confirmed, at most one behind its owner's; None without a state."""
    reader = await open_ledger(ledger_id)
    try:
        last = await reader.read_explicit_lac()
        if last < 0:
            return None
        try:
            entries = await reader.read(last, last)
        except NoSuchEntryError:
            return None
        return decode_position(bytes(entries[0].payload), ledgers)
    finally:
        await reader.close()


def _time(ms: int | None) -> datetime | None:
    """Return the time; None also if it is out of range."""
    try:
        return None if ms is None else datetime.fromtimestamp(ms / 1000, UTC)
    except (OverflowError, ValueError, OSError):
        return None
