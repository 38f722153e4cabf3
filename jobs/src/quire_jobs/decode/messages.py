"""Decodes stored entries of a managed ledger to messages: unpacks, decompresses, joins chunks (spec pulsar-wire, 4).

    entry = [0x0e02 size(4) BrokerEntryMetadata] [0x0e01 crc32c(4)] metadataSize(4) MessageMetadata payload
    payload of a batch = { singleMetadataSize(4) SingleMessageMetadata payload(payload_size) } ...

No content of an entry raises an error: an entry that cannot be decoded becomes a row with the reason in `_error` and
the stored bytes as its payload. Skipped are the broker's own markers and messages that compaction removed from a batch,
because brokers do not deliver those. Encrypted payloads remain encrypted, with an `_error`. Entries of transactions are
rows like all others, whether the transaction was committed or not: the outcome is not in the entry.
"""

import struct
from collections.abc import Callable, Iterable, Iterator, Sequence

import pyarrow as pa
from google.protobuf.message import DecodeError

from quire_bookie.crc import crc32c
from quire_bookie.errors import PeerProtocolError
from quire_broker.compression import CompressionError, decompress
from quire_broker.wire.entry import checksum_matches, peek
from quire_broker.wire.proto.pulsar_pb2 import MessageMetadata, SingleMessageMetadata
from quire_jobs.decode.bulk_messages import BulkMessages, key_bytes, not_base64
from quire_jobs.decode.chunks import CHUNK_BYTES_MAX, LOOK_BACK_ENTRIES_MAX, Chunk, Chunks
from quire_jobs.decode.columns import ROW_BYTES, TIME_MS_MAX, Rows

BATCH_BYTES_MAX = 16 * 1024 * 1024
"""Size after which a batch of messages is yielded, also within an entry; one message may exceed it."""
_HEAD = struct.Struct(">HII")  # magic, checksum, size of the metadata
_HEAD_MAGIC = 0x0E01
_U32 = struct.Struct(">I")
_SIGN = 1 << 63
_BULK_ENTRIES_MIN = 16
"""Number of entries that one bulk step must take to justify a batch of its own."""
_SINGLY_MAX = 64


