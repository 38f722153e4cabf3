"""Every bound of the ledger store, with its default and unit, and the relations between them.

A setting may override each of them (see `config`); the asserts here are about our own defaults.
"""

KIB = 1024
MIB = 1024 * KIB

# Wire
FRAME_LENGTH_BYTES = 4  # in front of each frame; BookKeeper's setting counts them too, our bounds do not
FRAME_BYTES_MAX = 5_253_120 - FRAME_LENGTH_BYTES  # nettyMaxFrameSizeBytes as Pulsar ships it: 5 MiB + 10 KiB
BATCH_READ_BYTES_MAX = 5 * MIB  # maxBatchReadSize
SOCKET_WRITE_HIGH_BYTES = 4 * MIB  # per connection; above it reads of that socket pause
ADDS_IN_FLIGHT_BYTES_MAX = 64 * MIB  # per bookie, received and not yet answered
BACKPRESSURE_PAUSE_S = 3.0  # how long an add waits for room, its socket paused, before ETOOMANYREQUESTS

# Memory of connections: incomplete frames, waiting requests, reads under way and unsent answers of one process
CONNECTION_MEMORY_BYTES_MAX = 512 * MIB  # at most; less where a quarter of the machine's memory is less
CONNECTION_MEMORY_SHARE = 0.25  # of the memory of the machine, or of the container
CONNECTION_MEMORY_FRAMES_MIN = 8  # frames of the largest size that the budget must hold
STALLED_PEER_S = 60.0  # a peer that sends nothing of a begun frame, or takes nothing of its answers, is closed then
SLOW_PEER_S = 600.0  # the same of one that does so slowly: for one frame, or for all that waited at one moment
PRESSURE_STALLED_S = 2.0  # the same of one that holds much, while others wait for room
FIRST_REQUEST_S = 60.0  # a connection to a bookie that has not sent one request by then is closed
LARGE_ANSWER_BYTES = 64 * KIB  # one that is partly sent counts whole against the budget: it is freed as a whole
CONNECTION_LOOK_S = 1.0  # between two looks at what connections hold
WAITING_REQUEST_BYTES = 512  # what one request without an entry counts while it waits

# Journal
JAVA_HTTP_PORT = 8080  # of a .conf file with httpServerEnabled=true and no httpServerPort, as in BookKeeper
JOURNAL_FILE_BYTES = 64 * MIB  # each; zeroed once and recycled (journalMaxSizeMB)
JOURNAL_GROUP_BYTES_MAX = 8 * MIB
JOURNAL_GROUP_ENTRIES_MAX = 32_768
JOURNAL_QUEUE_BYTES_MAX = 64 * MIB
JOURNAL_ALIGNMENT_BYTES = 4096
JOURNAL_SPARE_FILES_MAX = 4  # kept for recycling; more are removed
JOURNAL_WITNESS_S = 1.0  # after a durable group, until the witness covers it
JOURNAL_FULL_RETRY_S = 1.0  # between attempts to make a file on a full disk

