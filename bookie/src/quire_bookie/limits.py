"""Every bound of the ledger store, with its default and unit, and the relations between them.

A setting may override each of them (see `config`); the asserts check the defaults only.
"""

KIB = 1024
MIB = 1024 * KIB

# Wire
FRAME_LENGTH_BYTES = 4  # before each frame; included in BookKeeper's setting, not in these bounds
FRAME_BYTES_MAX = 5_253_120 - FRAME_LENGTH_BYTES  # nettyMaxFrameSizeBytes as Pulsar ships it: 5 MiB + 10 KiB
BATCH_READ_BYTES_MAX = 5 * MIB  # maxBatchReadSize
SOCKET_WRITE_HIGH_BYTES = 4 * MIB  # per connection; above it, reading from that socket pauses
ADDS_IN_FLIGHT_BYTES_MAX = 64 * MIB  # per bookie, received and not yet answered
BACKPRESSURE_PAUSE_S = 3.0  # how long an add above that limit waits, its socket paused, before ETOOMANYREQUESTS

# Memory of connections: incomplete frames, waiting requests, reads in flight and unsent responses of one process
CONNECTION_MEMORY_BYTES_MAX = 512 * MIB  # or a quarter of the machine's memory, if that is less
CONNECTION_MEMORY_SHARE = 0.25  # of the memory of the machine, or of the container
CONNECTION_MEMORY_FRAMES_MIN = 8  # frames of the largest size that the budget must hold
STALLED_PEER_S = 60.0  # a connection without progress in a begun frame, or in reading its responses, is closed after it
SLOW_PEER_S = 600.0  # the same for slow progress: one frame, or all responses that waited at one moment, take longer
PRESSURE_STALLED_S = 2.0  # replaces STALLED_PEER_S for a large user of the budget while other connections wait for it
FIRST_REQUEST_S = 60.0  # a connection to a bookie without a request by then is closed
SLOW_OPERATION_S = 1.0  # an operation of this duration is logged with its parts
SLOW_LINES_PER_S = 5  # lines about slow operations; the others are only counted
TRACE_RATIO = 0.01  # share of the entries that are traced, if there is a collector
TRACES_PER_S = 20  # operations of a broker or bookie that begin or continue a trace in one second
TRACE_LOOKS_PER_S = 50  # messages whose properties a broker reads in one second, for the trace of their client
TRACE_QUEUE_SPANS = 4096  # spans that wait for the collector: some 1 KiB each
LARGE_ANSWER_BYTES = 64 * KIB  # a partly sent response of this size counts fully, because it is freed as a whole
CONNECTION_CHECK_S = 1.0  # between two checks of the memory of connections
WAITING_REQUEST_BYTES = 512  # charged for a waiting request without an entry

# Journal
JAVA_HTTP_PORT = 8080  # for a .conf file with httpServerEnabled=true and no httpServerPort, as in BookKeeper
JOURNAL_FILE_BYTES = 64 * MIB  # each; zeroed once and recycled (journalMaxSizeMB)
JOURNAL_GROUP_BYTES_MAX = 8 * MIB
JOURNAL_GROUP_ENTRIES_MAX = 32_768
JOURNAL_QUEUE_BYTES_MAX = 64 * MIB
JOURNAL_ALIGNMENT_BYTES = 4096
JOURNAL_SPARE_FILES_MAX = 4  # kept for recycling; further ones are removed
JOURNAL_WITNESS_S = 1.0  # from a durable group until the witness covers it
JOURNAL_FULL_RETRY_S = 1.0  # between attempts to create a file on a full disk

