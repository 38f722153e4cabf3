"""The log of a Parquet table: consecutive commits, which list its files. Pure codec and arithmetic.

    <table>/_quire/snapshots/<version, 20 digits>.json
    {"format": 1, "version": n, "commit": uuid, "atMs": ms,
     "marks": {key: value or null}, "schema": Arrow IPC schema in base64 or null,
     "added": [file, ...], "removed": [path, ...], "swept": [path, ...],
     "state": null or {"files": [file, ...], "marks": {...}, "schema": ..., "gone": {path: atMs}}}
    file = {"path", "rows", "size_bytes", "partition"}; paths are relative to the table

Version n+1 is created, never replaced, so one of two concurrent commits must read the log again. Every
CHECKPOINT_EVERY-th version contains the whole state, including its own change: a reader needs that version and the
later ones. `gone`: files that a commit removed and no sweep has deleted yet.
"""

import base64
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from quire_jobs.errors import QuireJobError
from quire_jobs.tables.data_files import DataFile

FOLDER = "_quire/snapshots"
FORMAT = 1
CHECKPOINT_EVERY = 16


@dataclass(frozen=True, slots=True)
class Change:
    """The change of one commit. A mark of None is removed."""

    added: tuple[DataFile, ...] = ()
    removed: tuple[str, ...] = ()
    marks: Mapping[str, str | None] = field(default_factory=dict)
    schema: pa.Schema | None = None
    swept: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class State:
    """A table at one version. Version 0: the table does not exist."""

    version: int = 0
    files: Mapping[str, DataFile] = field(default_factory=dict)
    marks: Mapping[str, str] = field(default_factory=dict)
    schema: pa.Schema | None = None
    gone: Mapping[str, int] = field(default_factory=dict)

    def after(self, change: Change, now_ms: int) -> "State":
        """Return the next version."""
        removed, swept = frozenset(change.removed), frozenset(change.swept)
        files = {path: file for path, file in self.files.items() if path not in removed}
        files |= {file.path: file for file in change.added}
        marks = {key: value for key, value in ({**self.marks, **change.marks}).items() if value is not None}
        gone = {path: at for path, at in self.gone.items() if path not in swept}
        gone |= dict.fromkeys(change.removed, now_ms)
        return State(self.version + 1, files, marks, change.schema or self.schema, gone)


def snapshot_name(version: int) -> str:
    """Return the name of a version's object."""
    return f"{FOLDER}/{version:020d}.json"


def version_of(name: str) -> int | None:
    """Return the version of an object of the log; None for other objects."""
    stem = name.rpartition("/")[2].removesuffix(".json")
    return int(stem) if stem.isdecimal() and name.endswith(".json") else None


def first_needed(last: int) -> int:
    """Return the version with a whole state from which `last` can be computed."""
    return max(1, last // CHECKPOINT_EVERY * CHECKPOINT_EVERY)


def encode_snapshot(state: State, change: Change, commit: str, now_ms: int) -> bytes:
    """Return the content of a snapshot. `state`: the state after the change."""
    whole = state.version == 1 or state.version % CHECKPOINT_EVERY == 0
    value = {
        "format": FORMAT,
        "version": state.version,
        "commit": commit,
        "atMs": now_ms,
        "marks": dict(change.marks),
        "schema": _encoded(change.schema),
        "added": [file.encode() for file in change.added],
        "removed": list(change.removed),
        "swept": list(change.swept),
        "state": _encoded_state(state) if whole else None,
    }
    return json.dumps(value, indent=1).encode()


def commit_of(value: bytes) -> str:
    """Return the uuid of the commit that made a snapshot."""
    return str(json.loads(value)["commit"])


def decode_log(values: Sequence[bytes]) -> State:
    """Return the state after consecutive snapshots, the first of which has a whole state. QuireJobError."""
    state: State | None = None
    for value in values:
        try:
            found = json.loads(value)
            if found["format"] != FORMAT:
                raise QuireJobError(f"a table's snapshot has format {found['format']}; only {FORMAT} is supported")
            version = int(found["version"])
            if found["state"] is not None and state is None:
                state = _decoded_state(version, found["state"])
            elif state is None or version != state.version + 1:
                raise QuireJobError(f"a table's snapshot {version} does not follow the previous one")
            else:
                state = state.after(_change(found), int(found["atMs"]))
        except (ValueError, KeyError, TypeError) as error:
            raise QuireJobError(f"a table's snapshot cannot be read: {error}") from error
    return state or State()


def _change(found: Mapping[str, Any]) -> Change:
    return Change(
        tuple(_files(found["added"])),
        tuple(found["removed"]),
        found["marks"],
        _decoded(found["schema"]),
        tuple(found["swept"]),
    )


def _files(values: Iterable[Mapping[str, Any]]) -> list[DataFile]:
    return [DataFile(each["path"], each["rows"], each["size_bytes"], each["partition"]) for each in values]


def _encoded_state(state: State) -> dict[str, Any]:
    files = [file.encode() for file in state.files.values()]
    marks, gone = dict(state.marks), dict(state.gone)
    return {"files": files, "marks": marks, "schema": _encoded(state.schema), "gone": gone}


def _decoded_state(version: int, value: Mapping[str, Any]) -> State:
    files = {file.path: file for file in _files(value["files"])}
    return State(version, files, value["marks"], _decoded(value["schema"]), value["gone"])


def _encoded(schema: pa.Schema | None) -> str | None:
    return None if schema is None else base64.b64encode(schema.serialize().to_pybytes()).decode()


def _decoded(text: str | None) -> pa.Schema | None:
    return None if text is None else pa.ipc.read_schema(pa.py_buffer(base64.b64decode(text)))
