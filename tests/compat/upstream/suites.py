"""Which of upstream's test classes run on our bookies, and which of their methods cannot, each with the reason.

Nothing is left out because our bookie fails it. Where the reason is not plain from the test, the control experiment of
the README beside this file told: the same harness with Java bookies fails it too.
"""

from dataclasses import dataclass, field

ZOOKEEPER = "talks to ZooKeeper itself; the cluster's metadata is in etcd"
ON_OUR_FILES = "starts a Java bookie on the files of the bookie it killed; ours have a format of their own"
DRIVER = "tests what the ZooKeeper metadata driver answers; the one for etcd answers otherwise, on Java bookies too"
JAVA_BOOKIE = "looks into the Java bookie in its own JVM"


@dataclass(frozen=True, slots=True)
class Suite:
    """One class: `excluded` are its methods that cannot run, with the reason; `core` ones are run by CI."""

    core: bool = False
    excluded: dict[str, str] = field(default_factory=dict)


SUITES: dict[str, Suite] = {
    "bookie.BookieDeferredSyncTest": Suite(core=True),
    "client.BookKeeperTest": Suite(
        excluded={
            "testConstructionNotConnectedExplicitZk": ZOOKEEPER,
            "testLedgerDeletionIdempotency": DRIVER,
            "testZKConnectionLossForLedgerCreation": ZOOKEEPER,
        },
    ),
    "client.BookieWriteLedgerTest": Suite(
        excluded={
            "testReadLacNotSameWithMetadataLedgerReplication": ZOOKEEPER,
            "testWriteAndReadStats": ON_OUR_FILES,
        },
    ),
    "client.LedgerCloseTest": Suite(
        excluded={"testLedgerCheckerShouldnotSelectInvalidLastFragments": ON_OUR_FILES},
    ),
    "client.LedgerRecoveryTest": Suite(core=True, excluded={"testEnsembleChangeDuringRecovery": ON_OUR_FILES}),
    "client.TestFencing": Suite(
        excluded={
            "testConcurrentFenceAndDeleteLedger": JAVA_BOOKIE,
            "testFencingInteractionWithBookieRecovery": ZOOKEEPER,
            "testFencingInteractionWithBookieRecovery2": ZOOKEEPER,
            "testWriteAfterDeleted": JAVA_BOOKIE,
        },
    ),
    "client.TestPiggybackLAC": Suite(core=True),
    "client.TestReadLastConfirmedAndEntry": Suite(core=True),
    "client.TestReadLastConfirmedLongPoll": Suite(),
    "test.BookieReadWriteTest": Suite(core=True),
    "test.ConditionalSetTest": Suite(core=True),
}
