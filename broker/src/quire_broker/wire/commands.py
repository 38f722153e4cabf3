"""Encodes the broker's commands as frames, one function each. Fields are present as in the bytes of stock brokers."""

from collections.abc import Iterable

from quire_broker.errors import ServerError
from quire_broker.wire.frames import encode
from quire_broker.wire.kinds import Kind, LookupType, Moved
from quire_broker.wire.proto import pulsar_pb2 as pb

PING = encode(pb.BaseCommand(type=Kind.PING, ping=pb.CommandPing()))
PONG = encode(pb.BaseCommand(type=Kind.PONG, pong=pb.CommandPong()))
NO_REQUEST = -1
"""The request id of messages that answer no request."""


def connected(
    server_version: str, protocol_version: int, message_bytes_max: int, *, topic_watchers: bool = False
) -> bytes:
    """Encode CONNECTED with the features we have."""
    flags = pb.FeatureFlags(
        supports_topic_watchers=topic_watchers, supports_get_partitioned_metadata_without_auto_creation=True
    )
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
    """Encode SUCCESS."""
    return encode(pb.BaseCommand(type=Kind.SUCCESS, success=pb.CommandSuccess(request_id=request_id)))


def error(request_id: int, code: ServerError, message: str) -> bytes:
    """Encode ERROR."""
    return encode(
        pb.BaseCommand(type=Kind.ERROR, error=pb.CommandError(request_id=request_id, error=code, message=message))
    )


def send_error(producer_id: int, sequence_id: int, code: ServerError, message: str) -> bytes:
    """Encode SEND_ERROR."""
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
    """Encode PRODUCER_SUCCESS. schema_version is present even when empty, as in a stock broker's for no schema."""
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
    """Encode PARTITIONED_METADATA_RESPONSE; 0 partitions: a plain topic."""
    body = pb.CommandPartitionedTopicMetadataResponse(request_id=request_id, partitions=count, response=0)
    return encode(pb.BaseCommand(type=Kind.PARTITIONED_METADATA_RESPONSE, partition_metadata_response=body))


def partitions_failed(request_id: int, code: ServerError, message: str) -> bytes:
    """Encode a failed PARTITIONED_METADATA_RESPONSE."""
    body = pb.CommandPartitionedTopicMetadataResponse(request_id=request_id, response=1, error=code, message=message)
    return encode(pb.BaseCommand(type=Kind.PARTITIONED_METADATA_RESPONSE, partition_metadata_response=body))


def auth_challenge(server_version: str, protocol_version: int, method: str) -> bytes:
    """Encode AUTH_CHALLENGE, which asks a connected client for new data, like a stock broker's."""
    body = pb.CommandAuthChallenge(
        server_version=server_version,
        protocol_version=protocol_version,
        challenge=pb.AuthData(auth_method_name=method, auth_data=b"PulsarAuthRefresh"),
    )
    return encode(pb.BaseCommand(type=Kind.AUTH_CHALLENGE, auth_challenge=body))


def lookup(
    request_id: int, kind: LookupType, url: str, *, authoritative: bool, url_tls: str = "", proxied: bool = False
) -> bytes:
    """Encode LOOKUP_RESPONSE with a broker's available URLs (`pulsar://host:port`, `pulsar+ssl://host:port`)."""
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
    """Encode a failed LOOKUP_RESPONSE."""
    body = pb.CommandLookupTopicResponse(response=LookupType.FAILED, request_id=request_id, error=code, message=message)
    return encode(pb.BaseCommand(type=Kind.LOOKUP_RESPONSE, lookup_response=body))


def close_producer(producer_id: int, moved: Moved | None = None) -> bytes:
    """Encode CLOSE_PRODUCER from the broker: the client connects to the new broker, or looks up the topic."""
    body = pb.CommandCloseProducer(producer_id=producer_id, request_id=NO_REQUEST)
    _name_broker(body, moved)
    return encode(pb.BaseCommand(type=Kind.CLOSE_PRODUCER, close_producer=body))


def close_consumer(consumer_id: int, moved: Moved | None = None) -> bytes:
    """Encode CLOSE_CONSUMER from the broker."""
    body = pb.CommandCloseConsumer(consumer_id=consumer_id, request_id=NO_REQUEST)
    _name_broker(body, moved)
    return encode(pb.BaseCommand(type=Kind.CLOSE_CONSUMER, close_consumer=body))


def _name_broker(body: pb.CommandCloseProducer | pb.CommandCloseConsumer, moved: Moved | None) -> None:
    if moved is not None and moved.url:
        body.assignedBrokerServiceUrl = moved.url
    if moved is not None and moved.url_tls:
        body.assignedBrokerServiceUrlTls = moved.url_tls