# Storage
WRITE_CACHE_BYTES = 128 * MIB  # both halves together
READ_CACHE_BYTES = 64 * MIB
INDEX_CACHE_BYTES = 64 * MIB
INDEX_CHECK_SILENCE_S = 120.0  # a child that checks the index and says nothing for so long hangs, and is killed
READ_AHEAD_BYTES = 1 * MIB
ENTRY_LOG_BYTES_MAX = 1024 * MIB
ENTRY_LOG_STRETCH_BYTES = 1 * MIB  # of records that are encoded, or read for compaction, in one go
ENTRY_LOG_WRITE_BYTES = 4 * MIB  # one write: extending a file costs 0.2 ms of CPU whatever its size
ENTRY_LOG_WRITES_MAX = 1  # of that size, under way at once for one flush: memory, and threads of the disk
FLUSH_INTERVAL_S = 60.0
INDEX_BLOCK_ENTRIES = 256  # key is (ledger, entry >> 8)
LEDGER_STATES_MAX = 100_000  # cached in memory
CHANGED_LEDGER_STATES_MAX = 25_000  # not in the index yet; a flush begins at so many
OPEN_LOGS_MAX = 256  # file handles kept for reads
DISK_RESERVED_BYTES = 64 * MIB  # kept free so that a full disk can be recovered from
DISK_COMPACTION_RESERVED_BYTES = 16 * MIB  # what compaction leaves of it: the index still has to commit deletions
INDEX_RESERVE_BYTES = (
    4 * MIB
)  # beside half of the index cache: the write-ahead log is at most that, and opening writes it out
JOURNAL_RESERVE_BYTES = 1 * MIB  # beside a short journal file: the mark, and names
METADATA_RESERVE_FILES = 8  # of the embedded metadata store, for commits on a full disk
METADATA_RESERVE_FILE_BYTES = 1 * MIB
METADATA_COMMIT_BYTES = 1 * MIB  # left free before a commit of it
SMALL_WRITE_CACHE_BYTES = 24 * MIB  # on a small disk no less than this
SMALL_FILE_BYTES = 16 * MIB  # the same of journal files and entry logs
SMALL_RESERVED_BYTES = 8 * MIB
SMALL_INDEX_CACHE_BYTES = 8 * MIB
DISK_FULL_COLLECTION_S = 30.0  # between two garbage collections while the disk is full
DISK_FULL_SEAL_BYTES_MIN = 64 * KIB  # an entry log with that much is sealed on a full disk, so that it can go
DISK_USAGE_THRESHOLD = 0.95
DISK_USAGE_WARN_THRESHOLD = 0.90  # of a ledger folder: almost full
DISK_USAGE_LOW_WATERMARK = 0.90
BOOKIE_ID_CHARACTERS_MAX = 255
DISK_CHECK_INTERVAL_S = 10.0
LOCAL_DISK_THREADS = 8  # for blocking file calls of one process
GC_INTERVAL_S = 900.0
METADATA_LOOK_INTERVAL_S = 30.0  # a bookie reads the epoch and the counters of ledger ids
LEDGER_TOKEN_WAIT_S = 0.5  # the creation of a ledger waits so long for its bookies to take its token
ID_INQUIRY_TIMEOUT_S = 2.0  # a client asks bookies for the ledger ids that they know
ID_INQUIRY_AGAIN_S = 30.0  # and those again that did not answer
LEDGER_IDS_SKIPPED_MAX = 10_000  # ids in a row that bookies know
METADATA_LOOK_PAUSE_S = 1.0  # and at the earliest after this long, however many ledgers come
SCRUB_INTERVAL_S = 7 * 86_400.0  # from the end of one scrub to the start of the next
SCRUB_BYTES_PER_SECOND = 8 * MIB  # a log of 1 GiB takes two minutes
SCRUB_ENTRIES_PER_SECOND = 4000  # whatever the byte rate: one costs 14 us of the loop
SCRUB_REPORT_MAX = 10_000  # findings that are kept
SCRUB_RETRY_S = 60.0  # after an error, and between two looks at the clock
DAMAGE_REPORT_INTERVAL_S = 5.0  # between two reports of damage to auto-recovery
DAMAGE_CHECK_INTERVAL_S = 60.0  # between two reads of damaged entries, to see whether they are repaired
DAMAGE_REPORTED_AGAIN_S = 600.0  # a finding that lasts is reported again
DELETED_LEDGER_MEMORY_S = 7 * 86_400.0  # a deleted ledger refuses late writers for so long
GC_FUSE_SHARE = 0.5  # more than this share of the ledgers gone at once blows the fuse
GC_FUSE_LEDGERS_MIN = 50  # fewer gone ledgers than this never do
GC_QUARANTINE_S = 86_400.0  # a ledger that the metadata no longer names is kept for so long
GC_QUARANTINE_MIN_S = 3600.0  # for so long even where the disk is almost full
GC_QUARANTINE_LEDGERS_MAX = 100_000  # in quarantine or undeleted; each is a record of about 300 bytes in memory
GC_QUARANTINE_PAGE_LEDGERS_MAX = 10_000  # that one answer of the admin HTTP names
UNDELETE_FOR_S_MAX = 3660 * 86_400  # ten years
UNDELETE_LEDGERS_MAX = 10_000  # that one request names
QUARANTINE_REASON_BYTES_MAX = 256
GC_OVER_REPLICATED_INTERVAL_S = 86_400.0
GC_OVER_REPLICATED_AT_ONCE = 100  # ledgers looked at together
MINOR_COMPACTION_THRESHOLD = 0.2  # of an entry log: the living share below which it is rewritten
MINOR_COMPACTION_INTERVAL_S = 3600.0
MAJOR_COMPACTION_THRESHOLD = 0.8
MAJOR_COMPACTION_INTERVAL_S = 86_400.0
COMPACTION_RATE_BYTES_S = 16 * MIB  # bytes of living records that are moved in a second
COMPACTION_RATE_ENTRIES_S = 1000  # the same in entries, where the rate is by entries
COMPACTION_LATENCY_MAX_S = 0.1  # compaction pauses while the p99 of adds or reads is above
COMPACTION_PAUSE_S = 1.0  # so long at a time
COMPACTION_PAUSES_MAX = 30  # in a row; then one batch goes on, so that a bookie that is always slow gets its space back
COMPACTION_TICK_S = 30.0  # between two looks at what is due
LOG_USAGE_LINES_MAX = 1_000_000  # ledgers of entry logs, counted per log, whose living bytes are kept in memory

