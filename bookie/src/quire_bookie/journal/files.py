"""The files of one journal directory: which file holds which generation, and which files are spare.

`journal-<number>.log` files are filled with zeros once, under a `.new` name until they are complete, and then reused:
spare, live under a generation, spare again once the mark has passed them. Owns names, creation, recycling and removal.
Must never hand out or remove a file whose generation is not below the durable mark.

Files may differ in length, which each header records: the first file of a start that finds no spare is short.
"""

import re
from collections.abc import Sequence

from quire_bookie.dataclass import dataclass
from quire_bookie.env.disk import Disk
from quire_bookie.errors import DiskFullError, JournalDamagedError
from quire_bookie.journal.format import (
    DATA_START,
    HEADER_BLOCK_BYTES,
    FileHeader,
    JournalFormatError,
    Mark,
    decode_header,
)
from quire_bookie.journal.scan import find_group
from quire_bookie.journal.witness import WitnessRecord
from quire_bookie.settings.journal import JournalSettings

_NAME = re.compile(r"journal-(\d{8})\.log")
_UNFINISHED = re.compile(r"journal-\d{8}\.log\.new")


def number_of(path: str) -> int:
    """Return the number in a journal file's name."""
    found = _NAME.fullmatch(path.rpartition("/")[2])
    assert found is not None, path
    return int(found[1])


@dataclass(frozen=True, slots=True)
class LiveFile:
    """A file with a generation that replay may need."""

    path: str
    header: FileHeader


