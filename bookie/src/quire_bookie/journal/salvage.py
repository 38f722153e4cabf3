"""Salvages a journal with holes: delivers every intact group, without proof of completeness.

A journal has holes if it was written without a sync and the machine lost power, or if its files were damaged and an
administrator accepts the loss. Groups, headers and the mark may be missing, so the proofs of `replay` do not hold:
every group of this journal from the mark on with a valid checksum is delivered, in order; the rest is *unknown*. After
the salvage the journal starts under a new uuid, so that no stale group can be taken for a new one.

Must only be used for a bookie that is already in limbo: without limbo a hole is damage.
"""

import re
from collections import Counter

from quire_bookie.dataclass import dataclass
from quire_bookie.env.chance import Chance
from quire_bookie.env.disk import Disk, DiskFile
from quire_bookie.errors import DamagedError
from quire_bookie.journal.format import (
    DATA_START,
    GROUP_HEAD_BYTES,
    GROUP_MAGIC,
    HEADER_BLOCK_BYTES,
    GroupHead,
    JournalFormatError,
    Mark,
    decode_header,
    group_is_valid,
    parse_group_head,
)
from quire_bookie.journal.mark import NOTHING_WRITTEN, create_mark, load_mark
from quire_bookie.journal.records import JournalRecord, RecordFormatError, ShutdownRecord, decode_body
from quire_bookie.journal.replay import Deliver
from quire_bookie.journal.scan import SCAN_STEP_BYTES, WINDOW_BYTES
from quire_bookie.journal.witness import WITNESS_NAME

_FILE = re.compile(r"journal-\d{8}\.log(\.new)?")


@dataclass(slots=True)
class SalvageSummary:
    """The result of a salvage."""

    groups: int = 0
    records: int = 0
    invalid_groups: int = 0
    """Heads of this journal whose body is missing or incomplete."""


async def salvage(disk: Disk, directory: str, deliver: Deliver) -> SalvageSummary:
    """Deliver the intact groups in the order in which they were written. Raises OSError."""
    summary = SalvageSummary()
    mark = await _mark_of_files(disk, directory) if await disk.exists(directory) else None
    if mark is None:
        return summary
    found: list[tuple[int, int, str, int]] = []
    for path in await _files(disk, directory):
        file = await disk.open_read_only(path)
        try:
            heads = await _groups(file, mark, summary)
        finally:
            await file.close()
        found += [(head.generation, head.sequence, path, offset) for head, offset in heads]
    for _, _, path, offset in sorted(found):
        file = await disk.open_read_only(path)
        try:
            await _deliver(file, offset, deliver, summary)
        finally:
            await file.close()
    return summary


async def _mark_of_files(disk: Disk, directory: str) -> Mark | None:
    """Return the mark if it is that of the files, else one before all their groups; None if no file has a header."""
    uuids: Counter[bytes] = Counter()
    for path in await _files(disk, directory):
        file = await disk.open_read_only(path)
        try:
            uuids[decode_header(await file.read(0, HEADER_BLOCK_BYTES)).uuid] += 1
        except JournalFormatError:
            continue  # a spare, or damaged
        finally:
            await file.close()
    try:
        mark = await load_mark(disk, directory)
    except DamagedError:
        mark = None
    if not uuids or (mark is not None and mark.uuid in uuids):
        return mark
    return Mark(uuids.most_common(1)[0][0], NOTHING_WRITTEN)


async def begin_anew(disk: Disk, directory: str, chance: Chance) -> None:
    """Remove the files and start a journal with a new uuid. Their records are already durable in the storage."""
    for path in await _files(disk, directory):
        await disk.remove(path)
    await disk.sync_dir(directory)
    await create_mark(disk, directory, chance)


async def sync_files(disk: Disk, directory: str) -> None:
    """Sync the files that an earlier process wrote, while the machine has been running since."""
    if not await disk.exists(directory):
        return
    paths = await _files(disk, directory)
    if await disk.exists(witness := f"{directory}/{WITNESS_NAME}"):
        paths.append(witness)
    for path in paths:
        file = await disk.open(path)
        try:
            await file.sync()
        finally:
            await file.close()
    await disk.sync_dir(directory)


async def _files(disk: Disk, directory: str) -> list[str]:
    return [f"{directory}/{name}" for name in await disk.list_dir(directory) if _FILE.fullmatch(name)]


async def _groups(file: DiskFile, mark: Mark, summary: SalvageSummary) -> list[tuple[GroupHead, int]]:
    """Heads and offsets of the valid groups that the mark does not cover."""
    found: list[tuple[GroupHead, int]] = []
    end = await file.size()
    offset = DATA_START
    while offset < end:
        # A whole window is searched before the next is read; heads are at multiples of the step.
        data = await file.read(offset, min(WINDOW_BYTES, end - offset) + GROUP_HEAD_BYTES)
        at = data.find(GROUP_MAGIC)
        after = offset + WINDOW_BYTES
        while 0 <= at < WINDOW_BYTES:
            step = 1
            head = parse_group_head(data, at) if (offset + at) % SCAN_STEP_BYTES == 0 else None
            if head is not None and _is_wanted(head, mark):
                if group_is_valid(head, await file.read(offset + at + GROUP_HEAD_BYTES, head.body_bytes)):
                    found.append((head, offset + at))
                    step = GROUP_HEAD_BYTES + head.body_bytes  # the content of entries is not searched for heads
                    after = max(after, (offset + at + step) // SCAN_STEP_BYTES * SCAN_STEP_BYTES)
                else:
                    summary.invalid_groups += 1
            at = data.find(GROUP_MAGIC, at + step)
        offset = after
    return found


def _is_wanted(head: GroupHead, mark: Mark) -> bool:
    return head.uuid == mark.uuid and (head.generation, head.sequence) >= (
        mark.position.generation,
        mark.position.sequence,
    )


async def _deliver(file: DiskFile, offset: int, deliver: Deliver, summary: SalvageSummary) -> None:
    head = parse_group_head(await file.read(offset, GROUP_HEAD_BYTES))
    assert head is not None
    body = await file.read(offset + GROUP_HEAD_BYTES, head.body_bytes)
    summary.groups += 1
    records: list[JournalRecord] = []
    try:
        for record in decode_body(body):
            if not isinstance(record, ShutdownRecord):
                records.append(record)
    except RecordFormatError:
        summary.invalid_groups += 1
    summary.records += len(records)
    if records and (waiting := deliver(records)) is not None:
        await waiting
