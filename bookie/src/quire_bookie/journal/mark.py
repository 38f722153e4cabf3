"""The LastLogMark of one journal directory: up to where its records are durable in the storage.

Owns the file `last-mark`, which also gives the journal its uuid and is therefore the first file of a new journal.
Must never be read as *nothing to replay* when it is missing or damaged.
"""

import logging
from dataclasses import replace

from quire_bookie.env.chance import Chance
from quire_bookie.env.disk import Disk
from quire_bookie.errors import DiskFullError, JournalDamagedError
from quire_bookie.journal.format import JournalFormatError, JournalPosition, Mark, decode_mark, encode_mark
from quire_bookie.journal.witness import WitnessRecord, create_witness

log = logging.getLogger("quire.journal")

MARK_NAME = "last-mark"
UUID_BYTES = 16
NOTHING_WRITTEN = JournalPosition(0, 0, 0)
"""The mark of a journal that has no file yet."""


async def load_mark(disk: Disk, directory: str) -> Mark | None:
    """The stored mark, or None in a folder without one. DamagedError when its bytes are wrong."""
    path = f"{directory}/{MARK_NAME}"
    try:
        content = await disk.read_file(path)
    except FileNotFoundError:
        return None
    try:
        return decode_mark(content)
    except JournalFormatError as error:
        raise JournalDamagedError(path, 0, str(error)) from error


async def store_mark(disk: Disk, directory: str, mark: Mark) -> None:
    """Replace the mark. It and its directory entry are durable on return: only then may a file be recycled."""
    await disk.replace_file(f"{directory}/{MARK_NAME}", encode_mark(mark))


async def create_mark(disk: Disk, directory: str, chance: Chance) -> tuple[Mark, WitnessRecord]:
    """Start a new journal: draw its uuid and store it before any journal file has one.

    The witness comes first: a mark that says that there is one must never be without it.
    """
    mark = Mark(chance.token(UUID_BYTES), NOTHING_WRITTEN)
    witness = await create_witness(disk, directory, mark.uuid, NOTHING_WRITTEN)
    await store_mark(disk, directory, mark)
    return mark, witness


async def add_witness(
    disk: Disk, directory: str, mark: Mark, witness: WitnessRecord | None
) -> tuple[Mark, WitnessRecord | None]:
    """Give the journal of an earlier version its witness; `witness`: what an interrupted start made of it.

    On a full disk the journal goes on without one until the next start.
    """
    try:
        if witness is None:
            witness = await create_witness(disk, directory, mark.uuid, mark.position)
        await store_mark(disk, directory, replace(mark, witnessed=True))
    except DiskFullError as error:
        log.warning("%s: no space for the journal's witness, the newest file is not provable: %s", directory, error)
        return mark, witness
    return replace(mark, witnessed=True), witness
