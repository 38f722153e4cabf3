"""Splits received bytes into frames, without I/O.

    simple command    totalSize(4) commandSize(4) BaseCommand
    payload command   totalSize(4) commandSize(4) BaseCommand entry

All integers are big-endian; totalSize counts everything after itself. The ledger stores the entry of a SEND
byte for byte: it stays a view into the received buffer. Consecutive SENDs of one producer in one buffer become
one SendRun, consecutive ACKs of whole entries by one consumer one AckRun. Source: spec pulsar-wire, sections 1 and 2.

It must never interpret a command; the session does.
"""

import struct
from dataclasses import field
from typing import NamedTuple, TypeAlias

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import DecodeError, Message

from quire_bookie.bulk import take_acks, take_sends
from quire_bookie.dataclass import dataclass
from quire_bookie.errors import PeerProtocolError
from quire_bookie.model import Buffer, new_tuple
from quire_broker.limits import BATCH_MESSAGES_MAX
from quire_broker.wire.kinds import Kind
from quire_broker.wire.proto.pulsar_pb2 import BaseCommand
from quire_broker.wire.varint import read_varint, signed, varint

_SIZES = struct.Struct(">II")
_ACK_HEAD = b"\x08\x0a\x52"  # type = ACK, then field 10 with its length
_SEND_HEAD = b"\x08\x06\x32"  # type = SEND, then field 6 with its length
_WITHOUT_TEXT = frozenset({Kind.SEND, Kind.MESSAGE, Kind.ACK, Kind.FLOW, Kind.PING, Kind.PONG})
_NO_USUAL = b"-"
_SEND_VARINT_TAGS = (0x08, 0x10, 0x18, 0x20, 0x28, 0x30, 0x38, 0x40)


class Send(NamedTuple):
    """One SEND. `highest_sequence_id` is None if the client gave none; `entry` is stored as it is.

    `is_sound`: the decoder already knows that the entry has no flaw, see `entry.flaw_of`.
    """

    sequence_id: int
    highest_sequence_id: int | None
    num_messages: int
    is_chunk: bool
    in_transaction: bool
    entry: memoryview
    is_sound: bool = False


@dataclass(slots=True)
class SendRun:
    """Consecutive SENDs of one producer from one buffer, in order."""

    producer_id: int
    sends: list[Send] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class AckRun:
    """Consecutive ACKs of one consumer from one buffer: individual ones of whole entries, which want no answer."""

    consumer_id: int
    entries: list[tuple[int, int]]
    """Ledger and entry ids, in order."""


@dataclass(frozen=True, slots=True)
class MessageFrame:
    """A MESSAGE with its entry, as a client receives it."""

    command: BaseCommand
    entry: memoryview


Frame: TypeAlias = BaseCommand | SendRun | AckRun | MessageFrame


class FrameDecoder:
    """Collects the buffers of one connection and returns complete frames."""

    def __init__(self, frame_bytes_max: int) -> None:
        self.frame_bytes_max = frame_bytes_max
        """Longer frames are protocol errors; may be changed between buffers."""
        self._parts: list[Buffer] = []
        self._held = 0
        self._needed = 4
        self._usual = _NO_USUAL  # the usual bytes of a SEND of the last run's producer, up to its sequence id

    @property
    def held_bytes(self) -> int:
        """The bytes of an incomplete frame."""
        return self._held

    @property
    def announced_bytes(self) -> int:
        """The final size of that frame; 4 while its length is not known."""
        return self._needed

    def forget(self) -> None:
        """Drop the bytes of an incomplete frame."""
        self._parts.clear()
        self._held, self._needed = 0, 4

    def feed(self, data: Buffer) -> list[Frame]:
        """Return the frames that `data` completes, in order. PeerProtocolError: close the connection."""
        if not isinstance(data, bytes):
            data = bytes(data)
        if not self._held:
            return self._split(data, 0)
        missing = self._needed - self._held
        if len(data) < missing:
            self._parts.append(data)
            self._held += len(data)
            return []
        # Only the split frame is joined; the following ones stay in place.
        cut = missing if self._needed > 4 else len(data)
        self._parts.append(memoryview(data)[:cut])
        whole = b"".join(self._parts)
        self._parts.clear()
        frames = self._split(whole, 0)
        return frames + self._split(data, cut) if cut < len(data) else frames

    def _split(self, data: bytes, position: int) -> list[Frame]:
        frames: list[Frame] = []
        view = memoryview(data)
        size = len(data)
        run: SendRun | None = None
        self._needed = 4
        sizes = _SIZES.unpack_from
        while size - position >= 8:
            total_size, command_size = sizes(data, position)
            start = position + 8
            frame_end = position + 4 + total_size
            if frame_end > size:
                break
            command_end = start + command_size
            if command_end > frame_end or start > frame_end:
                raise PeerProtocolError("a command that is longer than its frame")
            if total_size > self.frame_bytes_max:
                raise self._too_large(total_size)
            if data.startswith(_SEND_HEAD, start):
                sends_end, producer_id, rows = take_sends(data, position, self.frame_bytes_max)
                if rows:
                    if run is None or run.producer_id != producer_id:
                        run = SendRun(producer_id)
                        frames.append(run)
                        self._usual = _NO_USUAL
                    run.sends += [new_tuple(Send, row) for row in rows]
                    position = sends_end
                    continue
                usual = self._usual
                if run is not None and data.startswith(usual, start + 4):
                    sequence_id = _last_varint(data, start + 4 + len(usual), command_end)
                    if sequence_id >= 0 and data[start + 3] == command_end - start - 4:
                        entry = view[command_end:frame_end]
                        run.sends.append(new_tuple(Send, (sequence_id, None, 1, False, False, entry, False)))
                        position = frame_end
                        continue
                producer_id, send = _read_send(data, start, command_end, view[command_end:frame_end])
                self._usual = b"\x08" + varint(producer_id) + b"\x10"
                if run is None or run.producer_id != producer_id:
                    run = SendRun(producer_id)
                    frames.append(run)
                run.sends.append(send)
            else:
                run = None
                if data.startswith(_ACK_HEAD, start):
                    acks_end, consumer_id, entries = take_acks(data, position, self.frame_bytes_max)
                    if entries:
                        frames.append(AckRun(consumer_id, entries))
                        position = acks_end
                        continue
                frames.append(_read_command(view[start:command_end], view[command_end:frame_end]))
            position = frame_end
        self._held = size - position
        if self._held >= 4:
            total_size = int.from_bytes(data[position : position + 4], "big")
            if total_size > self.frame_bytes_max:
                raise self._too_large(total_size)  # before it is collected
            if total_size < 4:
                raise PeerProtocolError(f"a frame of {total_size} bytes is too short for a command")
            self._needed = 4 + total_size
        if self._held:
            # A copy, so that a few bytes of the next frame do not keep this whole buffer alive.
            self._parts.append(data[position:])
        return frames

    def _too_large(self, total_size: int) -> PeerProtocolError:
        return PeerProtocolError(f"frame of {total_size} bytes; the limit is {self.frame_bytes_max}")


