"""Compares a version of a record schema with the previous one, field by field. Pure; Avro and JSON definitions.

Pulsar also writes a JSON schema as an Avro record, so both are compared in the same way. Sources: Avro specification,
"Schema Resolution" (promoted types, purpose of defaults).
"""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final, TypeAlias

_PROMOTED: Final = {
    "int": {"long", "float", "double"},
    "long": {"float", "double"},
    "float": {"double"},
    "string": {"bytes"},
    "bytes": {"string"},
}
_DEPTH_MAX: Final = 32
_ENUM: Final = re.compile(r"enum ([^(]*)\((.*)\)")
Definition: TypeAlias = Any


class Breaks(Enum):
    """Readers that a change breaks: old readers cannot read new messages, new readers cannot read old ones."""

    NONE = "nobody"
    OLD_READERS = "old readers"
    NEW_READERS = "new readers"
    BOTH = "both"


@dataclass(frozen=True, slots=True)
class FieldChange:
    """The change of one field. `before`, `after`: types in words; empty if the field does not exist."""

    path: str
    what: str
    before: str
    after: str
    breaks: Breaks


@dataclass(frozen=True, slots=True)
class _Field:
    kind: str
    has_default: bool


class DefinitionError(ValueError):
    """A definition is not a record schema; the text gives the reason."""


def changes(before: str, after: str) -> list[FieldChange]:
    """Return the changes by path. DefinitionError if a definition is not a record."""
    old, new = fields(before), fields(after)
    found = []
    for path in sorted(old.keys() | new.keys()):
        change = _change(path, old.get(path), new.get(path))
        if change is not None:
            found.append(change)
    return found


def fields(definition: str) -> Mapping[str, _Field]:
    """Return all fields of a record schema by dotted path, including nested ones. DefinitionError."""
    try:
        record = json.loads(definition)
    except (ValueError, RecursionError) as error:
        raise DefinitionError(f"not JSON: {error}") from error
    if not isinstance(record, dict) or record.get("type") != "record":
        raise DefinitionError("not the schema of a record")
    try:
        return dict(_walk(record, "", 0))
    except (TypeError, RecursionError) as error:  # some registries accept unchecked definitions
        raise DefinitionError(f"not the schema of a record: {error}") from error


def _walk(record: Mapping[str, Any], prefix: str, depth: int) -> Iterator[tuple[str, _Field]]:
    if depth > _DEPTH_MAX:
        raise DefinitionError(f"records in records more than {_DEPTH_MAX} deep")
    listed = record.get("fields")
    if not isinstance(listed, list):
        raise DefinitionError("a record without a list of fields")
    for one in listed:
        if not isinstance(one, dict) or not isinstance(one.get("name"), str) or "type" not in one:
            raise DefinitionError("a field without name or type")
        path = f"{prefix}{one['name']}"
        yield path, _Field(_words(one["type"], depth), "default" in one)
        nested = _nested(one["type"])
        if nested is not None:
            yield from _walk(nested, f"{path}.", depth + 1)


def _nested(kind: Definition) -> Mapping[str, Any] | None:
    """Return the record in a type: itself, in a union with null, or as items of an array or values of a map."""
    if isinstance(kind, list):
        return next((found for one in kind if (found := _nested(one)) is not None), None)
    if not isinstance(kind, dict):
        return None
    if kind.get("type") == "record":
        return kind
    return _nested(
        kind.get("items") or kind.get("values") or (kind["type"] if isinstance(kind.get("type"), dict) else None)
    )


def _words(kind: Definition, depth: int) -> str:
    if depth > _DEPTH_MAX:
        raise DefinitionError(f"types in types more than {_DEPTH_MAX} deep")
    if isinstance(kind, list):
        names = [_words(one, depth + 1) for one in kind]
        others = [name for name in names if name != "null"]
        return f"optional {others[0]}" if "null" in names and len(others) == 1 else " or ".join(names)
    if not isinstance(kind, dict):
        return str(kind)
    name = kind.get("type")
    if name == "array":
        return f"array of {_words(kind.get('items'), depth + 1)}"
    if name == "map":
        return f"map of {_words(kind.get('values'), depth + 1)}"
    if name in ("record", "enum", "fixed"):
        symbols = f"({', '.join(map(str, kind.get('symbols', [])))})" if name == "enum" else ""
        return f"{name} {kind.get('name', '')}{symbols}".strip()
    logical = kind.get("logicalType")
    return f"{_words(name, depth + 1)} ({logical})" if logical else _words(name, depth + 1)


def _change(path: str, old: _Field | None, new: _Field | None) -> FieldChange | None:
    if old is None:
        assert new is not None
        breaks = Breaks.NONE if new.has_default else Breaks.NEW_READERS
        return FieldChange(path, "added" if new.has_default else "added without default", "", new.kind, breaks)
    if new is None:
        breaks = Breaks.NONE if old.has_default else Breaks.OLD_READERS
        return FieldChange(path, "removed", old.kind, "", breaks)
    if old.kind != new.kind:
        return FieldChange(path, "type changed", old.kind, new.kind, _broken_by(old.kind, new.kind))
    if old.has_default != new.has_default:
        what = "default added" if new.has_default else "default removed"
        return FieldChange(path, what, old.kind, new.kind, Breaks.NONE)
    return None


def _broken_by(old: str, new: str) -> Breaks:
    widened = new.removeprefix("optional ")
    narrowed = old.removeprefix("optional ")
    before, after = _ENUM.fullmatch(old), _ENUM.fullmatch(new)
    if before is not None and after is not None and before[1] == after[1]:
        had, has = set(before[2].split(", ")), set(after[2].split(", "))
        if had == has:
            return Breaks.NONE
        return Breaks.OLD_READERS if had < has else Breaks.NEW_READERS if has < had else Breaks.BOTH
    if new == f"optional {old}":
        return Breaks.OLD_READERS
    if old == f"optional {new}":
        return Breaks.NEW_READERS
    forth, back = widened in _PROMOTED.get(narrowed, ()), narrowed in _PROMOTED.get(widened, ())
    if forth and back:
        return Breaks.NONE
    if forth:
        return Breaks.OLD_READERS
    return Breaks.NEW_READERS if back else Breaks.BOTH
