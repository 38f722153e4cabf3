"""Limits of the broker's sessions, topics and ownership, with their defaults and units.

The managed ledger and dispatch have theirs in their settings. Pulsar's names of settings are in the comments.
"""

from quire_bookie.limits import FRAME_BYTES_MAX, FRAME_LENGTH_BYTES, KIB, MIB

MESSAGE_BYTES_MAX = 5 * MIB  # maxMessageSize
FRAME_PADDING_BYTES = 10_240  # granted by the protocol to commands and metadata on top of the payload
STANDALONE_GC_QUARANTINE_S = 3600.0  # less than a bookie's: it shares a disk with other files
STANDALONE_DISK_USAGE_THRESHOLD = 0.99  # as Pulsar's: it shares a disk with the user's other files

# Sessions
KEEP_ALIVE_INTERVAL_S = 30.0  # keepAliveIntervalSeconds; a peer silent for twice that is disconnected
LIVENESS_CHECK_S = 5.0  # time in which an old producer's connection must answer PING before a new one replaces it
CREDENTIALS_CHECK_S = 60.0  # authenticationRefreshCheckSeconds; between checks for expired tokens
PERMISSIONS_CHECK_S = 5.0  # permissionsCheckSeconds; between checks whether open clients are still permitted
UNAUTHENTICATED_S = 30.0  # a connection that has not authenticated by then is closed
UNAUTHENTICATED_FRAME_BYTES_MAX = 64 * KIB  # of such a connection: any client may open many
ISSUER_REFRESH_S = 64_800.0  # openIDCacheRefreshAfterWriteSeconds; 18 h
ISSUER_EXPIRY_S = 86_400.0  # openIDCacheExpirationSeconds
ISSUER_UNKNOWN_KEY_S = 300.0  # openIDKeyIdCacheMissRefreshSeconds
ISSUER_CONNECT_S = 10.0  # openIDHttpConnectionTimeoutMillis
ISSUER_READ_S = 10.0  # openIDHttpReadTimeoutMillis
ISSUER_RETRY_S = 5.0  # pause after keys of an issuer could not be read
ISSUER_WAITING_MAX = 1000  # clients that wait for the keys of one issuer; further ones are refused
ISSUER_ANSWER_BYTES_MAX = MIB
PASSWORD_CHECKS_MAX = 64  # that wait for the thread of basic authentication; further clients are refused
PASSWORDS_REMEMBERED_MAX = 10_000  # right ones, as keyed hashes: their clients wait for no check
PASSWORD_BYTES_MAX = 1024
AUDIT_CHARACTERS_MAX = 512  # of a path or a role in a line of the audit log; the rest is cut off
BCRYPT_COST_MAX = 14  # of a hash in basicAuthConf; a check takes about a second
CLOSE_FLUSH_S = 5.0  # time for a closing connection to send its buffered bytes
CLOSE_SILENT_S = 1.0  # a client that sends nothing for this time has sent its whole text
PENDING_PUBLISHES_MAX = 1000  # maxPendingPublishRequestsPerConnection
RATE_CHECK_S = 1.0  # between two looks at a rate that a connection waits for: a policy may have changed it
CONNECTION_PUBLISH_BYTES_MAX = 32 * MIB  # received and not yet answered, of one connection
PUBLISH_BYTES_MAX = 128 * MIB  # the same of all connections (maxMessagePublishBufferSizeInMB)
SOCKET_WRITE_HIGH_BYTES = 4 * MIB  # above it nothing is dispatched to that connection
SOCKET_WRITE_LOW_BYTES = 1 * MIB
JOINED_WRITE_BYTES = 64 * 1024  # deliveries of one turn of the loop to one connection that are written at once
CONNECTIONS_MAX = 10_000
CONNECTIONS_PER_ADDRESS_MAX = 5_000  # of one client address
REQUESTS_IN_FLIGHT_MAX = 5_000  # of one connection: lookups, producers, subscriptions; above it TooManyRequests
CLIENT_REQUEST_S = 25.0  # brokerClientRequestTimeoutSeconds; stock clients give up after 30 s
PRODUCERS_PER_CONNECTION_MAX = 10_000
CONSUMERS_PER_CONNECTION_MAX = 10_000
BATCH_MESSAGES_MAX = 1 << 20  # in one entry; more would use up every permit of a consumer
RECENTLY_CLOSED_PRODUCERS_MAX = 1_000  # remembered per connection, so that a late SEND is ignored
NAME_CHARACTERS_MAX = 1_024  # nameMaxCharacters; of a subscription, a producer, a consumer
PROPERTIES_CHARACTERS_MAX = 65_536  # keys and values of one producer, consumer or subscription
CLIENT_VERSION_CHARACTERS_MAX = 256  # of the version that a client sends; the rest is cut off
PATTERN_CHARACTERS_MAX = 1024  # of a regular expression in a namespace isolation policy

