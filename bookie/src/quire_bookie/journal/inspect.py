"""Describes the content of a journal folder, file by file, for administrators. Read-only: no recycling, no replay.

Owns the texts of its findings. `replay` decides whether a journal can start; this module also reports on files that a
start no longer needs (`live` is False).
"""

import re
from collections.abc import AsyncIterator
from dataclasses import field

from quire_bookie.dataclass import dataclass
from quire_bookie.env.disk import Disk, DiskFile
from quire_bookie.journal.format import (
    DATA_START,
    GROUP_HEAD_BYTES,
    HEADER_BLOCK_BYTES,
    FileHeader,
    JournalFormatError,
    Mark,
    decode_header,
    group_bytes,
    group_is_valid,
    parse_group_head,
)
from quire_bookie.journal.mark import load_mark
from quire_bookie.journal.records import (
    EntryRecord,
    ExplicitLacRecord,
    FenceRecord,
    MasterKeyRecord,
    RecordFormatError,
    ShutdownRecord,
    decode_body,
)
from quire_bookie.journal.scan import Window, find_group
from quire_bookie.journal.witness import WITNESS_NAME, WitnessRecord, load_witness
from quire_bookie.model import LedgerId

_FILE = re.compile(r"journal-\d{8}\.log")


@dataclass(slots=True)
class InspectedFile:
    """One journal file. `generation`: None without a header; `what` then says why. `end`: end of the last group."""

    path: str
    size_bytes: int
    generation: int | None = None
    live: bool = False
    """Whether a start needs the file: it is not below the mark."""
    groups: int = 0
    entries: int = 0
    keys: int = 0
    fences: int = 0
    lacs: int = 0
    ledgers: set[LedgerId] = field(default_factory=set)
    clean_end: bool = False
    end: int = 0
    what: str = ""
    damaged: bool = False
    """Whether durable bytes are provably wrong, in a part that a start would read."""


async def inspect_journal(disk: Disk, directory: str) -> tuple[Mark | None, list[InspectedFile]]:
    """Return the mark, and every file by generation. DamagedError if mark or witness is damaged. OSError."""
    mark = await load_mark(disk, directory)
    files: list[InspectedFile] = []
    headers: dict[int, FileHeader] = {}
    async for path, file in _open_files(disk, directory):
        found = InspectedFile(path, await file.size())
        files.append(found)
        try:
            block = await file.read(0, HEADER_BLOCK_BYTES)
            if not any(block):
                found.what = "spare: zeros, not used yet"
                continue
            header = decode_header(block)
        except JournalFormatError as error:
            found.what = f"not in use: {error}"
            continue
        found.generation = header.generation
        found.live = mark is not None and header.uuid == mark.uuid and header.generation >= mark.position.generation
        if mark is not None and header.uuid != mark.uuid:
            found.what, found.damaged = "belongs to another journal", True
            continue
        headers[header.generation] = header
        await _walk(file, header, mark, found)
    files.sort(key=lambda each: (each.generation is None, each.generation or 0, each.path))
    for found in files:
        if found.generation is not None:
            _check_end(found, headers.get(found.generation + 1))
    if mark is not None:
        _check_newest(directory, files, await load_witness(disk, directory, mark.uuid))
    return mark, files


def _check_newest(directory: str, files: list[InspectedFile], witness: WitnessRecord | None) -> None:
    """Compare the newest file with the witness, which proves that it exists and where it ends at the earliest."""
    if witness is None or not witness.position.generation:
        return
    generation, offset, _ = witness.position
    newest = max((found for found in files if found.live), key=lambda found: found.generation or 0, default=None)
    if newest is None or (newest.generation or 0) < generation:
        what = f"the file of generation {generation} is missing, but {WITNESS_NAME} proves that it was durable"
        files.append(InspectedFile(directory, 0, what=what, damaged=True))
    elif newest.generation == generation and newest.end < offset and not newest.damaged:
        newest.what, newest.damaged = f"ends at {newest.end}, but {WITNESS_NAME} proves {offset} bytes", True


async def _open_files(disk: Disk, directory: str) -> AsyncIterator[tuple[str, DiskFile]]:
    for name in await disk.list_dir(directory):
        if _FILE.fullmatch(name):
            path = f"{directory}/{name}"
            file = await disk.open_read_only(path)
            try:
                yield path, file
            finally:
                await file.close()


async def _walk(file: DiskFile, header: FileHeader, mark: Mark | None, found: InspectedFile) -> None:
    """Count the groups of the file's generation, from its start, or from the mark if that is in the file."""
    offset, sequence = DATA_START, header.first_sequence
    if mark is not None and mark.position.generation == header.generation and mark.position.offset:
        offset, sequence = mark.position.offset, mark.position.sequence
        found.what = f"from the mark at {offset}"
    window = Window(file)
    while offset + GROUP_HEAD_BYTES <= found.size_bytes:
        head = parse_group_head(await window.bytes_at(offset, GROUP_HEAD_BYTES))
        if head is None or (head.uuid, head.generation, head.sequence) != (header.uuid, header.generation, sequence):
            break
        body = await window.bytes_at(offset + GROUP_HEAD_BYTES, head.body_bytes)
        if not group_is_valid(head, body):
            break
        try:
            _count(body, found)
        except RecordFormatError as error:
            found.what, found.damaged = f"group {sequence} at {offset}: {error}", found.live
            break
        found.groups += 1
        offset += group_bytes(head.body_bytes, header.alignment_bytes)
        sequence += 1
    found.end = offset
    later = await find_group(
        file, offset, found.size_bytes, header.uuid, header.generation, sequence=sequence + 1, exact=True
    )
    if later is not None and not found.damaged:
        found.what = f"group {sequence} at {offset} is wrong, and group {later.sequence} after it was durable"
        found.damaged = found.live


def _count(body: bytes, found: InspectedFile) -> None:
    found.clean_end = False
    for record in decode_body(body):
        match record:
            case EntryRecord(run):
                found.entries += len(run.entries)
                found.ledgers.add(run.ledger)
            case MasterKeyRecord(ledger, _key):
                found.keys += 1
                found.ledgers.add(ledger)
            case FenceRecord(ledger):
                found.fences += 1
                found.ledgers.add(ledger)
            case ExplicitLacRecord(ledger, _packet):
                found.lacs += 1
                found.ledgers.add(ledger)
            case ShutdownRecord():
                found.clean_end = True


def _check_end(found: InspectedFile, successor: FileHeader | None) -> None:
    """Compare the end of a file with the end that the header of the next file names."""
    if successor is not None and found.end < successor.previous_end and not found.damaged:
        found.what = f"ends at {found.end}, but {successor.previous_end} was durable"
        found.damaged = found.live
    elif not found.what:
        found.what = "closed" if found.clean_end or successor is not None else "in use"
