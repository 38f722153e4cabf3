"""Publishes to one topic or partition: batches, a bounded number of entries without a receipt, and their repetition.

    message --add--> open batch --full, or its time is over--> sent, without a receipt --receipt--> confirmed

Entries without a receipt are kept in order. After a reconnect all of them are sent again, before any new one: with
deduplication the broker drops those that it has, without it a message may be stored twice. Only a receipt of the broker
confirms a message, and receipts confirm in order.
"""

import asyncio
from collections import deque
from typing import Any

from quire_bookie.errors import ConfigError
from quire_broker.errors import ServerError
from quire_broker.wire.kinds import Kind
from quire_broker.wire.proto import pulsar_pb2 as pb
from quire_client.attachment import Attachment
from quire_client.batch import PLAIN, Batch, Extra, OnDone, Sent
from quire_client.brokers import Brokers
from quire_client.connection import Connection
from quire_client.errors import BrokerRefusedError, ConnectionLostError, UnconfirmedError, error_of
from quire_client.options import ProducerOptions

_AGAIN = frozenset({ServerError.UNKNOWN, ServerError.METADATA, ServerError.PERSISTENCE, ServerError.SERVICE_NOT_READY})
"""Answers to a SEND after which it is sent again, on a new registration."""


class TopicProducer(Attachment):
    """The producer of one topic. Call `open` first."""

    def __init__(self, brokers: Brokers, topic: str, options: ProducerOptions, partition: int = -1) -> None:
        super().__init__(brokers, topic)
        self._options = options
        self._partition = partition
        self._name = options.name
        self._epoch = 0
        self._schema_version = b""
        self._next_sequence_id = 0
        self.last_sequence_id = -1
        """The highest sequence id that the broker had for this name when the producer was opened; -1: none."""
        self._batch: Batch | None = None
        self._batch_timer: asyncio.Handle | None = None
        self._pending: deque[Sent] = deque()
        self._pending_messages = self._pending_bytes = 0
        self._registered = False
        self._changed = asyncio.Event()
        self._timer: asyncio.TimerHandle | None = None
        self._unseen: BrokerRefusedError | None = None
        """The first error of a message without a callback, which `flush` raises."""
        self._failures = 0
        self._latest: BrokerRefusedError | None = None
        """Of messages without a callback, for each `flush` that waits meanwhile."""
        self.message_bytes_max = self._batch_bytes_max = 0

    @property
    def name(self) -> str:
        """The name of the producer, as the broker knows it."""
        return self._name

    @property
    def has_open_batch(self) -> bool:
        """Whether a message waits for others."""
        return self._batch is not None

    @property
    def is_full(self) -> bool:
        """Whether `add` must wait, for receipts or for the socket, or it has failed."""
        options = self._options
        return (
            self._pending_messages >= options.pending_messages_max
            or self._pending_bytes >= options.pending_bytes_max
            or self._error is not None
            or (self._connection is not None and not self._connection.is_writable)
        )

    # ---- called by the producer of all partitions

    async def until_ready(self) -> None:
        """Wait while it is full. BrokerRefusedError once it has failed."""
        while self.is_full and self._error is None:
            self.send_batch()
            self._changed.clear()
            await self._changed.wait()
        if self._error is not None:
            raise self._error

    def add(self, payload: bytes, extra: Extra = PLAIN, on_done: OnDone | None = None) -> None:
        """Take a message. ConfigError if it cannot be sent. It must not be full, nor have failed."""
        sequence_id = self._next_sequence_id if extra.sequence_id is None else extra.sequence_id
        if sequence_id < self._next_sequence_id:
            raise ConfigError(f"sequence_id {sequence_id}: the next one of this producer is {self._next_sequence_id}")
        options, batch = self._options, self._batch
        size = len(payload) if extra is PLAIN else len(payload) + extra.size_bytes
        if size > self.message_bytes_max:
            self._require_small(size)
        if batch is not None and (
            batch.size_bytes + size > self._batch_bytes_max
            or (
                (extra is not PLAIN or batch.extra is not PLAIN)
                and not batch.takes(extra, one_key=options.one_key_per_batch)
            )
        ):
            self.send_batch()
            batch = None
        if batch is None:
            batch = Batch(extra)
        before = batch.size_bytes
        try:
            after = batch.add(payload, sequence_id, extra, on_done)
        except (ValueError, TypeError) as error:  # before the batch was changed
            raise ConfigError(f"{self.topic}: a message that cannot be encoded: {error}") from error
        self._batch = batch
        self._next_sequence_id = sequence_id + 1
        self._pending_messages += 1
        self._pending_bytes += after - before
        if batch.count >= options.batch_messages_max or after >= self._batch_bytes_max:
            self.send_batch()
        elif self._batch_timer is None:
            delay_s = options.batch_delay_s
            call = self.send_batch
            self._batch_timer = self._loop.call_later(delay_s, call) if delay_s else self._loop.call_soon(call)

    def send_batch(self) -> None:
        """Send the open batch, if there is one."""
        if self._batch_timer is not None:
            self._batch_timer.cancel()
            self._batch_timer = None
        batch, self._batch = self._batch, None
        if batch is None:
            return
        clock, options = self._brokers.clock, self._options
        head, payload = batch.entry(self._name, clock.now_ms(), options.compression, self._schema_version)
        sent = Sent(batch, head, payload, self._loop.time() + options.send_timeout_s)
        self._pending.append(sent)
        if self._timer is None:
            self._timer = self._loop.call_at(sent.expires_at_s, self._expire)
        if self._registered and self._connection is not None:
            self._connection.write_all(sent.frame(self._number))

    async def flush(self) -> None:
        """Wait until all messages have their receipts. BrokerRefusedError: the first one that was not seen before."""
        self.send_batch()
        last, before = self._next_sequence_id, self._failures
        while self._pending and self._pending[0].sequence_id < last and self._error is None:
            self._changed.clear()
            await self._changed.wait()
        unseen, self._unseen = self._unseen, None
        if unseen is None and self._failures != before:  # another `flush` has raised it
            unseen = self._latest
        if unseen is not None:
            raise unseen

    async def close(self) -> None:
        """Close it on the broker; messages without a receipt fail. Call `flush` before."""
        connection, number = self._connection, self._number
        try:
            if self._registered and connection is not None:
                self._registered = False
                await self._close_there(connection, number)
        finally:  # also if the caller is cancelled
            await self._end("producer")

    # ---- the registration

    async def _register(self, connection: Connection, number: int) -> None:
        body = pb.CommandProducer(topic=self.topic, producer_id=number, epoch=self._epoch)
        if self._name:
            body.producer_name = self._name
        body.user_provided_producer_name = bool(self._options.name)
        for name, value in self._options.properties.items():
            body.metadata.add(key=name, value=value)
        if (schema := self._options.schema) is not None:
            body.schema.name, body.schema.type, body.schema.schema_data = "", schema.type, schema.data
            for name, value in schema.properties.items():
                body.schema.properties.add(key=name, value=value)
        connection.on_frame[(Kind.CLOSE_PRODUCER, number)] = self._on_closed  # it may follow the answer at once
        reply = await connection.ask(Kind.PRODUCER, "producer", body)
        if self._connection is not connection:
            return
        if not self._name or self._epoch == 0:
            self.last_sequence_id = reply.last_sequence_id
            self._next_sequence_id = reply.last_sequence_id + 1
        self._name, self._schema_version = reply.producer_name, reply.schema_version
        self._epoch += 1
        self.message_bytes_max = connection.message_bytes_max
        self._batch_bytes_max = min(self._options.batch_bytes_max, connection.message_bytes_max)
        connection.on_frame[(Kind.SEND_RECEIPT, number)] = self._on_receipt
        connection.on_frame[(Kind.SEND_ERROR, number)] = self._on_send_error
        connection.on_writable[number] = self._changed.set
        self._registered = True
        for sent in self._pending:
            connection.write_all(sent.frame(number))
        self._changed.set()

    def _closing(self, number: int) -> tuple[Kind, str, Any]:
        return Kind.CLOSE_PRODUCER, "close_producer", pb.CommandCloseProducer(producer_id=number)

    def _detached(self) -> None:
        self._registered = False
        self._changed.set()  # who waited for the socket of this connection waits for no receipt

    def _failed(self, error: BrokerRefusedError) -> None:
        self._registered = False
        self._fail_pending(error)

    def _on_closed(self, _: pb.CommandCloseProducer) -> None:
        self._lost(ConnectionLostError(f"{self.topic}: the broker closed the producer"))

    # ---- receipts

    def _on_receipt(self, receipt: pb.CommandSendReceipt) -> None:
        if not self._pending or receipt.sequence_id < self._pending[0].sequence_id:
            return  # of an entry that was sent twice, or that has failed
        sent = self._pending[0]
        if receipt.sequence_id > sent.sequence_id:
            text = f"the broker confirmed {receipt.sequence_id} before {sent.sequence_id}, which was sent before it"
            self._begin_again(ConnectionLostError(f"{self.topic}: {text}"))
            return
        self._remove_first()
        place = receipt.message_id
        if sent.callbacks:
            sent.done(place.ledgerId, place.entryId, self._partition)
        self._changed.set()

    def _on_send_error(self, answer: pb.CommandSendError) -> None:
        error = error_of(answer.error, answer.message, self.topic)
        if error.code in _AGAIN:
            self._begin_again(error)
        elif self._pending and answer.sequence_id >= self._pending[0].sequence_id:
            self._finish(error)

    def _begin_again(self, error: BrokerRefusedError) -> None:
        """Register again: the connection goes, as others of its producers may have the same trouble."""
        if self._connection is not None:
            self._connection.fail(ConnectionLostError(str(error)))

    def _remove_first(self) -> Sent:
        sent = self._pending.popleft()
        self._pending_messages -= sent.count
        self._pending_bytes -= sent.size_bytes
        return sent

    def _expire(self) -> None:
        """Fail everything if the oldest entry waits too long: what follows it must not be stored without it."""
        self._timer = None
        if not self._pending:
            return
        if self._loop.time() >= self._pending[0].expires_at_s:
            limit_s = self._options.send_timeout_s
            self._fail_pending(
                UnconfirmedError(f"{self.topic}: no receipt in {limit_s:g} s; the message may be stored, or not")
            )
        else:
            self._timer = self._loop.call_at(self._pending[0].expires_at_s, self._expire)

    def _fail_pending(self, error: BrokerRefusedError) -> None:
        if self._batch is not None:
            self.send_batch()
        while self._pending:
            if not self._remove_first().fail(error):
                self._unseen = self._unseen or error
                self._failures += 1
                self._latest = error
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._changed.set()

    def _require_small(self, size_bytes: int) -> None:
        if size_bytes > self.message_bytes_max:
            raise ConfigError(
                f"{self.topic}: a message of {size_bytes} bytes; its broker takes {self.message_bytes_max}"
            )