# Storage
WRITE_CACHE_BYTES = 128 * MIB  # both halves together
READ_CACHE_BYTES = 64 * MIB
INDEX_CACHE_BYTES = 64 * MIB
INDEX_CHECK_SILENCE_S = 120.0  # the child process that checks the index is killed when it prints nothing for this long
READ_AHEAD_BYTES = 1 * MIB
ENTRY_LOG_BYTES_MAX = 1024 * MIB
ENTRY_LOG_STRETCH_BYTES = 1 * MIB  # records encoded, or read for compaction, in one step
ENTRY_LOG_WRITE_BYTES = 2 * MIB  # one write: the journal waits behind it, and extending a file costs 0.2 ms of CPU
ENTRY_LOG_WRITES_MAX = 1  # of that size, in flight for one flush: bounds memory and disk threads
FLUSH_INTERVAL_S = 60.0
LEDGER_STATES_MAX = 250_000  # cached in memory, 500 bytes each
CHANGED_LEDGER_STATES_MAX = 25_000  # not yet in the index; a flush begins at this number
OPEN_LOGS_MAX = 256  # file handles kept for reads
DISK_RESERVED_BYTES = 64 * MIB  # kept free so that a full disk can be recovered from
DISK_COMPACTION_RESERVED_BYTES = 16 * MIB  # the part that compaction leaves: the index still has to commit deletions
INDEX_RESERVE_BYTES = (
    4 * MIB
)  # in addition to half of the index cache: the write-ahead log has at most that size, and opening writes it out
JOURNAL_RESERVE_BYTES = 1 * MIB  # in addition to a short journal file: the mark, and names
METADATA_RESERVE_FILES = 8  # of the embedded metadata store, for commits on a full disk
METADATA_RESERVE_FILE_BYTES = 1 * MIB
METADATA_COMMIT_BYTES = 1 * MIB  # left free before a commit of the embedded metadata store
SMALL_WRITE_CACHE_BYTES = 24 * MIB  # the minimum, used on a small disk
SMALL_FILE_BYTES = 16 * MIB  # the same for journal files and entry logs
SMALL_RESERVED_BYTES = 8 * MIB
SMALL_INDEX_CACHE_BYTES = 8 * MIB
DISK_FULL_COLLECTION_S = 30.0  # between two garbage collections while the disk is full
DISK_FULL_SEAL_BYTES_MIN = 64 * KIB  # an entry log of this size is sealed on a full disk, so that it can be deleted
DISK_USAGE_THRESHOLD = 0.95
DISK_USAGE_WARN_THRESHOLD = 0.90  # of a ledger folder: almost full
DISK_USAGE_LOW_WATERMARK = 0.90
BOOKIE_ID_CHARACTERS_MAX = 255
MACHINE_CHARACTERS_MAX = 255
DISK_CHECK_INTERVAL_S = 10.0
LOCAL_DISK_THREADS = 8  # for blocking file calls of one process
GC_INTERVAL_S = 900.0
METADATA_CHECK_INTERVAL_S = 30.0  # between two reads of the epoch and the counters of ledger ids by a bookie
LEDGER_TOKEN_WAIT_S = 0.5  # how long the creation of a ledger waits for its bookies to store its token
ID_INQUIRY_TIMEOUT_S = 2.0  # for a bookie's response to the question which ledger ids it knows
ID_INQUIRY_AGAIN_S = 30.0  # before a bookie that did not respond is asked again
LEDGER_IDS_SKIPPED_MAX = 10_000  # consecutive ids that bookies know
METADATA_CHECK_PAUSE_S = 1.0  # the shortest time between two such reads, however many ledgers are created
SCRUB_INTERVAL_S = 7 * 86_400.0  # from the end of one scrub to the start of the next
SCRUB_BYTES_PER_SECOND = 8 * MIB  # a log of 1 GiB takes two minutes
SCRUB_ENTRIES_PER_SECOND = 4000  # regardless of the byte rate: one costs 14 us of the loop
SCRUB_REPORT_MAX = 10_000  # findings that are kept
SCRUB_RETRY_S = 60.0  # after an error, and between two checks whether a scrub is due
DAMAGE_REPORT_INTERVAL_S = 5.0  # between two reports of damage to auto-recovery
DAMAGE_CHECK_INTERVAL_S = 60.0  # between two reads of damaged entries, to check whether they are repaired
DAMAGE_REPORTED_AGAIN_S = 600.0  # after which an unrepaired finding is reported again
DELETED_LEDGER_MEMORY_S = 7 * 86_400.0  # how long a bookie refuses late writers of a deleted ledger
GC_FUSE_SHARE = 0.5  # the fuse blows when more than this share of the ledgers is gone at once
GC_FUSE_LEDGERS_MIN = 50  # fewer missing ledgers never blow the fuse
GC_QUARANTINE_S = 86_400.0  # how long a ledger is kept after its metadata are gone
GC_QUARANTINE_MIN_S = 3600.0  # the same when the disk is almost full
GC_QUARANTINE_LEDGERS_MAX = 100_000  # in quarantine or undeleted; each is a record of about 300 bytes in memory
GC_QUARANTINE_PAGE_LEDGERS_MAX = 10_000  # in one response of the admin HTTP API
UNDELETE_FOR_S_MAX = 3660 * 86_400  # ten years
UNDELETE_LEDGERS_MAX = 10_000  # in one request
QUARANTINE_REASON_BYTES_MAX = 256
GC_OVER_REPLICATED_INTERVAL_S = 86_400.0
GC_OVER_REPLICATED_AT_ONCE = 100  # ledgers checked together
MINOR_COMPACTION_THRESHOLD = 0.2  # an entry log whose live share is below it is rewritten
MINOR_COMPACTION_INTERVAL_S = 3600.0
MAJOR_COMPACTION_THRESHOLD = 0.8
MAJOR_COMPACTION_INTERVAL_S = 86_400.0
COMPACTION_RATE_BYTES_S = 16 * MIB  # bytes of live records that are copied per second
COMPACTION_RATE_ENTRIES_S = 1000  # the same in entries, if the rate is configured in entries
COMPACTION_LATENCY_MAX_S = 0.1  # compaction pauses while the p99 of adds or reads is above
COMPACTION_PAUSE_S = 1.0  # duration of one pause
COMPACTION_PAUSES_MAX = 30  # consecutive; then one batch is copied, so that a bookie that is always slow frees space
COMPACTION_TICK_S = 30.0  # between two checks whether a compaction is due
LOG_USAGE_LINES_MAX = 1_000_000  # (entry log, ledger) pairs whose live bytes are kept in memory