class MessageDecoder:
    """Decodes the entries of one managed ledger, in order. Keeps incomplete chunked messages between calls.

    `columns`: of MESSAGE_SCHEMA, all by default. `before`: yields the entries before the first decoded batch, latest
    first, for chunked messages that begin there.
    """

    def __init__(
        self,
        columns: Sequence[str] | None = None,
        *,
        before: Callable[[], Iterable[memoryview | bytes]] | None = None,
        chunk_bytes_max: int = CHUNK_BYTES_MAX,
        look_back_entries_max: int = LOOK_BACK_ENTRIES_MAX,
        batch_bytes_max: int = BATCH_BYTES_MAX,
    ) -> None:
        self._bulk = BulkMessages(columns)
        self._singly = 1  # number of entries to decode singly before the next bulk step
        self._rows = Rows(columns)
        self._before = before
        self._chunks = Chunks(chunk_bytes_max)
        self._look_back_max = look_back_entries_max
        self._batch_bytes_max = batch_bytes_max

    def messages(self, entries: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Yield the messages of these entries (columns of ENTRY_SCHEMA, payloads not null), in order; mostly one
        batch."""
        payloads = entries.column("payload")
        _, offsets_buffer, data_buffer = payloads.buffers()
        offsets = memoryview(offsets_buffer).cast("i")[payloads.offset : payloads.offset + len(payloads) + 1]
        data = memoryview(data_buffer) if data_buffer is not None else memoryview(b"")
        rows, bytes_max = self._rows, self._batch_bytes_max
        ready: list[pa.RecordBatch] = []
        ready_bytes = number = 0
        while number < len(payloads):
            room = bytes_max - ready_bytes - rows.size_bytes
            taken = self._bulk.take(entries, data, offsets, number, room)
            if taken.rows is not None:
                if len(rows):
                    ready_bytes += rows.size_bytes
                    ready.append(rows.take(entries))
                ready.append(taken.rows)
                ready_bytes += taken.size_bytes
            self._singly = 1 if taken.stop - number >= _BULK_ENTRIES_MIN else min(2 * self._singly, _SINGLY_MAX)
            number = taken.stop
            end = min(number + self._singly, len(payloads))
            while number < end and ready_bytes + rows.size_bytes < bytes_max:
                for _ in self._entry(number, data[offsets[number] : offsets[number + 1]]):
                    yield _combined([*ready, rows.take(entries)])
                    ready, ready_bytes = [], 0
                number += 1
            if ready_bytes + rows.size_bytes >= bytes_max:
                yield _combined([*ready, rows.take(entries)] if len(rows) else ready)
                ready, ready_bytes = [], 0
        if len(rows):
            ready.append(rows.take(entries))
        if ready:
            yield _combined(ready)

    def _entry(self, number: int, entry: memoryview) -> Iterator[None]:
        """Add the messages of one entry to the rows. Yields when the caller must take the rows before the next one."""
        try:
            metadata, start = _metadata_of(entry)
        except PeerProtocolError as error:
            self._undecodable(number, None, entry, str(error))
            return
        if metadata.HasField("marker_type"):
            return
        payload = entry[start:]
        if len(metadata.encryption_keys):
            self._undecodable(number, metadata, payload, "encrypted: only the owner of the key can read it")
            return
        body: memoryview | bytes = payload
        if metadata.num_chunks_from_msg > 1:
            joined = self._joined(metadata, payload)
            if joined is None:
                return
            if isinstance(joined, str):
                self._undecodable(number, metadata, payload, joined)
                return
            body = joined
        if metadata.compression:
            try:
                body = decompress(bytes(body), metadata.compression, metadata.uncompressed_size)
            except CompressionError as error:
                self._undecodable(number, metadata, body, f"cannot be decompressed: {error}")
                return
        if metadata.HasField("num_messages_in_batch"):
            yield from self._batch(number, metadata, body if isinstance(body, bytes) else bytes(body))
        else:
            self._single(number, metadata, body)

    def _joined(self, metadata: MessageMetadata, payload: memoryview) -> bytes | str | None:
        message = (metadata.producer_name, metadata.uuid)
        count, chunk_id = metadata.num_chunks_from_msg, metadata.chunk_id
        if not 0 <= chunk_id < count:
            return f"chunk {chunk_id} of a message of {count} chunks"
        return self._chunks.add(message, chunk_id, count, payload, lambda: self._look_back(message))

    def _look_back(self, message: tuple[str, str]) -> Iterator[Chunk]:
        """Yield the chunks of a message before the range, latest first."""
        if self._before is None:
            return
        for looked, entry in enumerate(self._before()):
            if looked >= self._look_back_max:
                return
            try:
                metadata, start = _metadata_of(memoryview(entry))
            except PeerProtocolError:
                continue  # not a chunk of the message; the range that contains it reports the error
            if (metadata.producer_name, metadata.uuid) == message and metadata.num_chunks_from_msg > 1:
                yield metadata.chunk_id, memoryview(entry)[start:]
                if metadata.chunk_id == 0:
                    return

    # rows

    def _single(self, number: int, metadata: MessageMetadata, payload: memoryview | bytes) -> None:
        rows = self._rows
        row = len(rows.size)
        self._row(number, -1, metadata, metadata.sequence_id, payload)
        if metadata.HasField("partition_key"):
            self._key(row, metadata.partition_key, metadata.partition_key_b64_encoded)
        if metadata.HasField("ordering_key"):
            self._ordering_key(row, metadata.ordering_key)
        if metadata.event_time:
            self._event_time(row, metadata.event_time)
        if metadata.properties:
            self._properties(row, metadata.properties)
        if metadata.null_value:
            rows.null_payload[row] = True

    def _batch(self, number: int, metadata: MessageMetadata, body: bytes) -> Iterator[None]:
        count = metadata.num_messages_in_batch
        position, first = 0, metadata.sequence_id
        unpack, parse, size_bytes = _U32.unpack_from, SingleMessageMetadata.FromString, len(body)
        for index in range(count):
            try:
                start = position + 4
                end = start + unpack(body, position)[0]
                single = parse(body[start:end])
            except (struct.error, DecodeError):
                self._undecodable(
                    number, metadata, body[position:], f"message {index} of a batch of {count} is unreadable", index
                )
                return
            length = single.payload_size
            behind = end + length
            if length < 0 or behind > size_bytes:
                text = (
                    f"message {index} of a batch of {count} ends {behind - size_bytes} bytes after the end of the batch"
                )
                self._undecodable(number, metadata, body[position:], text, index)
                return
            position = behind
            if self._rows.size_bytes >= self._batch_bytes_max:
                yield
            if not single.compacted_out:
                self._message(number, index, metadata, single, first + index, body[end:behind])

    def _message(
        self,
        number: int,
        index: int,
        metadata: MessageMetadata,
        single: SingleMessageMetadata,
        sequence_id: int,
        payload: bytes,
    ) -> None:
        rows = self._rows
        row = len(rows.size)
        if single.HasField("sequence_id"):
            sequence_id = single.sequence_id
        self._row(number, index, metadata, sequence_id, payload)
        if single.HasField("partition_key"):
            self._key(row, single.partition_key, single.partition_key_b64_encoded)
        if single.HasField("ordering_key"):
            self._ordering_key(row, single.ordering_key)
        if single.event_time:
            self._event_time(row, single.event_time)
        if single.properties:
            self._properties(row, single.properties)
        if single.null_value:
            rows.null_payload[row] = True

    def _row(
        self,
        number: int,
        index: int,
        metadata: MessageMetadata,
        sequence_id: int,
        payload: memoryview | bytes,
    ) -> None:
        rows = self._rows
        row = len(rows.size)
        rows.source.append(number)
        rows.batch_index.append(index)
        publish_ms = metadata.publish_time
        if publish_ms > TIME_MS_MAX:
            rows.no_publish_time.add(row)
            publish_ms = 0
        rows.publish_ms.append(publish_ms)
        rows.producer.append(metadata.producer_name)
        rows.sequence_id.append(sequence_id if sequence_id < _SIGN else sequence_id - 2 * _SIGN)
        if metadata.schema_version:
            rows.schema_version[row] = metadata.schema_version
        # Repeated in each message of a batch: Arrow has a copy for each row.
        rows.size_bytes += len(metadata.producer_name) + len(metadata.schema_version)
        self._payload(payload)

    def _payload(self, payload: memoryview | bytes) -> None:
        rows, size = self._rows, len(payload)
        rows.size.append(size)
        rows.size_bytes += ROW_BYTES
        if rows.wants_payload:
            rows.payload.append(payload)
            rows.size_bytes += size

    def _key(self, row: int, key: str, is_base64: bool) -> None:
        self._rows.size_bytes += len(key)
        if not isinstance(key, str):
            self._rows.key_bytes[row] = key  # not UTF-8: the parser returns bytes
            return
        self._rows.key[row] = key
        if is_base64:
            decoded = key_bytes(key)
            if decoded is None:
                self._rows.error[row] = not_base64(key)
            else:
                self._rows.key_bytes[row] = decoded

    def _ordering_key(self, row: int, key: bytes) -> None:
        self._rows.ordering_key[row] = key
        self._rows.size_bytes += len(key)

    def _properties(self, row: int, properties: Iterable[object]) -> None:
        pairs = self._rows.properties[row] = _pairs(properties)
        self._rows.size_bytes += sum(ROW_BYTES + len(key) + len(value) for key, value in pairs)

    def _event_time(self, row: int, event_ms: int) -> None:
        if event_ms <= TIME_MS_MAX:
            self._rows.event_ms[row] = event_ms

    def _undecodable(
        self, number: int, metadata: MessageMetadata | None, payload: memoryview | bytes, error: str, index: int = -1
    ) -> None:
        """Add a row for data that cannot be decoded."""
        rows = self._rows
        row = len(rows.size)
        rows.error[row] = error
        if metadata is not None:
            self._row(number, index, metadata, metadata.sequence_id, payload)
            return
        rows.source.append(number)
        rows.batch_index.append(index)
        rows.publish_ms.append(0)
        rows.no_publish_time.add(row)
        rows.producer.append(None)
        rows.sequence_id.append(-1)
        self._payload(payload)


def _combined(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    if len(batches) == 1:
        return batches[0]
    return pa.Table.from_batches(batches).combine_chunks().to_batches()[0]


def _metadata_of(entry: memoryview) -> tuple[MessageMetadata, int]:
    """Return the metadata of an entry and the offset of its payload. PeerProtocolError if the entry is invalid."""
    if len(entry) >= _HEAD.size:
        magic, checksum, size = _HEAD.unpack_from(entry)
        if magic == _HEAD_MAGIC:
            if crc32c(entry[6:]) != checksum:
                raise PeerProtocolError("checksum mismatch: the entry differs from the bytes that its producer sent")
            end = 10 + size
            if end <= len(entry):
                try:
                    metadata = MessageMetadata.FromString(entry[10:end].tobytes())
                except DecodeError as error:
                    raise PeerProtocolError(f"entry without readable metadata: {error}") from error
                # `IsInitialized` takes as long as the parsing; a required field that is not zero is certainly present.
                whole = (metadata.publish_time and metadata.sequence_id) or metadata.IsInitialized()
                if whole and metadata.producer_name and isinstance(metadata.producer_name, str):
                    return metadata, end
    if not checksum_matches(entry):
        raise PeerProtocolError("checksum mismatch: the entry differs from the bytes that its producer sent")
    summary = peek(entry)
    return summary.metadata, summary.payload_offset


def _pairs(properties: Iterable[object]) -> list[tuple[str, str]]:
    """Return properties as text. Bytes that are not UTF-8, which the parser returns as such, get backslash escapes."""
    return [(_text(each.key), _text(each.value)) for each in properties]  # type: ignore[attr-defined]


def _text(value: str | bytes) -> str:
    return value if isinstance(value, str) else value.decode(errors="backslashreplace")
