"""Keys of Pulsar's proxy.conf that a proxy reads and does not use, each with the reason. Pure."""

from quire_broker.config.reasons import Reasons

PROXY_REASONS = Reasons(
    (
        (
            "brokers are registered in etcd, without ZooKeeper and without a second store: see metadataStoreUrl",
            "zookeeper* zooKeeper* globalZookeeperServers configurationStore* configurationMetadata* metadataStore*",
        ),
        (
            "functions are not served",
            "functionWorkerWebServiceURL*",
        ),
        (
            "a proxy is one event loop of Python: it has no thread pools and moves all bytes in the same way",
            "num* httpNumThreads httpOutputBufferSize httpServerThreadPoolQueueSize httpServerAcceptQueueSize "
            "proxyZeroCopyModeEnabled useSeparateThreadPoolForProxyExtensions",
        ),
        (
            "classes of Java cannot be loaded",
            "additionalServlet* proxyAdditionalServlet* proxyExtensions* narExtractionDirectory sslFactoryPlugin* "
            "brokerClientSslFactory*",
        ),
        (
            "certificates and keys are PEM files (tlsCertificateFilePath, tlsKeyFilePath, tlsTrustCertsFilePath), not "
            "key stores",
            "tlsEnabledWithKeyStore tlsKeyStore* tlsTrustStore* brokerClientTlsEnabledWithKeyStore "
            "brokerClientTlsKeyStore* brokerClientTlsTrustStore*",
        ),
        (
            "TLS is that of OpenSSL: a port has it if servicePortTls or webServicePortTls is set, with tlsProtocols "
            "and tlsCiphers on both",
            "tlsEnabledInProxy tlsProvider webServiceTls* brokerClientTls* brokerClientSslProvider",
        ),
        (
            "SASL is not a provider here: see authenticationProviders",
            "sasl* kinitCommand",
        ),
        (
            "brokers check permissions, for the role of the proxy and for that of its client: see docs/proxy.md",
            "authorizationEnabled authorizationProvider superUserRoles",
        ),
        (
            "registered brokers are always permitted and others must be named: see brokerProxyAllowedHostNames",
            "checkActiveBrokers brokerProxyAllowedIPAddresses",
        ),
        (
            "brokers send PING to clients through the proxy: see keepAliveIntervalSeconds",
            "brokerProxyReadTimeoutMs",
        ),
        ("the proxy reads no frame of a connected client", "proxyLogLevel maxMessageSize"),
        ("requests are forwarded to brokers only", "httpReverseProxyConfigs"),
        (
            "HTTP has limits of its own: see docs/limits.md",
            "httpRequests* httpMax* maxConcurrentHttpRequests maxHttpServerConnections",
        ),
        (
            "addresses are those of the connection: the HAProxy protocol and X-Forwarded-For are not read",
            "haProxyProtocolEnabled webServiceHaProxyProtocolEnabled webServiceTrustXForwardedFor "
            "webServiceLogDetailedAddresses",
        ),
        (
            "/metrics is always served, without credentials, and collected when it is asked for",
            "authenticateMetricsEndpoint enableProxyStatsEndpoints metrics*",
        ),
        ("the proxy passes WebSockets on to brokers, which serve them: set this there", "webSocket*"),
        ("the proxy has no Java client with options", "brokerClient_*"),
        ("a proxy of Quire has no such setting", "clusterName statusFilePath"),
    )
)