# Bookie process
MASTER_KEY_BYTES_MAX = 1 * KIB  # real keys have 20; V3 does not bound them, and the index stores them
EXPLICIT_LAC_BYTES_MAX = 4 * KIB  # real ones have at most 48; one is stored with the state of each ledger
READS_AT_ONCE_PER_CONNECTION = 16  # entry reads of one connection that storage works on at the same time
READS_PER_TURN = 256  # in one loop iteration before adds and journal run: one to two milliseconds
READ_SHARE_BESIDE_ADDS = 8  # divides that number while adds wait for the journal: tenths of a millisecond
REQUESTS_PER_TURN = 256  # of all connections, except runs of plain adds and reads; a buffer may hold ten thousand
READ_RUN_ENTRIES_PER_TURN = 1024  # the same for reads that are answered together, at an eighth of the cost each
READ_RUN_BYTES_PER_TURN = 4 * MIB  # the same in bytes
READ_RUN_GAP_ENTRIES = 16  # ids within this distance are read in order: striping leaves such gaps
READS_QUEUED_PER_CONNECTION = 1024  # above it, the socket pauses
READS_AT_ONCE_MAX = 64  # normal reads of one bookie that storage works on at the same time
PRIORITY_READS_AT_ONCE_MAX = 32  # the same for high priority; they do not wait for normal ones
LONG_POLLS_MAX = 20_000  # parked reads of one bookie, about 1 KiB each; further ones get ETOOMANYREQUESTS
LONG_POLLS_PER_CONNECTION_MAX = 2_000  # the same for one connection
LONG_POLL_S_MAX = 86_400.0  # a poll that asks for a longer time ends after this
BOOKIE_DRAIN_TIMEOUT_S = 5.0  # how long a clean stop waits for outstanding responses
POISONED_READS_S = 30.0  # how long a bookie with a failed journal still answers reads
JOURNAL_RESERVED_BYTES = DISK_RESERVED_BYTES + WRITE_CACHE_BYTES  # left for flushes when a journal file is created

