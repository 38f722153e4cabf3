"""Normal adds of entry ids that may be held already: a repetition by their writer, or the entries of another ledger.

When metadata went back in time, or a client chooses ids of its own, a new ledger can get the id of one that is held
here. Its first entries then come under ids that are taken. A writer repeats an add byte by byte, so:

* equal bytes are a repetition and are taken again;
* other bytes are another ledger: nothing is stored, the answer is *unauthorized*, and the ledger is fenced, so that no
  add behind this one mixes the two. Stock clients give up the ledger at either answer and make another;
* an id that is not held is taken: clients repeat an add that was refused for lack of room, and a stock client's
  `LedgerHandleAdv` chooses its ids, in any order.

Adds above the last entry are never looked at. Recovery adds are none of this: they bring copies with other headers.
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
"""Entries that were read from the disk; one that is missing is not held."""


class Verdict(Enum):
    """What a run is that begins at or below the last entry held."""

    REPEATED = "repeated"
    FOREIGN = "foreign"
    UNKNOWN = "unknown"
    """The disk has to be asked."""


def judge(info: LedgerInfo, run: Run, find: Callable[[EntryId], Buffer | None], held: Held | None) -> Verdict:
    """Compare a run with what is held. `find` looks in memory, and None says nothing; `held`: see there. Pure."""
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
    """Of one bookie. Remembers nothing."""

    def __init__(self, storage: StoragePort, loading: LedgerLoading) -> None:
        self._storage = storage
        self._loading = loading

    def judge(self, info: LedgerInfo, run: Run, held: Held | None) -> Verdict:
        """See `judge`."""
        return judge(info, run, partial(self._storage.read_cached, info), held)

    def read(
        self,
        run: Run,
        last: EntryId,
        then: Callable[[LedgerInfo | None, Held | None], None],
        fail: Callable[[Status], None],
    ) -> None:
        """Call `then` with the state of the ledger and what is held of the run up to `last`. Keeps the order of adds.

        None is held where something else was under way for the ledger: read again.
        """
        found: list[Held] = []

        async def read() -> None:
            found.append(await self._read(run.ledger, run.first, last))

        self._loading.after(run.ledger, read, lambda info: then(info, found[0] if found else None), fail)

    async def _read(self, ledger: LedgerId, first: EntryId, last: EntryId) -> Held:
        """StorageError, OSError: it cannot be said what is held."""
        held: dict[EntryId, Buffer] = {}
        entry = first
        while entry <= last:
            try:
                bodies = await self._storage.read_many(ledger, entry, last - entry + 1, 1 << 62)
            except NoSuchEntryError:
                entry = EntryId(entry + 1)
                continue
            except NoSuchLedgerError:
                break  # deleted meanwhile: the add is refused for that
            for body in bodies:
                held[entry] = body
                entry = EntryId(entry + 1)
        return held
