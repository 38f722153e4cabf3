"""The broker's answers as frames, one function each. Which fields are present follows the stock broker's bytes."""

from collections.abc import Iterable

from quire_broker.errors import ServerError
from quire_broker.wire.frames import encode
from quire_broker.wire.kinds import Kind, LookupType
from quire_broker.wire.proto import pulsar_pb2 as pb

PING = encode(pb.BaseCommand(type=Kind.PING, ping=pb.CommandPing()))
PONG = encode(pb.BaseCommand(type=Kind.PONG, pong=pb.CommandPong()))
NO_REQUEST = -1
"""The request id of what the broker says unasked."""


def connected(server_version: str, protocol_version: int, message_bytes_max: int) -> bytes:
    """The answer to CONNECT, with the features we have."""
    flags = pb.FeatureFlags(supports_topic_watchers=False, supports_get_partitioned_metadata_without_auto_creation=True)
    return encode(
        pb.BaseCommand(
            type=Kind.CONNECTED,
            connected=pb.CommandConnected(
                server_version=server_version,
                protocol_version=protocol_version,
                max_message_size=message_bytes_max,
                feature_flags=flags,
            ),
        )
    )


def success(request_id: int) -> bytes:
    """SUCCESS."""
    return encode(pb.BaseCommand(type=Kind.SUCCESS, success=pb.CommandSuccess(request_id=request_id)))


def error(request_id: int, code: ServerError, message: str) -> bytes:
    """ERROR."""
    return encode(
        pb.BaseCommand(type=Kind.ERROR, error=pb.CommandError(request_id=request_id, error=code, message=message))
    )


def send_error(producer_id: int, sequence_id: int, code: ServerError, message: str) -> bytes:
    """SEND_ERROR."""
    body = pb.CommandSendError(producer_id=producer_id, sequence_id=sequence_id, error=code, message=message)
    return encode(pb.BaseCommand(type=Kind.SEND_ERROR, send_error=body))


def producer_success(
    request_id: int,
    name: str,
    last_sequence_id: int,
    *,
    schema_version: bytes = b"",
    topic_epoch: int | None = None,
    ready: bool = True,
) -> bytes:
    """PRODUCER_SUCCESS. schema_version is present also when empty, as from a stock broker for one without schema."""
    body = pb.CommandProducerSuccess(
        request_id=request_id,
        producer_name=name,
        last_sequence_id=last_sequence_id,
        schema_version=schema_version,
        producer_ready=ready,
    )
    if topic_epoch is not None:
        body.topic_epoch = topic_epoch
    return encode(pb.BaseCommand(type=Kind.PRODUCER_SUCCESS, producer_success=body))


def partitions(request_id: int, count: int) -> bytes:
    """PARTITIONED_METADATA_RESPONSE; 0 partitions: a plain topic."""
    body = pb.CommandPartitionedTopicMetadataResponse(request_id=request_id, partitions=count, response=0)
    return encode(pb.BaseCommand(type=Kind.PARTITIONED_METADATA_RESPONSE, partition_metadata_response=body))


def partitions_failed(request_id: int, code: ServerError, message: str) -> bytes:
    """PARTITIONED_METADATA_RESPONSE of a failure."""
    body = pb.CommandPartitionedTopicMetadataResponse(request_id=request_id, response=1, error=code, message=message)
    return encode(pb.BaseCommand(type=Kind.PARTITIONED_METADATA_RESPONSE, partition_metadata_response=body))


def auth_challenge(server_version: str, protocol_version: int, method: str) -> bytes:
    """AUTH_CHALLENGE that asks a connected client for new data, as a stock broker asks."""
    body = pb.CommandAuthChallenge(
        server_version=server_version,
        protocol_version=protocol_version,
        challenge=pb.AuthData(auth_method_name=method, auth_data=b"PulsarAuthRefresh"),
    )
    return encode(pb.BaseCommand(type=Kind.AUTH_CHALLENGE, auth_challenge=body))


