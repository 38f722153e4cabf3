"""Answers by function against the bytes of a stock broker, and the hand-written encoders against generated classes."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quire_bookie.bulk import encode_receipts
from quire_broker.errors import ServerError
from quire_broker.wire import commands
from quire_broker.wire.frames import FrameDecoder, MessageFrame
from quire_broker.wire.hot import MessageFrames
from quire_broker.wire.kinds import Kind, LookupType
from quire_broker.wire.proto import pulsar_pb2 as pb
from quire_broker.wire.varint import read_varint, signed, varint

GOLDEN = Path(__file__).resolve().parents[3] / "golden" / "pulsar-wire"


def answers() -> list[tuple[bytes, pb.BaseCommand, bytes]]:
    found = []
    for path in sorted(GOLDEN.glob("*.txt")):
        for line in path.read_text().splitlines():
            if line.startswith("< "):
                raw = bytes.fromhex(line[2:])
                (frame,) = FrameDecoder(6_000_000).feed(raw)
                if isinstance(frame, MessageFrame):
                    found.append((raw, frame.command, bytes(frame.entry)))
                elif isinstance(frame, pb.BaseCommand):
                    found.append((raw, frame, b""))
    return found


def rebuilt(command: pb.BaseCommand, entry: bytes) -> bytes | None:
    """Return the same answer by our own functions, or None for commands that we do not encode."""
    match command.type:
        case Kind.SUCCESS:
            return commands.success(command.success.request_id)
        case Kind.ERROR:
            body = command.error
            return commands.error(body.request_id, ServerError(body.error), body.message)
        case Kind.SEND_ERROR:
            failed = command.send_error
            return commands.send_error(
                failed.producer_id, failed.sequence_id, ServerError(failed.error), failed.message
            )
        case Kind.SEND_RECEIPT:
            receipt = command.send_receipt
            where = receipt.message_id
            if where.HasField("partition") or where.HasField("batch_index") or receipt.producer_id < 0:
                return None
            return encode_receipts(
                receipt.producer_id,
                [(receipt.sequence_id, receipt.highest_sequence_id, where.ledgerId, where.entryId)],
            )
        case Kind.MESSAGE:
            message = command.message
            where = message.message_id
            epoch = message.consumer_epoch if message.HasField("consumer_epoch") else None
            delivery = (where.ledgerId, where.entryId), entry, message.redelivery_count, list(message.ack_set), epoch
            parts, _ = MessageFrames(message.consumer_id, where.partition).encode([delivery], strips=False)
            return b"".join(parts)
        case Kind.PRODUCER_SUCCESS:
            made = command.producer_success
            if made.schema_version:
                return None
            epoch = made.topic_epoch if made.HasField("topic_epoch") else None
            return commands.producer_success(
                made.request_id,
                made.producer_name,
                made.last_sequence_id,
                topic_epoch=epoch,
                ready=made.producer_ready,
            )
        case Kind.PARTITIONED_METADATA_RESPONSE if not command.partition_metadata_response.response:
            found = command.partition_metadata_response
            return commands.partitions(found.request_id, found.partitions)
        case Kind.PARTITIONED_METADATA_RESPONSE:
            found = command.partition_metadata_response
            return commands.partitions_failed(found.request_id, ServerError(found.error), found.message)
        case Kind.LOOKUP_RESPONSE if command.lookup_response.response == LookupType.CONNECT:
            owner = command.lookup_response
            return commands.lookup(
                owner.request_id, LookupType.CONNECT, owner.brokerServiceUrl, authoritative=owner.authoritative
            )
        case Kind.PONG:
            return commands.PONG
        case Kind.PING:
            return commands.PING
        case Kind.CLOSE_CONSUMER:
            return commands.close_consumer(command.close_consumer.consumer_id)
        case Kind.CLOSE_PRODUCER:
            return commands.close_producer(command.close_producer.producer_id)
        case Kind.ACTIVE_CONSUMER_CHANGE:
            change = command.active_consumer_change
            return commands.active_consumer_change(change.consumer_id, change.is_active)
        case Kind.REACHED_END_OF_TOPIC:
            return commands.reached_end_of_topic(command.reached_end_of_topic.consumer_id)
        case Kind.GET_LAST_MESSAGE_ID_RESPONSE:
            last = command.get_last_message_id_response
            where = last.last_message_id
            at = last.consumer_mark_delete_position
            mark = (at.ledgerId, at.entryId) if last.HasField("consumer_mark_delete_position") else None
            ids = (where.ledgerId, where.entryId, where.partition, where.batch_index)
            return commands.last_message_id(last.request_id, ids, mark)
        case Kind.GET_TOPICS_OF_NAMESPACE_RESPONSE:
            topics = command.get_topics_of_namespace_response
            return commands.topics_of_namespace(
                topics.request_id,
                topics.topics,
                topics.topics_hash,
                filtered=topics.filtered,
                changed=topics.changed,
            )
    return None


def test_answers_are_the_stock_brokers_bytes() -> None:
    compared: dict[int, int] = {}
    for raw, command, entry in answers():
        ours = rebuilt(command, entry)
        if ours is not None:
            assert ours == raw, command
            compared[command.type] = compared.get(command.type, 0) + 1
    assert sum(compared.values()) > 500
    assert {Kind.SEND_RECEIPT, Kind.MESSAGE, Kind.SUCCESS, Kind.ERROR, Kind.LOOKUP_RESPONSE} <= set(compared)


def test_connected_names_the_supported_features() -> None:
    (frame,) = FrameDecoder(1000).feed(commands.connected("Quire", 20, 5242880))
    assert isinstance(frame, pb.BaseCommand)
    assert (frame.connected.protocol_version, frame.connected.max_message_size) == (20, 5242880)
    assert not frame.connected.feature_flags.supports_topic_watchers


IDS = st.integers(-1, 2**63 - 1)


@given(st.integers(0, 2**63 - 1), st.lists(st.tuples(IDS, IDS, IDS, IDS), max_size=8))
def test_receipts_read_back(producer_id: int, receipts: list[tuple[int, int, int, int]]) -> None:
    frames = FrameDecoder(1000).feed(encode_receipts(producer_id, receipts))
    read = [
        (
            frame.send_receipt.sequence_id,
            frame.send_receipt.highest_sequence_id,
            frame.send_receipt.message_id.ledgerId,
            frame.send_receipt.message_id.entryId,
        )
        for frame in frames
        if isinstance(frame, pb.BaseCommand) and frame.send_receipt.producer_id == producer_id
    ]
    assert read == receipts


@given(IDS, IDS, st.integers(-1, 1000), st.integers(0, 2**31), st.lists(st.integers(-(2**63), 2**63 - 1), max_size=40))
def test_message_heads_read_back(ledger: int, entry: int, partition: int, count: int, ack_set: list[int]) -> None:
    delivery = (ledger, entry), b"entry", count, ack_set, 2
    parts, _ = MessageFrames(3, partition).encode([delivery], strips=False)
    (frame,) = FrameDecoder(10_000).feed(b"".join(parts))
    assert isinstance(frame, MessageFrame)
    message = frame.command.message
    where = message.message_id
    assert (where.ledgerId, where.entryId, where.partition) == (ledger, entry, partition)
    assert (message.redelivery_count, list(message.ack_set), message.consumer_epoch) == (count, ack_set, 2)
    assert bytes(frame.entry) == b"entry"


@given(st.integers(-(2**63), 2**63 - 1))
def test_varints_read_back(value: int) -> None:
    encoded = varint(value)
    read, end = read_varint(encoded, 0, len(encoded))
    assert (signed(read), end) == (value, len(encoded))
    with pytest.raises(ValueError, match="end"):
        read_varint(encoded[:-1], 0, len(encoded) - 1)


TRANSACTIONS = [
    (pb.BaseCommand(type=50, new_txn=pb.CommandNewTxn(request_id=5)), 51),
    (pb.BaseCommand(type=52, add_partition_to_txn=pb.CommandAddPartitionToTxn(request_id=5, txnid_least_bits=3)), 53),
    (pb.BaseCommand(type=54, add_subscription_to_txn=pb.CommandAddSubscriptionToTxn(request_id=5)), 55),
    (pb.BaseCommand(type=56, end_txn=pb.CommandEndTxn(request_id=5)), 57),
    (pb.BaseCommand(type=58, end_txn_on_partition=pb.CommandEndTxnOnPartition(request_id=5)), 59),
    (pb.BaseCommand(type=60, end_txn_on_subscription=pb.CommandEndTxnOnSubscription(request_id=5)), 61),
    (pb.BaseCommand(type=62, tc_client_connect_request=pb.CommandTcClientConnectRequest(request_id=5, tc_id=0)), 63),
]


@pytest.mark.parametrize(("request_", "answer_kind"), TRANSACTIONS)
def test_each_transaction_command_gets_an_answer_of_its_own_type(request_: pb.BaseCommand, answer_kind: int) -> None:
    answer = commands.transaction_failed(request_, ServerError.NOT_ALLOWED, "no")
    assert answer is not None
    (frame,) = FrameDecoder(1000).feed(answer[1])
    assert isinstance(frame, pb.BaseCommand)
    assert (answer[0], frame.type) == (5, answer_kind)
    body = getattr(frame, frame.DESCRIPTOR.fields_by_number[answer_kind].name)
    assert (body.request_id, body.error, body.message) == (5, ServerError.NOT_ALLOWED, "no")


def test_other_commands_are_not_transactions() -> None:
    assert commands.transaction_failed(pb.BaseCommand(type=18), ServerError.NOT_ALLOWED, "") is None


def test_schema_answers_have_the_type_of_their_request() -> None:
    (found,) = FrameDecoder(1000).feed(
        commands.schema_failed(Kind.GET_SCHEMA_RESPONSE, 4, ServerError.NOT_ALLOWED, "no")
    )
    (made,) = FrameDecoder(1000).feed(
        commands.schema_failed(Kind.GET_OR_CREATE_SCHEMA_RESPONSE, 4, ServerError.NOT_ALLOWED, "no")
    )
    (none,) = FrameDecoder(1000).feed(commands.schema_version(4, b""))
    assert isinstance(found, pb.BaseCommand)
    assert isinstance(made, pb.BaseCommand)
    assert isinstance(none, pb.BaseCommand)
    assert found.get_schema_response.error_code == made.get_or_create_schema_response.error_code == 22
    assert none.get_or_create_schema_response.schema_version == b""
