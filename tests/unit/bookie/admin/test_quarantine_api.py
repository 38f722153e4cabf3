"""Ledgers in quarantine over the admin HTTP port and with the commands: listed, undeleted, and clear errors."""

import asyncio
import json
from datetime import UTC, datetime
from typing import Any

import pytest

from quire_bookie.admin import quarantine_api
from quire_bookie.cli.commands import EXIT_MISSING, EXIT_USAGE
from quire_bookie.cli.main import run
from quire_bookie.cli.times import duration_s, moment_ms
from quire_bookie.errors import ConfigError
from quire_bookie.limits import UNDELETE_FOR_S_MAX, UNDELETE_LEDGERS_MAX
from quire_bookie.metadata.collection_hold import HOLD_PATH
from quire_bookie.metadata.ledgers import LedgerNodes
from quire_bookie.model import EntryId, LedgerId
from tests.unit.bookie.admin.test_web import Admin, admin

__all__ = ["admin"]
LIST, UNDELETE = "/api/v1/bookie/gc/quarantine", "/api/v1/bookie/gc/undelete"


async def quarantined(admin: Admin, count: int) -> list[LedgerId]:
    """Return ledgers whose metadata was deleted, after two rounds of garbage collection."""
    admin.web.serve(admin.bookie)
    ledgers = [await admin.ledger(b"one", b"two") for _ in range(count)]
    await admin.bookie.storage.flush()
    for ledger in ledgers:
        await LedgerNodes(admin.metadata).delete(ledger)
    for _ in range(2):
        assert await admin.bookie.garbage_collection.run_round() == []
    return ledgers


