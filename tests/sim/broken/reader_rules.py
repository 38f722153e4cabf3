"""Broken variants: rules of readers and of deferred sync, each removed."""

from typing import Any

from quire_bookie.client.entry_read import MISSING_ERRORS, EntryRead
from quire_bookie.client.reading.lac_poll import LacPolls
from quire_bookie.client.writing.add_pipeline import AddPipeline
from quire_bookie.client.writing.deferred_writer import DeferredSyncWriter, _DeferredPipeline
from quire_bookie.errors import LedgerError, NoSuchEntryError
from quire_bookie.model import NO_ENTRY, BookieId, Buffer, EntryId
from quire_bookie.wire.client_codec import v3_read
from quire_bookie.wire.messages import ReadResponse
from tests.sim.broken.variant import Variant, replaced


def _bare_lac_believed() -> tuple[Any, ...]:
    async def broken(self: LacPolls, bookie: BookieId, beyond: EntryId, timeout_s: float) -> EntryId:
        def poll(transaction: int) -> bytes:
            wait_ms = max(int(timeout_s * 1000), 1)
            return v3_read(transaction, self._way.ledger, NO_ENTRY, previous_lac=beyond, timeout_ms=wait_ms)

        answer = await self._ask(bookie, poll, timeout_s + 1.0)
        bare = answer.max_lac if isinstance(answer, ReadResponse) else None
        return NO_ENTRY if bare is None else bare

    return (replaced(LacPolls, "_poll", broken),)


def _broken_connection_forgets_nothing() -> tuple[Any, ...]:
    return (replaced(_DeferredPipeline, "link_lost", AddPipeline.link_lost),)


def _forced_without_an_answer() -> tuple[Any, ...]:
    def broken(self: DeferredSyncWriter) -> None:
        for position in range(len(self._bookies)):
            start, end = self._forced_end[position], self._pipeline.first_unanswered(position)
            if end > start:
                self._forced_end[position] = end
                self._durable.acked(EntryId(start), end - start, position)
        self._advance()
        self._moved.set()

    return (replaced(DeferredSyncWriter, "_ask_for_forces", broken),)


def _one_replica_without_it_decides() -> tuple[Any, ...]:
    proper = EntryRead._answered

    def broken(self: EntryRead, bookie: BookieId, answer: Buffer | LedgerError) -> None:
        if isinstance(answer, MISSING_ERRORS) and self._search is None and not self._finished:
            self._finish(NoSuchEntryError("one replica does not have it"))
        else:
            proper(self, bookie, answer)

    return (replaced(EntryRead, "_answered", broken),)


READER_RULES = (
    Variant("a bookie's bare LAC believed", "reads", 11, _bare_lac_believed),
    Variant("a broken connection forgets no deferred add", "reads", 19, _broken_connection_forgets_nothing),
    Variant("forced without an answer", "reads", 3, _forced_without_an_answer),
    Variant("one replica without the entry decides", "reads", 9, _one_replica_without_it_decides),
)
