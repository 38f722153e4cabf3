"""Defines the format of the change log, and of the data in the database that is compared with it. Pure.

The change log (`metadata.log`) is a second copy of every persistent node. It shares no byte with the database, so one
damaged, lost or outdated file never takes both copies.

    file   = header, ROWS*, BASE, COMMIT*, zeros          numbers are little-endian
    header = "QuireLog" | u32 format (1) | u32 zero | 16 store id
    frame  = u32 magic | u32 bytes of the body | 16 checksum | body
    ROWS   = 0x01 | change*                               nodes when the file was written
    BASE   = 0x02 | u64 sequence | 16 chain | 16 digest   start of the commits
    COMMIT = 0x03 | u64 sequence | 16 digest | change*    changes of one group commit, and the digest after it
    change = u32 bytes of the key | u32 bytes of the value (0xFFFFFFFF: node removed) | i64 version | key | value

A checksum is BLAKE2b over the checksum of the preceding frame and the body. For the first ROWS or BASE the header takes
the place of the preceding checksum, for the first COMMIT the `chain` of BASE. So the checksum of a commit depends on
every commit before it, also across rewrites of the file: equal chains mean equal histories. The *digest* is the sum of
the hashes of all persistent nodes modulo 2^128: their order does not matter, and a commit updates it from the nodes
that it changes.
"""

import hashlib
import struct
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import field
from typing import Final, TypeAlias

from quire_bookie.dataclass import dataclass

HEADER: Final = struct.Struct("<8sII16s")
FRAME: Final = struct.Struct("<II16s")
_CHANGE: Final = struct.Struct("<IIq")
_BASE: Final = struct.Struct("<BQ16s16s")
_COMMIT: Final = struct.Struct("<BQ16s")
_HASHED: Final = struct.Struct("<Iq")
FORMAT_VERSION: Final = 1
_MAGIC: Final = b"QuireLog"
_FRAME_MAGIC: Final = 0x464C4D51
_FRAME_MAGIC_BYTES: Final = struct.pack("<I", _FRAME_MAGIC)
_ROWS_KIND, _BASE_KIND, _COMMIT_KIND = 1, 2, 3
_GONE: Final = 0xFFFF_FFFF
HASH_BYTES: Final = 16
_MODULUS: Final = 1 << 128

Value: TypeAlias = tuple[int, bytes]
"""Version and value of a persistent node."""
Changes: TypeAlias = Mapping[bytes, Value | None]
"""Present state of each node by key; None: it was removed."""


@dataclass(frozen=True, slots=True)
class Position:
    """A point in the history of a store: the number of commits, their chain, and the resulting digest."""

    sequence: int
    chain: bytes
    digest: int


@dataclass(slots=True)
class LogContent:
    """Content of a change log, as far as its checksums fit.

    `last` is the last commit that is intact together with everything before it; `end` is the offset after it.
    """

    store: bytes = b""
    base: Position | None = None
    """None: the header or the copy of the nodes is damaged, so that the commits have no starting point."""
    last: Position | None = None
    end: int = 0
    base_end: int = 0
    """The offset after the copy of the nodes."""
    nodes: dict[bytes, Value] = field(default_factory=dict)
    """All nodes at `last`. Empty unless requested."""
    commits: list[tuple[Position, Changes]] = field(default_factory=list)
    """Commits after the base, in order. Empty unless requested."""
    clean_end: bool = True
    """Whether only zeros follow."""
    seen_beyond: int = -1
    """The highest sequence of an intact commit after damaged bytes; -1 if there is none."""
    problem: str = ""
    """Damage of the header or of the copy of the nodes; empty if there is none."""


def hash_of(key: bytes, version: int, value: bytes) -> int:
    """Return the contribution of one node to the digest."""
    hashed = hashlib.blake2b(_HASHED.pack(len(key), version), digest_size=HASH_BYTES)
    hashed.update(key)
    hashed.update(value)
    return int.from_bytes(hashed.digest(), "little")


