"""Settings as a TOML file: flat keys with texts, numbers, truths and lists of texts. Writes only."""

import json
from collections.abc import Mapping

Value = str | int | float | bool | list[str]


def toml_text(settings: Mapping[str, Value], head: str) -> str:
    """The file, keys in order, below a comment. Same settings, same bytes."""
    lines = [f"{key} = {_rendered(value)}" for key, value in sorted(settings.items())]
    return "\n".join([f"# {head}", *lines, ""])


def _rendered(value: Value) -> str:
    """JSON's forms of these values are TOML's too, but for DEL, which JSON leaves as it is."""
    if isinstance(value, list):
        return "[" + ", ".join(_rendered(item) for item in value) + "]"
    return json.dumps(value).replace("\x7f", "\\u007f")
