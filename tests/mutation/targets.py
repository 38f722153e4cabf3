"""The protocol modules, their fast unit tests, and the scenarios in which their rules matter."""

from dataclasses import dataclass

SCENE = (("gaps", 18), ("duel", 8), ("ensemble", 4))
"""Scenarios of one ledger with its writer, openers and readers."""
ONE_BOOKIE = (("faults", 14), ("files", 4))
"""Scenarios of one bookie on a failing disk."""


@dataclass(frozen=True, slots=True)
class Target:
    """`module` in `quire_bookie`; `tests` in `tests/unit/bookie`; `scenarios` with the number of seeds of each."""

    module: str
    tests: tuple[str, ...]
    scenarios: tuple[tuple[str, int], ...]

    @property
    def name(self) -> str:
        """The module's import name."""
        return f"quire_bookie.{self.module}"


TARGETS = (
    Target(
        "journal.replay",
        ("journal/test_damage.py", "journal/test_crash.py", "journal/test_journal.py", "journal/test_witness.py"),
        (("files", 10), ("faults", 14)),
    ),
    Target("journal.mark", ("journal/test_mark.py", "journal/test_witness.py", "journal/test_journal.py"), ONE_BOOKIE),
    Target(
        "server.start.replaying",
        ("server/start/test_replaying.py", "server/test_damaged_journal.py"),
        (("faults", 28),),
    ),
    Target(
        "server.requests.fences",
        ("server/requests/test_fences.py", "server/requests/test_bookie.py"),
        (("faults", 10), ("duel", 8)),
    ),
    Target("server.requests.forces", ("server/requests/test_forces.py",), (("reads", 8), ("faults", 14))),
    Target(
        "client.reading.lac_read",
        ("client/test_lac_of_open_ledgers.py", "client/test_recovery.py"),
        (*SCENE, ("reads", 8)),
    ),
    Target("client.recovery", ("client/test_recovery.py",), SCENE),
    Target(
        "client.writing.ensemble_changes",
        ("client/writing/test_ensemble_changes.py", "client/writing/test_ledger_writer.py"),
        SCENE,
    ),
    Target("quorum.coverage", ("quorum/test_coverage.py",), SCENE),
    Target("quorum.ack_tracker", ("quorum/test_ack_tracker.py",), SCENE),
    Target("quorum.recovery_plan", ("quorum/test_recovery_plan.py",), SCENE),
    Target("quorum.write_set", ("quorum/test_write_set.py",), SCENE),
    Target("quorum.ensemble_change", ("quorum/test_ensemble_change.py",), SCENE),
    Target("storage.ledgers.limbo", ("storage/ledgers/test_limbo.py",), (("modes", 10), ("gaps", 9))),
    Target(
        "storage.ledgers.state_changes",
        ("storage/ledgers/test_limbo.py", "storage/test_ledger_storage.py"),
        (("modes", 10),),
    ),
    Target("storage.flush", ("storage/test_ledger_storage.py", "storage/test_crash_and_damage.py"), ONE_BOOKIE),
    Target(
        "storage.index.index_commits",
        ("storage/test_index_damage.py", "storage/test_crash_and_damage.py"),
        ONE_BOOKIE,
    ),
    Target(
        "storage.logs.log_appender",
        ("storage/test_directories.py", "storage/test_ledger_storage.py", "storage/test_crash_and_damage.py"),
        (*ONE_BOOKIE, ("bookie", 2)),
    ),
)
