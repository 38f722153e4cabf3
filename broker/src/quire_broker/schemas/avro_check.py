"""Checks whether data written with one Avro schema can be read with another, by Avro's schema resolution. Pure.

Inside unions, named types are compared by their short names; at the top their names may differ, because clients name
their classes freely. Source: the Avro 1.11 specification, "Schema Resolution".
"""

import json
from typing import Any, TypeAlias

from quire_broker.schemas.budget import DEPTH_MAX, Budget, BudgetSpentError

Avro: TypeAlias = Any
_PRIMITIVES = frozenset({"null", "boolean", "int", "long", "float", "double", "bytes", "string"})
_NAMED = frozenset({"record", "enum", "fixed"})
_PROMOTED = {
    "long": {"int"},
    "float": {"int", "long"},
    "double": {"int", "long", "float"},
    "bytes": {"string"},
    "string": {"bytes"},
}


class AvroSchema:
    """A parsed schema with its named types."""

    def __init__(self, data: bytes, budget: Budget) -> None:
        """ValueError if the data is not an Avro schema; BudgetSpentError."""
        budget.spend_bytes(len(data))
        try:
            self.root: Avro = json.loads(data)
        except (ValueError, RecursionError) as error:
            raise ValueError(f"not JSON: {error}") from error
        self.named: dict[str, Avro] = {}
        self._budget = budget
        self._check(self.root, "", 0)

    def _check(self, schema: Avro, namespace: str, depth: int) -> None:
        if depth > DEPTH_MAX:
            raise ValueError(f"nested deeper than {DEPTH_MAX}")
        self._budget.spend()
        if isinstance(schema, str):
            if schema not in _PRIMITIVES and self.find(schema) is None:
                raise ValueError(f"unknown type {schema!r}")
        elif isinstance(schema, list):
            self._check_union(schema, namespace, depth)
        elif isinstance(schema, dict):
            self._check_object(schema, namespace, depth)
        else:
            raise ValueError(f"{schema!r} is not a schema")

    def _check_union(self, branches: list[Avro], namespace: str, depth: int) -> None:
        seen: set[str] = set()
        for each in branches:
            if isinstance(each, list):
                raise ValueError("a union directly inside a union")
            self._check(each, namespace, depth + 1)
            kind, body = self.resolved(each)
            if kind == "union":
                raise ValueError("a union directly inside a union")
            name = f"{kind} {id(body)}" if kind in _NAMED else kind
            if name in seen:
                raise ValueError(f"a union with two branches of the type {_shown(kind, body)}; remove one")
            seen.add(name)

    def _check_object(self, schema: dict[str, Avro], namespace: str, depth: int) -> None:
        kind = schema.get("type")
        if kind in ("record", "error", "enum", "fixed"):
            name = schema.get("name")
            if not isinstance(name, str) or not name:
                raise ValueError(f"a type {kind} without a name")
            space = schema.get("namespace", namespace) or ""
            self.named[name] = schema
            self.named[f"{space}.{name}"] = schema
            if kind in ("record", "error"):
                self._check_fields(schema, space, depth)
            elif kind == "enum" and not _are_texts(schema.get("symbols")):
                raise ValueError(f"enum {name} without symbols")
            elif kind == "fixed" and type(schema.get("size")) is not int:
                raise ValueError(f"fixed {name} without a size")
        elif kind in ("array", "map"):
            inner = "items" if kind == "array" else "values"
            if inner not in schema:
                raise ValueError(f"{kind} without {inner}")
            self._check(schema[inner], namespace, depth + 1)
        elif kind is None:
            raise ValueError("an object without a type")
        else:
            self._check(kind, namespace, depth + 1)

    def _check_fields(self, schema: dict[str, Avro], namespace: str, depth: int) -> None:
        fields = schema.get("fields")
        if not isinstance(fields, list):
            raise ValueError(f"record {schema['name']} without fields")
        for field in fields:
            if not isinstance(field, dict) or not isinstance(field.get("name"), str) or "type" not in field:
                raise ValueError(f"a field of record {schema['name']} without name or type")
            if not _are_texts(field.get("aliases", [])):
                raise ValueError(f"field {field['name']} of record {schema['name']} has aliases that are not names")
            self._check(field["type"], namespace, depth + 1)

    def find(self, name: str) -> Avro:
        """Return a named type, by full or short name."""
        return self.named.get(name) or self.named.get(name.rsplit(".", 1)[-1])

    def resolved(self, schema: Avro) -> tuple[str, Avro]:
        """Return (kind, body): `int`, `record`, `union` and so on."""
        while True:
            if isinstance(schema, list):
                return "union", schema
            if isinstance(schema, str):
                if schema in _PRIMITIVES:
                    return schema, schema
                schema = self.find(schema)
                continue
            kind = schema["type"]
            if isinstance(kind, str) and (kind in _PRIMITIVES or kind in ("enum", "fixed", "array", "map")):
                return kind, schema
            if kind in ("record", "error"):
                return "record", schema
            schema = kind