# Bookie process
MASTER_KEY_BYTES_MAX = 1 * KIB  # real ones have 20; V3 does not say so, and the index keeps them
EXPLICIT_LAC_BYTES_MAX = 4 * KIB  # real ones have at most 48; the state of each ledger keeps one
READS_AT_ONCE_PER_CONNECTION = 16  # entry reads of one connection that storage works on at the same time
READS_PER_TURN = 256  # answered in one turn of the loop before adds and journal get theirs: one to two milliseconds
READ_SHARE_BESIDE_ADDS = 8  # while adds wait for the journal, a turn takes an eighth of that: tenths of a millisecond
REQUESTS_PER_TURN = 256  # of all connections, runs of plain adds and reads aside; a buffer may bring ten thousand
READ_RUN_ENTRIES_PER_TURN = 1024  # the same of reads that are answered together, at an eighth of the cost each
READ_RUN_BYTES_PER_TURN = 4 * MIB  # the same in bytes
READ_RUN_GAP_ENTRIES = 16  # ids within such a distance are read in order: striping leaves such gaps
READS_QUEUED_PER_CONNECTION = 1024  # above it the socket pauses
READS_AT_ONCE_MAX = 64  # normal reads of one bookie that storage works on at the same time
PRIORITY_READS_AT_ONCE_MAX = 32  # the same with high priority; they do not wait for normal ones
LONG_POLLS_MAX = 20_000  # parked reads of one bookie, about 1 KiB each; more get ETOOMANYREQUESTS
LONG_POLLS_PER_CONNECTION_MAX = 2_000  # the same of one connection
LONG_POLL_S_MAX = 86_400.0  # a poll that asks for longer ends here
BOOKIE_DRAIN_TIMEOUT_S = 5.0  # a clean stop waits this long for answers that are due
POISONED_READS_S = 30.0  # how long a bookie with a failed journal still answers reads
JOURNAL_RESERVED_BYTES = DISK_RESERVED_BYTES + WRITE_CACHE_BYTES  # left to flushes when a journal file is made

# Security
CONNECTIONS_MAX = 20_000  # at once, of one bookie; a file handle each
ROLE_CHARACTERS_MAX = 256  # of a role that a certificate names
OPEN_FILES_MAX = 1024 * 1024  # a process asks the system for no more handles
OPEN_FILES_OF_OUR_OWN_MIN = 512  # handles that connections leave to files, or half of all
CONNECTIONS_PER_ADDRESS_MAX = 4_000  # at once, of one client address
KEEPALIVE_IDLE_S = 300  # silence of a client after which it is probed; whole seconds, as the system wants them
KEEPALIVE_INTERVAL_S = 30  # between probes
KEEPALIVE_PROBES = 4  # without an answer: its connection is ended
UNAUTHENTICATED_S = 30.0  # a connection that has not authenticated by then is closed
UNAUTHENTICATED_FRAME_BYTES_MAX = 64 * KIB  # real tokens and exchanges have a few KiB
TLS_HANDSHAKE_TIMEOUT_S = 10.0
TLS_REFRESH_S = 300.0  # between looks at the certificate files
TOKEN_REFRESH_S = 60.0  # between looks at the file of token keys or tokens
TOKENS_PER_TURN = 100  # open connections whose token is looked at again in one turn of the loop
CONNECTION_REFUSED_LOG_S = 10.0  # at most one log line about refused connections in this time
FOREIGN_ADDS_LOG_S = 10.0  # the same about entries of another ledger with the same id
HTTP_HEADER_TIMEOUT_S = 10.0  # for the handshake and the first header, and for each later header
HTTP_BODY_TIMEOUT_S = 60.0  # for the body of a request, after its header
ACCEPT_PAUSE_S = 0.2  # after a connection that could not be taken, as for want of a handle
HTTP_CONNECTIONS_PER_ADDRESS_MAX = 1_000  # at once, of one client address, on the HTTP ports of a process