def add_to_digest(digest: int, *hashes: int) -> int:
    """Return the digest with these hashes added; a negative hash removes a node."""
    return (digest + sum(hashes)) % _MODULUS


def digest_of(nodes: Iterable[tuple[bytes, int, bytes]]) -> int:
    """Return the digest of (key, version, value) tuples."""
    return sum(hash_of(key, version, value) for key, version, value in nodes) % _MODULUS


def digest_bytes(digest: int) -> bytes:
    """Encode the digest."""
    return digest.to_bytes(HASH_BYTES, "little")


def digest_from(stored: bytes) -> int:
    """Decode a stored digest."""
    return int.from_bytes(stored, "little")


def checksum(before: bytes, body: bytes) -> bytes:
    """Return the checksum of a frame that follows the checksum `before`."""
    return hashlib.blake2b(before + body, digest_size=HASH_BYTES).digest()


def first_chain(store: bytes) -> bytes:
    """Return the chain of a store without commits."""
    return checksum(store, b"")


def encode_header(store: bytes) -> bytes:
    """Encode the header of a file."""
    return HEADER.pack(_MAGIC, FORMAT_VERSION, 0, store)


def encode_frame(body: bytes, check: bytes) -> bytes:
    """Encode a frame."""
    return FRAME.pack(_FRAME_MAGIC, len(body), check) + body


def encode_rows(changes: Changes) -> bytes:
    """Encode the body of ROWS."""
    return bytes([_ROWS_KIND]) + _encode_changes(changes)


def encode_base(position: Position) -> bytes:
    """Encode the body of BASE."""
    return _BASE.pack(_BASE_KIND, position.sequence, position.chain, digest_bytes(position.digest))


def encode_commit(sequence: int, digest: int, changes: Changes) -> bytes:
    """Encode the body of COMMIT."""
    return _COMMIT.pack(_COMMIT_KIND, sequence, digest_bytes(digest)) + _encode_changes(changes)


def _encode_changes(changes: Changes) -> bytes:
    parts: list[bytes] = []
    for key, now in changes.items():
        if now is None:
            parts += (_CHANGE.pack(len(key), _GONE, 0), key)
        else:
            version, value = now
            parts += (_CHANGE.pack(len(key), len(value), version), key, value)
    return b"".join(parts)


def decode_changes(body: bytes, offset: int) -> dict[bytes, Value | None]:
    """Decode the changes from `offset` to the end of a body whose checksum matches."""
    found: dict[bytes, Value | None] = {}
    while offset < len(body):
        key_bytes, value_bytes, version = _CHANGE.unpack_from(body, offset)
        offset += _CHANGE.size
        key = body[offset : offset + key_bytes]
        offset += key_bytes
        if value_bytes == _GONE:
            found[key] = None
            continue
        found[key] = (version, body[offset : offset + value_bytes])
        offset += value_bytes
    return found


def apply(nodes: dict[bytes, Value], changes: Changes) -> None:
    """Apply the changes of a commit to the nodes."""
    for key, now in changes.items():
        if now is None:
            nodes.pop(key, None)
        else:
            nodes[key] = now


def read_log(data: bytes, *, keep: bool = False) -> LogContent:
    """Check the bytes of a change log from the start. Never raises: the result describes damage.

    With `keep` the result includes the nodes and the commits.
    """
    found = LogContent()
    found.problem = _read_header(data, found)
    if not found.problem:
        found.problem = _read_copy(data, found, keep)
    if found.problem:
        found.clean_end = False
        found.seen_beyond = _seen_from(data, 0, -1)
        return found
    _read_commits(data, found, keep)
    found.clean_end = data.count(b"\0", found.end) == len(data) - found.end
    if not found.clean_end:
        assert found.last is not None
        found.seen_beyond = _seen_from(data, found.end, found.last.sequence)
    return found