def lookup(
    request_id: int, kind: LookupType, url: str, *, authoritative: bool, url_tls: str = "", proxied: bool = False
) -> bytes:
    """LOOKUP_RESPONSE that names a broker's URLs (`pulsar://host:port`, `pulsar+ssl://host:port`), those it has."""
    body = pb.CommandLookupTopicResponse(
        response=kind,
        request_id=request_id,
        authoritative=authoritative,
        proxy_through_service_url=proxied,
    )
    if url:
        body.brokerServiceUrl = url
    if url_tls:
        body.brokerServiceUrlTls = url_tls
    return encode(pb.BaseCommand(type=Kind.LOOKUP_RESPONSE, lookup_response=body))


def lookup_failed(request_id: int, code: ServerError, message: str) -> bytes:
    """LOOKUP_RESPONSE of a failure."""
    body = pb.CommandLookupTopicResponse(response=LookupType.FAILED, request_id=request_id, error=code, message=message)
    return encode(pb.BaseCommand(type=Kind.LOOKUP_RESPONSE, lookup_response=body))


def close_producer(producer_id: int) -> bytes:
    """CLOSE_PRODUCER that the broker starts: look up and connect again."""
    body = pb.CommandCloseProducer(producer_id=producer_id, request_id=NO_REQUEST)
    return encode(pb.BaseCommand(type=Kind.CLOSE_PRODUCER, close_producer=body))


def close_consumer(consumer_id: int) -> bytes:
    """CLOSE_CONSUMER that the broker starts."""
    body = pb.CommandCloseConsumer(consumer_id=consumer_id, request_id=NO_REQUEST)
    return encode(pb.BaseCommand(type=Kind.CLOSE_CONSUMER, close_consumer=body))


def active_consumer_change(consumer_id: int, active: bool) -> bytes:
    """ACTIVE_CONSUMER_CHANGE of a Failover subscription."""
    body = pb.CommandActiveConsumerChange(consumer_id=consumer_id, is_active=active)
    return encode(pb.BaseCommand(type=Kind.ACTIVE_CONSUMER_CHANGE, active_consumer_change=body))


def reached_end_of_topic(consumer_id: int) -> bytes:
    """REACHED_END_OF_TOPIC."""
    body = pb.CommandReachedEndOfTopic(consumer_id=consumer_id)
    return encode(pb.BaseCommand(type=Kind.REACHED_END_OF_TOPIC, reached_end_of_topic=body))


def ack_response(
    consumer_id: int, request_id: int, code: ServerError | None = None, message: str | None = None
) -> bytes:
    """ACK_RESPONSE; with a code: the acknowledgement was not taken."""
    body = pb.CommandAckResponse(consumer_id=consumer_id, request_id=request_id)
    if code is not None:
        body.error = code
        body.message = message or ""
    return encode(pb.BaseCommand(type=Kind.ACK_RESPONSE, ack_response=body))


def last_message_id(
    request_id: int,
    last: tuple[int, int, int, int],
    mark_delete: tuple[int, int] | None,
) -> bytes:
    """GET_LAST_MESSAGE_ID_RESPONSE of (ledger, entry, partition, batch index); partition and index always written."""
    ledger_id, entry_id, partition, batch_index = last
    body = pb.CommandGetLastMessageIdResponse(
        last_message_id=pb.MessageIdData(
            ledgerId=ledger_id, entryId=entry_id, partition=partition, batch_index=batch_index
        ),
        request_id=request_id,
    )
    if mark_delete is not None:
        body.consumer_mark_delete_position.ledgerId = mark_delete[0]
        body.consumer_mark_delete_position.entryId = mark_delete[1]
    return encode(pb.BaseCommand(type=Kind.GET_LAST_MESSAGE_ID_RESPONSE, get_last_message_id_response=body))


