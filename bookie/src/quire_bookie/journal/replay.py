"""Replays the journal: every group from the mark on, in order, and determines where the journal ends.

Owns the rules that distinguish damage from a torn tail. Only one group is in flight at a time, and a file's header is
written once the previous file is finished, so a later group or the next generation's header proves that every earlier
group was durable:

| an invalid group                                           | means                                           |
|------------------------------------------------------------|-------------------------------------------------|
| below the end that the next generation's header names      | damage: DamagedError with file and offset       |
| in the last generation, a later group's head follows       | damage: DamagedError with file and offset       |
| below the position of the witness                          | damage: DamagedError with file and offset       |
| in the last generation at or after the witness, none later | the torn tail of a crash: replay ends before it |

Not provable: damage to groups that were written after the last record of the witness looks like a torn tail. A clean
shutdown writes a last record.

Must never deliver a record of a group whose checksum is wrong, and never skip a group.
"""

from collections.abc import Awaitable, Callable, Sequence

from quire_bookie.dataclass import dataclass
from quire_bookie.env.disk import Disk, DiskFile
from quire_bookie.errors import JournalDamagedError
from quire_bookie.journal.files import JournalFiles, LiveFile
from quire_bookie.journal.format import (
    DATA_START,
    GROUP_HEAD_BYTES,
    GroupHead,
    JournalPosition,
    Mark,
    group_bytes,
    group_is_valid,
    parse_group_head,
)
from quire_bookie.journal.records import JournalRecord, RecordFormatError, ShutdownRecord, decode_body
from quire_bookie.journal.scan import Window, find_group
from quire_bookie.journal.witness import WitnessRecord

Deliver = Callable[[Sequence[JournalRecord]], Awaitable[None] | None]
"""Receives the records of one group. May return an awaitable (to load ledgers), which is awaited before the next group.
"""


@dataclass(slots=True)
class ReplaySummary:
    """The result of a replay."""

    groups: int = 0
    records: int = 0
    clean: bool = False
    """Whether the last group records that the journal was closed cleanly."""
    torn: bool = False
    """Whether part of an unfinished, never acknowledged group follows the end."""


class Replay:
    """Reads the live files once. `position` is that of the next group during the run, the journal's end afterwards."""

    def __init__(
        self, disk: Disk, directory: str, files: JournalFiles, mark: Mark, witness: WitnessRecord | None = None
    ) -> None:
        self._disk = disk
        self._directory = directory
        self._files = dict(files.live)
        self._mark = mark
        self._witness = witness
        self.position = mark.position
        self.summary = ReplaySummary()

    async def run(self, deliver: Deliver) -> ReplaySummary:
        """Deliver every record from the mark on. DamagedError if durable bytes are provably wrong."""
        first = max(self._mark.position.generation, 1)
        last = max(self._files, default=self._mark.position.generation)
        for generation in range(first, last + 1):
            if generation not in self._files:
                raise JournalDamagedError(self._directory, 0, f"the journal file of generation {generation} is missing")
            await self._replay_file(self._files[generation], self._files.get(generation + 1), deliver)
        self._check_witness()
        return self.summary

    def _check_witness(self) -> None:
        """Detect a truncated tail, or an older copy of the last file: the journal then ends before the witness does."""
        witness = self._witness
        if witness is None or self.position >= witness.position:
            return
        generation, offset, sequence = self.position
        live = self._files.get(generation)
        proved = witness.position
        what = (
            f"the journal ends before group {sequence} of generation {generation}, but its witness proves that "
            f"everything before group {proved.sequence} of generation {proved.generation} was durable"
        )
        raise JournalDamagedError(live.path if live is not None else self._directory, offset, what)

    async def _replay_file(self, live: LiveFile, successor: LiveFile | None, deliver: Deliver) -> None:
        header = live.header
        if header.generation != self._mark.position.generation:
            if header.first_sequence != self.position.sequence:
                what = f"begins with group {header.first_sequence}, but {self.position.sequence} comes next"
                raise JournalDamagedError(live.path, 0, what)
            self.position = JournalPosition(header.generation, DATA_START, header.first_sequence)
        elif not DATA_START <= self.position.offset <= header.file_bytes:
            raise JournalDamagedError(live.path, self.position.offset, "the mark is outside of the file")
        file = await self._disk.open_read_only(live.path)
        try:
            window = Window(file)
            ended_here = False
            while successor is None or self.position.offset != successor.header.previous_end:
                group = await self._next_group(window, live)
                if group is None:
                    # Nothing is ever appended after a clean end, so a search of the rest of the file, which would take
                    # longer than the rest of the start, is skipped. A successor's header is still checked.
                    if successor is not None or not (ended_here and self.summary.clean):
                        await self._check_end(file, live, successor)
                    return
                ended_here = True
                await self._deliver_group(*group, live, deliver)
            if successor.header.first_sequence != self.position.sequence:
                what = f"ends with group {self.position.sequence}, not {successor.header.first_sequence}"
                raise JournalDamagedError(live.path, self.position.offset, what)
        finally:
            await file.close()

    async def _next_group(self, window: Window, live: LiveFile) -> tuple[GroupHead, bytes] | None:
        """Return the group at the position, or None if it is invalid."""
        header, (generation, offset, sequence) = live.header, self.position
        head = parse_group_head(await window.bytes_at(offset, GROUP_HEAD_BYTES))
        if head is None or (head.uuid, head.generation, head.sequence) != (header.uuid, generation, sequence):
            return None
        if offset + group_bytes(head.body_bytes, header.alignment_bytes) > header.file_bytes:
            return None
        body = await window.bytes_at(offset + GROUP_HEAD_BYTES, head.body_bytes)
        return (head, body) if group_is_valid(head, body) else None

    async def _check_end(self, file: DiskFile, live: LiveFile, successor: LiveFile | None) -> None:
        """Return if the invalid group at the position is a torn tail; raise JournalDamagedError if it is damage."""
        generation, offset, sequence = self.position
        if successor is not None:
            what = f"group {sequence} is wrong, and {successor.path} proves that it was durable"
            raise JournalDamagedError(live.path, offset, what)
        end, uuid = live.header.file_bytes, live.header.uuid
        head = parse_group_head(await file.read(offset, GROUP_HEAD_BYTES))
        self.summary.torn = head is not None and (head.uuid, head.generation) == (uuid, generation)
        later = await find_group(file, offset, end, uuid, generation, sequence=sequence + 1, exact=True)
        if later is not None:
            what = f"group {sequence} is wrong, and group {later.sequence} after it proves that it was durable"
            raise JournalDamagedError(live.path, offset, what)

    async def _deliver_group(self, head: GroupHead, body: bytes, live: LiveFile, deliver: Deliver) -> None:
        generation, offset, sequence = self.position
        try:
            records = list(decode_body(body))
        except RecordFormatError as error:
            raise JournalDamagedError(live.path, offset, f"group {sequence}: {error}") from error
        count = len(records)
        if count != head.records:
            raise JournalDamagedError(live.path, offset, f"group {sequence} has {count} records, not {head.records}")
        contents = [record for record in records if not isinstance(record, ShutdownRecord)]
        self.summary.clean = len(contents) < count
        if contents and (waiting := deliver(contents)) is not None:
            await waiting
        self.summary.groups += 1
        self.summary.records += count
        size = group_bytes(head.body_bytes, live.header.alignment_bytes)
        self.position = JournalPosition(generation, offset + size, sequence + 1)