def active_consumer_change(consumer_id: int, active: bool) -> bytes:
    """Encode ACTIVE_CONSUMER_CHANGE of a Failover subscription."""
    body = pb.CommandActiveConsumerChange(consumer_id=consumer_id, is_active=active)
    return encode(pb.BaseCommand(type=Kind.ACTIVE_CONSUMER_CHANGE, active_consumer_change=body))


def reached_end_of_topic(consumer_id: int) -> bytes:
    """Encode REACHED_END_OF_TOPIC."""
    body = pb.CommandReachedEndOfTopic(consumer_id=consumer_id)
    return encode(pb.BaseCommand(type=Kind.REACHED_END_OF_TOPIC, reached_end_of_topic=body))


def ack_response(
    consumer_id: int, request_id: int, code: ServerError | None = None, message: str | None = None
) -> bytes:
    """Encode ACK_RESPONSE; with a code: the acknowledgement was refused."""
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
    """Encode GET_LAST_MESSAGE_ID_RESPONSE of (ledger, entry, partition, batch index), always with the last two."""
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


def topic_list(request_id: int, watcher_id: int, topics: list[str], digest: str) -> bytes:
    """Encode the topics at the beginning of a watch."""
    found = pb.CommandWatchTopicListSuccess(
        request_id=request_id, watcher_id=watcher_id, topic=topics, topics_hash=digest
    )
    return encode(pb.BaseCommand(type=Kind.WATCH_TOPIC_LIST_SUCCESS, watch_topic_list_success=found))


def topic_update(watcher_id: int, added: list[str], gone: list[str], digest: str) -> bytes:
    """Encode what changed in a watched list; `digest` is the hash of the whole list."""
    update = pb.CommandWatchTopicUpdate(
        watcher_id=watcher_id, new_topics=added, deleted_topics=gone, topics_hash=digest
    )
    return encode(pb.BaseCommand(type=Kind.WATCH_TOPIC_UPDATE, watch_topic_update=update))


def topics_of_namespace(
    request_id: int, topics: Iterable[str], topics_hash: str, *, filtered: bool, changed: bool
) -> bytes:
    """Encode GET_TOPICS_OF_NAMESPACE_RESPONSE."""
    body = pb.CommandGetTopicsOfNamespaceResponse(
        request_id=request_id, topics=topics, filtered=filtered, topics_hash=topics_hash, changed=changed
    )
    return encode(pb.BaseCommand(type=Kind.GET_TOPICS_OF_NAMESPACE_RESPONSE, get_topics_of_namespace_response=body))


def consumer_stats(body: pb.CommandConsumerStatsResponse) -> bytes:
    """Encode CONSUMER_STATS_RESPONSE."""
    return encode(pb.BaseCommand(type=Kind.CONSUMER_STATS_RESPONSE, consumer_stats_response=body))


def schema_failed(kind: Kind, request_id: int, code: ServerError, message: str) -> bytes:
    """Encode a failed GET_SCHEMA_RESPONSE or GET_OR_CREATE_SCHEMA_RESPONSE; `kind` is the response's."""
    command = pb.BaseCommand(type=kind)
    if kind == Kind.GET_SCHEMA_RESPONSE:
        body = command.get_schema_response
        body.request_id, body.error_code, body.error_message = request_id, code, message
    else:
        made = command.get_or_create_schema_response
        made.request_id, made.error_code, made.error_message = request_id, code, message
    return encode(command)


def schema(request_id: int, found: pb.Schema, version: bytes) -> bytes:
    """Encode GET_SCHEMA_RESPONSE."""
    body = pb.CommandGetSchemaResponse(request_id=request_id, schema=found, schema_version=version)
    return encode(pb.BaseCommand(type=Kind.GET_SCHEMA_RESPONSE, get_schema_response=body))


def schema_version(request_id: int, version: bytes) -> bytes:
    """Encode GET_OR_CREATE_SCHEMA_RESPONSE; an empty version for the schema type None."""
    body = pb.CommandGetOrCreateSchemaResponse(request_id=request_id, schema_version=version)
    return encode(pb.BaseCommand(type=Kind.GET_OR_CREATE_SCHEMA_RESPONSE, get_or_create_schema_response=body))


def transaction_failed(request: pb.BaseCommand, code: ServerError, message: str) -> tuple[int, bytes] | None:
    """Encode the refusal of a transaction command: (request id, frame); None for other commands."""
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