def topics_of_namespace(
    request_id: int, topics: Iterable[str], topics_hash: str, *, filtered: bool, changed: bool
) -> bytes:
    """GET_TOPICS_OF_NAMESPACE_RESPONSE."""
    body = pb.CommandGetTopicsOfNamespaceResponse(
        request_id=request_id, topics=topics, filtered=filtered, topics_hash=topics_hash, changed=changed
    )
    return encode(pb.BaseCommand(type=Kind.GET_TOPICS_OF_NAMESPACE_RESPONSE, get_topics_of_namespace_response=body))


def consumer_stats(body: pb.CommandConsumerStatsResponse) -> bytes:
    """CONSUMER_STATS_RESPONSE."""
    return encode(pb.BaseCommand(type=Kind.CONSUMER_STATS_RESPONSE, consumer_stats_response=body))


def schema_failed(kind: Kind, request_id: int, code: ServerError, message: str) -> bytes:
    """GET_SCHEMA_RESPONSE or GET_OR_CREATE_SCHEMA_RESPONSE of a failure; `kind` is the response's."""
    command = pb.BaseCommand(type=kind)
    if kind == Kind.GET_SCHEMA_RESPONSE:
        body = command.get_schema_response
        body.request_id, body.error_code, body.error_message = request_id, code, message
    else:
        made = command.get_or_create_schema_response
        made.request_id, made.error_code, made.error_message = request_id, code, message
    return encode(command)


def schema(request_id: int, found: pb.Schema, version: bytes) -> bytes:
    """GET_SCHEMA_RESPONSE."""
    body = pb.CommandGetSchemaResponse(request_id=request_id, schema=found, schema_version=version)
    return encode(pb.BaseCommand(type=Kind.GET_SCHEMA_RESPONSE, get_schema_response=body))


def schema_version(request_id: int, version: bytes) -> bytes:
    """GET_OR_CREATE_SCHEMA_RESPONSE; an empty version for the schema type None."""
    body = pb.CommandGetOrCreateSchemaResponse(request_id=request_id, schema_version=version)
    return encode(pb.BaseCommand(type=Kind.GET_OR_CREATE_SCHEMA_RESPONSE, get_or_create_schema_response=body))


def transaction_failed(request: pb.BaseCommand, code: ServerError, message: str) -> tuple[int, bytes] | None:
    """The answer of the right type to a transaction command: (request id, frame); None when it is none."""
    kind = request.type
    if kind == Kind.TC_CLIENT_CONNECT_REQUEST:
        request_id = request.tc_client_connect_request.request_id
        connect = pb.CommandTcClientConnectResponse(request_id=request_id, error=code, message=message)
        return request_id, encode(
            pb.BaseCommand(type=Kind.TC_CLIENT_CONNECT_RESPONSE, tc_client_connect_response=connect)
        )
    name = _TRANSACTION_COMMANDS.get(kind)
    if name is None:
        return None
    asked = getattr(request, name)
    body = pb.CommandTxnResponse(request_id=asked.request_id, error=code, message=message)
    if hasattr(asked, "txnid_least_bits"):
        body.txnid_least_bits, body.txnid_most_bits = asked.txnid_least_bits, asked.txnid_most_bits
    answer = pb.BaseCommand(type=kind + 1)
    getattr(answer, name + "_response").CopyFrom(body)
    return asked.request_id, encode(answer)


_TRANSACTION_COMMANDS: dict[int, str] = {
    Kind.NEW_TXN: "new_txn",
    Kind.ADD_PARTITION_TO_TXN: "add_partition_to_txn",
    Kind.ADD_SUBSCRIPTION_TO_TXN: "add_subscription_to_txn",
    Kind.END_TXN: "end_txn",
    Kind.END_TXN_ON_PARTITION: "end_txn_on_partition",
    Kind.END_TXN_ON_SUBSCRIPTION: "end_txn_on_subscription",
}
