"""What a shadow topic reads: the ledgers of another managed ledger, its source, whose owner writes them.

    source's node   --watch-->      the list of ledgers, new ones, trimmed ones
    its last ledger --long polls--> how far its entries are confirmed (LAC)

The node of the shadow has no ledgers of its own, only the property with its source and the cursors of its
subscriptions. Must never: write the source's list, fence or close one of its ledgers, hold back its trimming, delete
anything of it; show an entry that is not confirmed.

The LAC of a ledger is in the header of the entry after it. So the owner of a source whose shadows are known
(`set-shadow-topics`) also sends the LAC by itself, soon after an append: `LacTeller`. The names are Pulsar's.
"""

import asyncio
import logging
from collections.abc import Callable

from quire_bookie.env.background import Background
from quire_bookie.errors import LedgerError, MetadataError, NoSuchLedgerError
from quire_bookie.metadata.store import EventKind, Watch
from quire_bookie.model import EntryId, LedgerId, LedgerState
from quire_broker.limits import SHADOW_LAC_RETRY_S, SHADOW_LAC_S, SHADOW_POLL_S
from quire_broker.managed_ledger.context import ManagedLedgerContext
from quire_broker.managed_ledger.cursors.cursor_state import CursorState
from quire_broker.managed_ledger.ledger_port import Reader, Writer
from quire_broker.managed_ledger.list_store import node_path
from quire_broker.managed_ledger.nodes.ledger_list import LedgerList, LedgerRecord
from quire_broker.managed_ledger.nodes.node_codec import decode_list
from quire_broker.managed_ledger.reading.reader import EntryReader
from quire_broker.managed_ledger.stored_passwords import to_read

_log = logging.getLogger("quire.managed_ledger")


