"""Publishes the messages of one task to a topic's partitions with the stock client: pipelined, in order, acknowledged.

A retried task sends the same rows under the same producer name and sequence ids, and brokers drop duplicates. Brokers
identify a batch of this client only by its first sequence id, so every attempt must cut batches at the same rows. The
client therefore cuts by count and bytes, never by time (its delay is set to a day), and a flush follows each Arrow
batch.
"""

import json
import threading
import time
from collections.abc import Iterable
from types import TracebackType
from typing import Any, Self

import pulsar
from pulsar.schema import BytesSchema, Schema

from quire_bookie.cli.client_access import ClientAccess, client_access
from quire_broker.names import parse_topic
from quire_broker.wire.java_hash import java_hash
from quire_jobs.errors import JobOptionsError, QuireJobError, SourceUnavailableError
from quire_jobs.sink.options import PayloadSchema, SinkOptions
from quire_jobs.sink.rows import Outgoing

_NEVER_MS = 24 * 3600 * 1000
_BUSY_PAUSE_S = 0.5
_COMPRESSIONS = {"none": "NONE", "lz4": "LZ4", "zlib": "ZLib", "zstd": "ZSTD", "snappy": "SNAPPY"}


class _Encoded(Schema):  # type: ignore[misc]  # the client has no types
    """A schema that is registered for payloads that are already encoded."""

    def __init__(self, kind: PayloadSchema, definition: dict[str, Any]) -> None:
        super().__init__(bytes, getattr(pulsar._pulsar.SchemaType, kind.name), definition, kind.name)

    def encode(self, obj: bytes) -> bytes:
        return obj

    def decode(self, data: bytes) -> bytes:
        return data


class Publisher:
    """Sends messages. Use it with `with`. `send` and `flush` raise the first error of any message sent so far."""

    def __init__(
        self,
        options: SinkOptions,
        name: str,
        definition: dict[str, Any] | None,
        access: ClientAccess | None = None,
    ) -> None:
        """`name`: of the producer, the same in every attempt at the same rows."""
        self._options = options
        self._name = name
        self._schema = BytesSchema() if definition is None else _Encoded(options.schema_type, definition)
        self._access = access or client_access()
        self._producers: list[Any] = []
        self._lock = threading.Condition()
        self._waiting = 0
        self._failed: str | None = None

    def __enter__(self) -> Self:
        access, url = self._access, self._options.service_url
        more: dict[str, Any] = {}
        if access.token:
            more["authentication"] = pulsar.AuthenticationToken(access.token)
        elif access.user:
            more["authentication"] = pulsar.AuthenticationBasic(access.user, access.password)
        if access.trust:
            more["tls_trust_certs_file_path"] = access.trust
        logger = pulsar.ConsoleLogger(pulsar.LoggerLevel.Warn)
        self._client = pulsar.Client(
            url,
            operation_timeout_seconds=self._options.timeout_s,
            logger=logger,
            tls_validate_hostname=True,  # off by default: any certificate of the CA would receive the token
            **more,
        )
        try:
            self._open()
        except BaseException:
            self._client.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._client.close()

    def _open(self) -> None:
        topic = parse_topic(self._options.topic)
        try:
            found = self._client.get_topic_partitions(self._options.topic)
        except pulsar.PulsarException as error:
            raise SourceUnavailableError(f"quire sink: {topic}: {error}") from error
        self._producers = [self._producer(each) for each in sorted(found, key=lambda each: parse_topic(each).partition)]

    def _producer(self, topic: str) -> Any:
        """Return a producer; wait while a former attempt that has not ended yet uses the name."""
        options = self._options
        deadline = time.monotonic() + options.timeout_s
        while True:
            try:
                return self._client.create_producer(
                    topic,
                    producer_name=self._name,
                    schema=self._schema,
                    send_timeout_millis=options.timeout_s * 1000,
                    compression_type=getattr(pulsar.CompressionType, _COMPRESSIONS[options.compression]),
                    max_pending_messages=4 * options.batch_rows,
                    block_if_queue_full=True,
                    batching_enabled=True,
                    batching_max_messages=options.batch_rows,
                    batching_max_allowed_size_in_bytes=options.batch_bytes,
                    batching_max_publish_delay_ms=_NEVER_MS,
                )
            except pulsar.ProducerBusy as error:
                if time.monotonic() > deadline:
                    text = f"quire sink: another producer {self._name} is connected to {topic}: {error}"
                    raise SourceUnavailableError(text) from error
                time.sleep(_BUSY_PAUSE_S)
            except pulsar.IncompatibleSchema as error:
                raise JobOptionsError(
                    f"quire sink: the columns are not compatible with the schema of {topic}: "
                    f"{json.dumps(self._definition())}; list its versions with GET /admin/v2/schemas, and check the "
                    "namespace's schemaCompatibilityStrategy"
                ) from error
            except pulsar.PulsarException as error:
                raise SourceUnavailableError(f"quire sink: {topic}: {error}") from error

    @property
    def last_sequence_id(self) -> int:
        """Highest sequence id that brokers have for this name, in any partition; -1 if none, or without
        deduplication."""
        return max(int(each.last_sequence_id()) for each in self._producers)

    def _definition(self) -> str:
        return str(self._schema.schema_info().schema())

    def send(self, messages: Iterable[Outgoing], first_sequence_id: int) -> int:
        """Send all messages and wait until they are stored. Return the sequence id after the last one.

        The first id must be at least 1: this client treats a sequence id of 0 as unset and chooses its own.
        """
        assert first_sequence_id > 0
        sequence_id = first_sequence_id
        count = len(self._producers)
        for message in messages:
            self._raise_if_failed()
            # Rows without a key go to the partitions in turn, a batch each: the choice depends on the row only, not on
            # time.
            turn = sequence_id // self._options.batch_rows if message.key is None else java_hash(message.key)
            with self._lock:
                self._waiting += 1
            try:
                self._producers[turn % count].send_async(
                    message.payload,
                    self._on_response,
                    properties=message.properties,
                    partition_key=message.key,
                    ordering_key=message.ordering_key,
                    sequence_id=sequence_id,
                    event_timestamp=message.event_ms,
                )
            except pulsar.PulsarException as error:
                raise QuireJobError(f"quire sink: message of {len(message.payload)} bytes: {error}") from error
            sequence_id += 1
        self.flush()
        return sequence_id

    def flush(self) -> None:
        """Wait until all sent messages are stored."""
        try:
            for producer in self._producers:
                producer.flush()
        except pulsar.PulsarException as error:
            self._raise_if_failed()
            raise SourceUnavailableError(f"quire sink: {self._options.topic}: {error}") from error
        with self._lock:
            done = self._lock.wait_for(lambda: not self._waiting, self._options.timeout_s)
        self._raise_if_failed()
        if not done:
            text = f"{self._waiting} messages were not stored in {self._options.timeout_s} s"
            raise SourceUnavailableError(f"quire sink: {self._options.topic}: {text}")

    def _on_response(self, result: Any, message_id: Any) -> None:
        """Count a response. Runs in a thread of the client, where an exception would end the process."""
        with self._lock:
            self._waiting -= 1
            if result != pulsar.Result.Ok and self._failed is None:
                self._failed = str(result)
            if not self._waiting:
                self._lock.notify_all()

    def _raise_if_failed(self) -> None:
        if self._failed is not None:
            raise SourceUnavailableError(f"quire sink: {self._options.topic}: a message was not stored: {self._failed}")
