"""What a bookie must remember of runs that acknowledged before anything was durable: the file `RUN`.

With `journalSyncData=false` a loss of power, with `journalWriteData=false` any end but a clean one, may take back what
was acknowledged. So the note of such a run is durable before its first answer, and goes only once nothing of the run
can be lost any more: after a clean stop, or after limbo was entered. Whoever starts next, in whatever mode, judges by
it. Lies in the first ledger folder: when that one is lost, the bookie comes up in limbo anyway, and takes its journals
for unsynced ones.

    quire-run 1
    unsynced <boot id, or ?, or ->      the journal was written without a sync under that boot of the machine
    unwritten <yes|no>                  answers were given without a journal
    modes <names, or ->                 risky modes that this storage was ever run in, for people
    crc32c <8 hex>                      over the lines before

Owns this file and the judgement. Must never lose a note, nor read a damaged one as *nothing was risked*.
"""

from dataclasses import dataclass, replace

from quire_bookie.crc import crc32c
from quire_bookie.env.disk import Disk
from quire_bookie.errors import DamagedError
from quire_bookie.journal.settings import JournalSettings
from quire_bookie.server.start.storage_folders import CURRENT

RUN_FILE = "RUN"
UNKNOWN_BOOT = "?"
_FIRST_LINE = "quire-run 1"


@dataclass(frozen=True, slots=True)
class RunNote:
    """What a run risks that did not end cleanly yet."""

    unsynced_boot: str | None = None
    unwritten: bool = False
    modes: tuple[str, ...] = ()

    @property
    def risks(self) -> bool:
        """Whether anything that was acknowledged may not be durable."""
        return self.unwritten or self.unsynced_boot is not None

    def settled(self) -> "RunNote":
        """Nothing is at risk any more; what was done stays noted."""
        return RunNote(modes=self.modes)

    def begun(self, settings: JournalSettings, boot: str | None) -> "RunNote":
        """What to note before a run with these settings answers anything. Call it on a settled note."""
        assert not self.risks, "an earlier run was not judged"
        if not settings.write_data:
            return replace(self, unwritten=True, modes=_with(self.modes, "no-journal"))
        if not settings.sync_data:
            return replace(self, unsynced_boot=boot or UNKNOWN_BOOT, modes=_with(self.modes, "no-sync"))
        return self


def _with(modes: tuple[str, ...], mode: str) -> tuple[str, ...]:
    return tuple(sorted({*modes, mode}))


@dataclass(frozen=True, slots=True)
class Judgement:
    """What the last risky run means for this start."""

    limbo: str | None = None
    """Why acknowledged entries, keys and fences may be lost; None: they are not."""
    salvage: bool = False
    """The journal may have holes: take what is intact, and begin it anew."""
    sync_first: bool = False
    """What the journal holds is only in the machine's memory: sync it before anything else."""


def judge(note: RunNote, boot: str | None) -> Judgement:
    """Compare the note with the present boot of the machine; None: not known, so another one."""
    if note.unsynced_boot is None:
        why = "its last run wrote no journal and did not end cleanly" if note.unwritten else None
        return Judgement(why)
    same_boot = boot is not None and note.unsynced_boot == boot
    if same_boot and not note.unwritten:
        return Judgement(sync_first=True)
    why = "its last run did not sync its journal, did not end cleanly, and the machine restarted since"
    return Judgement(why, salvage=not same_boot, sync_first=same_boot)


def encode_note(note: RunNote) -> bytes:
    """The file's content."""
    text = (
        f"{_FIRST_LINE}\n"
        f"unsynced {note.unsynced_boot or '-'}\n"
        f"unwritten {'yes' if note.unwritten else 'no'}\n"
        f"modes {' '.join(note.modes) or '-'}\n"
    )
    return f"{text}crc32c {crc32c(text.encode()):08x}\n".encode()


def decode_note(content: bytes, path: str) -> RunNote:
    """Parse it; DamagedError for anything that `encode_note` does not make."""
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
    """The note on disk."""

    def __init__(self, disk: Disk, path: str, note: RunNote) -> None:
        self._disk = disk
        self._path = path
        self.note = note

    @classmethod
    async def open(cls, disk: Disk, ledger_dir: str) -> "RunNotes":
        """Read the note; without a file nothing was ever risked. DamagedError."""
        path = f"{ledger_dir}/{CURRENT}/{RUN_FILE}"
        note = RunNote()
        if await disk.exists(path):
            note = decode_note(await disk.read_file(path), path)
        return cls(disk, path, note)

    async def write(self, note: RunNote) -> None:
        """Make it the durable note. DiskFullError, OSError: the old one stands."""
        if note != self.note:
            await self._disk.replace_file(self._path, encode_note(note))
            self.note = note
