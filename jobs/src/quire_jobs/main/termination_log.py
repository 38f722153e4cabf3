"""Writes the outcome of a run for Kubernetes: one JSON object of bounded size.

Kubernetes shows it as the termination message of the pod and keeps 4096 bytes of it; a truncated object could not be
parsed. The object is the one that `--json` prints, without `details`. If it is too large, the last notes, problems and
outputs are dropped, and `left_out` counts the dropped ones of each.
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
    """Return the encoded object, shortened to `limit_bytes`. `row`: the object that `quire jobs run --json` prints."""
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
    """Encode the object. Lone surrogates, for example of a file name, are escaped because UTF-8 cannot encode them."""
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


def write_outcome(path: Path, row: Mapping[str, Any]) -> str | None:
    """Write the outcome. Return the error text if that fails, else None: the run's own result does not depend on it."""
    try:
        path.write_bytes(message_of(row))
    except OSError as error:
        return f"--termination-log {path}: {error.strerror or error}"
    return None
