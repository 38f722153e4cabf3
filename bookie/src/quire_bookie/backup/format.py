"""The format of a metadata backup: encodes and decodes its parts and its manifest. Pure.

    <store>/<name>/part-00000.gz    gzip of: the line `quire-metadata-backup 1`, then records
    <store>/<name>/manifest.json    written last; the backup is invalid without it or when its checksum does not match
    record (little-endian)          key length u32, value length u32, version i64, key (UTF-8), value

The name is the time of the backup in UTC, to the second, and four random hexadecimal digits. The `sha256` of a part is
over its bytes as stored. The versions of nodes are kept because some nodes are counters, whose version is the count.
"""

import gzip
import hashlib
import json
import re
import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict
from datetime import UTC, datetime
from struct import Struct
from typing import Any, Final

from quire_bookie.dataclass import dataclass
from quire_bookie.errors import QuireError
from quire_bookie.limits import MIB
from quire_bookie.metadata.store import Node

FORMAT_VERSION: Final = 1
MANIFEST: Final = "manifest.json"
MANIFEST_BYTES_MAX: Final = 64 * MIB
PART_BYTES_MAX: Final = 1088 * MIB
"""Size of a part, before and after decompression: 16 MiB, and a page of 1,000 nodes with the largest values."""
VERSION_MAX: Final = 100_000_000
"""Version of a counter in a backup. A restore writes a counter once per version, so a higher one would take days."""
_TIME_MS_MAX: Final = 253_402_300_799_999
_NUMBER_MAX: Final = (1 << 63) - 1
_PART_NAME = re.compile(r"part-[0-9]{5,10}\.gz")
_FIRST_LINE = b"quire-metadata-backup 1\n"
_HEAD = Struct("<IIq")
_NAME = re.compile(r"[0-9]{8}T[0-9]{6}Z-[0-9a-f]{4}")


class BackupError(QuireError):
    """A backup or its object store cannot be used. A retry helps only after the cause in the text is fixed."""


class DamagedBackupError(BackupError):
    """The content of a backup does not match its manifest. Use another backup."""


@dataclass(frozen=True, slots=True)
class Part:
    """One object of a backup. `size_bytes`: its size as stored, compressed."""

    name: str
    nodes: int
    size_bytes: int
    sha256: str


@dataclass(frozen=True, slots=True)
class Manifest:
    """Describes a backup. `revision`: the revision of etcd that all nodes have; None for a store without revisions."""

    name: str
    created_ms: int
    instance_id: str
    revision: int | None
    quire_version: str
    nodes: int
    value_bytes: int
    ledgers: int
    left_out: int
    """Number of nodes that belonged to sessions (registrations, locks); they are not restored."""
    roots: Mapping[str, int]
    """Number of nodes by the first part of their path."""
    parts: tuple[Part, ...]


def backup_name(now_ms: int, token: bytes) -> str:
    """Return the name of a backup taken at this time; names sort by time."""
    return f"{datetime.fromtimestamp(now_ms / 1000, UTC):%Y%m%dT%H%M%SZ}-{token[:2].hex()}"


def is_backup_name(name: str) -> bool:
    """Return whether a folder has the name of a backup."""
    if _NAME.fullmatch(name) is None:
        return False
    try:
        begun_ms(name)
    except ValueError:  # such as month 13
        return False
    return True


def begun_ms(name: str) -> int:
    """Return the start time of the backup of this name, in ms since the epoch."""
    moment = datetime.strptime(name.partition("-")[0], "%Y%m%dT%H%M%SZ").replace(tzinfo=UTC)
    return int(moment.timestamp() * 1000)


def encode_record(node: Node) -> bytes:
    """Encode one node."""
    key = node.key.encode()
    return _HEAD.pack(len(key), len(node.value), node.version) + key + node.value


def encode_part(records: Iterable[bytes]) -> bytes:
    """Encode a part. The same nodes give the same bytes."""
    return gzip.compress(_FIRST_LINE + b"".join(records), compresslevel=6, mtime=0)


