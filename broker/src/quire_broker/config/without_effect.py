"""Keys of Pulsar's broker.conf and standalone.conf that a broker reads and does not use, each with the reason. Pure.

A file for stock brokers may hold all their keys: the start reports by name those without effect.
"""

from quire_broker.config.reasons import Reasons

_WITHOUT_EFFECT: tuple[tuple[str, str], ...] = (
    (
        "metadata is in etcd, without ZooKeeper and without a second store: see metadataStoreUrl",
        "zookeeper* zooKeeper* globalZookeeperServers configurationStore* configurationMetadata* metadataStore* "
        "metadataSyncEventTopic bookkeeperMetadataServiceUri",
    ),
    (
        "transactions are not served",
        "transaction* maxActiveTransactionsPerCoordinator numTransactionReplayThreadPoolSize",
    ),
    ("functions, sources, sinks and packages are not served", "functionsWorker* enablePackagesManagement packages*"),
    ("it is not a setting of Quire's WebSocket API", "webSocket*"),
    (
        "a broker is one event loop of Python: it has no thread pools and no JVM",
        "num* enableBusyWait topicOrderedExecutorThreadNum bookkeeperClientNum* "
        "bookkeeperClientSeparatedIoThreadsEnabled "
        "managedLedgerNumSchedulerThreads dispatcherDispatchMessagesInSubscriptionThread skipBrokerShutdownOnOOM "
        "useSeparateThreadPoolForProtocolHandlers httpServerThreadPoolQueueSize httpServerAcceptQueueSize "
        "jvmGCMetricsLoggerClassName",
    ),
    (
        "classes of Java cannot be loaded",
        "additionalServlet* brokerInterceptors* entryFiltersDirectory messagingProtocols "
        "protocolHandlerDirectory brokerEntryPayloadProcessors narExtractionDirectory offloadersDirectory "
        "schemaRegistryCompatibilityCheckers schemaRegistryStorageClassName topicFactoryClassName "
        "topicPoliciesServiceClassName compactionServiceFactoryClassName dispatchRateLimiterFactoryClassName "
        "delayedDeliveryTrackerFactoryClassName managedLedgerStorageClassName sslFactoryPlugin* "
        "brokerClientSslFactory* "
        "topicsPatternRegexImplementation",
    ),
    (
        "certificates and keys are PEM files (tlsCertificateFilePath, tlsKeyFilePath, tlsTrustCertsFilePath), not "
        "key stores",
        "tlsEnabledWithKeyStore tlsKeyStore* tlsTrustStore* brokerClientTlsEnabledWithKeyStore "
        "brokerClientTlsKeyStore* "
        "brokerClientTlsTrustStore*",
    ),
    (
        "TLS is that of OpenSSL: a port has it if brokerServicePortTls or webServicePortTls is set, with "
        "tlsProtocols and "
        "tlsCiphers on both, and host names are always checked",
        "tlsEnabled tlsProvider tlsHostnameVerificationEnabled webServiceTls* brokerClientTls* brokerClientSslProvider",
    ),
    (
        "a broker has no client of its own for other brokers: it passes on the credentials of the client",
        "brokerClient_* brokerClientAuthentication* brokerClientCertificateFilePath brokerClientKeyFilePath",
    ),
    ("SASL is not a provider here: see authenticationProviders", "sasl* kinitCommand inflightSasl* maxInflightSasl*"),
    (
        "clusters are not replicated to each other",
        "replication* replicator* replicatedSubscriptions* enableReplicatedSubscriptions clusterMigration* "
        "createTopicToRemoteClusterForReplication dispatchThrottlingRatePerReplicator*",
    ),
    (
        "brokers balance their load by another algorithm: see docs/brokers.md",
        "loadBalancer* loadManager* minUnload* maxUnload* flowOrQpsDifferenceThresholdPercentage "
        "lowerBoundarySheddingEnabled supportedNamespaceBundleSplitAlgorithms topicBundleAssignmentStrategy "
        "preferLaterVersions resourceUsageTransport* namespaceBundleUnloadingTimeoutMs failureDomainsEnabled "
        "enableNamespaceIsolationUpdateOnTime lookupPropertyPrefix internalListenerName",
    ),
    ("system topics of Pulsar are not used", "systemTopicSchemaCompatibilityStrategy"),
    (
        "it is always served",
        "enablePersistentTopics subscriptionKeySharedEnable subscriptionRedeliveryTrackerEnabled systemTopicEnabled "
        "topicLevelPoliciesEnabled exposePublisherStats",
    ),
    ("bookies are processes of their own: see quire bookie start", "enableRunBookie*"),
    (
        "HTTP has limits of its own: see docs/limits.md",
        "httpRequests* httpMax* maxConcurrentHttpRequests maxHttpServerConnections httpServerGzip* "
        "disableHttpDebugMethods maxConcurrentLookupRequest",
    ),
    (
        "addresses are those of the connection: the HAProxy protocol and X-Forwarded-For are not read",
        "haProxyProtocolEnabled webServiceHaProxyProtocolEnabled webServiceTrustXForwardedFor "
        "webServiceLogDetailedAddresses",
    ),
    (
        "metrics and statistics are collected when they are asked for: see exposeTopicLevelMetricsInPrometheus",
        "expose* metrics* stats* splitTopicAndPartitionLabelInPrometheus healthCheckMetricsUpdateTimeInSeconds "
        "aggregatePublisherStatsByProducerName authenticateMetricsEndpoint bookkeeperClientExposeStatsToPrometheus "
        "bookkeeperClientLimitStatsLogging managedLedgerPrometheusStatsLatencyRolloverSeconds "
        "managedLedgerStatsPeriodSeconds",
    ),
    ("Quire's client of bookies works without it: see docs/client.md", "bookkeeper*"),
    (
        "the ledgers and cursors of topics work without it: see the managed ledger in docs/configuration.md",
        "managedLedger* managedCursor* cacheEvictionByMarkDeletedPosition persistentUnackedRanges* "
        "lazyCursorRecovery "
        "autoSkipNonRecoverableData schemaLedgerForceRecovery triggerOffloadOnTopicLoad topicFencingTimeoutSeconds",
    ),
    (
        "entry filters deliver or drop, and policies of topics and namespaces always go before entryFilterNames",
        "allowOverrideEntryFilters dispatcherEntryFilterRescheduledMessageDelay "
        "dispatchThrottlingForFilteredEntriesEnabled",
    ),
    (
        "deliveries work without it: see docs/limits.md",
        "dispatch* keySharedLookAhead* keySharedUnblockingIntervalMs subscriptionKeyShared* subscriptionShared* "
        "subscriptionBacklogScan* preciseDispatcherFlowControl unblockStuckSubscriptionEnabled "
        "activeConsumerFailover* "
        "maxUnackedMessagesPerBroker maxUnackedMessagesPerSubscriptionOnBrokerBlocked delayedDelivery* "
        "isDelayedDeliveryDeliverAtTimeStrict maxConcurrentNonPersistentMessagePerConnection",
    ),
    ("producers are remembered for deduplication without it", "brokerDeduplication*"),
    (
        "inactive topics, subscriptions and expired messages are found without it",
        "messageExpiryCheckIntervalInMinutes subscriptionExpiryCheckIntervalInMinutes "
        "brokerServicePurgeInactiveFrequencyInSeconds brokerDeleteInactivePartitionedTopicMetadataEnabled "
        "preciseTimeBasedBacklogQuotaCheck brokerServiceCompactionPhaseOneLoopTimeInSeconds",
    ),
    (
        "rates are exact, without ticks",
        "topicPublisherThrottlingTickTimeMillis brokerPublisherThrottlingTickTimeMillis "
        "preciseTopicPublishRateLimiterEnable",
    ),
    (
        "offloading has one set of keys for all kinds of buckets, and sizes of its own: see "
        "managedLedgerOffloadBucket, managedLedgerOffloadRegion and managedLedgerOffloadServiceEndpoint",
        "s3ManagedLedgerOffload* gcsManagedLedgerOffload* fileSystemProfilePath fileSystemURI",
    ),
    ("Athenz is not a provider here: see authenticationProviders", "athenz*"),
    ("a standalone has no ports beside its own: use quire broker start", "bindAddresses"),
    (
        "bookies of a standalone store entries in a format of their own: see docs/bookie.md",
        "ledgerStorageClass dbStorage_* bookieId allowLoopback nettyMaxFrameSizeBytes flushInterval journal* "
        "diskUsage* gcWaitTime",
    ),
)
_UNKNOWN = "a broker of Quire has no such setting"
_OTHERS = (
    "additionalSystemCursorNames allowAclChangesOnNonExistentTopics "
    "backlogQuotaDefaultLimitGB bootstrapNamespaces "
    "clientLibraryVersionCheckEnabled connectionLivenessCheckTimeoutMillis defaultNumberOfNamespaceBundles "
    "forceDeleteNamespaceAllowed forceDeleteTenantAllowed isRunningStandalone maxConsumerMetadataSize "
    "maxMessageSizeCheckIntervalInSeconds maxNamespacesPerTenant "
    "maxNumPartitionsPerPartitionedTopic maxSameAddressConsumersPerTopic "
    "maxSameAddressProducersPerTopic maxSecondsToClearTopicNameCache maxTenants statusFilePath "
    "strictBookieAffinityEnabled strictTopicNameEnabled strictlyVerifySubscriptionName topicNameCacheMaxCapacity"
)
BROKER_REASONS = Reasons((*_WITHOUT_EFFECT, (_UNKNOWN, _OTHERS)))
