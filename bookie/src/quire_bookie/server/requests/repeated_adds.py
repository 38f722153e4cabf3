"""Distinguishes normal adds of stored entry ids: repetitions by the writer, or entries of another ledger.

When the metadata was restored to an earlier state, or a client chooses its own ids, a new ledger can get the id of a
ledger stored here. Its first entries then have ids that are in use. A writer repeats an add with equal bytes, so:

* equal bytes are a repetition and are accepted again;
* other bytes belong to another ledger: they are not stored, the response is *unauthorized*, and the ledger is fenced,
  so that later adds do not mix the two. Stock clients give up the ledger after either response and create another one;
* an id that is not stored is accepted: clients repeat an add that was refused for lack of space, and
  `LedgerHandleAdv` of a stock client chooses its ids in any order.

Adds above the last entry are never compared. Neither are recovery adds: they bring copies with other headers.
"""

from collections.abc import Callable, Mapping
from enum import Enum
from functools import partial

from quire_bookie.errors import NoSuchEntryError, NoSuchLedgerError
from quire_bookie.model import Buffer, EntryId, LedgerId, Run
from quire_bookie.server.requests.ledger_loading import LedgerLoading
from quire_bookie.server.requests.ports import StoragePort
from quire_bookie.storage.ledgers.ledger_states import LedgerInfo
from quire_bookie.wire.status import Status

Held = Mapping[EntryId, Buffer]
"""Entries read from the disk; an absent one is not stored."""


class Verdict(Enum):
    """Classifies a run that begins at or below the last stored entry."""

    REPEATED = "repeated"
    FOREIGN = "foreign"
    UNKNOWN = "unknown"
    """The entries must be read from the disk first."""


def compare(info: LedgerInfo, run: Run, find: Callable[[EntryId], Buffer | None], held: Held | None) -> Verdict:
    """Compare a run with stored entries. Pure.

    `find` returns an entry if it is in memory; None from it means unknown. `held`: entries read from disk, if any.
    """
    for at in range(min(info.last_entry - run.first + 1, len(run.entries))):
        entry = EntryId(run.first + at)
        body = find(entry)
        if body is None and held is None:
            return Verdict.UNKNOWN
        if body is None and held is not None:
            body = held.get(entry)
        if body is not None and body != run.entries[at]:
            return Verdict.FOREIGN
    return Verdict.REPEATED


class RepeatedAdds:
    """Compares runs with the stored entries of one bookie. Keeps no state."""

    def __init__(self, storage: StoragePort, loading: LedgerLoading) -> None:
        self._storage = storage
        self._loading = loading

    def compare(self, info: LedgerInfo, run: Run, held: Held | None) -> Verdict:
        """Compare a run with entries in memory and in `held`; see the function `compare`."""
        return compare(info, run, partial(self._storage.read_cached, info), held)

    def read(
        self,
        run: Run,
        last: EntryId,
        then: Callable[[LedgerInfo | None, Held | None], None],
        fail: Callable[[Status], None],
    ) -> None:
        """Call `then` with the ledger's state and the stored entries of the run up to `last`. Keeps the order of adds.

        `then` gets None for the entries if another load of the ledger was under way: read again.
        """
        found: list[Held] = []

        async def read() -> None:
            found.append(await self._read(run.ledger, run.first, last))

        self._loading.after(run.ledger, read, lambda info: then(info, found[0] if found else None), fail)

    async def _read(self, ledger: LedgerId, first: EntryId, last: EntryId) -> Held:
        """Return the stored entries of a range. StorageError, OSError: unknown which are stored."""
        held: dict[EntryId, Buffer] = {}
        entry = first
        while entry <= last:
            try:
                bodies = await self._storage.read_many(ledger, entry, last - entry + 1, 1 << 62)
            except NoSuchEntryError:
                entry = EntryId(entry + 1)
                continue
            except NoSuchLedgerError:
                break  # deleted meanwhile: the add is refused for this reason
            for body in bodies:
                held[entry] = body
                entry = EntryId(entry + 1)
        return held