# Security
CONNECTIONS_MAX = 20_000  # to one bookie at a time; each needs a file handle
ROLE_CHARACTERS_MAX = 256  # of a role in a certificate
OPEN_FILES_MAX = 1024 * 1024  # the highest limit of handles that a process requests from the system
OPEN_FILES_OF_OUR_OWN_MIN = 512  # handles not used for connections, but at most half of all
CONNECTIONS_PER_ADDRESS_MAX = 4_000  # of one client address at a time
KEEPALIVE_IDLE_S = 300  # silence of a client after which it is probed; whole seconds, as the system requires
KEEPALIVE_INTERVAL_S = 30  # between probes
KEEPALIVE_PROBES = 4  # unanswered, after which the connection is closed
UNAUTHENTICATED_S = 30.0  # a connection that has not authenticated by then is closed
UNAUTHENTICATED_FRAME_BYTES_MAX = 64 * KIB  # real tokens and exchanges have a few KiB
TLS_HANDSHAKE_TIMEOUT_S = 10.0
TLS_REFRESH_S = 300.0  # between two checks of the certificate files
TOKEN_REFRESH_S = 60.0  # between two checks of the file of token keys or tokens
TOKENS_PER_TURN = 100  # open connections whose token is verified again in one loop iteration
CONNECTION_REFUSED_LOG_S = 10.0  # at most one log line about refused connections in this time
FOREIGN_ADDS_LOG_S = 10.0  # the same for entries of another ledger with the same id
HTTP_HEADER_TIMEOUT_S = 10.0  # for the handshake and the first header, and for each later header
HTTP_BODY_TIMEOUT_S = 60.0  # for the body of a request, after its header
ACCEPT_PAUSE_S = 0.2  # after a connection could not be accepted, for instance for lack of a handle
HTTP_ANSWER_BYTES_MAX = 64 * MIB  # of one response that our HTTP clients read; a page of holdings has 3 MiB
HTTP_ANSWER_LINE_BYTES_MAX = 1 * MIB  # of one line of a response that is read line by line
HTTP_CONNECTIONS_PER_ADDRESS_MAX = 1_000  # of one client address at a time, on the HTTP ports of a process
SCRAPE_SLICE_S = 0.002  # of a scrape until the event loop runs in between, which happens after the next piece
SCRAPE_PIECE_SAMPLES = 50  # of a large family that are collected and encoded at once: half a millisecond
SCRAPE_SAMPLES_MAX = 500_000  # in one response, about 60 MB; the others are counted and left out
LOOP_SAMPLE_S = 0.02  # between two samples of how late the event loop is: 50 timers a second

