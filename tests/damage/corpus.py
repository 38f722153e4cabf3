"""Folders of bookies as killed and stopped processes leave them, with older copies and another bookie's files."""

import asyncio
import copy
import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from unittest import mock

from quire_bookie.env.clock import SystemClock
from quire_bookie.env.local_disk import LocalDisk
from quire_bookie.journal.format import HEADER_BLOCK_BYTES, JournalFormatError, decode_header, decode_mark
from quire_bookie.journal.journals import Journals
from quire_bookie.journal.witness import SLOT_BYTES, WITNESS_NAME, decode_slot
from quire_bookie.server.upkeep.gc_fuse import GcFuse
from quire_bookie.server.upkeep.read_only import set_stopped_read_only
from quire_bookie.server.upkeep.scrubbing import POSITION_NAME
from quire_bookie.storage.logs.log_set import QUARANTINE_NAME
from tests.damage.place import SETTINGS, Known, Place
from tests.sim.metadata import SimMetadata

LEDGERS = (1, 2, 3, 4, 5, 6)
FIRST_FENCED, LAST_FENCED = 2, 5
UNSYNCED = replace(SETTINGS.journal, sync_data=False)


@dataclass
class Image:
    """A folder, and the entries that clients know. `other`: another bookie's folder in the same state."""

    name: str
    folder: Path
    known: Known
    metadata: SimMetadata
    older: list[Path] = field(default_factory=list)
    """Earlier copies of the folder, the newest first."""
    other: Path | None = None

    def place(self, folder: Path) -> Place:
        """Return a bookie on `folder`, a copy of this image, with separate metadata."""
        return Place(folder, copy.deepcopy(self.metadata))


@asynccontextmanager
async def quick_witness() -> AsyncIterator[None]:
    """Cover every group with the witness at once, as if a second had passed after the last one."""
    with mock.patch("quire_bookie.journal.journal.JOURNAL_WITNESS_S", 0.0):
        yield


async def until(holds: Callable[[], bool]) -> None:
    """Let the bookie's tasks run until the condition holds."""
    async with asyncio.timeout(60):
        while not holds():  # noqa: ASYNC110 - there is no event for it
            await asyncio.sleep(0.001)


def _is_witnessed(journals: Journals) -> bool:
    journal = journals.journals[0]
    witness = journal._witnesses
    assert witness is not None
    quiet = not (witness._in_flight or journal._writer.move_noted)
    return quiet and witness._last.position == journal.position() and journal._writer.has_prepared


async def build(folder: Path, tag: str) -> list[Image]:
    """Build the images of one bookie: killed, stopped, in limbo."""
    place, known = Place(folder / "bookie"), Known(tag)
    older: list[Path] = []

    def keep() -> None:
        older.insert(0, place.copy_to(folder / f"older{len(older)}"))

    async with quick_witness():
        await place.start(journal=UNSYNCED)
        for ledger in LEDGERS[:4]:
            await place.add(known, ledger, 150)
        keep()
        await place.stop()
        await _write_rare_files(place)
        keep()
        running = await place.start()
        for ledger in LEDGERS:
            await place.add(known, ledger, 60)
        await running.storage.flush()
        await place.fence(known, FIRST_FENCED)
        keep()
        for ledger in (1, 3, 4, 6):
            await place.add(known, ledger, 30)
        await running.storage.flush()
        await until(lambda: _is_witnessed(running._parts.data.journals))  # type: ignore[arg-type]
        keep()
        await place.add(known, 6, 120)
        await place.fence(known, LAST_FENCED)
        await until(lambda: _is_witnessed(running._parts.data.journals))  # type: ignore[arg-type]
        keep()
        await place.add(known, 1, 3)
        await until(lambda: _is_witnessed(running._parts.data.journals))  # type: ignore[arg-type]
        killed = Image("killed", place.copy_to(folder / "killed"), known, place.metadata, older)
        await place.stop()
        await _make_read_only(place)
        stopped = Image("stopped", place.copy_to(folder / "stopped"), known, place.metadata, older)
        limbo = await _in_limbo(killed, folder)
    return [killed, stopped, limbo]


