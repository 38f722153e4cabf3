"""Values that parsers and checks often get wrong: numbers at the ends of their types, odd texts, deep JSON."""

import json
from typing import Any

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message
from hypothesis import strategies as st

NUMBERS = (0, 1, 2, 3, 7, -1, -2, 127, 128, 255, 256, 65535, 2**31 - 1, 2**31, -(2**31), 2**32 - 1, 2**32)
LONGS = (2**53, 2**63 - 1, 2**63, -(2**63), 2**64 - 1, 2**64)
TEXTS = (
    *("", " ", ".", "..", "/", "\\", "%", "%2e%2e", "a/b", "x" * 300, "x" * 3000, "null", "true", "-1", "9" * 19),
    *("9" * 40, "1e999", "NaN", "0x10", "a\nb", "a\x00b", "\x1b[31m", "\x7f", "\u202eabc", "\ufeff", "\u0130", "ß" * 9),
    *("🦊", "e\u0301", "٣", "-partition-0", "x-partition-1", "x-partition-99999999999", "__change_events", "(a+)+$"),
    *("persistent://", "persistent://a/b/c/d", "non-persistent://fuzz/ns/t", "{}", "[]", "${x}", "'", '"', "<b>", "*"),
)
odd_texts = st.sampled_from(TEXTS) | st.text(max_size=12)
odd_numbers = st.sampled_from(NUMBERS + LONGS) | st.integers(-10, 10)
leaves = (
    st.none()
    | st.booleans()
    | odd_numbers
    | st.sampled_from((10**400, -(10**400), 0.5, -0.0, 1e308, float("inf"), float("nan"), "\ud800", "\udfff\ud800"))
    | odd_texts
)


def json_values(names: st.SearchStrategy[str]) -> st.SearchStrategy[Any]:
    """Return small JSON with these names and others."""
    keys = names | odd_texts
    return st.recursive(
        leaves, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(keys, inner, max_size=5), max_leaves=12
    )


deep_texts = st.builds(
    lambda opening, closing, depth, closed: opening * depth + (closing * depth if closed else ""),
    st.just("["),
    st.just("]"),
    st.sampled_from((50, 900, 3000, 100_000)),
    st.booleans(),
) | st.sampled_from(('{"a":' * 3000 + "1" + "}" * 3000, '{"adminRoles":' * 400 + "[]" + "}" * 400))
"""JSON that is nested too deeply for a recursive parser or check."""


@st.composite
def changed(draw: st.DrawFn, sample: Any, values: st.SearchStrategy[Any]) -> Any:
    """Return a sample body with some parts changed, missing or duplicated."""
    if isinstance(sample, dict) and draw(st.integers(0, 9)):
        found = {name: draw(changed(value, values)) for name, value in sample.items() if draw(st.integers(0, 9))}
        if not draw(st.integers(0, 5)):
            found[draw(odd_texts)] = draw(values)
        return found
    if isinstance(sample, list) and draw(st.integers(0, 9)):
        return [draw(changed(value, values)) for value in sample] * draw(st.sampled_from((1, 1, 1, 2, 0, 200)))
    return draw(values) if not draw(st.integers(0, 3)) else sample


def as_text(value: Any) -> str:
    """Encode as JSON, including values outside the standard: NaN, lone surrogates."""
    return json.dumps(value)


@st.composite
def fill(draw: st.DrawFn, message: Message, pools: dict[str, st.SearchStrategy[Any]], depth: int = 0) -> Message:
    """Set the fields of a message to values of their types, from `pools` if it has the field's name."""
    for field in message.DESCRIPTOR.fields:
        if not field.is_required and not draw(st.integers(0, 2)):
            continue
        if field.is_repeated:
            for _ in range(draw(st.integers(0, 2)) if depth < 3 else 0):
                if field.type == FieldDescriptor.TYPE_MESSAGE:
                    draw(fill(getattr(message, field.name).add(), pools, depth + 1))
                else:
                    getattr(message, field.name).append(draw(_scalar(field, pools)))
        elif field.type == FieldDescriptor.TYPE_MESSAGE:
            if field.is_required or depth < 3:
                inner = getattr(message, field.name)
                inner.SetInParent()
                draw(fill(inner, pools, depth + 1))
        else:
            setattr(message, field.name, draw(_scalar(field, pools)))
    return message


_RANGES = {
    FieldDescriptor.CPPTYPE_INT32: (-(2**31), 2**31 - 1),
    FieldDescriptor.CPPTYPE_INT64: (-(2**63), 2**63 - 1),
    FieldDescriptor.CPPTYPE_UINT32: (0, 2**32 - 1),
    FieldDescriptor.CPPTYPE_UINT64: (0, 2**64 - 1),
}


def _scalar(field: Any, pools: dict[str, st.SearchStrategy[Any]]) -> st.SearchStrategy[Any]:
    if field.name in pools and field.cpp_type not in _RANGES:
        return pools[field.name]
    if field.cpp_type in _RANGES:
        low, high = _RANGES[field.cpp_type]
        if field.name in pools:
            return pools[field.name].map(lambda value: max(low, min(high, value)))
        ends = [number for number in (*NUMBERS, *LONGS) if low <= number <= high]
        return st.sampled_from((0, 1, 2)) | st.sampled_from(ends)
    if field.cpp_type == FieldDescriptor.CPPTYPE_BOOL:
        return st.booleans()
    if field.cpp_type == FieldDescriptor.CPPTYPE_ENUM:
        return st.sampled_from([value.number for value in field.enum_type.values])
    if field.type == FieldDescriptor.TYPE_STRING:
        return odd_texts
    if field.type == FieldDescriptor.TYPE_BYTES:
        return st.binary(max_size=20)
    return st.floats(width=32)


_lengths = st.sampled_from((0, 1, 3, 4, 7, 8, 9, 40, 2**16, 2**24, 2**31 - 1, 2**31, 2**32 - 1))


@st.composite
def damaged(draw: st.DrawFn, frame: bytes) -> bytes:
    """Return a frame with flipped bits, a wrong length, a missing part, or trailing bytes."""
    data = bytearray(frame)
    for _ in range(draw(st.integers(1, 3))):
        what = draw(st.integers(0, 4))
        at = draw(st.integers(0, max(0, len(data) - 1)))
        if what == 0 and data:
            data[at] ^= draw(st.integers(1, 255))
        elif what == 1:
            del data[at:]
        elif what == 2:
            data[at:at] = draw(st.binary(max_size=9))
        elif what == 3:
            data[:4] = draw(st.sampled_from((0, 1, 3, 4, 7, 8, 2**16, 2**24, 2**31 - 1, 2**31, 2**32 - 1))).to_bytes(
                4, "big"
            )
        else:
            data[4:8] = draw(st.sampled_from((0, 1, len(frame), 2**31, 2**32 - 1))).to_bytes(4, "big")
    return bytes(data)