# Client
ADD_TIMEOUT_S = 30.0
READ_TIMEOUT_S = 30.0
CONNECT_TIMEOUT_S = 10.0
WRITER_PENDING_BYTES_MAX = 64 * MIB
SLOW_REPLICA_BYTES_MAX = 16 * MIB  # under way in one ledger; above it a replica that lags behind the others is replaced
SLOW_REPLICA_GRACE_S = 2.0  # but not before it has lagged for so long
SLOW_REPLICA_S = 10.0  # a replica that owes a confirmed entry for so long is replaced, however few bytes that is
ENSEMBLE_SIZE_MAX = 64  # bookies in the ensemble of a ledger that the broker creates
ENSEMBLE_CHANGES_MAX = 1000  # of one ledger: each may add a segment of some 100 bytes to its metadata
SHUN_RETURNED_BOOKIE_S = 1.0  # a bookie lost by a ledger is not taken again for so long, doubling each time
RACK_ANNOTATION = "quire.dev/zone"  # of a pod: where its node is
RACK_WAIT_S = 300.0  # until the pod's annotation is there: whoever writes it may just be starting
RACK_POLL_S = 0.25
RACK_MAP_CONFLICTS_MAX = 250  # compare-and-set: a whole pool may write its racks at once
ADDRESS_HANDOVER_S = 2.0  # of a new bookie under an old address: until every client has seen its registration
PLACEMENT_RACKS_MIN = 2  # minNumRacksPerWriteQuorum: preferred; enforced only where a setting says so
FREE_SPACE_INTERVAL_S = 3600.0  # between two questions to each bookie, where placement is weighted
QUARANTINE_ERRORS = 100  # failed adds of one bookie within the interval, after which it is avoided
QUARANTINE_INTERVAL_S = 60.0
QUARANTINE_S = 1800.0
HOLE_MARKS_PATIENCE_S = 2.0  # a client that is closed waits so long for marks that are due
RECOVERY_READS_IN_FLIGHT = 256  # of one ledger, bounded by READ_WINDOW_BYTES as well
RECOVERY_SETTLE_S = 0.1  # a recovery waits so long for replicas beyond Qa to take its re-adds, then marks them
RECOVERY_READS_FIRST = 16  # before any entry was found: most tails are short, what lies behind is asked in vain
READ_WINDOW_BYTES = 4 * MIB  # single reads under way for one range, by the expected size of their answers
READ_ENTRIES_IN_FLIGHT_MAX = 256  # the same by count
SPECULATIVE_READ_FIRST_S = 2.0  # firstSpeculativeReadTimeout: then a second replica is asked as well
SPECULATIVE_READ_GROWTH = 2.0  # of the wait, with each further replica
SPECULATIVE_READ_MAX_S = 5.0  # the longest such wait
REPLICA_SLOW_S = 0.01  # a replica that answers faster is never put behind others for its latency
REPLICA_LATENCY_REMEMBERED_S = 30.0  # of a replica that is not asked any more
READ_FAILURE_AVOIDED_S = 10.0  # a replica that failed a read is asked last for so long
EXPLICIT_LAC_INTERVAL_S = 0.0  # explicitLacInterval: between two looks whether a pausing writer has an LAC to tell
LAC_POLL_S = (0.2, 5.0)  # first and longest time that one long poll is left with one bookie
ITERATED_READ_BYTES = 1 * MIB  # of one read while somebody iterates over a ledger
DEFERRED_CLOSE_PATIENCE_S = 2.0  # the close of a ledger with deferred sync waits so long for replicas beyond Qa
LAC_POLL_ANSWER_S = 1.0  # after its time is over a poll must be answered within so long
SUSPECT_BOOKIE_S = 30.0  # a bookie that could not be reached is avoided for new ledgers for so long
TOO_MANY_REQUESTS_BACKOFF_S = (0.01, 1.0)