class SourceLedgers:
    """Keeps a list of ledgers like that of the source. `load` it before its first use, `stop` it at the end.

    A source that does not exist, or was deleted, has no ledgers.
    """

    def __init__(
        self,
        context: ManagedLedgerContext,
        source: str,
        ledgers: LedgerList,
        reader: EntryReader,
        *,
        grown: Callable[[], None],
    ) -> None:
        """`source`: the name of its managed ledger. `grown` is called when entries have come, or ledgers have gone."""
        self.source = source
        self._context = context
        self._key = node_path(source)
        self._ledgers = ledgers
        ledgers.is_followed = True
        self._reader = reader
        self._grown = grown
        self._tail: Reader | None = None
        self._tail_changed = asyncio.Event()
        self._watch: Watch | None = None
        self._background = Background()

    async def load(self) -> None:
        """Read the list and follow it from now on. Errors of the ledger client and of the metadata store."""
        if self._watch is None:
            self._watch = await self._context.store.watch(self._key)  # before the first read: no change is missed
        await self._refresh()
        self._background.keep(self._follow_list, f"the list of ledgers of {self.source}")
        self._background.keep(self._follow_tail, f"the last ledger of {self.source}")

    async def _refresh(self) -> None:
        """Take the list over as it is now. After an error nothing has changed."""
        node = await self._context.store.get(self._key)
        records = () if node is None else decode_list(node.value).ledgers
        tail = await self._open_tail(records)
        gone = set(self._ledgers.ids) - {record.ledger_id for record in records}
        self._ledgers.replace(records, tail=None if tail is None else tail.ledger_id)
        before, self._tail = self._tail, tail
        self._reader.tail = tail
        if before is not tail:
            if before is not None:
                self._background.start(before.close(), f"closing the handle of ledger {before.ledger_id}")
            self._tail_changed.set()
        self._reader.forget(sorted(gone))
        if tail is not None:
            self._confirm(tail)
        self._grown()

    async def _open_tail(self, records: tuple[LedgerRecord, ...]) -> Reader | None:
        """Return the ledger that the source writes, opened without recovery; None if it writes none."""
        if not records or records[-1].closed_ms:
            return None
        ledger_id = records[-1].ledger_id
        if self._tail is not None and self._tail.ledger_id == ledger_id:
            return self._tail
        password = self._context.settings.password
        try:
            return await self._context.client.open_ledger(
                LedgerId(ledger_id), password=password, recover=False, accept_stored=to_read
            )
        except NoSuchLedgerError:
            return None  # it was deleted, and leaves the list soon

    def _confirm(self, tail: Reader) -> None:
        last = tail.last_add_confirmed
        if self._ledgers.tail == tail.ledger_id and last >= self._ledgers.entries_in(tail.ledger_id):
            self._ledgers.confirm(last, tail.length)

    def acknowledged(self, state: CursorState) -> None:
        """Note which entries of the last ledger a cursor of the shadow had acknowledged: they are confirmed.

        An earlier owner showed them, so it knew that from the bookies. They may not say it again yet, and without this
        the acknowledgments would be dropped as those of entries that do not exist.
        """
        tail = self._tail
        if tail is None or tail.metadata.state is LedgerState.CLOSED:
            return
        last = state.last_in(tail.ledger_id)
        if last >= self._ledgers.entries_in(tail.ledger_id):
            tail.take_confirmed(EntryId(last))
            self._confirm(tail)

    async def _follow_list(self) -> None:
        assert self._watch is not None, "it is loaded first"
        async for event in self._watch:
            if event.key == self._key or event.kind is EventKind.RESYNC:  # its cursors are below the same prefix
                await self._at_last()

    async def _at_last(self) -> None:
        backoff = self._context.backoff()
        while True:
            try:
                await self._refresh()
                return
            except (LedgerError, MetadataError) as error:
                _log.info("%s: its ledgers are not known yet, trying again: %s", self.source, error)
                await backoff.wait()

    async def _follow_tail(self) -> None:
        backoff = self._context.backoff()
        while True:
            tail = self._tail
            if tail is None or tail.metadata.state is LedgerState.CLOSED:
                self._tail_changed.clear()
                await self._tail_changed.wait()
                continue
            known = self._ledgers.entries_in(tail.ledger_id)
            try:
                await tail.wait_for_lac(EntryId(known - 1), SHADOW_POLL_S)
            except (LedgerError, MetadataError) as error:
                _log.info("%s: ledger %d is not readable now: %s", self.source, tail.ledger_id, error)
                await backoff.wait()
                continue
            backoff.reset()
            if tail is self._tail and tail.last_add_confirmed >= known:
                self._confirm(tail)
                self._grown()

    async def stop(self) -> None:
        """Follow the source no more. Repeated calls are allowed."""
        watch, self._watch = self._watch, None
        tail, self._tail = self._tail, None
        await self._background.close()
        if watch is not None:
            await watch.close()
        if tail is not None:
            await tail.close()


class LacTeller:
    """Sends the LAC of the ledger being written to its bookies soon after each append, while it is `active`."""

    def __init__(self, context: ManagedLedgerContext) -> None:
        self.writer: Writer | None = None
        """The ledger being written; its owner sets it."""
        self._active = False
        self._context = context
        self._timer: asyncio.TimerHandle | None = None
        self._telling = False

    def use(self, *, active: bool) -> None:
        """Begin or end."""
        self._active = active
        self.advanced()

    def advanced(self) -> None:
        """Note that entries were confirmed."""
        if self._active and self._timer is None and not self._telling:
            self._wait(SHADOW_LAC_S)

    def _wait(self, pause_s: float) -> None:
        self._timer = asyncio.get_running_loop().call_later(pause_s, self._begin)

    def _begin(self) -> None:
        self._timer = None
        writer = self.writer
        if writer is not None and writer.last_add_confirmed >= 0 and self._active:
            self._telling = True
            self._context.background.start(self._tell(writer), f"the LAC of ledger {writer.ledger_id}")

    async def _tell(self, writer: Writer) -> None:
        pause_s, told = SHADOW_LAC_S, EntryId(-1)
        try:
            told = await writer.tell_lac()
        except LedgerError as error:  # readers find it with the next entry, or when the ledger is closed
            _log.info("%s: ledger %d: its LAC was not sent: %s", self._context.name, writer.ledger_id, error)
            pause_s = SHADOW_LAC_RETRY_S
        finally:
            self._telling = False
        if self.writer is writer and writer.last_add_confirmed > told and self._active and self._timer is None:
            self._wait(pause_s)

    def stop(self) -> None:
        """Send nothing more."""
        self._active = False
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