# Schemas
SCHEMA_BYTES_MAX = 1 * MIB  # schemaMaxBytes; of one schema with its properties
SCHEMA_CHECK_STEPS_MAX = 500_000  # schemaCheckMaxSteps; about a second of one core
SCHEMA_CHECKS_WAITING_MAX = 100  # concurrent long checks; above it TooManyRequests

# Topics
TOPIC_LOADS_MAX = 128  # maxConcurrentTopicLoadRequest; others wait
TOPIC_LOADS_WAITING_MAX = 5_000  # above it TooManyRequests
TOPIC_LOAD_S = 60.0  # topicLoadTimeoutSeconds; with the wait for other topics
RESOURCE_GROUPS_EXCHANGE_S = 5.0  # between two divisions of the rates of resource groups among the brokers
RESOURCE_GROUPS_MAX = 1000  # of a cluster
SUBSCRIPTION_RATES_MAX = 100  # subscriptions of a topic with a rate of their own
SUBSCRIBERS_COUNTED_MAX = 10_000  # consumers of a topic whose subscribe rate is counted
TOPICS_PER_STEP = 200  # looked at in one step of the event loop
FILTERS_MAX = 16  # entry filters of a topic
FILTER_STEP_S = 0.02  # that the entry filters of a subscription may take in one step of its delivery
FILTER_PAUSE_MAX_S = 5.0  # of a subscription after a step of its entry filters
TOPIC_CLOSES_MAX = 64  # at a time, by a broker that stops
PARTITIONS_MAX = 10_000
TOPIC_LIST_PAUSE_S = 0.2  # between a change of a namespace's topics and the update that its watchers get
TOPIC_LIST_WAIT_S = 10.0  # that a client waits for the first list of a namespace
SUBSCRIPTION_PATTERN_CHARACTERS_MAX = 50  # of a client that subscribes by a pattern
TOPIC_WATCHERS_MAX = 100  # of one connection
LIST_SLICE_NAMES = 500  # of a list of topics that are parsed until the event loop runs in between: 3 ms
UNUSED_TOPIC_S = 600.0  # closeUnusedTopicsAfterSeconds; as long as a ledger is used at least before it is rolled over
UNUSED_TOPIC_MAX_S = 7 * 24 * 3600.0
UNLOAD_WAIT_S = 5.0  # a client that wants a topic which is being unloaded waits this long
BACKLOG_QUOTA_CHECK_S = 60.0  # backlogQuotaCheckIntervalInSeconds; a topic may exceed its quota for this time
COMPACTION_CHECK_S = 60.0  # brokerServiceCompactionMonitorIntervalInSeconds
COMPACTION_KEYS_BYTES_MAX = 128 * MIB  # topicCompactionKeysMaxMb; of one compaction: about half a million keys
COMPACTIONS_AT_ONCE = 2  # of a broker; others wait
INDEX_LEDGERS_SEARCHED_MAX = 100  # newest ledgers of a topic that are searched for an entry with an index when it opens
DEDUPLICATION_ENTRIES_INTERVAL = 1000  # brokerDeduplicationEntriesInterval
DEDUPLICATION_INTERVAL_S = 120.0  # brokerDeduplicationSnapshotIntervalSeconds
DEDUPLICATION_PRODUCERS_MAX = 10_000  # brokerDeduplicationMaxNumberOfProducers
DEDUPLICATION_IDLE_S = 360 * 60.0  # brokerDeduplicationProducerInactivityTimeoutMinutes
DEDUPLICATION_REPLAY_ENTRIES = 500  # one read of the replay at load

