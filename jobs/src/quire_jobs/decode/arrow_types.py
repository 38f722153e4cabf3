"""Merges the Arrow types of several schema versions: the narrowest type that can hold values of all of them. Pure.

equal types              that type
null and another         the other
integers                 the wider
integer and float        float64
float32 and float64      float64
string and binary        binary
lists, maps, structs     item by item; a struct has the fields of both
anything else            a conflict
"""

import pyarrow as pa

TYPES_MAX = 20_000
"""Number of types in the columns of one schema version. A schema defines a type once and uses it often: a kilobyte of
such uses has more columns than memory holds."""
DEPTH_MAX = 64
_INTEGERS = (pa.int8(), pa.int16(), pa.int32(), pa.int64())
_FLOATS = (pa.float32(), pa.float64())


class TypeConflictError(ValueError):
    """No column type can hold both types. `path`: the field, with dots."""

    def __init__(self, path: str, one: pa.DataType, other: pa.DataType) -> None:
        super().__init__(f"field {path} is {one} in one version and {other} in another")


class TypeBudget:
    """Bounds the type of one schema version. Enter it for each type; a type within has one level more."""

    def __init__(self) -> None:
        self._left = TYPES_MAX
        self._depth = 0

    def __enter__(self) -> None:
        self._left -= 1
        self._depth += 1
        if self._left < 0:
            raise ValueError(f"it has more than {TYPES_MAX} fields and types when each use of a named type is counted")
        if self._depth > DEPTH_MAX:
            raise ValueError(f"its types are nested more than {DEPTH_MAX} levels deep")

    def __exit__(self, *_: object) -> None:
        self._depth -= 1


def merged(one: pa.DataType, other: pa.DataType, path: str) -> pa.DataType:
    """Return the type that can hold values of both. TypeConflictError."""
    if one == other or pa.types.is_null(other):
        return one
    if pa.types.is_null(one):
        return other
    if one in _INTEGERS and other in _INTEGERS:
        return _INTEGERS[max(_INTEGERS.index(one), _INTEGERS.index(other))]
    if one in _INTEGERS + _FLOATS and other in _INTEGERS + _FLOATS:
        return pa.float64()
    if {one, other} == {pa.string(), pa.binary()}:
        return pa.binary()
    if pa.types.is_list(one) and pa.types.is_list(other):
        return pa.list_(merged(one.value_type, other.value_type, f"{path}[]"))
    if pa.types.is_map(one) and pa.types.is_map(other):
        return pa.map_(
            merged(one.key_type, other.key_type, f"{path} (key)"), merged(one.item_type, other.item_type, f"{path}{{}}")
        )
    if pa.types.is_struct(one) and pa.types.is_struct(other):
        return pa.struct(merged_fields(list(one), list(other), f"{path}."))
    raise TypeConflictError(path, one, other)


def merged_fields(one: list[pa.Field], other: list[pa.Field], prefix: str = "") -> list[pa.Field]:
    """Return the fields of both, in the order of first appearance, all nullable. TypeConflictError."""
    found = {field.name: field.type for field in one}
    for field in other:
        known = found.get(field.name)
        found[field.name] = field.type if known is None else merged(known, field.type, f"{prefix}{field.name}")
    return [pa.field(name, kind) for name, kind in found.items()]