async def command(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    """Run a command in another thread; return exit code, output and errors."""
    capsys.readouterr()
    code = await asyncio.to_thread(run, ["bookie", *words])
    said = capsys.readouterr()
    return code, said.out, said.err


async def test_ledgers_in_quarantine_are_listed_in_pages_with_the_remaining_time(admin: Admin) -> None:
    ledgers = await quarantined(admin, 3)
    first = await admin.get(f"{LIST}?limit=2")
    assert [row["ledger"] for row in first["ledgers"]] == ledgers[:2]
    assert (first["doubt"], first["quarantineSeconds"]) == (None, 86_400.0)
    row = first["ledgers"][0]
    assert (row["state"], row["entries"], row["reason"]) == ("quarantined", 2, "its metadata is missing")
    assert row["bytes"] > 0
    assert 86_000_000 < row["until"] - row["since"] < 87_000_000
    second = await admin.get(f"{LIST}?after={first['next']}")
    assert [row["ledger"] for row in second["ledgers"]] == ledgers[2:] and second["next"] is None
    text = await admin.get("/metrics")
    label = f'{{bookie="{admin.bookie.bookie_id}"}}'
    assert f"quire_gc_quarantine_ledgers{label} 3.0\n" in text
    assert f"quire_gc_quarantine_bytes{label} {3.0 * row['bytes']}\n" in text
    assert f"quire_gc_ledgers_quarantined{label} 3.0\n" in text


async def test_an_undeleted_ledger_is_read_and_survives_further_rounds(admin: Admin) -> None:
    gone, back = await quarantined(admin, 2)
    assert await admin.ask("PUT", UNDELETE, {"ledgers": [back]}) == (200, {"undeleted": 1, "ledgers": [back]})
    states = {row["ledger"]: (row["state"], row["until"] is None) for row in (await admin.get(LIST))["ledgers"]}
    assert states == {gone: ("quarantined", False), back: ("undeleted", True)}
    await admin.bookie.storage.ledger_quarantine.advance(86_400_000)
    assert await admin.bookie.garbage_collection.run_round() == [gone]
    assert bytes(await admin.bookie.storage.read(back, EntryId(1))).endswith(b"two")


async def test_all_and_those_since_a_time_are_undeleted(admin: Admin) -> None:
    ledgers = await quarantined(admin, 2)
    since = (await admin.get(LIST))["ledgers"][1]["since"]
    assert (await admin.ask("PUT", UNDELETE, {"since": since + 60_000}))[1]["undeleted"] == 0
    assert (await admin.ask("PUT", UNDELETE, {"since": 0, "forSeconds": 60}))[1]["ledgers"] == ledgers
    row = (await admin.get(LIST))["ledgers"][0]
    assert row["until"] - row["since"] <= 61_000
    assert (await admin.ask("PUT", UNDELETE, {"all": True}))[1]["undeleted"] == 0, "none is in quarantine"
    assert (await admin.ask("PUT", UNDELETE, {"ledgers": ledgers[:1]}))[1]["undeleted"] == 1, "now without an end"


async def test_the_holdings_include_ledgers_in_quarantine(admin: Admin) -> None:
    one, two = await quarantined(admin, 2)
    await admin.ask("PUT", UNDELETE, {"ledgers": [two]})
    rows = {row["ledger"]: row for row in (await admin.get("/api/v1/quire/holdings"))["ledgers"]}
    assert rows[one]["quarantinedMs"] > 0 and "quarantinedMs" not in rows[two]


async def test_a_doubt_is_included_in_the_list(admin: Admin) -> None:
    await quarantined(admin, 1)
    await admin.metadata.put(HOLD_PATH, b"a restore")
    with pytest.raises(Exception, match="a restore"):
        await admin.bookie.garbage_collection.run_round()
    assert (await admin.get(LIST))["doubt"] == "on hold: a restore"


@pytest.mark.parametrize(
    ("body", "status", "reason"),
    [
        ({}, 400, "needs one of"),
        ({"all": True, "ledgers": [1]}, 400, "needs one of"),
        ({"all": 7}, 400, '"all"'),
        ({"all": False}, 400, "can only be true"),
        ({"ledgers": "1"}, 400, "list of ledger ids"),
        ({"ledgers": [True]}, 400, "list of ledger ids"),
        ({"ledgers": [-1]}, 400, "list of ledger ids"),
        ({"ledgers": [2**63]}, 400, "list of ledger ids"),
        ({"ledgers": [*range(10_001)]}, 400, "at most 10000"),
        ({"since": -1}, 400, '"since"'),
        ({"since": "yesterday"}, 400, '"since"'),
        ({"all": True, "forSeconds": 0}, 400, '"forSeconds" is 0'),
        ({"all": True, "forSeconds": 1e12}, 400, "at most"),
        ({"all": True, "forSeconds": True}, 400, "must be a number"),
        ({"ledgers": [4711]}, 404, "ledger 4711 is not in quarantine on this bookie"),
    ],
)
async def test_an_invalid_request_is_refused_with_a_reason_and_changes_nothing(
    admin: Admin, body: Any, status: int, reason: str
) -> None:
    await quarantined(admin, 1)
    found, answer = await admin.ask("PUT", UNDELETE, body)
    assert (found, reason in answer["reason"]) == (status, True), answer
    assert [row["state"] for row in (await admin.get(LIST))["ledgers"]] == ["quarantined"]


async def test_a_starting_bookie_refuses_the_requests(admin: Admin) -> None:
    assert (await admin.ask("GET", LIST))[0] == 503
    assert (await admin.ask("PUT", UNDELETE, {"all": True}))[0] == 503


# ---- the commands
async def test_the_commands_list_and_undelete(admin: Admin, capsys: pytest.CaptureFixture[str]) -> None:
    one, two = await quarantined(admin, 2)
    http = ("--http", admin.url)
    code, out, err = await command(capsys, "quarantine", "list", *http)
    assert code == 0 and not err
    assert [line.split()[:2] for line in out.splitlines()[1:]] == [
        [str(one), "quarantined"],
        [str(two), "quarantined"],
    ]
    code, out, err = await command(capsys, "undelete", str(one), *http)
    assert (code, out) == (
        0,
        "undeleted ledgers: 1; this bookie keeps its copies until the metadata names them again\n",
    )
    code, out, _ = await command(capsys, "undelete", "--since", "1h", "--for", "2h", *http)
    assert (code, out) == (0, "undeleted ledgers: 1; this bookie keeps its copies for 2h\n")
    code, out, _ = await command(capsys, "quarantine", "list", "-o", "json", *http)
    rows = json.loads(out)
    assert [(row["ledger"], row["state"], row["until"] is None) for row in rows] == [
        (one, "undeleted", True),
        (two, "undeleted", False),
    ]
    code, out, err = await command(capsys, "undelete", "4711", *http)
    assert code == EXIT_MISSING and "ledger 4711 is not in quarantine" in err


@pytest.mark.parametrize(
    "words", [(), ("1", "--all"), ("--all", "--since", "1h"), ("--all", "--for", "soon"), ("--since", "yesterday")]
)
def test_invalid_arguments_are_one_line(words: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["bookie", "undelete", *words]) == EXIT_USAGE
    assert len(capsys.readouterr().err.strip().splitlines()) == 1


def test_times_are_durations_or_dates() -> None:
    now = datetime(2026, 1, 31, 12, 0, tzinfo=UTC)
    assert moment_ms("--since", "2h", now) == int(now.timestamp() * 1000) - 7_200_000
    assert moment_ms("--since", "2026-01-31T12:00Z", now) == int(now.timestamp() * 1000)
    assert moment_ms("--since", "2026-01-31T12:00", now) == int(now.timestamp() * 1000)
    assert [duration_s("--for", text) for text in ("90s", "1.5m", "2h", "7d")] == [90, 90, 7200, 604_800]
    for text in ("", "5", "h", "-1h", "1w"):
        with pytest.raises(ConfigError):
            duration_s("--for", text)


async def test_an_undeletion_names_so_many_ledgers_and_lasts_so_long(admin: Admin) -> None:
    (ledger,) = await quarantined(admin, 1)
    many = list(range(10**6, 10**6 + UNDELETE_LEDGERS_MAX))
    status, said = await admin.ask("PUT", UNDELETE, {"ledgers": [*many, ledger]})
    assert status == 400 and f"give at most {UNDELETE_LEDGERS_MAX}" in str(said)
    status, said = await admin.ask("PUT", UNDELETE, {"ledgers": [ledger], "forSeconds": UNDELETE_FOR_S_MAX + 1})
    assert status == 400 and f"at most {UNDELETE_FOR_S_MAX}" in str(said)
    status, said = await admin.ask("PUT", UNDELETE, {"ledgers": many})
    assert "give at most" not in str(said), "they are not in quarantine"
    assert await admin.ask("PUT", UNDELETE, {"ledgers": [ledger], "forSeconds": UNDELETE_FOR_S_MAX}) == (
        200,
        {"undeleted": 1, "ledgers": [ledger]},
    )


async def test_a_page_of_the_quarantine_has_at_most_so_many_ledgers(
    admin: Admin, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(quarantine_api, "GC_QUARANTINE_PAGE_LEDGERS_MAX", 2)
    ledgers = await quarantined(admin, 3)
    page = await admin.get(f"{LIST}?limit=1000000")
    assert [row["ledger"] for row in page["ledgers"]] == ledgers[:2] and page["next"] == ledgers[1]
    assert (await admin.ask("PUT", UNDELETE, {"since": 0}))[1] == {"undeleted": 3, "ledgers": ledgers[:2]}
