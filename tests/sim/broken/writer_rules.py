"""Broken variants: rules of a writer and of a reader, each removed."""

import asyncio
from contextlib import suppress
from typing import Any

from quire_bookie.client.writing import add_pipeline
from quire_bookie.client.writing.add_frames import AddFrames
from quire_bookie.client.writing.ensemble_changes import EnsembleChanges
from quire_bookie.errors import BadVersionError, LedgerError, MetadataUnavailableError, MetadataUnknownError
from quire_bookie.metadata import layout
from quire_bookie.metadata.joint_write import Transact
from quire_bookie.metadata.ledger_metadata import encode_ledger_metadata
from quire_bookie.metadata.ledgers import LedgerNodes
from quire_bookie.metadata.store import Check, Put, Versioned
from quire_bookie.model import BookieId, Buffer, EntryId, LedgerId, LedgerMetadata
from quire_bookie.quorum.ack_tracker import AckTracker, PrefixAckTracker, StripedAckTracker, ack_tracker
from quire_bookie.quorum.ensemble_change import with_replacements
from quire_bookie.wire.digest import DecodedEntry, Digest
from tests.sim.broken.variant import Variant, replaced


def _one_ack_fewer() -> tuple[Any, ...]:
    proper = ack_tracker

    def broken(ensemble_size: int, write_quorum: int, ack_quorum: int, first: EntryId) -> AckTracker:
        return proper(ensemble_size, write_quorum, max(1, ack_quorum - 1), first)

    return (replaced(add_pipeline, "ack_tracker", broken),)


def _void_acks_kept() -> tuple[Any, ...]:
    def prefix(self: PrefixAckTracker, position: int) -> None:
        self._failed.discard(position)

    def striped(self: StripedAckTracker, position: int) -> None:
        self._failed &= ~(1 << position)

    return (replaced(PrefixAckTracker, "replace", prefix), replaced(StripedAckTracker, "replace", striped))


def _unknown_taken_for_done() -> tuple[Any, ...]:
    async def broken(
        self: LedgerNodes, ledger: LedgerId, metadata: LedgerMetadata, expected: int, transact: Transact | None = None
    ) -> Any:
        path, value = layout.ledger_path(ledger), encode_ledger_metadata(metadata)
        with suppress(MetadataUnknownError):
            await (transact or self._store.transact)([Check(path, expected)], [Put(path, value)])
        return Versioned(metadata, expected + 1)

    return (replaced(LedgerNodes, "update", broken),)


def _unknown_taken_for_failed() -> tuple[Any, ...]:
    async def broken(self: EnsembleChanges, start: EntryId, plan: dict[int, BookieId]) -> Versioned[LedgerMetadata]:
        ledger, base = self._handle.ledger, self.stored
        proposed = with_replacements(base.value, start, plan)
        try:
            store = self._handle.nodes._store
            version = await store.put(
                layout.ledger_path(ledger), encode_ledger_metadata(proposed), expected=base.version
            )
        except (MetadataUnknownError, MetadataUnavailableError, BadVersionError) as error:
            raise LedgerError("taken for failed") from error
        return Versioned(proposed, version)

    return (replaced(EnsembleChanges, "_store", broken),)


def _change_without_compare() -> tuple[Any, ...]:
    async def broken(self: EnsembleChanges, start: EntryId, plan: dict[int, BookieId]) -> Versioned[LedgerMetadata]:
        nodes, ledger = self._handle.nodes, self._handle.ledger
        proposed = with_replacements(self.stored.value, start, plan)
        while True:
            try:
                return await nodes.update(ledger, proposed, (await nodes.read(ledger)).version)
            except (BadVersionError, MetadataUnknownError, MetadataUnavailableError):
                await asyncio.sleep(0.1)

    return (replaced(EnsembleChanges, "_store", broken),)


def _lac_beyond_what_is_confirmed() -> tuple[Any, ...]:
    proper = AddFrames.encode

    def broken(self: AddFrames, first: EntryId, confirmed: EntryId, *rest: Any) -> Any:
        return proper(self, first, EntryId(first - 1), *rest)

    return (replaced(AddFrames, "encode", broken),)


def _digest_not_checked() -> tuple[Any, ...]:
    proper = Digest.decode_entry

    def broken(self: Digest, data: Buffer, ledger: LedgerId, entry: EntryId | None) -> DecodedEntry:
        view = bytearray(data)
        head = bytes(view[:32])
        start = 32 + self.size
        view[32:start] = self._of(head, (bytes(view[start:]),))
        return proper(self, bytes(view), ledger, entry)

    return (replaced(Digest, "decode_entry", broken),)


WRITER_RULES = (
    Variant("one acknowledgement fewer", "duel", 4, _one_ack_fewer),
    Variant("void acknowledgements kept", "duel", 41, _void_acks_kept),
    Variant("unknown outcome taken for done", "duel", 14, _unknown_taken_for_done),
    Variant("unknown outcome taken for failed", "duel", 8, _unknown_taken_for_failed),
    Variant("ensemble change without compare", "duel", 3, _change_without_compare),
    Variant("LAC beyond what is confirmed", "ensemble", 14, _lac_beyond_what_is_confirmed),
    Variant("digest not checked", "ensemble", 13, _digest_not_checked),
)
