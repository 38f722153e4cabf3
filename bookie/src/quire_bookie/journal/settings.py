"""What the journal can be told, with defaults from `limits`. Never read from a file here: `config` does that."""

from dataclasses import dataclass

from quire_bookie import limits
from quire_bookie.errors import ConfigError


@dataclass(frozen=True, slots=True)
class JournalSettings:
    """Sizes of the journal.

    `queue_bytes_max` bounds what waits or is in flight: the journal never refuses an append (the entry is already in
    the write cache by then), it says `is_full`, and the caller stops to take requests.
    `spare_files_max` files are kept for recycling; more are removed. A new file is only made where `reserved_bytes`
    stay free besides it: on a shared disk the journal must not take the space of the flushes that free journal files.
    """

    file_bytes: int = limits.JOURNAL_FILE_BYTES
    group_bytes_max: int = limits.JOURNAL_GROUP_BYTES_MAX
    group_entries_max: int = limits.JOURNAL_GROUP_ENTRIES_MAX
    queue_bytes_max: int = limits.JOURNAL_QUEUE_BYTES_MAX
    spare_files_max: int = limits.JOURNAL_SPARE_FILES_MAX
    reserved_bytes: int = limits.JOURNAL_RESERVED_BYTES
    sync_data: bool = True
    """False: a group counts once written, before it is durable. A loss of power loses what was acknowledged."""
    write_data: bool = True
    """False: nothing is written, only replayed. Any end but a clean one loses what was acknowledged."""

    @property
    def short_file_bytes(self) -> int:
        """Bytes of the file that a start makes when there is no spare: it waits for every zero of it."""
        # Its header, and room behind it, however small groups are set.
        size = max(2 * self.group_bytes_max, 4 * limits.JOURNAL_ALIGNMENT_BYTES)
        return min(self.file_bytes, size + -size % limits.JOURNAL_ALIGNMENT_BYTES)

    def check(self) -> None:
        """Raise ConfigError where the sizes do not fit each other."""
        if self.file_bytes % limits.JOURNAL_ALIGNMENT_BYTES:
            raise ConfigError(
                f"a journal file of {self.file_bytes} bytes is not a multiple of {limits.JOURNAL_ALIGNMENT_BYTES}"
            )
        if self.group_bytes_max < 1 or self.group_entries_max < 1 or self.queue_bytes_max < 1:
            raise ConfigError("the journal's group and queue sizes must be at least 1")
        if self.file_bytes < 2 * self.group_bytes_max:
            raise ConfigError(
                f"a journal file of {self.file_bytes} bytes cannot hold groups of {self.group_bytes_max} bytes; "
                f"set journalMaxSizeMB to at least twice that"
            )
        if self.spare_files_max < 1:
            raise ConfigError("the journal needs at least one spare file ready")
