"""The metrics of an auto-recovery process."""

from types import SimpleNamespace
from typing import Any

from quire_bookie.admin.recovery_web import RecoveryWeb
from quire_bookie.env.clock import SystemClock
from quire_bookie.recovery.stats import RecoveryStats


async def test_counters_gauges_and_counts_of_reads_are_shown() -> None:
    pool = SimpleNamespace(health=SimpleNamespace(speculative_reads=2, foreign_answers=3))
    running: Any = SimpleNamespace(
        auditor=SimpleNamespace(leads=True),
        stats=RecoveryStats(entries_copied=30),
        workers=SimpleNamespace(busy={7}),
        access=SimpleNamespace(pool=pool),
    )
    store: Any = None
    text = (await RecoveryWeb(store, running, SystemClock())._metrics(store)).text
    assert text is not None
    found = dict(line.split(" ") for line in text.splitlines())
    shown = {"entries_copied": "30", "auditor": "1", "ledgers_in_progress": "1", "speculative_reads": "2"}
    assert {name: found[f"quire_autorecovery_{name}"] for name in shown} == shown