async def _write_rare_files(place: Place) -> None:
    """Let the bookie write the files that it writes only on rare occasions."""
    disk = LocalDisk()
    ledgers = str(place.folder / "ledgers")
    await GcFuse(disk, ledgers, SystemClock()).set_hold("a test")
    await disk.replace_file(f"{ledgers}/{POSITION_NAME}", b"0 0 1700000000000\n")
    await disk.replace_file(f"{ledgers}/{QUARANTINE_NAME}", b"quire quarantine 1\n")
    disk.close()


async def _make_read_only(place: Place) -> None:
    disk = LocalDisk()
    await set_stopped_read_only(disk, (str(place.folder / "ledgers"),), True, SystemClock())
    disk.close()


async def _in_limbo(killed: Image, folder: Path) -> Image:
    """Return the image of the killed bookie after its mark was lost and the loss accepted."""
    at = folder / "limbo-bookie"
    place = killed.place(at)
    Place(killed.folder).copy_to(at)
    (at / "journal" / "last-mark").unlink()
    await place.start(accept_lost_volumes=True)
    before = place.copy_to(folder / "limbo-older")
    assert place.running is not None
    await place.running.storage.flush()
    await place.stop()
    return Image("limbo", place.copy_to(folder / "limbo"), killed.known, place.metadata, [before, *killed.older])


async def build_with_other(folder: Path) -> list[Image]:
    """Build the images of a bookie, each with the same image of another one to swap files with."""
    ours, others = await build(folder / "a", "ours"), await build(folder / "b", "other")
    for one, other in zip(ours, others, strict=True):
        one.other = other.folder
    return ours


def files_of(folder: Path) -> list[str]:
    """Return the relative paths of all files below a folder."""
    found = [str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()]
    return sorted(found)


def kind_of(folder: Path, name: str) -> str:
    """Return the kind of a file; KeyError if unknown."""
    parent, _, base = name.rpartition("/")
    if parent == "journal" and base.startswith("journal-") and base.endswith(".log"):
        return _journal_kind(folder, name)
    if parent == "ledgers" and base.endswith(".qlog"):
        logs = [each for each in files_of(folder) if each.endswith(".qlog")]
        return "entry log, open" if name == max(logs) else "entry log, sealed"
    if parent == "ledgers/index":
        for start, kind in INDEX_KINDS.items():
            if base.startswith(start):
                return kind
        return {".sst": "index, table (SST)", ".log": "index, write-ahead log"}[os.path.splitext(base)[1]]
    if parent.endswith("current"):
        return {"VERSION": "VERSION", "PLACE": "PLACE", "STATE": "STATE", "RUN": "RUN", "LOCK": "LOCK"}[base]
    if parent in ("ledgers", "journal"):
        return PLAIN_KINDS[base]
    raise KeyError(name)


PLAIN_KINDS = {
    "last-mark": "last-mark",
    "journal.witness": "journal.witness",
    "index.proof": "index.proof",
    "limbo.record": "limbo.record",
    "gc.state": "gc.state",
    "scrub.position": "scrub.position",
    "quarantine.txt": "quarantine.txt",
    "read-only.operator": "read-only.operator",
}
INDEX_KINDS = {
    "CURRENT": "index, CURRENT",
    "MANIFEST-": "index, MANIFEST",
    "OPTIONS-": "index, OPTIONS",
    "IDENTITY": "index, IDENTITY",
    "LOG": "index, LOG",
    "LOCK": "index, LOCK",
    "rocksdict-config.json": "index, rocksdict-config.json",
}


def _journal_kind(folder: Path, name: str) -> str:
    mark = decode_mark((folder / "journal" / "last-mark").read_bytes())
    generations = {}
    for path in (folder / "journal").glob("journal-*.log"):
        try:
            header = decode_header(path.read_bytes()[:HEADER_BLOCK_BYTES])
        except JournalFormatError:
            continue
        if header.generation >= mark.position.generation:
            generations[path.name] = header.generation
    generation = generations.get(name.rpartition("/")[2])
    if generation is None:
        content = (folder / "journal" / WITNESS_NAME).read_bytes()
        slots = [decode_slot(content[at : at + SLOT_BYTES]) for at in (0, SLOT_BYTES)]
        witness = max((slot for slot in slots if slot is not None), key=lambda slot: slot.number)
        prepared = witness.prepared_generation and int(name[-12:-4]) == witness.prepared_file
        return "journal file, prepared" if prepared else "journal file, spare"
    return "journal file, newest" if generation == max(generations.values()) else "journal file, older"
