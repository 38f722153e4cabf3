"""Owns the file `RUN`, the note of runs that acknowledge entries before they are durable, and its assessment.

With `journalSyncData=false` a power failure, with `journalWriteData=false` every unclean end may lose acknowledged
entries. So the note of such a run is durable before its first response, and is cleared only when nothing of the run
can be lost any more: after a clean stop, or after limbo was entered. The next start, in whatever mode, assesses the
note. `RUN` lies in the first ledger folder: if that is lost, the bookie comes up in limbo anyway and treats its
journals as unsynced.

    quire-run 1
    unsynced <boot id, or ?, or ->      the journal was written without a sync under that boot of the machine
    unwritten <yes|no>                  entries were acknowledged without a journal
    modes <names, or ->                 risky modes that this storage was ever run in, for the log
    crc32c <8 hex>                      over the lines before

Must never lose a note or read a damaged one as *nothing was at risk*.
"""

from dataclasses import replace

from quire_bookie.crc import crc32c
from quire_bookie.dataclass import dataclass
from quire_bookie.env.disk import Disk
from quire_bookie.errors import DamagedError
from quire_bookie.server.start.storage_folders import CURRENT
from quire_bookie.settings.journal import JournalSettings

RUN_FILE = "RUN"
UNKNOWN_BOOT = "?"
_FIRST_LINE = "quire-run 1"


@dataclass(frozen=True, slots=True)
class RunNote:
    """The data at risk from a run that has not ended cleanly."""

    unsynced_boot: str | None = None
    unwritten: bool = False
    modes: tuple[str, ...] = ()

    @property
    def risks(self) -> bool:
        """Whether acknowledged entries may not be durable."""
        return self.unwritten or self.unsynced_boot is not None

    def settled(self) -> "RunNote":
        """Return the note without any risk; the modes are kept."""
        return RunNote(modes=self.modes)

    def begun(self, settings: JournalSettings, boot: str | None) -> "RunNote":
        """Return the note to write before a run with these settings answers a request. Requires a settled note."""
        assert not self.risks, "an earlier run was not assessed"
        if not settings.write_data:
            return replace(self, unwritten=True, modes=_with(self.modes, "no-journal"))
        if not settings.sync_data:
            return replace(self, unsynced_boot=boot or UNKNOWN_BOOT, modes=_with(self.modes, "no-sync"))
        return self


def _with(modes: tuple[str, ...], mode: str) -> tuple[str, ...]:
    return tuple(sorted({*modes, mode}))


@dataclass(frozen=True, slots=True)
class Assessment:
    """The consequences of the last risky run for this start."""

    limbo: str | None = None
    """Why acknowledged entries, keys and fences may be lost; None if they are not."""
    salvage: bool = False
    """The journal may have holes: recover its intact groups, then start a new journal."""
    sync_first: bool = False
    """The journal may be only in the machine's page cache: sync it before anything else."""


def assess(note: RunNote, boot: str | None) -> Assessment:
    """Assess the note given the current boot of the machine. An unknown boot, None, counts as a different one."""
    if note.unsynced_boot is None:
        why = "its last run wrote no journal and did not end cleanly" if note.unwritten else None
        return Assessment(why)
    same_boot = boot is not None and note.unsynced_boot == boot
    if same_boot and not note.unwritten:
        return Assessment(sync_first=True)
    why = "its last run did not sync its journal, did not end cleanly, and the machine restarted since"
    return Assessment(why, salvage=not same_boot, sync_first=same_boot)


def encode_note(note: RunNote) -> bytes:
    """Return the content of the file."""
    text = (
        f"{_FIRST_LINE}\n"
        f"unsynced {note.unsynced_boot or '-'}\n"
        f"unwritten {'yes' if note.unwritten else 'no'}\n"
        f"modes {' '.join(note.modes) or '-'}\n"
    )
    return f"{text}crc32c {crc32c(text.encode()):08x}\n".encode()


def decode_note(content: bytes, path: str) -> RunNote:
    """Parse the file. DamagedError for content that `encode_note` does not produce."""
    lines = content.decode(errors="replace").splitlines()
    if len(lines) == 5:
        words = [line.split(" ") for line in lines]
        boot = words[1][-1]
        modes = tuple(words[3][1:])
        note = RunNote(None if boot == "-" else boot, words[2][-1] == "yes", () if modes == ("-",) else modes)
        if encode_note(note) == content:
            return note
    raise DamagedError(path, 0, "the note of earlier runs cannot be read; put the file back")


class RunNotes:
    """Holds the note and writes it to disk."""

    def __init__(self, disk: Disk, path: str, note: RunNote) -> None:
        self._disk = disk
        self._path = path
        self.note = note

    @classmethod
    async def open(cls, disk: Disk, ledger_dir: str) -> "RunNotes":
        """Read the note; without a file no run was ever risky. DamagedError."""
        path = f"{ledger_dir}/{CURRENT}/{RUN_FILE}"
        note = RunNote()
        if await disk.exists(path):
            note = decode_note(await disk.read_file(path), path)
        return cls(disk, path, note)

    async def write(self, note: RunNote) -> None:
        """Write the note durably. DiskFullError, OSError: the old one remains."""
        if note != self.note:
            await self._disk.replace_file(self._path, encode_note(note))
            self.note = note
