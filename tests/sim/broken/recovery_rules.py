"""Broken variants: rules of recovery, each removed."""

from dataclasses import replace
from typing import Any

from quire_bookie.client import recovery
from quire_bookie.client.entry_read import EntryRead, ReadWay
from quire_bookie.client.ledger_handle import LedgerHandle
from quire_bookie.client.reading.lac_read import read_lac
from quire_bookie.client.writing.closing import close_ledger
from quire_bookie.errors import BadVersionError
from quire_bookie.metadata.ledgers import LedgerNodes
from quire_bookie.metadata.store import Versioned
from quire_bookie.model import EntryId, LedgerId, LedgerMetadata, LedgerState
from quire_bookie.quorum.recovery_plan import EntrySearch
from quire_bookie.wire.digest import Digest
from tests.sim.broken.variant import Variant, replaced


def _without_fencing() -> tuple[Any, ...]:
    proper = LedgerHandle.recovery_way

    def broken(self: LedgerHandle) -> ReadWay:
        way: ReadWay = proper.fget(self)  # type: ignore[attr-defined]
        return replace(way, fence_key=None)

    return (replaced(LedgerHandle, "recovery_way", property(broken)),)


def _reads_without_fencing() -> tuple[Any, ...]:
    def broken(way: ReadWay, *rest: Any, **named: Any) -> EntryRead:
        return EntryRead(replace(way, fence_key=None), *rest, **named)

    return (replaced(recovery, "EntryRead", broken),)


def _needs(missing_needed: Any) -> tuple[Any, ...]:
    proper = EntrySearch.__init__

    def broken(self: EntrySearch, write_quorum: int, ack_quorum: int) -> None:
        proper(self, write_quorum, ack_quorum)
        self._missing_needed = max(1, missing_needed(write_quorum, ack_quorum))

    return (replaced(EntrySearch, "__init__", broken),)


def _missing_by_one_fewer() -> tuple[Any, ...]:
    return _needs(lambda write_quorum, ack_quorum: write_quorum - ack_quorum)


def _missing_by_the_ack_quorum() -> tuple[Any, ...]:
    return _needs(lambda write_quorum, ack_quorum: ack_quorum)


def _ends_at_the_lac() -> tuple[Any, ...]:
    async def broken(handle: LedgerHandle, metadata: LedgerMetadata) -> Any:
        found = await read_lac(handle.recovery_way, metadata)
        return recovery._Restored(found.lac, await recovery._length_at(handle, metadata, found.lac))

    return (replaced(recovery, "_restore", broken),)


def _forgets_the_new_bookies() -> tuple[Any, ...]:
    proper = close_ledger

    async def broken(
        nodes: LedgerNodes,
        ledger: LedgerId,
        seen: Versioned[LedgerMetadata],
        last: EntryId,
        length: int,
        conflict: Any,
        tail: Any = (),
    ) -> Versioned[LedgerMetadata]:
        return await proper(nodes, ledger, seen, last, length, conflict)

    return (replaced(recovery, "close_ledger", broken),)


def _close_without_compare() -> tuple[Any, ...]:
    async def broken(
        nodes: LedgerNodes,
        ledger: LedgerId,
        seen: Versioned[LedgerMetadata],
        last: EntryId,
        length: int,
        conflict: Any,
        tail: Any = (),
    ) -> Versioned[LedgerMetadata]:
        segments = (*seen.value.segments[:-1], *tail) if tail else seen.value.segments
        closed = replace(seen.value, state=LedgerState.CLOSED, last_entry=last, length=length, segments=segments)
        while True:
            try:
                return await nodes.update(ledger, closed, (await nodes.read(ledger)).version)
            except BadVersionError:
                continue

    return (replaced(recovery, "close_ledger", broken),)


def _re_adds_vouch_for_re_adds() -> tuple[Any, ...]:
    proper, encode = recovery._Copying._add_found, Digest.encode_entry

    def vouching(self: Digest, ledger: LedgerId, entry: EntryId, lac: EntryId, *rest: Any) -> Any:
        return encode(self, ledger, entry, EntryId(entry - 1), *rest)

    def broken(self: recovery._Copying) -> None:
        with replaced(Digest, "encode_entry", vouching):
            proper(self)

    return (replaced(recovery._Copying, "_add_found", broken),)


RECOVERY_RULES = (
    Variant("missing by one fewer", "ensemble", 0, _missing_by_one_fewer),
    Variant("recovery without fencing", "duel", 6, _without_fencing),
    Variant("missing by the ack quorum", "ensemble", 15, _missing_by_the_ack_quorum),
    Variant("recovery ends at the LAC", "duel", 0, _ends_at_the_lac),
    Variant("recovery forgets the bookies that it took", "duel", 157, _forgets_the_new_bookies),
    Variant("recovery reads without fencing", "gaps", 1, _reads_without_fencing),
    Variant("recovery closes without compare", "gaps", 0, _close_without_compare),
    Variant("re-adds vouch for re-adds", "gaps", 0, _re_adds_vouch_for_re_adds),
)