# Managed ledgers
SHADOW_TOPICS_MAX = 100  # that one source names
SHADOW_LAC_S = (
    0.1  # after an append to the source of a shadow topic, until its bookies know that the entry is confirmed
)
SHADOW_LAC_RETRY_S = 1.0  # after bookies did not accept that
SHADOW_POLL_S = 30.0  # in which a shadow topic asks again for new entries of its source, if nothing tells
MARKED_LEDGER_IDLE_S = 5.0  # markedLedgerIdleSeconds; an open ledger marked as under-replicated then rolls over
MARKED_LEDGER_IDLE_MAX_S = 24 * 3600.0
MARKED_LEDGER_ROLLOVERS_S = 50  # markedLedgerRolloversPerSecond; each takes about six requests to the metadata store
MARKED_LEDGERS_AT_ONCE = 8  # that a broker ends, or whose marks it writes again
LEDGER_OVERGROWTH_MAX = 16  # times managedLedgerMaxSizePerLedgerMbytes, while no successor can be created
LEDGER_ENTRIES_MAX = 1 << 31  # in that ledger

# Ownership
NAMESPACE_BUNDLES = 4  # defaultNumberOfNamespaceBundles
DEFAULT_NAMESPACE_BUNDLES = 16  # of public/default, as Pulsar's cluster set-up creates it
NAMESPACE_BUNDLES_MAX = 128
FAILURE_DOMAIN_BROKERS_MAX = 1_000  # in one failure domain
RACKED_BOOKIES_MAX = 10_000  # with an entry in the rack map
PEER_CLUSTERS_MAX = 100  # of one cluster
POLICIES_CACHE_S = 5.0  # how long a namespace's policies may be stale without a watch
POLICIES_REFRESH_S = 2.0  # how long a lookup waits for newer policies before it uses cached ones
SESSION_TIMEOUT_S = 3.0  # metadataStoreSessionTimeoutMillis; see docs/decisions/0014
LOOKUP_HOLD_S = 8.0  # a lookup waits this long for the owner of a bundle that changes hands, or is gone
BUNDLES_TAKEN_MAX = 16  # at once by one broker; others wait
LOOKUP_RECHECK_S = 0.5  # between two looks at its owner, if no event tells
REACHABLE_CHECK_S = 1.0  # in which another broker accepts a connection
REACHABLE_S = 0.25  # a broker that accepted one counts as reachable
UNREACHABLE_CHECK_S = 60.0  # between two checks of a broker that keeps its lease, but cannot be reached from here
HANDOVER_PREPARE_S = 1.0  # for the next owner of a bundle to prepare its topics; then they are closed anyway
HANDOVER_SILENT_S = 10.0  # after which a broker that did not prepare in time is waited for again
HANDOVER_PREPARED_MAX = 64  # topics of a bundle that the next owner prepares; it opens the others without
MOVE_CLOSE_S = 30.0  # for the topics of a bundle to close; then it moves anyway, and its next owner recovers them
HANDOVER_CLOSES_MAX = 8  # topics without clients that one bundle closes at a time
HANDOVER_TAKE_S = 3.0  # for the next owner of a bundle to take it; then it is released
HANDOVER_ARRIVAL_S = 10.0  # a client that is sent to the next owner too early waits this long for the bundle
HANDOVER_TOPICS_MAX = 1_000  # topics with clients that the next owner loads at once; others when they are asked for
HANDOVER_LOADS_MAX = 32  # of these at a time
PREPARED_LEDGERS_MAX = 256  # of a broker, for topics that it is about to open
PREPARED_LEDGER_S = 15.0  # then a prepared ledger that was not used is deleted
CURSORS_READ_MAX = 40  # of a topic, read in the transaction that opens it; more are read after it
RECORDS_READ_MAX = 50  # the same for records of deletions that an earlier owner left
DELAYED_IN_MEMORY_MAX = 1_000_000  # delayed entries of a subscription that are in no bucket yet, 20 bytes each
DELAYED_BUCKETS_MAX = 1_000  # of a subscription: above it, the one with the fewest entries left is saved with new ones
DELAYED_PAGES_AT_ONCE = 8  # pages of buckets that a subscription reads at a time
LEDGERS_RECORDED_AT_ONCE = 40  # deletions that one transaction records
HANDOVERS_MAX = 4  # bundles that a draining broker hands over at a time
HEALTH_S = 2.0  # in which the metadata store answers a health check
OWNER_SETTLES_S = 5.0  # an admin request waits this long for the owner of a bundle that is changing hands
ADMIN_PATIENCE_S = 2.0  # an admin request that takes longer checks that the metadata store responds
ADMIN_LEFT_RUNNING_MAX = 64  # changes that were answered 503 without the metadata store, and still go on
FORWARD_S = 30.0  # for the response of another broker to a forwarded admin request
FORWARDS_MAX = 64  # forwarded requests at once
FORWARDS_PER_BROKER_MAX = 16  # of these to one broker: one that hangs does not stop those to others
FORWARDS_PER_REQUEST_MAX = 8  # of one admin request: partitions or bundles that are served at once
FORWARD_ANSWER_BYTES_MAX = 16 * MIB  # of one response
FORWARD_SMALL_BYTES = 1 * MIB  # a response that may be larger
FORWARDS_LARGE_MAX = 8  # of these are received at once
TOPICS_TICK_S = 10.0  # between two samples of the rates of a topic
RATES_STEP_S = 60.0  # between two points of the web console's history
RATES_POINTS = 1440  # of each series: a day
RATES_TOPICS_MAX = 200  # series of topics that a broker keeps: the busiest ones, 28,800 bytes each
RATES_NAMESPACES_MAX = 50  # series of namespaces
LIVE_STREAMS_MAX = 16  # streams of rates to web consoles at once
LIVE_STEP_S = 5.0  # between two events of such a stream
LIVE_STREAM_S = 60.0  # after which a console connects again, and its role is checked again
LIVE_TOPICS_MAX = 200  # topics in one event: the busiest ones
BROWSED_MESSAGES_MAX = 200  # that a request of the web console for messages returns
BROWSED_ENTRIES_MAX = 2_000  # that it reads in a search
PUBLISHED_BY_HTTP_MAX = 16  # messages that are being published by HTTP at once
PUBLISH_BY_HTTP_S = 20.0  # in which such a message is stored
PEEK_ENTRIES_MAX = 1000  # of a subscription in one response
INFO_CURSORS_MAX = 1000  # of a topic in the response of internal-info
INFO_RANGES_MAX = 1000  # of a cursor in it
METADATA_NODES_MAX = 16  # nodes of the metadata store in one response; each has at most 1 MiB
METADATA_SCAN_PAGE_NODES = 100  # read and written at a time in a scan of the metadata store by HTTP
METADATA_SCANS_MAX = 4  # such scans at once; further ones are refused
METADATA_SCAN_S = 300.0  # in which such a scan ends
BACKLOG_ENTRIES_ANALYZED_MAX = 10_000  # subscriptionBacklogScanMaxEntries: one analyze-backlog reads no more
PEEK_BYTES_MAX = 4 * MIB  # of them; a larger entry is sent alone
SPREAD_S = 50.0  # for an admin request to all its partitions; stock admin clients wait for 60 s
PROXY_HANDSHAKE_S = 30.0  # a client of a proxy sends CONNECT in this time
PROXY_CONNECT_S = 10.0  # until a broker has answered the CONNECT of a proxy
PROXY_LOOKUP_S = 30.0  # for one lookup through a proxy, with all redirects
PROXY_LOOKUPS_MAX = 10_000  # of all clients of a proxy at once
PROXY_LOOKUPS_PER_CONNECTION_MAX = 1_000
PROXY_LOOKUP_HOPS_MAX = 10  # brokers that are asked for one lookup
PROXY_LINKS_MAX = 64  # brokers to which a proxy connects for the lookups of one client
PROXY_BUFFER_BYTES = 256 * KIB  # of one direction of a connection through a proxy
PROXY_HTTP_S = 60.0  # until a broker begins to answer a forwarded request
PROXY_HTTP_REQUESTS_MAX = 256  # that a proxy forwards at once
PROXY_HTTP_BODY_BYTES_MAX = 1 * MIB  # of a request, which is kept for redirects
PROXY_SOCKET_TEXT_BYTES_MAX = 8 * MIB  # a text of a WebSocket client; brokers accept no larger ones
PROXY_SOCKET_MESSAGE_BYTES_MAX = 32 * MIB  # a text of a broker: a chunked message in base64
PROXY_SOCKET_REFUSAL_BYTES_MAX = 64 * KIB  # of the response with which a broker refuses a WebSocket
PROXY_SOCKET_SEND_S = 60.0  # in which one side of a WebSocket takes nothing from the other
PROXY_DRAIN_S = 10.0  # in which a stopping proxy closes the connections of its clients
WEBSOCKET_SESSIONS_MAX = 1_000  # webSocketMaxSessions
WEBSOCKET_TEXT_BYTES_MAX = 1 * MIB  # webSocketMaxTextFrameSize
WEBSOCKET_IDLE_S = 300.0  # webSocketSessionIdleTimeoutMillis
WEBSOCKET_BUFFER_BYTES = 64 * MIB  # messages of all sessions that wait for their client, or for a receipt
WEBSOCKET_INBOX_BYTES = 256 * KIB  # messages of one session that wait for its client; above it no broker is read
WEBSOCKET_PARTITIONS_MAX = 128  # topics and partitions of one session
WEBSOCKET_CHUNKED_BYTES_MAX = 16 * MIB  # a chunked message of a session; the incomplete ones of a session together
WEBSOCKET_CHUNKS_MAX = 100  # chunks of one message
WEBSOCKET_QUEUE_MAX = 1_000  # receiverQueueSize and maxPendingMessages, as in Pulsar
WEBSOCKET_UNACKED_MAX = 50_000  # messages of one session whose acknowledgement or redelivery is tracked
WEBSOCKET_LEDGERS_MAX = 1_000  # ledgers of one session whose topic is remembered
WEBSOCKET_CONNECT_S = 10.0  # until a broker has accepted the connection of a session
WEBSOCKET_ATTACH_S = 30.0  # until a broker has answered PRODUCER or SUBSCRIBE
WEBSOCKET_RETRY_MIN_S = 0.1  # pause before a producer or consumer attaches again; doubled up to the longest
WEBSOCKET_RETRY_MAX_S = 5.0
WEBSOCKET_SEND_S = 30.0  # in which a message is stored (sendTimeoutMillis)
WEBSOCKET_NACK_S = 60.0  # negativeAckRedeliveryDelay, as in Pulsar
STOP_S = 10.0  # a stopping broker gives its topics this time to flush

assert MESSAGE_BYTES_MAX + FRAME_PADDING_BYTES <= FRAME_BYTES_MAX + FRAME_LENGTH_BYTES, "a message must fit a frame"
assert CONNECTION_PUBLISH_BYTES_MAX > MESSAGE_BYTES_MAX
assert max(PEEK_BYTES_MAX, MESSAGE_BYTES_MAX) * 4 // 3 < FORWARD_ANSWER_BYTES_MAX, "base64 must fit a response"
assert PUBLISH_BYTES_MAX >= CONNECTION_PUBLISH_BYTES_MAX
assert JOINED_WRITE_BYTES < SOCKET_WRITE_LOW_BYTES < SOCKET_WRITE_HIGH_BYTES
