"""/admin/v2/schemas: the schemas of a topic, at Pulsar's paths and in its JSON.

GET    .../schema[/{version}]   {"version", "type", "timestamp", "data", "properties"}
GET    .../schemas              {"getSchemaResponses": [as above, oldest first]}
GET    .../metadata             {"info": newest version, "index": [{"version", "ledgerId", "entryId"}]}
POST   .../schema               {"type", "schema", "properties"} -> {"version": {"version": n}}
DELETE .../schema               {"version": n}
POST   .../compatibility        {"type", "schema", "properties"} -> {"compatibility", "schemaCompatibilityStrategy"}
POST   .../version              {"type", "schema", "properties"} -> {"version": n}
"""

import json
from collections.abc import Iterator
from typing import Any

from aiohttp import web

from quire_bookie.admin.answers import whole_number
from quire_broker.admin.answers import answer, failure, object_of
from quire_broker.admin.context import broker_of, policies_of, topic_name_of
from quire_broker.admin.descriptions import INTEGER, OBJECT, TEXT, TEXTS, described, fields
from quire_broker.admin.routes import Need, Reach, Route
from quire_broker.errors import NotFoundError, SchemaError
from quire_broker.names import TopicName
from quire_broker.schemas.stored import Schema, SchemaType, StoredSchema, schema_id, split_key_value, type_of_name
from quire_broker.server.schemas import register, strategy_of

INVALID, INCOMPATIBLE = 422, 409
_GIVEN = fields(("type",), type=TEXT, schema=TEXT, properties=TEXTS)
_STORED = fields(version=INTEGER, type=TEXT, timestamp=INTEGER, data=TEXT, properties=TEXTS)


def routes() -> Iterator[Route]:
    """Yield the routes of this module."""
    root = "/admin/v2/schemas/{tenant}/{namespace}/{topic}"
    yield Route("GET", f"{root}/schema", latest, Need.LOOK_UP, Reach.CLIENTS)
    yield Route("GET", f"{root}/schema/{{version:-?[0-9]+}}", one_version, Need.LOOK_UP, Reach.CLIENTS)
    yield Route("GET", f"{root}/schemas", all_versions, Need.LOOK_UP, Reach.CLIENTS)
    yield Route("GET", f"{root}/metadata", metadata, Need.LOOK_UP)
    yield Route("POST", f"{root}/schema", post, Need.NAMESPACE)
    yield Route("DELETE", f"{root}/schema", delete, Need.NAMESPACE)
    yield Route("POST", f"{root}/compatibility", compatibility, Need.LOOK_UP)
    yield Route("POST", f"{root}/version", version_of, Need.LOOK_UP)


async def _identity(request: web.Request) -> tuple[TopicName, str]:
    """Return the topic of the path, which need not exist, and its key in the registry. NotFoundError."""
    name = topic_name_of(request)
    await policies_of(request)
    return name, schema_id(name)


def _text(schema: Schema) -> str:
    """Return the data in REST's form: text; for a KeyValue schema both parts, as JSON if they are JSON."""
    if schema.type is SchemaType.KEY_VALUE:
        parts = zip(("key", "value"), split_key_value(schema), strict=True)
        return json.dumps({name: _json_or_text(part.data) for name, part in parts}, separators=(",", ":"))
    return schema.data.decode(errors="replace")


def _json_or_text(data: bytes) -> Any:
    try:
        return json.loads(data)
    except (ValueError, RecursionError):
        return data.decode(errors="replace")


def _shown(found: StoredSchema) -> dict[str, Any]:
    return {
        "version": found.version,
        "type": found.schema.type.name,
        "timestamp": found.timestamp_ms,
        "data": _text(found.schema),
        "properties": found.schema.properties,
    }


async def _given(request: web.Request) -> Schema:
    """Return the schema in the body; SchemaError with the reason if it is invalid."""
    body = await object_of(request)
    try:
        kind = type_of_name(str(body.get("type", "")))
    except ValueError as error:
        raise SchemaError(str(error)) from error
    data, properties = body.get("schema", ""), body.get("properties") or {}
    if not isinstance(data, str) or not isinstance(properties, dict):
        raise SchemaError('a schema must be {"type": "AVRO", "schema": "text", "properties": {}}')
    texts = {str(key): str(value) for key, value in properties.items()}
    if kind is SchemaType.KEY_VALUE:
        return Schema(kind, _key_value(data), texts)
    return Schema(kind, data.encode(), texts)


