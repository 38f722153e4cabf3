"""The upstream test classes that run on our bookies, and their excluded methods, each with the reason.

No test is excluded because our bookie fails it. Where the test does not show the reason, the control experiment of the
README in this folder did: the same harness with Java bookies fails it too.
"""

from dataclasses import dataclass, field

CLIENT_RACE = "sometimes hits a race in the Java client: closing it while an add is answered uses a recycled object"
ZOOKEEPER = "uses ZooKeeper itself; the cluster's metadata is in etcd"
ON_OUR_FILES = "starts a Java bookie on the files of the bookie it killed; ours have another format"
DRIVER = "tests answers of the ZooKeeper metadata driver; those of the etcd driver differ, with Java bookies too"
JAVA_BOOKIE = "reads objects of a Java bookie in its own JVM"
JAVA_PLUGIN = "loads its own authentication provider, a Java class, into the bookie"
LOOPBACK = "uses the machine's host name for a bookie, which fails when that is a loopback address"
REFUSED = (
    "starts a bookie whose key does not match its certificate and expects failed handshakes; ours refuses to start"
)
JAVA_STORES = "its key files are Java key stores (JKS, PKCS12), which ours refuses"
CLOSE_TIMER = "org.apache.pulsar.metadata.coordination.impl.CoordinationServiceImpl.close("
"""Upstream's time limit for ending a bookie's registration; a stall of the machine or of etcd's disk may exceed it."""
LAC_TIMER = (
    "asserts a reader's state before a timer of the writer changes it; a stall of the machine may exceed the timer"
)


@dataclass(frozen=True, slots=True)
class Suite:
    """One class. `excluded`: methods that cannot run, with the reason. `core`: CI runs it. `racing`: methods that
    depend on timers, which a slow machine may miss: they may fail once, like every test that fails with `CLOSE_TIMER`.
    """

    core: bool = False
    excluded: dict[str, str] = field(default_factory=dict)
    racing: dict[str, str] = field(default_factory=dict)


SUITES: dict[str, Suite] = {
    "bookie.BookieDeferredSyncTest": Suite(core=True),
    "client.BookKeeperCloseTest": Suite(),
    "client.BookKeeperTest": Suite(
        excluded={
            "testCloseDuringOp": CLIENT_RACE,
            "testConstructionNotConnectedExplicitZk": ZOOKEEPER,
            "testLedgerDeletionIdempotency": DRIVER,
            "testZKConnectionLossForLedgerCreation": ZOOKEEPER,
        },
    ),
    "client.BookieRecoveryTest": Suite(),
    "client.BookieWriteLedgerTest": Suite(
        excluded={
            "testReadLacNotSameWithMetadataLedgerReplication": ZOOKEEPER,
            "testWriteAndReadStats": ON_OUR_FILES,
        },
    ),
    "client.ConcurrentV2RecoveryTest": Suite(),
    "client.ExplicitLacTest": Suite(
        core=True,
        racing={"testExplicitLACIsPersisted": LAC_TIMER, "testReadHandleWithExplicitLAC": LAC_TIMER},
    ),
    "client.LedgerCloseTest": Suite(
        excluded={"testLedgerCheckerShouldnotSelectInvalidLastFragments": ON_OUR_FILES},
    ),
    "client.LedgerRecoveryTest": Suite(core=True, excluded={"testEnsembleChangeDuringRecovery": ON_OUR_FILES}),
    "client.TestAddEntryQuorumTimeout": Suite(),
    "client.TestBatchedRead": Suite(core=True),
    "client.TestBookieHealthCheck": Suite(),
    "client.TestDelayEnsembleChange": Suite(),
    "client.TestDisableEnsembleChange": Suite(),
    "client.TestFencing": Suite(
        excluded={
            "testConcurrentFenceAndDeleteLedger": JAVA_BOOKIE,
            "testFencingInteractionWithBookieRecovery": ZOOKEEPER,
            "testFencingInteractionWithBookieRecovery2": ZOOKEEPER,
            "testWriteAfterDeleted": JAVA_BOOKIE,
        },
    ),
    "client.TestGetBookieInfoTimeout": Suite(),
    "client.TestLedgerChecker": Suite(),
    "client.TestLedgerFragmentReplication": Suite(),
    "client.TestParallelRead": Suite(),
    "client.TestPendingReadLacOp": Suite(),
    "client.TestPiggybackLAC": Suite(core=True),
    "client.TestReadEntryListener": Suite(),
    "client.TestReadLastConfirmedAndEntry": Suite(core=True),
    "client.TestReadLastConfirmedLongPoll": Suite(),
    "client.TestReadLastEntry": Suite(),
    "client.TestReadTimeout": Suite(),
    "client.TestSequenceRead": Suite(),
    "client.TestSpeculativeBatchRead": Suite(excluded={"testSequenceReadLocalEnsemble": LOOPBACK}),
    "client.TestSpeculativeRead": Suite(excluded={"testSequenceReadLocalEnsemble": LOOPBACK}),
    "client.TestTryReadLastConfirmed": Suite(),
    "client.TestWatchEnsembleChange": Suite(excluded={"testWatchMetadataRemoval": DRIVER}),
    "client.api.ExplicitLACWithWriteHandleAPITest": Suite(),
    "client.api.LedgerMetadataTest": Suite(),
    "proto.ClientSocketDisconnectTest": Suite(),
    "replication.AuditorCheckAllLedgersTaskTest": Suite(),
    "test.AsyncLedgerOpsTest": Suite(),
    "test.BookieFailureTest": Suite(core=True),
    "test.BookieJournalRollingTest": Suite(),
    "test.BookieReadWriteTest": Suite(core=True),
    "test.CloseTest": Suite(core=True),
    "test.ConditionalSetTest": Suite(core=True),
    "test.LedgerCreateDeleteTest": Suite(excluded={"testCreateLedgerWithZKException": DRIVER}),
    "test.MultipleThreadReadTest": Suite(),
    "test.ReadOnlyBookieTest": Suite(
        excluded={
            "testBookieContinueWritingIfMultipleLedgersPresent": JAVA_BOOKIE,
            "testBookieShouldServeAsReadOnly": JAVA_BOOKIE,
            "testBookieShouldTurnWritableFromReadOnly": JAVA_BOOKIE,
            "testBookieShutdownIfReadOnlyModeNotEnabled": JAVA_BOOKIE,
        },
    ),
    "tls.TestTLS": Suite(
        excluded={
            "[0]": JAVA_STORES,
            "[3]": JAVA_STORES,
            "[4]": JAVA_STORES,
            "[5]": JAVA_STORES,
            "[6]": JAVA_STORES,
            "testBookieAuthPluginDenyAccessToClientWithoutTLS": JAVA_PLUGIN,
            "testBookieAuthPluginDenyAccesstoClientWithoutTLSAuthentication": JAVA_PLUGIN,
            "testBookieAuthPluginDenyAccessToClientWithoutTLSAuthenticationLocal": JAVA_PLUGIN,
            "testBookieAuthPluginRequireClientTLSAuthentication": JAVA_PLUGIN,
            "testBookieAuthPluginRequireClientTLSAuthenticationLocal": JAVA_PLUGIN,
            "testKeyMismatchFailure": REFUSED,
            "testRefreshDurationForBookieCerts": REFUSED,
        },
    ),
}
