"""The LastLogMark of one journal directory: the position before which all records are durable in the storage.

Owns the file `last-mark`, which also gives the journal its uuid and is therefore the first file of a new journal.
A missing or damaged mark must never be read as *nothing to replay*.
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
    """Return the stored mark, or None in a folder without one. DamagedError if it is invalid."""
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
    """Replace the mark. It and its directory entry are durable on return; only then may a file be recycled."""
    await disk.replace_file(f"{directory}/{MARK_NAME}", encode_mark(mark))


async def create_mark(disk: Disk, directory: str, chance: Chance) -> tuple[Mark, WitnessRecord]:
    """Start a new journal: draw its uuid and store it before the first journal file is created.

    The witness is written first: a mark that declares a witness must never exist without it.
    """
    mark = Mark(chance.token(UUID_BYTES), NOTHING_WRITTEN)
    witness = await create_witness(disk, directory, mark.uuid, NOTHING_WRITTEN)
    await store_mark(disk, directory, mark)
    return mark, witness


async def add_witness(
    disk: Disk, directory: str, mark: Mark, witness: WitnessRecord | None
) -> tuple[Mark, WitnessRecord | None]:
    """Add a witness to a journal of an earlier version; `witness`: the one that an interrupted start created, or None.

    On a full disk the journal continues without a witness until the next start.
    """
    try:
        if witness is None:
            witness = await create_witness(disk, directory, mark.uuid, mark.position)
        await store_mark(disk, directory, replace(mark, witnessed=True))
    except DiskFullError as error:
        log.warning(
            "%s: no space for the journal's witness; a loss of the newest file is not detected: %s", directory, error
        )
        return mark, witness
    return replace(mark, witnessed=True), witness
