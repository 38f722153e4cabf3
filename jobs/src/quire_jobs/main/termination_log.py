"""What a driver leaves behind for whoever started its container: one JSON object of bounded size.

Kubernetes shows it as the termination message of the pod, of which it keeps 4096 bytes; half an object would be worth
nothing. It is what `--json` prints without `details`; the last notes, problems and outputs are left out as far as there
is no room: `left_out` says how many of each.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

MESSAGE_BYTES_MAX = 4096
_TEXT_CHARACTERS_MAX = 400
_ROWS_MAX = 20
_GIVEN_UP_IN_ORDER = ("notes", "problems", "outputs")


def message_of(row: Mapping[str, Any], limit_bytes: int = MESSAGE_BYTES_MAX) -> bytes:
    """The object, cut so that it fits. `row`: as `quire jobs run --json` prints it."""
    kept: dict[str, Any] = {name: _short(value) for name, value in row.items() if name != "details"}
    left_out: dict[str, int] = {}
    for name in _GIVEN_UP_IN_ORDER:
        if len(kept.get(name, ())) > _ROWS_MAX:
            left_out[name] = len(kept[name]) - _ROWS_MAX
            kept[name] = kept[name][:_ROWS_MAX]
    for name in _GIVEN_UP_IN_ORDER:
        while kept.get(name) and len(_encoded(kept, left_out)) > limit_bytes:
            kept[name].pop()
            left_out[name] = left_out.get(name, 0) + 1
    if len(_encoded(kept, left_out)) > limit_bytes:
        left_out["counts"] = len(kept.pop("counts", ()))
    return _encoded(kept, left_out)


def _encoded(kept: Mapping[str, Any], left_out: Mapping[str, int]) -> bytes:
    """What UTF-8 does not have, half a pair of surrogates out of a file's name, stays as JSON escapes it."""
    whole = dict(kept) | ({"left_out": left_out} if left_out else {})
    return json.dumps(whole, ensure_ascii=False, separators=(",", ":")).encode(errors="backslashreplace") + b"\n"


def _short(value: Any) -> Any:
    if isinstance(value, str) and len(value) > _TEXT_CHARACTERS_MAX:
        return value[: _TEXT_CHARACTERS_MAX - 1] + "…"
    if isinstance(value, Mapping):
        return {name: _short(each) for name, each in value.items()}
    if isinstance(value, list):
        return [_short(each) for each in value]
    return value


def leave(path: Path, row: Mapping[str, Any]) -> str | None:
    """Write it. What went wrong, or None: a run is not worse for a message that nobody could be left."""
    try:
        path.write_bytes(message_of(row))
    except OSError as error:
        return f"--termination-log {path}: {error.strerror or error}"
    return None
