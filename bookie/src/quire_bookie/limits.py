"""Every bound of the ledger store, with its default and unit, and the relations between them.

A setting may override each of them (see `config`); the asserts here are about our own defaults.
"""

KIB = 1024
MIB = 1024 * KIB

# Wire
FRAME_BYTES_MAX = 5_253_120  # nettyMaxFrameSizeBytes as Pulsar ships it: 5 MiB + 10 KiB
BATCH_READ_BYTES_MAX = 5 * MIB  # maxBatchReadSize
SOCKET_WRITE_HIGH_BYTES = 4 * MIB  # per connection; above it reads of that socket pause
ADDS_IN_FLIGHT_BYTES_MAX = 64 * MIB  # per bookie, received and not yet answered
BACKPRESSURE_PAUSE_S = 0.5  # how long a full bookie pauses a socket before it answers ETOOMANYREQUESTS

# Journal
JOURNAL_FILE_BYTES = 64 * MIB  # each; zeroed once and recycled (journalMaxSizeMB); a first start waits for one
JOURNAL_GROUP_BYTES_MAX = 8 * MIB
JOURNAL_GROUP_ENTRIES_MAX = 32_768
JOURNAL_QUEUE_BYTES_MAX = 64 * MIB
JOURNAL_ALIGNMENT_BYTES = 4096
JOURNAL_SPARE_FILES_MAX = 4  # kept for recycling; more are removed
JOURNAL_FULL_RETRY_S = 1.0  # between attempts to make a file on a full disk

# Storage
WRITE_CACHE_BYTES = 128 * MIB  # both halves together
READ_CACHE_BYTES = 64 * MIB
INDEX_CACHE_BYTES = 64 * MIB
READ_AHEAD_BYTES = 1 * MIB
ENTRY_LOG_BYTES_MAX = 1024 * MIB
ENTRY_LOG_WRITE_BYTES = 1 * MIB
FLUSH_INTERVAL_S = 60.0
INDEX_BLOCK_ENTRIES = 256  # key is (ledger, entry >> 8)
LEDGER_STATES_MAX = 100_000  # cached in memory
OPEN_LOGS_MAX = 256  # file handles kept for reads
DISK_RESERVED_BYTES = 64 * MIB  # kept free so that a full disk can be recovered from
DISK_USAGE_THRESHOLD = 0.95
DISK_USAGE_LOW_WATERMARK = 0.90
DISK_CHECK_INTERVAL_S = 10.0
LOCAL_DISK_THREADS = 8  # for blocking file calls of one process
GC_INTERVAL_S = 900.0

# Bookie process
MASTER_KEY_BYTES_MAX = 1 * KIB  # real ones have 20; V3 does not say so, and the index keeps them
EXPLICIT_LAC_BYTES_MAX = 4 * KIB  # real ones have at most 48; the state of each ledger keeps one
READS_AT_ONCE_PER_CONNECTION = 16  # entry reads of one connection that storage works on at the same time
READS_QUEUED_PER_CONNECTION = 1024  # above it the socket pauses
BOOKIE_DRAIN_TIMEOUT_S = 5.0  # a clean stop waits this long for answers that are due
POISONED_READS_S = 30.0  # how long a bookie with a failed journal still answers reads
JOURNAL_RESERVED_BYTES = DISK_RESERVED_BYTES + WRITE_CACHE_BYTES  # left to flushes when a journal file is made

# Client
ADD_TIMEOUT_S = 30.0
READ_TIMEOUT_S = 30.0
CONNECT_TIMEOUT_S = 10.0
WRITER_PENDING_BYTES_MAX = 64 * MIB
RECOVERY_READS_IN_FLIGHT = 16
READ_WINDOW_BYTES = 4 * MIB  # single reads under way for one range, by the expected size of their answers
READ_ENTRIES_IN_FLIGHT_MAX = 256  # the same by count
SUSPECT_BOOKIE_S = 30.0  # a bookie that could not be reached is avoided for new ledgers for so long
TOO_MANY_REQUESTS_BACKOFF_S = (0.01, 1.0)

# Metadata
METADATA_SESSION_TIMEOUT_S = 30.0
METADATA_OPERATION_TIMEOUT_S = 30.0
METADATA_CONNECT_TIMEOUT_S = 10.0  # for the first answer when a store is opened
METADATA_ATTEMPT_TIMEOUT_S = 5.0  # of one member, before a read is asked of the next
METADATA_PAGE_KEYS = 1000
METADATA_TRANSACTION_OPERATIONS_MAX = 100  # checks and operations together; etcd's own default bound is 128
METADATA_UNKNOWN_RETRIES = 3  # attempts at a write whose outcome stays unknown
METADATA_RETRY_BACKOFF_S = (0.05, 2.0)
METADATA_VALUE_BYTES_MAX = 1 * MIB  # etcd's default request bound is 1.5 MiB
METADATA_WATCH_EVENTS_MAX = 10_000  # queued for one reader; above it the reader gets a RESYNC

assert JOURNAL_GROUP_BYTES_MAX > FRAME_BYTES_MAX, "one entry of the largest frame must fit one group"
assert JOURNAL_FILE_BYTES >= 4 * JOURNAL_GROUP_BYTES_MAX
assert WRITE_CACHE_BYTES >= 4 * FRAME_BYTES_MAX
assert DISK_USAGE_LOW_WATERMARK <= DISK_USAGE_THRESHOLD
