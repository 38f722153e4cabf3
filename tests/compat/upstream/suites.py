"""Which of upstream's test classes run on our bookies, and which of their methods cannot, each with the reason.

Nothing is left out because our bookie fails it. Where the reason is not plain from the test, the control experiment of
the README beside this file told: the same harness with Java bookies fails it too.
"""

from dataclasses import dataclass, field

CLIENT_RACE = "now and then hits a race in the Java client: closing it while an add is answered uses a recycled object"
ZOOKEEPER = "talks to ZooKeeper itself; the cluster's metadata is in etcd"
ON_OUR_FILES = "starts a Java bookie on the files of the bookie it killed; ours have a format of their own"
DRIVER = "tests what the ZooKeeper metadata driver answers; the one for etcd answers otherwise, on Java bookies too"
JAVA_BOOKIE = "looks into the Java bookie in its own JVM"
JAVA_PLUGIN = "loads an authentication provider of its own, a Java class, into the bookie"
LOOPBACK = "takes the machine's own host name for a bookie, which fails where that is a loopback address"
REFUSED = "starts a bookie whose key is not that of its certificate and sees handshakes fail; ours refuses to start"
JAVA_STORES = "its key files are in Java's own forms (JKS, PKCS12), which ours refuses by name"
CLOSE_TIMER = "org.apache.pulsar.metadata.coordination.impl.CoordinationServiceImpl.close("
"""Upstream's own bound on ending a bookie's registration; a stall of the machine, or of etcd's disk, outlasts it."""
LAC_TIMER = "asserts what a reader knows before a timer of the writer tells more; a stall of the machine outlasts it"


@dataclass(frozen=True, slots=True)
class Suite:
    """One class: `excluded` are its methods that cannot run, with the reason; `core` ones are run by CI. Those in
    `racing` race with a clock of their own, which a slow machine loses: they may fail once, as everything may whose
    reason is `CLOSE_TIMER`.
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
