"""Handles schemas in sessions, by the rules of the topic: registers producers', checks consumers', returns any."""

from quire_broker.errors import AuthorizationError, NotAllowedError, SchemaError, ServerError
from quire_broker.names import TopicName, parse_topic
from quire_broker.policies.defaults import OLD_STRATEGY
from quire_broker.policies.store import Json
from quire_broker.schemas.compatibility import OLD_STRATEGIES, Strategy
from quire_broker.schemas.registry import SchemaRegistry
from quire_broker.schemas.stored import Schema, SchemaType, schema_id
from quire_broker.security.authorization import Rights
from quire_broker.server.parts import BrokerParts
from quire_broker.topic.serving import ServedTopic
from quire_broker.topic.topics import Topics
from quire_broker.wire import commands
from quire_broker.wire.kinds import Kind
from quire_broker.wire.proto import pulsar_pb2 as pb

NO_VERSION = b""
VERSION_BYTES_MAX = 8


def schema_of(message: pb.Schema) -> Schema | None:
    """Return the schema of a request; None for bytes, which need none. SchemaError for an unknown type."""
    if message.type <= SchemaType.NONE:
        return None
    try:
        kind = SchemaType(message.type)
    except ValueError as error:
        raise SchemaError(f"schema type {message.type} is not known") from error
    return Schema(kind, message.schema_data, {each.key: each.value for each in message.properties})


def strategy_of(rules: Json, name: TopicName) -> Strategy:
    """Return the compatibility strategy of a topic with these policies; FULL by default. SchemaError."""
    found = rules.get("schema_compatibility_strategy") or "UNDEFINED"
    try:
        strategy = Strategy(found)
    except ValueError as error:
        raise SchemaError(f"schema_compatibility_strategy {found!r} of {name} is not known") from error
    if strategy is Strategy.UNDEFINED:
        return OLD_STRATEGIES.get(rules.get(OLD_STRATEGY) or "", Strategy.FULL)
    return strategy


async def register(registry: SchemaRegistry, topics: Topics, name: TopicName, schema: Schema) -> bytes:
    """Return the version of a topic's schema, as carried by messages; register a new schema. SchemaError."""
    rules = await topics.rules_of(name)
    allowed = rules.get("is_allow_auto_update_schema") is not False
    stored = await registry.register(schema_id(name), schema, strategy_of(rules, name), allow_update=allowed)
    return stored.version_bytes


async def of_producer(parts: BrokerParts, rights: Rights, name: TopicName, message: pb.Schema) -> bytes:
    """Return the version for a producer's messages; empty for bytes. SchemaError, AuthorizationError.

    Partitions share the schemas of their topic: a role that may produce only to one partition can use but not add them.
    """
    schema = schema_of(message)
    if schema is not None and schema.type is not SchemaType.AUTO_CONSUME:
        try:
            await rights.require_produce(name.partitioned)
        except AuthorizationError as error:
            found = await parts.schemas.find(schema_id(name), schema)
            if found is None:
                raise AuthorizationError(f"{error}, whose schemas {name} shares: register the schema first") from error
            return found.version_bytes
        return await register(parts.schemas, parts.topics, name, schema)
    rules = await parts.topics.rules_of(name)
    if rules.get("schema_validation_enforced") and await parts.schemas.latest(schema_id(name)) is not None:
        raise SchemaError("Producers cannot connect or send message without a schema to topics with a schema")
    return NO_VERSION


async def of_consumer(
    parts: BrokerParts, rights: Rights, topic: ServedTopic, subscription: str, message: pb.Schema
) -> None:
    """Check that a consumer can read the stored messages; its schema becomes that of a topic which has none yet.

    For a partition it becomes the whole topic's, for which the consumer must have permission. AuthorizationError.
    """
    schema = schema_of(message)
    if schema is None or schema.type is SchemaType.AUTO_CONSUME:
        return
    identity = schema_id(topic.name)
    in_use = topic.holds_messages or list(topic.producers.connected)
    if not in_use and await parts.schemas.latest(identity) is None:
        await rights.require_subscribe(topic.name.partitioned, subscription)
        await register(parts.schemas, parts.topics, topic.name, schema)
        return
    strategy = strategy_of(await parts.topics.rules(topic), topic.name)
    await parts.schemas.check_consumer(identity, schema, strategy)


async def answer_get(parts: BrokerParts, rights: Rights, request: pb.CommandGetSchema) -> bytes:
    """Answer GET_SCHEMA: one version, or the newest."""
    name = parse_topic(request.topic)
    await rights.require_look_up(name)
    identity = schema_id(name)
    if len(request.schema_version) > VERSION_BYTES_MAX:
        size = len(request.schema_version)
        raise NotAllowedError(f"schema_version has {size} bytes; the limit is {VERSION_BYTES_MAX}")
    if request.schema_version:
        found = await parts.schemas.version(identity, int.from_bytes(request.schema_version, "big", signed=True))
    else:
        found = await parts.schemas.latest(identity)
    if found is None:
        code, text = ServerError.TOPIC_NOT_FOUND, "Topic not found or no-schema"
        return commands.schema_failed(Kind.GET_SCHEMA_RESPONSE, request.request_id, code, text)
    schema = pb.Schema(name=identity, schema_data=found.schema.data, type=found.schema.type)
    for key, value in found.schema.properties.items():
        schema.properties.add(key=key, value=value)
    return commands.schema(request.request_id, schema, found.version_bytes)


async def answer_get_or_create(parts: BrokerParts, rights: Rights, request: pb.CommandGetOrCreateSchema) -> bytes:
    """Answer GET_OR_CREATE_SCHEMA with the version of a schema, registering a new one."""
    name = parse_topic(request.topic)
    await rights.require_produce(name)
    return commands.schema_version(request.request_id, await of_producer(parts, rights, name, request.schema))