def _shown(kind: str, body: Avro) -> str:
    return str(body["name"]) if kind in _NAMED else kind


def _key(kind: str, body: Avro) -> str:
    """Return the key by which a union finds its likely branch: a kind, and of a named type the short name."""
    return f"{kind} {body['name'].rsplit('.', 1)[-1]}" if kind in _NAMED else kind


def _are_texts(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(each, str) for each in value)


def unreadable(reader: AvroSchema, writer: AvroSchema, budget: Budget) -> str | None:
    """Return why the reader cannot read data of the writer; None if it can. BudgetSpentError."""
    return _Resolution(reader, writer, budget).flaw(reader.root, writer.root, "")


class _Resolution:
    def __init__(self, reader: AvroSchema, writer: AvroSchema, budget: Budget) -> None:
        self._reader = reader
        self._writer = writer
        self._budget = budget
        self._depth = 0
        self._indexed: dict[int, dict[str, Avro]] = {}
        self._assumed: dict[tuple[int, int], None] = {}  # pairs of records, in order: found good, or being checked
        self._flaws: dict[tuple[int, int], str] = {}

    def flaw(self, reader: Avro, writer: Avro, path: str) -> str | None:
        self._budget.spend()
        kind, body = self._reader.resolved(reader)
        written, written_body = self._writer.resolved(writer)
        if written == "union":
            flaws = (self.flaw(reader, each, path) for each in written_body)
            return next((each for each in flaws if each), None)
        if kind == "union":
            likely = self._branches(body).get(_key(written, written_body))
            if likely is not None and self.flaw(likely, writer, path) is None:
                return None
            if any(self.flaw(each, writer, path) is None for each in body if each is not likely):
                return None
            return f"{path or '/'}: no branch of the reader's union takes {written}"
        if kind == written:
            return self._same_kind(kind, body, written_body, path)
        if written in _PROMOTED.get(kind, ()):
            return None
        return f"{path or '/'}: {written} was written, {kind} is expected"

    def _branches(self, union: list[Avro]) -> dict[str, Avro]:
        """Return the branches of the reader's union by type: comparing equal unions is linear in their branches."""
        known = self._indexed.get(id(union))
        if known is None:
            self._budget.spend(len(union))
            known = self._indexed[id(union)] = {_key(*self._reader.resolved(each)): each for each in union}
        return known

    def _same_kind(self, kind: str, reader: Avro, writer: Avro, path: str) -> str | None:
        if kind == "array":
            return self.flaw(reader["items"], writer["items"], f"{path}/items")
        if kind == "map":
            return self.flaw(reader["values"], writer["values"], f"{path}/values")
        if kind == "fixed" and reader["size"] != writer["size"]:
            return f"{path or '/'}: fixed of {writer['size']} bytes was written, {reader['size']} are expected"
        if kind == "enum" and "default" not in reader:
            self._budget.spend(len(writer["symbols"]) + len(reader["symbols"]))
            missing = sorted(set(writer["symbols"]) - set(reader["symbols"]))
            return f"{path or '/'}: the reader's enum lacks {', '.join(missing)}" if missing else None
        if kind == "record":
            return self._records(reader, writer, path)
        return None

    def _records(self, reader: Avro, writer: Avro, path: str) -> str | None:
        pair = (id(reader), id(writer))
        if pair in self._assumed:
            return None
        if pair in self._flaws:
            return self._flaws[pair]
        self._assumed[pair] = None
        if self._depth == DEPTH_MAX:
            raise BudgetSpentError(f"{path[:200]}: records are nested deeper than {DEPTH_MAX}; use fewer levels")
        self._depth += 1
        flaw = self._flaw_of_records(reader, writer, path)
        self._depth -= 1
        if flaw:
            self._flaws[pair] = flaw
            while self._assumed.popitem()[0] != pair:
                pass  # pairs found good since may depend on the assumption that this pair is good
        return flaw

    def _flaw_of_records(self, reader: Avro, writer: Avro, path: str) -> str | None:
        if path and reader["name"].rsplit(".", 1)[-1] != writer["name"].rsplit(".", 1)[-1]:
            return f"{path}: record {writer['name']} was written, {reader['name']} is expected"
        self._budget.spend(len(writer["fields"]))
        written = {field["name"]: field["type"] for field in writer["fields"]}
        for field in reader["fields"]:
            names = [field["name"], *field.get("aliases", ())]
            self._budget.spend(len(names))
            name = next((each for each in names if each in written), None)
            if name is None:
                if "default" not in field:
                    return f"{path}/{field['name']}: the reader's field has no default, and the writer lacks it"
                continue
            flaw = self.flaw(field["type"], written[name], f"{path}/{field['name']}")
            if flaw:
                return flaw
        return None