# Client
ADD_TIMEOUT_S = 30.0
READ_TIMEOUT_S = 30.0
CONNECT_TIMEOUT_S = 10.0
WRITER_PENDING_BYTES_MAX = 64 * MIB
SLOW_REPLICA_BYTES_MAX = 16 * MIB  # in flight in one ledger; above it, a replica that lags behind is replaced
SLOW_REPLICA_GRACE_S = 2.0  # but not before it has lagged for this long
SLOW_REPLICA_S = 10.0  # a replica is replaced when it has not stored a confirmed entry for this long
ENSEMBLE_SIZE_MAX = 64  # bookies in the ensemble of a ledger that the broker creates
ENSEMBLE_CHANGES_MAX = 1000  # of one ledger: each may add a segment of some 100 bytes to its metadata
SHUN_RETURNED_BOOKIE_S = 1.0  # how long a ledger does not use a bookie again after losing it; doubles each time
RACK_ANNOTATION = "quire.dev/zone"  # of a pod: the zone of its node
RACK_WAIT_S = 300.0  # for the pod's annotation: the process that writes it may still be starting
RACK_POLL_S = 0.25
RACK_LATE_POLL_S = 10.0  # while it serves with its known rack: the operator may be away for long
RACK_MAP_CONFLICTS_MAX = 250  # compare-and-set: a whole pool may write its racks at once
ADDRESS_HANDOVER_S = 2.0  # for a new bookie at an old address: until every client has seen its registration
PLACEMENT_RACKS_MIN = 2  # minNumRacksPerWriteQuorum: preferred; enforced only if configured
FREE_SPACE_INTERVAL_S = 3600.0  # between two requests to each bookie, if placement is weighted
QUARANTINE_ERRORS = 100  # failed adds of one bookie within the interval, after which it is avoided
QUARANTINE_INTERVAL_S = 60.0
QUARANTINE_S = 1800.0
HOLE_MARKS_CLOSE_S = 2.0  # how long the close of a client waits for marks that are not written
RECOVERY_READS_IN_FLIGHT = 256  # of one ledger, bounded by READ_WINDOW_BYTES as well
RECOVERY_SETTLE_S = 0.1  # how long a recovery waits for replicas beyond Qa to store its re-adds, before it marks them
RECOVERY_READS_FIRST = 16  # before any entry was found: most tails are short, and reads beyond the end are wasted
READ_WINDOW_BYTES = 4 * MIB  # single reads in flight for one range, by the expected size of their responses
READ_ENTRIES_IN_FLIGHT_MAX = 256  # the same by count
SPECULATIVE_READ_FIRST_S = 2.0  # firstSpeculativeReadTimeout: then the read is sent to a second replica as well
SPECULATIVE_READ_GROWTH = 2.0  # factor of the wait with each further replica
SPECULATIVE_READ_MAX_S = 5.0  # the longest such wait
REPLICA_SLOW_S = 0.01  # a replica with a lower latency is never ordered behind others for its latency
REPLICA_LATENCY_REMEMBERED_S = 30.0  # after the last read from the replica
READ_FAILURE_AVOIDED_S = 10.0  # how long a replica that failed a read is ordered last
EXPLICIT_LAC_INTERVAL_S = 0.0  # explicitLacInterval: between two checks whether a pausing writer has to send its LAC
LAC_POLL_S = (0.2, 5.0)  # shortest and longest duration of one long poll at one bookie
ITERATED_READ_BYTES = 1 * MIB  # of one read while iterating over a ledger
DEFERRED_CLOSE_WAIT_S = 2.0  # how long the close of a ledger with deferred sync waits for replicas beyond Qa
LAC_POLL_ANSWER_S = 1.0  # a poll must be answered within this time after its duration is over
SUSPECT_BOOKIE_S = 30.0  # how long an unreachable bookie is avoided for new ledgers
TOO_MANY_REQUESTS_BACKOFF_S = (0.01, 1.0)

