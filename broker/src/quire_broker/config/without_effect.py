"""Keys of Pulsar's broker.conf that a broker reads and does not use, each with the reason. Pure.

A file for stock brokers may hold all their keys: the start reports by name those without effect. A name with `*`
stands for all keys that begin with it. The first entry that fits a key counts.
"""

from collections.abc import Iterable

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
        "a broker has no credentials for other brokers: it passes on those of the client",
        "brokerClientAuthentication* brokerClientCertificateFilePath brokerClientKeyFilePath",
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
        "topicPublisherThrottlingTickTimeMillis brokerPublisherThrottlingTickTimeMillis",
    ),
)
_UNKNOWN = "a broker of Quire has no such setting"
_OTHERS = (
    "additionalSystemCursorNames allowAclChangesOnNonExistentTopics "
    "backlogQuotaDefaultLimitGB bootstrapNamespaces "
    "clientLibraryVersionCheckEnabled connectionLivenessCheckTimeoutMillis defaultNumberOfNamespaceBundles "
    "forceDeleteNamespaceAllowed forceDeleteTenantAllowed isRunningStandalone maxConsumerMetadataSize "
    "maxNamespacesPerTenant maxNumPartitionsPerPartitionedTopic maxSameAddressConsumersPerTopic "
    "maxSameAddressProducersPerTopic maxSecondsToClearTopicNameCache maxTenants statusFilePath "
    "strictBookieAffinityEnabled strictTopicNameEnabled strictlyVerifySubscriptionName topicNameCacheMaxCapacity"
)
_ENTRIES = [(reason, name) for reason, names in (*_WITHOUT_EFFECT, (_UNKNOWN, _OTHERS)) for name in names.split()]


def why_without_effect(key: str) -> str | None:
    """Return why a key of Pulsar's has no effect; None for a key that is not Pulsar's."""
    for reason, name in _ENTRIES:
        if key == name or (name.endswith("*") and key.startswith(name[:-1])):
            return reason
    return None


def reports(keys: Iterable[str]) -> tuple[list[str], list[str]]:
    """Return a line for each reason, with the keys that it explains, and the keys that are not Pulsar's."""
    explained: dict[str, list[str]] = {}
    unknown = []
    for key in keys:
        reason = why_without_effect(key)
        if reason is None:
            unknown.append(key)
        else:
            explained.setdefault(reason, []).append(key)
    return [f"no effect: {', '.join(named)}: {reason}" for reason, named in explained.items()], unknown
