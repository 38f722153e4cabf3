"""Writes settings as TOML: flat keys with strings, numbers, booleans and lists of strings."""

import json
from collections.abc import Mapping

Value = str | int | float | bool | list[str]


def toml_text(settings: Mapping[str, Value], head: str) -> str:
    """Return the file, with sorted keys below a comment. Equal settings give equal bytes."""
    lines = [f"{key} = {_rendered(value)}" for key, value in sorted(settings.items())]
    return "\n".join([f"# {head}", *lines, ""])


def _rendered(value: Value) -> str:
    """Return the JSON form of a value, which is valid TOML except for DEL, which JSON does not escape."""
    if isinstance(value, list):
        return "[" + ", ".join(_rendered(item) for item in value) + "]"
    return json.dumps(value).replace("\x7f", "\\u007f")