# Auto-recovery
REPLICATION_WORKERS = 1  # ledgers that one process replicates at the same time
REPLICATION_RATE_BYTES_S = 64 * MIB  # payload that one process copies in a second
REPLICATION_BATCH_BYTES = 1 * MIB  # read and written at a time
REPLICATION_BATCHES_IN_FLIGHT = 4  # written and not yet acknowledged, of one ledger
REPLICATION_RETRY_S = (30.0, 3600.0)  # before a ledger that could not be repaired is tried again
REPLICATION_POLL_S = 30.0  # between two looks for marks, whatever the watch says
REPLICATION_REMEMBERED_MAX = 100_000  # ledgers whose next attempt is remembered; more are tried at once
LOST_BOOKIE_DELAY_S = 600  # a bookie that went away is given so long to come back
OPEN_LEDGER_GRACE_S = 30.0  # an open ledger that lacks a replica is left to its writer for so long
OPEN_TAIL_PAUSE_S = 0.25  # between two looks at whether an open ledger is sent to a marked bookie again
OPEN_TAIL_RETRY_S = 5.0  # between two attempts at an open ledger that grows; doubles for each at which it did not
NO_ENTRY_LIST_S = 600.0  # a bookie that left a request for a list without an answer is asked for none so long
AUDITOR_OPERATIONS_S = 1000.0  # asked of all bookies by checks in a second
AUDITOR_CHECK_INTERVAL_S = 7 * 86_400.0  # between two checks of all ledgers
AUDITOR_MARKS_AT_ONCE = 32  # writes to the metadata store that an audit has under way
AUDITOR_PLACEMENT_CHECK_INTERVAL_S = 86_400.0  # between two looks at racks and zones of all ensembles
NARROW_CHECK_INTERVALS_S = (60.0, 600.0)  # between two looks for ledgers with too few copies: there are some, or none
NARROW_LISTED_MAX = 10_000  # marked ledgers whose metadata one request for those with too few copies reads
NARROW_READS_AT_ONCE = 32  # of these
NARROW_CHECK_PAUSE_S = 15.0  # the same after a change of bookies or marks; longer where a look takes long
AUDITOR_BOOKIE_CHECK_INTERVAL_S = 86_400.0  # between two looks for lost bookies that no event asked for
ENTRY_LIST_TIMEOUT_S = 10.0  # for the list of a ledger's entries at one bookie
LACKING_RANGES_MAX = 10_000  # of one replica; more are taken together
CHECK_READS_AT_ONCE = 16  # of one replica that a check has under way
DAMAGE_RANGES_MAX = 100  # of one ledger at one bookie that a scrub notes; more are taken together
DRAINS_MAX = 100  # bookies that are emptied, or wait for it, at the same time
DRAIN_TICK_S = 10.0  # between two looks at drains; longer where a look takes long
DRAIN_MARKS_MAX = 10_000  # ledgers of a leaving bookie that are marked at a time
DRAIN_NAMED_MAX = 20  # ledgers that one reason against a drain names

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
METADATA_LOG_COMMITS_BYTES_MIN = 16 * MIB  # of commits in the embedded store's change log, before it is rewritten
METADATA_LOG_GROWTH_BYTES = 1 * MIB  # of zeros that are written ahead of its end
METADATA_LOG_ROWS_BYTES = 256 * KIB  # of nodes in one frame of it
METADATA_LOG_STEP_NODES = 500  # copied between two batches of requests while it is rewritten
METADATA_WATCH_EVENTS_MAX = 10_000  # queued for one reader; above it the reader gets a RESYNC

assert JOURNAL_GROUP_BYTES_MAX > FRAME_BYTES_MAX, "one entry of the largest frame must fit one group"
assert CONNECTION_MEMORY_BYTES_MAX >= CONNECTION_MEMORY_FRAMES_MIN * FRAME_BYTES_MAX
assert CONNECTION_MEMORY_BYTES_MAX >= (READS_AT_ONCE_MAX + PRIORITY_READS_AT_ONCE_MAX) * FRAME_BYTES_MAX, (
    "the budget must not slow reads while nothing else is held"
)
assert PRESSURE_STALLED_S <= STALLED_PEER_S <= SLOW_PEER_S
assert JOURNAL_FILE_BYTES >= 4 * JOURNAL_GROUP_BYTES_MAX
assert WRITE_CACHE_BYTES >= 4 * FRAME_BYTES_MAX
assert DISK_COMPACTION_RESERVED_BYTES <= DISK_RESERVED_BYTES
assert DISK_USAGE_LOW_WATERMARK <= DISK_USAGE_THRESHOLD