def _read_header(data: bytes, found: LogContent) -> str:
    if len(data) < HEADER.size:
        return f"it has {len(data)} bytes, less than its header"
    magic, version, zero, store = HEADER.unpack_from(data, 0)
    if magic != _MAGIC or zero:
        return "its header is damaged"
    if version != FORMAT_VERSION:
        return f"it has format {version}; this version of Quire reads {FORMAT_VERSION}"
    found.store = store
    return ""


def _read_copy(data: bytes, found: LogContent, keep: bool) -> str:
    """Read ROWS up to BASE; return the damage, or an empty text."""
    offset, before = HEADER.size, data[: HEADER.size]
    while (frame := _frame_at(data, offset)) is not None:
        check, body = frame
        if checksum(before, body) != check:
            break
        offset += FRAME.size + len(body)
        before = check
        if body[0] == _BASE_KIND and len(body) == _BASE.size:
            _, sequence, chain, digest = _BASE.unpack(body)
            found.base = found.last = Position(sequence, chain, digest_from(digest))
            found.end = found.base_end = offset
            return ""
        if keep:
            apply(found.nodes, decode_changes(body, 1))
    return f"the copy of the nodes in it is damaged at offset {offset}"


def _read_commits(data: bytes, found: LogContent, keep: bool) -> None:
    """Read commits while each is intact and continues the one before."""
    assert found.last is not None
    while (commit := commit_at(data, found.end, found.last)) is not None:
        position, changes, end = commit
        found.last, found.end = position, end
        if keep:
            apply(found.nodes, changes())
            found.commits.append((position, changes()))


def commit_at(data: bytes, offset: int, after: Position) -> "tuple[Position, Decoder, int] | None":
    """Return the intact commit at `offset` that follows `after`, a decoder of its changes, and the offset after it."""
    frame = _frame_at(data, offset)
    if frame is None:
        return None
    check, body = frame
    if body[0] != _COMMIT_KIND or checksum(after.chain, body) != check:
        return None
    _, sequence, digest = _COMMIT.unpack_from(body, 0)
    if sequence != after.sequence + 1:
        return None
    return Position(sequence, check, digest_from(digest)), Decoder(body), offset + FRAME.size + len(body)


@dataclass(frozen=True, slots=True)
class Decoder:
    """Decodes the changes of a commit on demand; a check of the log does not need them."""

    body: bytes

    def __call__(self) -> Changes:
        """Decode the changes."""
        return decode_changes(self.body, _COMMIT.size)


def commits_after(data: bytes, after: Position) -> Iterator[tuple[Position, Changes]]:
    """Yield the commits that continue `after`, anywhere in the file: damage before them does not matter."""
    at = data.find(_FRAME_MAGIC_BYTES)
    while at >= 0:
        commit = commit_at(data, at, after)
        if commit is None:
            at = data.find(_FRAME_MAGIC_BYTES, at + 1)
            continue
        after, changes, at = commit
        yield after, changes()


def _seen_from(data: bytes, offset: int, sequence: int) -> int:
    """Return the highest sequence of commits after `offset` whose checksum fits; -1 if none is above `sequence`."""
    highest, before = -1, b""
    at = data.find(_FRAME_MAGIC_BYTES, offset)
    while at >= 0:
        frame = _frame_at(data, at)
        if frame is not None:
            check, body = frame
            if body[0] == _COMMIT_KIND and len(body) >= _COMMIT.size and checksum(before, body) == check:
                highest = max(highest, _COMMIT.unpack_from(body, 0)[1])
            before = check
        elif at + FRAME.size <= len(data):
            before = FRAME.unpack_from(data, at)[2]
        at = data.find(_FRAME_MAGIC_BYTES, at + 1)
    return highest if highest > sequence else -1


def _frame_at(data: bytes, offset: int) -> tuple[bytes, bytes] | None:
    """Return checksum and body of a possible frame; None if there cannot be one."""
    if offset + FRAME.size >= len(data):
        return None
    magic, size, check = FRAME.unpack_from(data, offset)
    body_at = offset + FRAME.size
    if magic != _FRAME_MAGIC or not 0 < size <= len(data) - body_at:
        return None
    return check, data[body_at : body_at + size]
