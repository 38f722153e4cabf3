"""The frame of a journal file, version 1. Pure: bytes in, values out.

```
file   | header block (4096) | group 0 | group 1 | ... | stale bytes of earlier generations or zeros |
header   "QuireJnl" 8, version u32, crc32c u32 over the rest, uuid 16, generation u64, file bytes u64,
         first sequence u64, previous end u64, alignment u32, zero u32, zeros to the block's end
group    "QJg1" 4, crc32c u32 over the rest of the head and the body, uuid 16, generation u64, sequence u64,
         body bytes u32, records u32, body, zeros up to a multiple of the alignment
mark     "QuireMrk" 8, version u32, crc32c u32 over the rest, uuid 16, generation u64, offset u64, sequence u64
```
A mark of version 1 has no witness beside it (see `witness`); one of version 2 has.
Numbers are little-endian. Files are reused, so stale groups with correct checksums follow the live ones; uuid and
generation distinguish them. `sequence` counts groups across all generations without a gap. A header takes effect only
once durable, fits one sector, and records where the previous generation ended (its *sealed size*) and its own first
group. Each group starts in a new block: no block with an acknowledged record is written twice.

Owns these bytes. Must never decide what an invalid group means; that is `replay`'s task.
"""

import struct
from collections.abc import Sequence
from typing import NamedTuple

from quire_bookie.crc import crc32c
from quire_bookie.dataclass import dataclass
from quire_bookie.model import Buffer

HEADER_BLOCK_BYTES = 4096
DATA_START = HEADER_BLOCK_BYTES
FORMAT_VERSION = 1
WITNESSED_MARK_VERSION = 2
GROUP_MAGIC = b"QJg1"
_FILE_MAGIC = b"QuireJnl"
_MARK_MAGIC = b"QuireMrk"
_PREFIX = struct.Struct("<8sII")
_HEADER = struct.Struct("<16sQQQQI4x")
_MARK = struct.Struct("<16sQQQ")
_GROUP_PREFIX = struct.Struct("<4sI")
_GROUP = struct.Struct("<16sQQII")
GROUP_HEAD_BYTES = _GROUP_PREFIX.size + _GROUP.size


class JournalFormatError(ValueError):
    """The bytes are not a header or mark of a known version, or are damaged. The message says which."""


class JournalPosition(NamedTuple):
    """A position between two groups. Positions of one journal are ordered as tuples."""

    generation: int
    offset: int
    """Bytes from the start of the generation's file."""
    sequence: int
    """Sequence number of the group that starts here."""


@dataclass(frozen=True, slots=True)
class FileHeader:
    """The content of the first block of a journal file."""

    uuid: bytes
    generation: int
    file_bytes: int
    first_sequence: int
    previous_end: int
    """Offset in the previous generation's file at which its last group ends; 0 if there is none."""
    alignment_bytes: int


@dataclass(frozen=True, slots=True)
class Mark:
    """LastLogMark: everything before the position is durable in the storage. Also identifies the journal."""

    uuid: bytes
    position: JournalPosition
    witnessed: bool = True
    """Whether a witness exists beside the mark. False: written by a version that had none."""


@dataclass(frozen=True, slots=True)
class GroupHead:
    """The fields before a group's body; `crc` is not yet checked."""

    crc: int
    uuid: bytes
    generation: int
    sequence: int
    body_bytes: int
    records: int


def encode_header(header: FileHeader) -> bytes:
    """Encode the whole first block."""
    rest = _HEADER.pack(
        header.uuid,
        header.generation,
        header.file_bytes,
        header.first_sequence,
        header.previous_end,
        header.alignment_bytes,
    )
    block = _PREFIX.pack(_FILE_MAGIC, FORMAT_VERSION, crc32c(rest)) + rest
    return block.ljust(HEADER_BLOCK_BYTES, b"\0")


def decode_header(block: Buffer) -> FileHeader:
    """Parse a first block; JournalFormatError if it is invalid."""
    return FileHeader(*_HEADER.unpack(_checked(block, _FILE_MAGIC, _HEADER, "header")[1]))


def encode_mark(mark: Mark) -> bytes:
    """Encode the content of the mark's file."""
    rest = _MARK.pack(mark.uuid, *mark.position)
    version = WITNESSED_MARK_VERSION if mark.witnessed else FORMAT_VERSION
    return _PREFIX.pack(_MARK_MAGIC, version, crc32c(rest)) + rest


def decode_mark(content: Buffer) -> Mark:
    """Parse the mark's file; JournalFormatError if it is invalid."""
    if len(content) != _PREFIX.size + _MARK.size:
        raise JournalFormatError(f"a mark of {len(content)} bytes, not {_PREFIX.size + _MARK.size}")
    version, rest = _checked(content, _MARK_MAGIC, _MARK, "mark", newest=WITNESSED_MARK_VERSION)
    uuid, generation, offset, sequence = _MARK.unpack(rest)
    return Mark(uuid, JournalPosition(generation, offset, sequence), version >= WITNESSED_MARK_VERSION)


def _checked(
    content: Buffer, expected: bytes, layout: struct.Struct, what: str, *, newest: int = FORMAT_VERSION
) -> tuple[int, bytes]:
    """Return the version and the bytes after the prefix."""
    end = _PREFIX.size + layout.size
    if len(content) < end:
        raise JournalFormatError(f"{what} of {len(content)} bytes; at least {end} are needed")
    magic, version, crc = _PREFIX.unpack_from(content)
    if magic != expected:
        raise JournalFormatError(f"{what} with a wrong magic")
    rest = bytes(content[_PREFIX.size : end])
    if crc32c(rest) != crc:
        raise JournalFormatError(f"{what} with a wrong checksum")
    if not FORMAT_VERSION <= version <= newest:
        raise JournalFormatError(f"{what} of version {version}; this program knows versions up to {newest}")
    return version, rest


def encode_group_head(uuid: bytes, generation: int, sequence: int, body: Buffer, records: int) -> bytes:
    """Encode the head of a group with `body`."""
    return encode_head_of_parts(uuid, generation, sequence, (body,), records)


def encode_head_of_parts(uuid: bytes, generation: int, sequence: int, parts: Sequence[Buffer], records: int) -> bytes:
    """Encode the head of a group whose body is the concatenation of `parts`, without joining them in a copy."""
    rest = _GROUP.pack(uuid, generation, sequence, sum(map(len, parts)), records)
    crc = crc32c(rest)
    for part in parts:
        crc = crc32c(part, crc)
    return _GROUP_PREFIX.pack(GROUP_MAGIC, crc) + rest


def parse_group_head(data: Buffer, offset: int = 0) -> GroupHead | None:
    """Parse the head at `offset`; None if no group starts there. `group_is_valid` checks the checksum."""
    if len(data) < offset + GROUP_HEAD_BYTES:
        return None
    magic, crc = _GROUP_PREFIX.unpack_from(data, offset)
    if magic != GROUP_MAGIC:
        return None
    return GroupHead(crc, *_GROUP.unpack_from(data, offset + _GROUP_PREFIX.size))


def group_is_valid(head: GroupHead, body: Buffer) -> bool:
    """Return whether the checksum in the head matches head and body."""
    rest = _GROUP.pack(head.uuid, head.generation, head.sequence, head.body_bytes, head.records)
    return len(body) == head.body_bytes and crc32c(body, crc32c(rest)) == head.crc


def group_bytes(body_bytes: int, alignment_bytes: int) -> int:
    """Return the size on disk of a group with that body, padding included."""
    return -(-(GROUP_HEAD_BYTES + body_bytes) // alignment_bytes) * alignment_bytes
