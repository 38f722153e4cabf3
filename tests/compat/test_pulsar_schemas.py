"""Tests of schemas with the stock Python client: registration, checks, evolution, versions, and REST."""

import itertools
import json
from typing import Any
from urllib.error import HTTPError

import pytest

pulsar = pytest.importorskip("pulsar")

from pulsar import schema  # noqa: E402  after the check that there is a client

from tests.support.broker_process import BrokerProcess  # noqa: E402

pytestmark = pytest.mark.compat
RECEIVE_MS = 60_000
_names = itertools.count()


@pytest.fixture
def client(python_client: Any) -> Any:
    return python_client


@pytest.fixture
def topic() -> str:
    return f"persistent://public/default/s{next(_names)}"


def record(name: str, /, **fields: Any) -> Any:
    """Create a class of records as a user of the client would."""
    return type(name, (schema.Record,), fields)


def as_bytes(version: Any) -> bytes:
    """Return a version as the bytes in the message; the client returns text or bytes."""
    return version if isinstance(version, bytes) else version.encode("latin-1")


def of_topic(broker: BrokerProcess, topic: str, path: str = "schema", method: str = "GET", body: Any = None) -> Any:
    return broker.rest(method, f"/admin/v2/schemas/public/default/{topic.rsplit('/', 1)[1]}/{path}", body)


@pytest.mark.parametrize("kind", ["AvroSchema", "JsonSchema"])
def test_records_are_registered_evolved_and_read_back_by_version(
    broker: BrokerProcess, client: Any, topic: str, kind: str
) -> None:
    one = record("P", name=schema.String(), age=schema.Integer(default=0, required_default=True))
    age, extra = schema.Integer(default=0, required_default=True), schema.String(default=None, required_default=True)
    two = record("P", name=schema.String(), age=age, extra=extra)
    make = getattr(schema, kind)
    consumer = client.subscribe(topic, "s", schema=make(one), initial_position=pulsar.InitialPosition.Earliest)
    first = client.create_producer(topic, schema=make(one))
    first.send(one(name="a", age=5))
    second = client.create_producer(topic, schema=make(two))
    second.send(two(name="b", age=6, extra="x"))
    again = client.create_producer(topic, schema=make(one))
    again.send(one(name="c", age=7))
    messages = [consumer.receive(RECEIVE_MS) for _ in range(3)]
    assert [(each.value().name, each.value().age) for each in messages] == [("a", 5), ("b", 6), ("c", 7)]
    assert [int.from_bytes(as_bytes(each.schema_version()), "big") for each in messages] == [0, 1, 0]
    shown = of_topic(broker, topic, "schemas")["getSchemaResponses"]
    assert [each["version"] for each in shown] == [0, 1]
    assert [len(json.loads(each["data"])["fields"]) for each in shown] == [2, 3]
    assert of_topic(broker, topic)["type"] == kind[:4].upper()
    assert of_topic(broker, topic, "schema/0") == shown[0]


def test_incompatible_schemas_are_refused_for_producers_and_consumers(client: Any, topic: str) -> None:
    good = record("P", name=schema.String())
    bad = record("P", name=schema.Integer(required=True))
    client.create_producer(topic, schema=schema.AvroSchema(good)).send(good(name="a"))
    for wrong in (schema.AvroSchema(bad), schema.StringSchema()):
        with pytest.raises(pulsar.IncompatibleSchema):
            client.create_producer(topic, schema=wrong)
    with pytest.raises(pulsar.IncompatibleSchema):
        client.subscribe(topic, "s", schema=schema.AvroSchema(bad))
    client.create_producer(topic).send(b"without a schema")


def test_topic_of_bytes_refuses_a_consumer_with_a_schema(client: Any, topic: str) -> None:
    client.create_producer(topic).send(b"x")
    with pytest.raises(pulsar.IncompatibleSchema):
        client.subscribe(topic, "s", schema=schema.AvroSchema(record("P", name=schema.String())))


def test_namespace_policy_sets_the_compatibility_check(broker: BrokerProcess, client: Any) -> None:
    broker.rest("PUT", "/admin/v2/namespaces/public/free")
    broker.rest("PUT", "/admin/v2/namespaces/public/free/schemaCompatibilityStrategy", "ALWAYS_COMPATIBLE")
    topic = "persistent://public/free/t"
    for kind in (schema.Integer(required=True), schema.String(required=True)):
        made = record("P", name=kind)
        client.create_producer(topic, schema=schema.AvroSchema(made))
    shown = broker.rest("GET", "/admin/v2/schemas/public/free/t/schemas")["getSchemaResponses"]
    assert [each["version"] for each in shown] == [0, 1]


def test_partitions_share_one_schema(broker: BrokerProcess, client: Any, topic: str) -> None:
    name = topic.rsplit("/", 1)[1]
    broker.rest("PUT", f"/admin/v2/persistent/public/default/{name}/partitions", 3)
    made = record("P", name=schema.String())
    client.create_producer(topic, schema=schema.AvroSchema(made)).send(made(name="a"))
    assert [each["version"] for each in of_topic(broker, topic, "schemas")["getSchemaResponses"]] == [0]


def test_rest_registers_checks_finds_and_deletes(broker: BrokerProcess, client: Any, topic: str) -> None:
    client.create_producer(topic)

    def body(fields: list[dict[str, Any]], kind: str = "AVRO") -> dict[str, Any]:
        return {
            "type": kind,
            "schema": json.dumps({"type": "record", "name": "P", "fields": fields}),
            "properties": {"a": "b"},
        }

    one = body([{"name": "x", "type": "int"}])
    assert of_topic(broker, topic, method="POST", body=one) == {"version": {"version": 0}}
    assert of_topic(broker, topic, method="POST", body=one) == {"version": {"version": 0}}
    assert of_topic(broker, topic)["properties"] == {"a": "b"}
    wider = body([{"name": "x", "type": "int"}, {"name": "y", "type": "string", "default": ""}])
    other = body([{"name": "x", "type": "string"}])
    assert of_topic(broker, topic, "compatibility", method="POST", body=wider)["compatibility"] is True
    assert of_topic(broker, topic, "compatibility", method="POST", body=other)["compatibility"] is False
    assert of_topic(broker, topic, "version", method="POST", body=other) == {"version": -1}
    for wrong, code in ((other, 409), (body([], "NOPE"), 422), ({"type": "AVRO", "schema": "{"}, 422)):
        with pytest.raises(HTTPError) as refused:
            of_topic(broker, topic, method="POST", body=wrong)
        assert refused.value.code == code
    assert of_topic(broker, topic, method="DELETE") == {"version": 1}
    with pytest.raises(HTTPError) as gone:
        of_topic(broker, topic)
    assert gone.value.code == 404
    with pytest.raises(HTTPError) as deleted:
        of_topic(broker, topic, "schema/0")
    assert deleted.value.code == 404
    assert of_topic(broker, topic, method="POST", body=other) == {"version": {"version": 2}}
