"""Broken variants: rules of a bookie, each removed."""

import asyncio
from typing import Any
from unittest import mock

from quire_bookie.env.connection_account import Account
from quire_bookie.env.connection_memory import ConnectionMemory
from quire_bookie.env.disk import Disk
from quire_bookie.env.space_reserve import SpaceReserves
from quire_bookie.journal.files import JournalFiles
from quire_bookie.journal.replay import Replay
from quire_bookie.model import LedgerId, Run, RunBatch
from quire_bookie.server import process
from quire_bookie.server.requests.adds import Adds
from quire_bookie.server.requests.fences import Fences
from quire_bookie.server.requests.ports import JournalPort
from quire_bookie.server.settings import BookieSettings
from quire_bookie.server.upkeep.collection_doubts import CollectionDoubts
from quire_bookie.server.upkeep.garbage_collection import GarbageCollection
from quire_bookie.settings.collection import QuarantineSettings
from tests.sim.broken.variant import Variant, replaced


def _ignore(*_: object) -> None:
    """Replace a callback: the failure is not reported."""


def _ack_before_sync() -> tuple[Any, ...]:
    proper = Adds.__init__

    def broken(self: Adds, journal: JournalPort, *rest: Any, **named: Any) -> None:
        proper(self, journal, *rest, **named)
        loop = asyncio.get_running_loop()

        def append_run(run: Run, done: Any) -> None:
            journal.append_run(run, _ignore)
            loop.call_soon(done, None)

        def append_batch(batch: RunBatch, done: Any) -> None:
            journal.append_batch(batch, _ignore)
            loop.call_soon(done, batch, None)

        self._append_run, self._append_batch = append_run, append_batch

    return (replaced(Adds, "__init__", broken),)


def _fence_not_synced() -> tuple[Any, ...]:
    def broken(self: Fences, ledger: LedgerId, durable: "asyncio.Future[BaseException | None]") -> None:
        durable.set_result(None)

    return (replaced(Fences, "_append_fence", broken),)


def _listing_trusted() -> tuple[Any, ...]:
    """Collects without the fuse, the quarantine and the read of the node."""

    async def never_blown(self: GarbageCollection, *_: object) -> bool:
        return False

    async def collect(
        self: GarbageCollection, missing: frozenset[LedgerId], before: frozenset[LedgerId], *_: object
    ) -> list[LedgerId]:
        for ledger in sorted(missing & before):
            await self._storage.delete_ledger(ledger)
        return sorted(missing & before)

    return (replaced(GarbageCollection, "_is_blown", never_blown), replaced(GarbageCollection, "_collect", collect))


def _quarantine_skipped() -> tuple[Any, ...]:
    """Deletes a ledger that is missing twice."""
    return (replaced(QuarantineSettings, "keep_ms", 0),)


def _doubt_counts() -> tuple[Any, ...]:
    """Counts the quarantine time even during incomplete rounds and replaced sessions."""
    begun = "_sure_since_s"

    def read(self: GarbageCollection) -> float | None:
        return self.__dict__.get(begun)

    def write(self: GarbageCollection, value: float | None) -> None:
        if value is not None:
            self.__dict__[begun] = value

    def nothing_happened(self: CollectionDoubts) -> bool:
        self._changes_seen = self._session_changes
        return False

    return (
        mock.patch.object(GarbageCollection, begun, property(read, write), create=True),
        replaced(CollectionDoubts, "begin_round", nothing_happened),
    )


def _no_reserve() -> tuple[Any, ...]:
    async def none(settings: BookieSettings, disk: Disk) -> SpaceReserves:
        return SpaceReserves()

    return (replaced(process, "open_reserves", none),)


def _newest_file_unproved() -> tuple[Any, ...]:
    """Writes the witness, but does not check it at the start."""

    def anything_goes(*_: object) -> None:
        return None

    return (
        replaced(JournalFiles, "_check_newest", anything_goes),
        replaced(Replay, "_check_witness", anything_goes),
    )


def _no_connection_budget() -> tuple[Any, ...]:
    """Counts no memory, so that no connection waits."""

    def nothing(*_: object) -> None:
        return None

    async def at_once(*_: object) -> None:
        return None

    counts = ("received", "wait_if_full", "hold", "let_go", "queued", "settle", "give_back")
    return (
        *(replaced(ConnectionMemory, name, nothing) for name in counts),
        replaced(ConnectionMemory, "reserve", at_once),
    )


def _stalled_peers_stay() -> tuple[Any, ...]:
    def nothing(*_: object) -> None:
        return None

    return (replaced(ConnectionMemory, "_relieve", nothing), replaced(Account, "fault", nothing))


def _who_waits_is_to_blame() -> tuple[Any, ...]:
    """Treats a socket that the budget paused inside a frame as one whose peer stalls."""
    proper = ConnectionMemory._relieve

    def broken(self: ConnectionMemory, now_s: float, held_s: float) -> None:
        waiting = [(account, account.waits) for account in self._listed if account.waits is not None]
        for account, _ in waiting:
            account.waits = None
        proper(self, now_s, held_s)
        for account, waits in waiting:
            account.waits = None if account.closed else waits

    return (replaced(ConnectionMemory, "_relieve", broken),)


def _waiting_frames_fill_the_budget() -> tuple[Any, ...]:
    """Frames of waiting connections take the memory of those that are served."""

    def all_bytes(self: ConnectionMemory, *_: object) -> int:
        return self.used_bytes

    def nothing(*_: object) -> None:
        return None

    return (
        replaced(ConnectionMemory, "_served_bytes", all_bytes),
        replaced(ConnectionMemory, "_shorten_queue", nothing),
    )


BOOKIE_RULES = (
    Variant("newest journal file not proved", "files", 12, _newest_file_unproved),
    Variant("ack before sync", "duel", 1, _ack_before_sync),
    Variant("fence not synced", "duel", 39, _fence_not_synced),
    Variant("garbage collection trusts an empty listing", "collection", 0, _listing_trusted),
    Variant("quarantine skipped", "collection", 0, _quarantine_skipped),
    Variant("quarantine time counts while in doubt", "collection", 2, _doubt_counts),
    Variant("no reserve on a full disk", "filled", 0, _no_reserve),
    Variant("connections hold without a budget", "stalled", 0, _no_connection_budget),
    Variant("peers that hold memory are never closed", "stalled", 0, _stalled_peers_stay),
    Variant("a connection that waits for memory is closed for it", "stalled", 2, _who_waits_is_to_blame),
    Variant("waiting frames fill the budget", "stalled", 1, _waiting_frames_fill_the_budget),
)
