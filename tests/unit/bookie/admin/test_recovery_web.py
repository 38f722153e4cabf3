"""The metrics of an auto-recovery process, over a real socket."""

import dataclasses
from types import SimpleNamespace
from typing import Any

import aiohttp

from quire_bookie.admin.listening import listen, port_of
from quire_bookie.admin.recovery_collector import RECOVERY
from quire_bookie.admin.recovery_web import RecoveryWeb
from quire_bookie.env.clock import SystemClock
from quire_bookie.recovery.stats import RecoveryStats
from tests.support.scrapes import ACCEPT_OPENMETRICS, CLASSIC, OPENMETRICS, check_formats


def test_every_counter_has_a_name() -> None:
    assert {field.name for field in dataclasses.fields(RecoveryStats)} == RECOVERY.keys()
    assert {name for name, _, _ in RECOVERY.values()} == {f"quire_autorecovery_{attribute}" for attribute in RECOVERY}


async def test_counters_gauges_and_counts_of_reads_are_shown_in_both_formats() -> None:
    pool = SimpleNamespace(health=SimpleNamespace(speculative_reads=2, foreign_answers=3))
    running: Any = SimpleNamespace(
        auditor=SimpleNamespace(leads=True),
        stats=RecoveryStats(entries_copied=30, under_replicated_eta_s=-1),
        workers=SimpleNamespace(busy={7}),
        access=SimpleNamespace(pool=pool),
    )
    store: Any = None
    served, listening = RecoveryWeb(store, running, SystemClock()), listen("127.0.0.1", 0)
    await served.open(listening)
    texts = []
    try:
        async with aiohttp.ClientSession() as session:
            for accept, content_type in (("*/*", CLASSIC), (ACCEPT_OPENMETRICS, OPENMETRICS)):
                url = f"http://127.0.0.1:{port_of(listening)}/metrics"
                async with session.get(url, headers={"Accept": accept}) as answer:
                    assert answer.headers["Content-Type"].startswith(content_type)
                    texts.append(await answer.text())
    finally:
        await served.close()
    found = check_formats(*texts)
    shown = {
        "entries_copied": ("counter", 30),
        "under_replicated_eta_s": ("gauge", -1),
        "auditor": ("gauge", 1),
        "ledgers_in_progress": ("gauge", 1),
        "speculative_reads": ("counter", 2),
        "foreign_ledger_answers": ("counter", 3),
    }
    families = {name: found[f"quire_autorecovery_{name}"] for name in shown}
    assert {name: (family.type, family.samples[0].value) for name, family in families.items()} == shown
