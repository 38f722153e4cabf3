"""Reads the dumps of tests/golden/etcd: keys and values as the stock systems wrote them."""

import ast
import re
from dataclasses import dataclass
from pathlib import Path

GOLDEN = Path(__file__).resolve().parent.parent / "golden" / "etcd"
_PUT = re.compile(r"^(\d+) (PUT|DELETE) (\S+) ver (\d+) (lease|-) (b['\"].*)$")
_KEY = re.compile(r"^KEY (\S+) create_rev (\d+) mod_rev (\d+) ver (\d+) lease 0x([0-9a-f]+) len (\d+)$")
_HEX = re.compile(r"^  [0-9a-f]{4}  ((?:[0-9a-f]{2} ){1,16})")


@dataclass(frozen=True)
class Change:
    """One line of history-all.txt."""

    revision: int
    kind: str
    key: str
    key_version: int
    leased: bool
    value: bytes


@dataclass(frozen=True)
class StoredKey:
    """One key of a dump. `value` is None where the dump shows text, which loses exact bytes."""

    key: str
    key_version: int
    leased: bool
    size_bytes: int
    value: bytes | None


def history() -> list[Change]:
    """All changes, in revision order."""
    changes = []
    for line in (GOLDEN / "history-all.txt").read_text().splitlines():
        match = _PUT.match(line)
        assert match is not None, line
        revision, kind, key, version, lease, literal = match.groups()
        changes.append(Change(int(revision), kind, key, int(version), lease == "lease", ast.literal_eval(literal)))
    return changes


def dump(name: str) -> list[StoredKey]:
    """The keys of one dump file; a file that holds several dumps gives all of them."""
    found: list[StoredKey] = []
    for line in (GOLDEN / name).read_text().splitlines():
        key = _KEY.match(line)
        if key is not None:
            size = int(key[6])
            found.append(StoredKey(key[1], int(key[4]), key[5] != "0", size, b"" if size == 0 else None))
            continue
        hexadecimal = _HEX.match(line + " ")
        if hexadecimal is not None:
            last = found[-1]
            value = (last.value or b"") + bytes.fromhex(hexadecimal[1])
            found[-1] = StoredKey(last.key, last.key_version, last.leased, last.size_bytes, value)
    for stored in found:
        assert stored.value is None or len(stored.value) == stored.size_bytes, stored.key
    return found
