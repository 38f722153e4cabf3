"""Passes acknowledgements to the cursor. Filters invalid ones; never decides about delivery."""

import logging
from collections.abc import Sequence

from quire_broker.dispatch.consumer import Consumer
from quire_broker.dispatch.delivery import AckId
from quire_broker.dispatch.dispatcher import Dispatcher
from quire_broker.managed_ledger.cursors.cursor import Cursor
from quire_broker.managed_ledger.managed_ledger import ManagedLedger
from quire_broker.managed_ledger.position import Position

_WORD_BITS = 64
log = logging.getLogger("quire.broker.subscription")


class Acknowledgements:
    """Passes ids of ACK commands to one cursor. Without `batch_index_acks`, parts of batches are ignored."""

    def __init__(self, ledger: ManagedLedger, cursor: Cursor, *, batch_index_acks: bool) -> None:
        self._ledger = ledger
        self._cursor = cursor
        self._batch_index_acks = batch_index_acks

    def individual(self, dispatcher: Dispatcher, consumer: Consumer, ids: Sequence[AckId]) -> None:
        """Acknowledge entries or parts of batches. One list may name an entry more than once."""
        last = self._ledger.last_confirmed
        self.entries(
            dispatcher,
            consumer,
            [
                item.position
                for item in ids
                if not item.ack_set
                or item.position > last
                or (self._batch_index_acks and self._part(dispatcher, consumer, item))
            ],
        )

    def entries(self, dispatcher: Dispatcher, consumer: Consumer, positions: Sequence[Position]) -> None:
        """Acknowledge whole entries. Those beyond the end are ignored."""
        if not positions:
            return
        last = self._ledger.last_confirmed
        if max(positions) > last:
            beyond = [position for position in positions if position > last]
            log.warning("acknowledgement of %s beyond the end of %s ignored", beyond[-1], self._ledger.name)
            positions = [position for position in positions if position <= last]
        if positions:
            self._cursor.acknowledge(positions)
            dispatcher.acknowledged(consumer, positions)

    def _part(self, dispatcher: Dispatcher, consumer: Consumer, item: AckId) -> bool:
        """Acknowledge a part of a batch. Return whether the whole entry is acknowledged then."""
        batch_size = item.batch_size if item.batch_size > 0 else _WORD_BITS * len(item.ack_set)
        if self._cursor.acknowledge_batch(item.position, item.ack_set, batch_size):
            return True
        left = self._cursor.ack_set(item.position)
        if left is not None:
            remaining = sum((word & (2**_WORD_BITS - 1)).bit_count() for word in left)
            dispatcher.partly_acknowledged(consumer, item.position, remaining)
        return False

    def cumulative(self, item: AckId) -> None:
        """Acknowledge everything up to an entry; of a batch with an ack set, only its cleared bits."""
        position = item.position
        if position > self._ledger.last_confirmed:
            log.warning("acknowledgement of %s beyond the end of %s ignored", position, self._ledger.name)
        elif not item.ack_set:
            self._cursor.acknowledge_cumulative(position)
        elif self._batch_index_acks:
            self._cursor.acknowledge_cumulative(position, item.ack_set)
        else:
            self._cursor.acknowledge_cumulative(self._ledger.previous_position(position))