# Auto-recovery
REPLICATION_WORKERS = 1  # ledgers that one process replicates at the same time
REPLICATION_RATE_BYTES_S = 64 * MIB  # payload that one process copies per second
REPLICATION_BATCH_BYTES = 1 * MIB  # read and written at a time
REPLICATION_BATCHES_IN_FLIGHT = 4  # written and not yet acknowledged, of one ledger
REPLICATION_RETRY_S = (30.0, 3600.0)  # before another attempt at a ledger that could not be repaired
REPLICATION_STALLED_S = 600  # without progress, after which a repair is given up and tried again later
REPLICATION_POLL_S = 30.0  # between two searches for marks, in addition to the watch
REPLICATION_REMEMBERED_MAX = 100_000  # ledgers whose next attempt is remembered; further ones are retried at once
LOST_BOOKIE_DELAY_S = 600  # how long a bookie may be unregistered before it counts as lost
OPEN_LEDGER_GRACE_S = 30.0  # how long repairing an open ledger without a replica is left to its writer
OPEN_TAIL_PAUSE_S = 0.25  # between two checks whether the writer of an open ledger uses a marked bookie again
OPEN_TAIL_RETRY_S = 5.0  # between two attempts at a growing open ledger; doubles for each attempt without growth
UNREACHABLE_REMEMBERED_S = 10.0  # how long a copy does not ask an unreachable bookie again, entry by entry
NO_ENTRY_LIST_S = 600.0  # how long no entry list is requested from a bookie that did not answer such a request
AUDITOR_OPERATIONS_S = 1000.0  # operations per second that checks send to all bookies together
AUDITOR_CHECK_INTERVAL_S = 7 * 86_400.0  # between two checks of all ledgers
AUDITOR_MARKS_AT_ONCE = 32  # concurrent writes of an audit to the metadata store
AUDITOR_PLACEMENT_CHECK_INTERVAL_S = 86_400.0  # between two checks of racks and zones of all ensembles
NARROW_CHECK_INTERVALS_S = (60.0, 600.0)  # between two searches for ledgers with too few copies: if any exist, or none
NARROW_LISTED_MAX = 10_000  # marked ledgers whose metadata one request for those with too few copies reads
NARROW_READS_AT_ONCE = 32  # concurrent reads of these metadata
NARROW_CHECK_PAUSE_S = 15.0  # between searches after changes of bookies or marks; longer if a search takes long
AUDITOR_BOOKIE_CHECK_INTERVAL_S = 86_400.0  # between two searches for lost bookies that no event triggered
ENTRY_LIST_TIMEOUT_S = 10.0  # for the list of a ledger's entries at one bookie
LACKING_RANGES_MAX = 10_000  # of one replica; further ones are merged
CHECK_READS_AT_ONCE = 16  # concurrent reads of a check from one replica
DAMAGE_RANGES_MAX = 100  # of one ledger at one bookie that a scrub records; further ones are merged
DRAINS_MAX = 100  # bookies that are drained, or wait for it, at the same time
DRAIN_TICK_S = 10.0  # between two checks of drains; longer if a check takes long
DRAIN_MARKS_MAX = 10_000  # ledgers of a draining bookie that are marked at a time
DRAIN_NAMED_MAX = 20  # ledgers named in one reason against a drain

# Metadata
METADATA_SESSION_TIMEOUT_S = 30.0
METADATA_OPERATION_TIMEOUT_S = 30.0
METADATA_CONNECT_TIMEOUT_S = 10.0  # for the first response when a store is opened
METADATA_ATTEMPT_TIMEOUT_S = 5.0  # for one member, before a read is sent to the next
METADATA_PAGE_KEYS = 1000
METADATA_TRANSACTION_OPERATIONS_MAX = 100  # checks and operations together; etcd's default limit is 128
METADATA_UNKNOWN_RETRIES = 3  # attempts at a write whose outcome remains unknown
METADATA_RETRY_BACKOFF_S = (0.05, 2.0)
METADATA_VALUE_BYTES_MAX = 1 * MIB  # etcd's default limit of a request is 1.5 MiB
METADATA_JOINT_BYTES_MAX = 512 * KIB  # of values that several callers write in one transaction
METADATA_JOINT_WAIT_S = 0.1  # of the first of several callers that write together for the others
METADATA_LOG_COMMITS_BYTES_MIN = 16 * MIB  # of commits in the embedded store's change log, before it is rewritten
METADATA_LOG_GROWTH_BYTES = 1 * MIB  # of zeros written ahead of the end of the change log
METADATA_LOG_ROWS_BYTES = 256 * KIB  # of nodes in one frame of the change log
METADATA_LOG_STEP_NODES = 500  # copied between two batches of requests while the change log is rewritten
METADATA_WATCH_EVENTS_MAX = 10_000  # queued for one reader; above it, the reader gets a RESYNC

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