def decode_part(name: str, data: bytes) -> Iterator[Node]:
    """Yield the nodes of a part. DamagedBackupError."""
    unpacker = zlib.decompressobj(wbits=31)
    try:
        body = unpacker.decompress(data, PART_BYTES_MAX)
    except zlib.error as error:
        raise DamagedBackupError(f"{name} cannot be unpacked: {error}") from error
    if not unpacker.eof or unpacker.unused_data:
        raise DamagedBackupError(f"{name} cannot be unpacked to at most {PART_BYTES_MAX} bytes")
    if not body.startswith(_FIRST_LINE):
        raise DamagedBackupError(f"{name} does not have format version {FORMAT_VERSION}")
    at = len(_FIRST_LINE)
    while at < len(body):
        if at + _HEAD.size > len(body):
            raise DamagedBackupError(f"{name} ends within a record")
        key_bytes, value_bytes, version = _HEAD.unpack_from(body, at)
        at += _HEAD.size
        end = at + key_bytes + value_bytes
        if end > len(body):
            raise DamagedBackupError(f"{name} ends within a record")
        try:
            key = body[at : at + key_bytes].decode()
        except UnicodeDecodeError as error:
            raise DamagedBackupError(f"{name} holds a key that is not UTF-8") from error
        yield Node(key, body[at + key_bytes : end], version)
        at = end


def checksum(data: bytes) -> str:
    """Return the SHA-256 in hexadecimal."""
    return hashlib.sha256(data).hexdigest()


def encode_manifest(manifest: Manifest) -> bytes:
    """Encode the manifest file, with a checksum over all its fields."""
    fields = {"format": FORMAT_VERSION, **asdict(manifest)}
    return json.dumps({**fields, "checksum": checksum(_canonical(fields))}, indent=2).encode() + b"\n"


def decode_manifest(name: str, data: bytes) -> Manifest:
    """Decode the manifest of the backup `name`. DamagedBackupError."""
    try:
        fields: dict[str, Any] = json.loads(data)
        stored_checksum = fields.pop("checksum")
        if fields["format"] != FORMAT_VERSION:
            raise DamagedBackupError(
                f"backup {name} has format {fields['format']}; this version reads {FORMAT_VERSION}"
            )
        if checksum(_canonical(fields)) != stored_checksum or fields.pop("name") != name:
            raise DamagedBackupError(f"the manifest of backup {name} does not match its checksum")
        del fields["format"]
        parts = tuple(Part(**part) for part in fields.pop("parts"))
        made = Manifest(name=name, parts=parts, **fields)
        _check(made)
        return made
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise DamagedBackupError(f"the manifest of backup {name} cannot be read: {error}") from error


def _check(manifest: Manifest) -> None:
    """Raise ValueError for a field that no backup has: a client with write access to the store can forge one."""
    numbers = [manifest.nodes, manifest.value_bytes, manifest.ledgers, manifest.left_out, *manifest.roots.values()]
    numbers += [0 if manifest.revision is None else manifest.revision, manifest.created_ms]
    numbers += [number for part in manifest.parts for number in (part.nodes, part.size_bytes)]
    texts = [manifest.instance_id, manifest.quire_version, *manifest.roots]
    texts += [text for part in manifest.parts for text in (part.name, part.sha256)]
    if any(type(number) is not int or not 0 <= number <= _NUMBER_MAX for number in numbers):
        raise ValueError("a number is not an integer of 63 bits")
    if any(type(text) is not str or len(text) > 200 for text in texts):
        raise ValueError("a text is not one of at most 200 characters")
    if manifest.created_ms > _TIME_MS_MAX:
        raise ValueError("its time is after the year 9999")
    for part in manifest.parts:
        if _PART_NAME.fullmatch(part.name) is None or part.size_bytes > PART_BYTES_MAX:
            raise ValueError(f"{part.name!r} of {part.size_bytes} bytes is not a part")


def _canonical(fields: Mapping[str, Any]) -> bytes:
    return json.dumps(fields, sort_keys=True, separators=(",", ":")).encode()