def _last_varint(data: bytes, position: int, end: int) -> int:
    """Return the varint that fills data[position:end], if it is one of up to four bytes; else -1."""
    size = end - position
    if size == 1:
        value = data[position]
        return value if value < 0x80 else -1
    if not 2 <= size <= 4 or data[end - 1] >= 0x80:
        return -1
    value = shift = 0
    for byte in data[position : end - 1]:
        if byte < 0x80:
            return -1
        value |= (byte & 0x7F) << shift
        shift += 7
    return value | data[end - 1] << shift


def _read_send(data: bytes, start: int, end: int, entry: memoryview) -> tuple[int, Send]:
    """Read a SEND whose fields are all varints, which is every SEND except those of shadow replication."""
    try:
        length, position = read_varint(data, start + 3, end)
        if position + length != end:
            return _read_send_slowly(data[start:end], entry)
        fields = [-1, -1, 1, 0, 0, -1, 0, 0]
        while position < end:
            tag = data[position]
            byte = data[position + 1] if position + 1 < end else 0x80
            if tag not in _SEND_VARINT_TAGS:
                return _read_send_slowly(data[start:end], entry)
            if byte < 0x80:
                fields[(tag >> 3) - 1] = byte
                position += 2
            else:
                fields[(tag >> 3) - 1], position = read_varint(data, position + 1, end)
    except ValueError as error:
        raise PeerProtocolError(f"malformed SEND: {error}") from error
    producer_id, sequence_id, num_messages, least, most, highest, is_chunk, _ = fields
    if producer_id < 0 or sequence_id < 0:
        raise PeerProtocolError("SEND without producer id or sequence id")
    return producer_id, Send(
        signed(sequence_id),
        signed(highest) if highest >= 0 else None,
        num_messages if num_messages == 1 else _messages_of(num_messages),
        bool(is_chunk),
        bool(least or most),
        entry,
    )


def _messages_of(num_messages: int) -> int:
    """Return the number of messages of a SEND, at least one. PeerProtocolError for more than an entry can hold."""
    if 0 <= num_messages <= BATCH_MESSAGES_MAX:
        return num_messages or 1
    raise PeerProtocolError(f"SEND of {signed(num_messages)} messages; num_messages is from 1 to {BATCH_MESSAGES_MAX}")


def _read_send_slowly(command: bytes, entry: memoryview) -> tuple[int, Send]:
    parsed = parse_command(command)
    send = parsed.send
    if parsed.type != Kind.SEND or not parsed.HasField("send"):
        raise PeerProtocolError("SEND whose type and message differ")
    return send.producer_id, Send(
        send.sequence_id,
        send.highest_sequence_id if send.HasField("highest_sequence_id") else None,
        _messages_of(send.num_messages),
        send.is_chunk,
        bool(send.txnid_least_bits or send.txnid_most_bits),
        entry,
    )


def _read_command(command: memoryview, entry: memoryview) -> Frame:
    parsed = parse_command(command)
    if parsed.type == Kind.MESSAGE:
        return MessageFrame(parsed, entry)
    if parsed.type == Kind.SEND:  # fields in an unusual order
        producer_id, send = _read_send_slowly(bytes(command), entry)
        return SendRun(producer_id, [send])
    return parsed


def parse_command(data: Buffer) -> BaseCommand:
    """Return a BaseCommand with all its required fields; PeerProtocolError otherwise."""
    try:
        command = BaseCommand.FromString(bytes(data))
    except DecodeError as error:
        raise PeerProtocolError(f"malformed command: {error}") from error
    if not command.IsInitialized():  # the parser accepts a message without its required fields
        raise PeerProtocolError("a command without its required fields")
    if command.type not in _WITHOUT_TEXT:
        _require_text(command)
    return command


def _require_text(message: Message) -> None:
    """Refuse text that is not UTF-8: the parser returns bytes for it, but the code that uses it expects text."""
    for described, value in message.ListFields():
        values = value if described.is_repeated else (value,)
        for each in values:
            if described.type == FieldDescriptor.TYPE_STRING and not isinstance(each, str):
                raise PeerProtocolError(f"{described.full_name} is not UTF-8")
            if described.type == FieldDescriptor.TYPE_MESSAGE:
                _require_text(each)


def encode(command: BaseCommand) -> bytes:
    """Encode the frame of a simple command."""
    body = command.SerializeToString()
    return _SIZES.pack(len(body) + 4, len(body)) + body