class JournalFiles:
    """Tracks the live and spare files of a directory, as found by `open`. One caller at a time per method."""

    def __init__(self, disk: Disk, directory: str, settings: JournalSettings) -> None:
        self._disk = disk
        self._directory = directory
        self._settings = settings
        self._next_number = 1
        self.live: dict[int, LiveFile] = {}
        self._spares: list[str] = []
        self._prepared: str | None = None
        """The file that, according to the witness, may hold the next generation: kept while the witness names it."""
        self._obsolete = False
        """Whether only the witness still needs that file."""
        self.created = 0
        self.recycled = 0

    @property
    def any(self) -> bool:
        """Whether the directory holds any journal file."""
        return self._next_number > 1

    @property
    def spares(self) -> int:
        """The number of files that may be given a generation."""
        return len(self._spares)

    @classmethod
    async def open(
        cls,
        disk: Disk,
        directory: str,
        settings: JournalSettings,
        mark: Mark | None,
        witness: WitnessRecord | None = None,
    ) -> "JournalFiles":
        """Classify every file. DamagedError if one is missing, truncated, of another journal, or lost its header."""
        files = cls(disk, directory, settings)
        names = await disk.list_dir(directory)
        if witness is not None and witness.prepared_generation:
            files._prepared = files.path_of(witness.prepared_file)
        if names:
            # A killed process may have left names and a mark that are only in the kernel's memory so far.
            await disk.sync_dir(directory)
        for name in names:
            path = f"{directory}/{name}"
            if found := _NAME.fullmatch(name):
                files._next_number = max(files._next_number, int(found[1]) + 1)
                if mark is not None:
                    await files._classify(path, mark)
            elif _UNFINISHED.fullmatch(name):
                # A crash interrupted its creation; it holds nothing but zeros.
                await disk.remove(path)
        if witness is not None:
            files._check_newest(names, witness)
        return files

    def path_of(self, number: int) -> str:
        """Return the path of the journal file with that number."""
        return f"{self._directory}/journal-{number:08d}.log"

    def _check_newest(self, names: Sequence[str], witness: WitnessRecord) -> None:
        """Check that the newest file exists: only the witness proves that; the remaining files do not."""
        newest = max(self.live, default=0)
        if newest < witness.position.generation:
            what = f"the journal file of generation {witness.position.generation} is missing, but it was durable"
            raise JournalDamagedError(self._directory, 0, what)
        prepared = self.path_of(witness.prepared_file)
        if newest < witness.prepared_generation and prepared.rpartition("/")[2] not in names:
            what = f"the file is missing; it may hold generation {witness.prepared_generation} of the journal"
            raise JournalDamagedError(prepared, 0, what)

    async def forget_prepared(self) -> None:
        """Release the prepared file: the witness no longer names it."""
        path, self._prepared = self._prepared, None
        if path is not None and self._obsolete:
            self._obsolete = False
            await self._disk.remove(path)

    async def _classify(self, path: str, mark: Mark) -> None:
        file = await self._disk.open_read_only(path)
        try:
            size = await file.size()
            block = await file.read(0, HEADER_BLOCK_BYTES)
            if len(block) < HEADER_BLOCK_BYTES:
                raise JournalDamagedError(path, size, "the file is truncated: its header is missing")
            try:
                header = decode_header(block)
            except JournalFormatError as error:
                # Zeros, or a header torn when a spare went live: in both cases no group of its generation followed.
                end = size if any(block) else DATA_START + 1
                group = await find_group(file, DATA_START, end, mark.uuid, mark.position.generation)
                if group is not None:
                    what = f"{error}, but a group of generation {group.generation} follows"
                    raise JournalDamagedError(path, 0, what) from error
                await self._keep_or_remove(path, size)
                return
        finally:
            await file.close()
        if header.uuid != mark.uuid:
            raise JournalDamagedError(path, 0, "the file belongs to another journal; move it away")
        if header.generation < mark.position.generation:
            await self._keep_or_remove(path, size)
            return
        if size < header.file_bytes:
            raise JournalDamagedError(path, size, f"the file is truncated; it had {header.file_bytes} bytes")
        if other := self.live.get(header.generation):
            raise JournalDamagedError(path, 0, f"{other.path} also has generation {header.generation}")
        await self._make_durable(path)
        self.live[header.generation] = LiveFile(path, header)

    async def _make_durable(self, path: str) -> None:
        """Sync a file before replay reads it: a killed process may have left unsynced groups.

        The header of the next file will declare them durable.
        """
        file = await self._disk.open(path)
        try:
            await file.sync()
        finally:
            await file.close()

    async def _keep_or_remove(self, path: str, size: int) -> None:
        if size == self._settings.file_bytes and len(self._spares) < self._settings.spare_files_max:
            self._spares.append(path)
        elif path == self._prepared:
            self._obsolete = True
        else:
            await self._disk.remove(path)

    async def take_spare(self, *, short: bool = False, reserved_bytes: int | None = None) -> tuple[str, int]:
        """Return a complete unused file and its size; create one, `short` if asked, when no spare is left.

        `reserved_bytes`: the space that a new file must leave free; None: that of the settings. DiskFullError.
        """
        if self._spares:
            self.recycled += 1
            spare = self._spares.pop()
            assert all(live.path != spare for live in self.live.values()), "a file that replay needs is not spare"
            return spare, self._settings.file_bytes
        size = self._settings.short_file_bytes if short else self._settings.file_bytes
        await self._check_space(size, self._settings.reserved_bytes if reserved_bytes is None else reserved_bytes)
        path = self.path_of(self._next_number)
        self._next_number += 1
        unfinished = f"{path}.new"
        try:
            await self._disk.create_journal(unfinished, size)
        except DiskFullError:
            self._next_number -= 1
            raise
        await self._disk.rename(unfinished, path)
        await self._disk.sync_dir(self._directory)
        self.created += 1
        return path, size

    async def _check_space(self, size: int, reserved_bytes: int) -> None:
        usage = await self._disk.usage(self._directory)
        if usage.free_bytes < size + reserved_bytes:
            raise DiskFullError(
                f"{self._directory}: {usage.free_bytes} bytes free; a new journal file of {size} "
                f"must leave {reserved_bytes} for flushes"
            )

    async def drop_spares(self) -> None:
        """Remove the spare files to free their space, except one that the witness names."""
        spares = [path for path in self._spares if path != self._prepared]
        self._spares = [path for path in self._spares if path == self._prepared]
        for path in spares:
            await self._disk.remove(path)
        if spares:
            await self._disk.sync_dir(self._directory)

    async def put_back(self, path: str, size: int) -> None:
        """Take back a spare that was not used."""
        await self._keep_or_remove(path, size)

    def went_live(self, path: str, header: FileHeader) -> None:
        """Register a spare whose header is durable as live."""
        assert header.generation > max(self.live, default=0), "generations only grow"
        assert path not in self._spares
        self.live[header.generation] = LiveFile(path, header)

    async def recycle_below(self, generation: int) -> None:
        """Turn the files older than `generation`, where the durable mark is, into spares, or remove surplus ones."""
        removed = False
        for old in sorted(g for g in self.live if g < generation):
            file = self.live.pop(old)
            before = len(self._spares)
            await self._keep_or_remove(file.path, file.header.file_bytes)
            removed = removed or len(self._spares) == before
        if removed:
            await self._disk.sync_dir(self._directory)
