"""The metadata that a broker adds before each entry of a topic: the time at which it took it, and an index.

The index counts the messages of a topic from 0 and goes on over ledgers and owners. An entry has that of its last
message. It is assigned in the order of the appends: a failed append ends the topic's life in this process, so the next
load continues after the entries that are stored. That is after the newest stored entry, or after the property `index`,
which each write of the list of ledgers stores, as Pulsar does: it remains when all ledgers are trimmed.
"""

import logging
from collections.abc import Callable
from typing import Final

from quire_bookie.env.clock import WallClock
from quire_bookie.model import Buffer
from quire_broker.limits import INDEX_LEDGERS_SEARCHED_MAX
from quire_broker.managed_ledger.ledger_port import Payload
from quire_broker.managed_ledger.managed_ledger import ManagedLedger
from quire_broker.managed_ledger.position import Position
from quire_broker.settings.entry_metadata import EntryMetadataSettings
from quire_broker.wire.entry import broker_metadata, peek_broker_metadata

INDEX_PROPERTY: Final = "index"
_NONE: Final = -1
log = logging.getLogger("quire.broker.topic")


class EntryMetadata:
    """Stamps the entries of one topic. Call `load` before the first one."""

    def __init__(self, settings: EntryMetadataSettings, ledger: ManagedLedger, clock: WallClock) -> None:
        self._settings = settings
        self._ledger = ledger
        self._clock = clock
        self._index = self._loaded = _NONE
        self._newest: Buffer = b""

    @property
    def index(self) -> int:
        """The index of the last message that was appended; -1 before the first."""
        return self._index

    async def load(self) -> None:
        """Continue the index of the stored entries. LedgerError: the newest entry cannot be read."""
        if not self._settings.index:
            return
        self._index = self._loaded = max(self._stored_property(), await self._newest_index())
        self._ledger.on_stored = self._stored
        self._ledger.running_properties[INDEX_PROPERTY] = self._property

    def _stored_property(self) -> int:
        text = self._ledger.properties.get(INDEX_PROPERTY, "")
        if text.isdecimal() and text.isascii() and len(text) < 20:
            return int(text)
        if text not in ("", str(_NONE)):
            log.warning(
                "%s: property %s is %.40r, not a number; it is replaced", self._ledger.name, INDEX_PROPERTY, text
            )
        return _NONE

    async def _newest_index(self) -> int:
        """Return the index of the newest entry that has one.

        One process writes a ledger, so all of its entries have an index, or none has.
        """
        with_entries = [record for record in reversed(self._ledger.ledgers) if record.entries]
        for record in with_entries[:INDEX_LEDGERS_SEARCHED_MAX]:
            last = Position(record.ledger_id, record.entries - 1)
            found = await self._ledger.read(last, entries_max=1, bytes_max=1)
            added = peek_broker_metadata(found[0].data) if found else None
            if added is not None and added.HasField("index"):
                return added.index
        return _NONE

    def _stored(self, newest: Payload) -> None:
        if isinstance(newest, tuple):
            self._newest = newest[0]

    def _property(self) -> str | None:
        added = peek_broker_metadata(self._newest)
        index = self._loaded if added is None else added.index
        return None if index == _NONE else str(index)

    def stamper(self) -> Callable[[Buffer, int], Payload]:
        """Return a function that puts the metadata before an entry with a number of messages; for a run of entries."""
        now_ms = self._clock.now_ms() if self._settings.timestamp else None
        if not self._settings.index:
            head = broker_metadata(now_ms, None)
            return lambda entry, _: (head, entry)

        def stamp(entry: Buffer, messages: int) -> Payload:
            self._index += messages
            return broker_metadata(now_ms, self._index), entry

        return stamp
