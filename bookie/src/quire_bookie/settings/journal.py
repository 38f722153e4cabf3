"""Declares the settings of the journal."""

from quire_bookie import limits
from quire_bookie.dataclass import dataclass
from quire_bookie.errors import ConfigError
from quire_bookie.settings.declared import MEBIBYTES, setting


@dataclass(frozen=True, slots=True)
class JournalSettings:
    """The settings of a journal.

    `queue_bytes_max` bounds the bytes that wait or are in flight. Beyond it the journal refuses no append (the entry is
    already in the write cache), but `is_full` is true and the caller stops taking requests.
    `spare_files_max` files are kept for recycling; surplus ones are removed. A new file is created only if it leaves
    `reserved_bytes` free: on a shared disk the journal must not take the space of the flushes that free journal files.
    """

    file_bytes: int = setting(
        limits.JOURNAL_FILE_BYTES,
        "journalMaxSizeMB",
        "size of a journal file in MiB; files are recycled",
        short="journal_max_size_mb",
        unit=MEBIBYTES,
        ge=32,
    )
    group_bytes_max: int = setting(
        limits.JOURNAL_GROUP_BYTES_MAX,
        "journalBufferedWritesThreshold",
        "most bytes of one journal group; default: 8 MiB, and a group contains all queued entries",
        short="journal_group_bytes_max",
        kind=int | None,
        key_default=None,
        read=lambda value: min(value or limits.JOURNAL_GROUP_BYTES_MAX, limits.JOURNAL_GROUP_BYTES_MAX),
        ge=1,
    )
    group_entries_max: int = setting(
        limits.JOURNAL_GROUP_ENTRIES_MAX,
        "journalBufferedEntriesThreshold",
        "most entries of one journal group; 0: 32768",
        short="journal_group_entries_max",
        key_default=0,
        read=lambda value: value or limits.JOURNAL_GROUP_ENTRIES_MAX,
        ge=0,
    )
    queue_bytes_max: int = limits.JOURNAL_QUEUE_BYTES_MAX
    spare_files_max: int = limits.JOURNAL_SPARE_FILES_MAX
    reserved_bytes: int = limits.JOURNAL_RESERVED_BYTES
    sync_data: bool = setting(
        True,
        "journalSyncData",
        "false: adds are answered once written, not once durable; needs acknowledgeDataLossRisk",
        short="journal_sync_data",
    )
    write_data: bool = setting(
        True,
        "journalWriteData",
        "false: adds are answered from memory, without a journal; needs acknowledgeDataLossRisk",
        short="journal_write_data",
    )

    @property
    def short_file_bytes(self) -> int:
        """Size of the file that a start creates if there is no spare: short, as the start waits until it is zeroed."""
        # The header and some groups must fit, however small the group size is set.
        size = max(2 * self.group_bytes_max, 4 * limits.JOURNAL_ALIGNMENT_BYTES)
        return min(self.file_bytes, size + -size % limits.JOURNAL_ALIGNMENT_BYTES)

    def check(self) -> None:
        """Raise ConfigError if the sizes contradict each other."""
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
