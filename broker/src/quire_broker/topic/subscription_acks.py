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
        whole: list[Position] = []
        beyond: Position | None = None
        last = self._ledger.last_confirmed
        for item in ids:
            position = item.position
            if position > last:
                beyond = position
            elif not item.ack_set or (self._batch_index_acks and self._part(dispatcher, consumer, item)):
                whole.append(position)
        if beyond is not None:
            log.warning("acknowledgement of %s beyond the end of %s ignored", beyond, self._ledger.name)
        if whole:
            self._cursor.acknowledge(whole)
            dispatcher.acknowledged(consumer, whole)

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