def _key_value(text: str) -> bytes:
    """Return the stored form of {"key": schema, "value": schema}."""
    try:
        parts = json.loads(text)
        shown = [part if isinstance(part, str) else json.dumps(part) for part in (parts["key"], parts["value"])]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise SchemaError('the schema of a KEY_VALUE must be {"key": schema, "value": schema}') from error
    return b"".join(len(part.encode()).to_bytes(4, "big") + part.encode() for part in shown)


@described(returns=_STORED)
async def latest(request: web.Request) -> web.Response:
    """Return the newest version."""
    _, identity = await _identity(request)
    found = await broker_of(request).parts.schemas.latest(identity)
    return failure(404, "Schema not found") if found is None else answer(_shown(found))


@described(returns=_STORED)
async def one_version(request: web.Request) -> web.Response:
    """Return a version; -1 is the newest."""
    number = whole_number("version", request.match_info["version"], -1)
    _, identity = await _identity(request)
    if number < 0:
        return await latest(request)
    found = await broker_of(request).parts.schemas.version(identity, number)
    return failure(404, "Schema not found") if found is None else answer(_shown(found))


@described(returns=OBJECT)
async def all_versions(request: web.Request) -> web.Response:
    """Return all versions, oldest first."""
    _, identity = await _identity(request)
    versions = await broker_of(request).parts.schemas.versions(identity)
    return answer({"getSchemaResponses": [_shown(each) for each in versions]})


@described(returns=OBJECT)
async def metadata(request: web.Request) -> web.Response:
    """Return where the versions are stored, oldest first."""
    _, identity = await _identity(request)
    locations = await broker_of(request).parts.schemas.locations(identity)
    if not locations:
        return failure(404, "Schema not found")
    index = [{"version": each.version, "ledgerId": each.ledger_id, "entryId": each.entry_id} for each in locations]
    return answer({"info": index[-1], "index": index})


@described(body=_GIVEN, returns=OBJECT)
async def post(request: web.Request) -> web.Response:
    """Register a schema and return its version."""
    broker = broker_of(request)
    name, _ = await _identity(request)
    name.require_creatable()
    try:
        schema = await _given(request)
        await broker.parts.schemas.require_valid(schema)
    except SchemaError as error:
        return failure(INVALID, str(error))
    try:
        version = await register(broker.parts.schemas, broker.topics, name, schema)
    except SchemaError as error:
        return failure(INCOMPATIBLE, str(error))
    return answer({"version": {"version": int.from_bytes(version, "big")}})


@described(returns=OBJECT)
async def delete(request: web.Request) -> web.Response:
    """Delete the schemas: consumers can no longer decode the messages that carry them."""
    _, identity = await _identity(request)
    version = await broker_of(request).parts.schemas.delete(identity)
    if version is None:
        raise NotFoundError("Schema not found")
    return answer({"version": version})


@described(body=_GIVEN, returns=OBJECT)
async def compatibility(request: web.Request) -> web.Response:
    """Return whether a schema could be registered."""
    name, identity = await _identity(request)
    broker = broker_of(request)
    try:
        schema = await _given(request)
        strategy = strategy_of(await broker.topics.rules_of(name), name)
    except SchemaError as error:
        return failure(INVALID, str(error))
    try:
        flaw = await broker.parts.schemas.incompatible(identity, schema, strategy)
    except SchemaError as error:
        flaw = str(error)
    return answer({"compatibility": flaw is None, "schemaCompatibilityStrategy": strategy.name}, status=202)


@described(body=_GIVEN, returns=OBJECT)
async def version_of(request: web.Request) -> web.Response:
    """Return the version of a schema; -1 if it is not registered."""
    _, identity = await _identity(request)
    try:
        schema = await _given(request)
    except SchemaError as error:
        return failure(INVALID, str(error))
    found = await broker_of(request).parts.schemas.find(identity, schema)
    return answer({"version": -1 if found is None else found.version})
