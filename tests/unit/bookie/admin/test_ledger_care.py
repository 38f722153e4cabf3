"""Ledgers over HTTP and with `quire ledger`: listed, read, checked, recovered, deleted."""

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import replace
from unittest.mock import ANY

import pytest

from quire_bookie.admin import ledger_care
from quire_bookie.cli.commands import EXIT_CONFLICT, EXIT_FAILED, EXIT_MISSING, EXIT_NO_ANSWER, EXIT_USAGE
from quire_bookie.cli.main import run
from quire_bookie.cli.refusals import RefusedError
from quire_bookie.client import LedgerClient, LedgerWriter
from quire_bookie.env.chance import SystemChance
from quire_bookie.env.clock import SystemClock
from quire_bookie.errors import LedgerError
from quire_bookie.metadata.layout import ledger_path
from quire_bookie.metadata.ledgers import LedgerNodes
from quire_bookie.metadata.restoration import RESTORATION, Restoration, RestorationState, encode_restoration
from quire_bookie.model import EntryId, LedgerId, LedgerState
from quire_bookie.recovery.ledger_report import Piece
from tests.support.unreadable_requests import sent
from tests.unit.bookie.admin.test_recovery_api import Server, server

__all__ = ["server"]
ROOT = "/admin/quire/ledgers"


async def quire(server: Server, *arguments: str) -> int:
    return await asyncio.to_thread(run, ["ledger", *arguments, "--http", server.url])


async def written(server: Server, count: int, *, close: bool = True) -> tuple[LedgerClient, LedgerWriter]:
    """Write a ledger of `count` entries with a password."""
    client = await LedgerClient.open(server.store, clock=SystemClock(), chance=SystemChance())
    writer = await client.create_ledger(
        ensemble_size=1, write_quorum=1, ack_quorum=1, password=b"secret", custom={"application": b"test"}
    )
    for number in range(count):
        await writer.append(b"entry %d \x00\xff" % number)
    if close:
        await writer.close()
    return client, writer


async def test_ledgers_are_listed_in_pages_and_by_id(server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    client, writer = await written(server, 2)
    others = [await client.create_ledger(ensemble_size=1, write_quorum=1, ack_quorum=1) for _ in range(3)]
    long_id = LedgerId(2**40 + 5)
    node = await server.store.get(ledger_path(writer.ledger_id))
    assert node is not None
    await server.store.put(ledger_path(long_id), node.value)
    await server.store.put(ledger_path(LedgerId(20_000)), b"scribble")
    ids = [writer.ledger_id, *(one.ledger_id for one in others), 20_000, long_id]
    found, after = [], -1
    while True:
        status, page = await server.ask("GET", f"{ROOT}?after={after}&limit=2")
        assert status == 200 and isinstance(page, dict) and len(page["ledgers"]) <= 2
        found += [row["ledgerId"] for row in page["ledgers"]]
        if page["next"] is None:
            break
        after = page["next"]
    assert found == ids
    assert (await server.ask("GET", f"{ROOT}?limit=x"))[0] == 400
    assert await quire(server, "list", "-o", "json") == 0
    rows = json.loads(capsys.readouterr().out)
    assert [row["ledgerId"] for row in rows] == ids and rows[4]["state"] == "UNREADABLE"
    assert await quire(server, "list", "--limit", "1") == 0
    assert "CLOSED" in capsys.readouterr().out
    assert await quire(server, "info", str(writer.ledger_id)) == 0
    told = capsys.readouterr().out
    assert "application" in told and "secret" not in told
    assert await quire(server, "info", "77") == EXIT_MISSING
    assert "ledger 77 does not exist" in capsys.readouterr().err
    await client.close()


async def test_entries_are_read_as_text_hex_and_json(server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    client, writer = await written(server, 120)
    ledger = str(writer.ledger_id)
    assert await quire(server, "read", ledger, "118-119", "--hex") == 0
    told = capsys.readouterr().out
    assert "65 6e 74 72 79 20 31 31 38 20 00 ff" in told and "entry 119 .." in told
    assert await quire(server, "read", ledger, "7", "--text") == 0
    assert capsys.readouterr().out == "entry 7 \x00\ufffd\n"
    assert await quire(server, "read", ledger, "-o", "json") == 0
    assert len(capsys.readouterr().out.splitlines()) == 120, "page after page"
    assert await quire(server, "read", ledger, "119-") == 0
    assert "entry 119" in capsys.readouterr().out
    for wrong in (("x-y",), ("9-3",), ("1-2", "--hex", "--text")):
        assert await quire(server, "read", ledger, *wrong) == EXIT_USAGE
    assert await quire(server, "read", ledger, "200-300") == EXIT_MISSING
    assert "has entries 0 to 119; asked for 200" in capsys.readouterr().err
    await client.close()


async def test_a_check_reads_every_replica_and_reports_damage(
    server: Server, capsys: pytest.CaptureFixture[str]
) -> None:
    client, writer = await written(server, 5)
    ledger = str(writer.ledger_id)
    assert await quire(server, "check", ledger) == 0
    told = capsys.readouterr()
    assert "every replica is intact" in told.out and "5 of 5 entries" in told.err
    nodes = LedgerNodes(server.store)
    stored = await nodes.read(writer.ledger_id)
    await nodes.update(writer.ledger_id, replace(stored.value, last_entry=EntryId(8)), stored.version)
    assert await quire(server, "check", ledger) == 1
    told = capsys.readouterr()
    bookie = stored.value.segments[0].ensemble[0]
    assert f"{bookie}  entries 5 to 8  lacking:" in told.out and "1 ranges are missing or damaged" in told.out
    assert await quire(server, "check", ledger, "-o", "json", "--rate", "1000") == 1
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert lines[0] == {"done": 0, "of": 9} and lines[-1] == {"damages": 1, "unknown": 0, "missingCopies": 0}
    assert await quire(server, "check", "99") == EXIT_MISSING
    assert "does not exist" in capsys.readouterr().err
    await client.close()


async def test_a_ledger_with_too_few_copies_is_shown_as_such(
    server: Server, capsys: pytest.CaptureFixture[str]
) -> None:
    client = await LedgerClient.open(server.store, clock=SystemClock(), chance=SystemChance())
    writer = await client.create_ledger(ensemble_size=2, write_quorum=2, ack_quorum=1, fewer_bookies=True)
    await writer.append(b"one")
    await writer.close()
    ledger = str(writer.ledger_id)
    assert await quire(server, "list") == 0
    assert "1/1/1 of 2 copies" in capsys.readouterr().out
    assert await quire(server, "info", ledger) == 0
    assert "1 of 2: it counts as under-replicated" in capsys.readouterr().out
    assert await quire(server, "check", ledger) == 1
    assert "every replica is intact, but 1 more are configured" in capsys.readouterr().out
    narrow = {"ledgerId": writer.ledger_id, "state": "CLOSED", "copies": 1, "wantedCopies": 2}
    assert await server.ask("GET", "/api/v1/quire/narrow-ledgers") == (200, {"ledgers": [narrow], "complete": True})
    assert await server.ask("GET", "/api/v1/quire/under-replication") == (200, {"count": 1, "oldest_ms": ANY})
    await client.close()


async def test_the_head_of_a_check_has_no_body(server: Server) -> None:
    client, writer = await written(server, 2)
    path = f"{ROOT}/{writer.ledger_id}/check"
    request = f"HEAD {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
    head, _, body = (await sent(server.port, request.encode())).partition("\r\n\r\n")
    await client.close()
    assert head.startswith("HTTP/1.1 200 ") and body == ""


async def test_a_long_check_shows_its_progress(
    server: Server, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    client, writer = await written(server, 1)

    async def slowly(*_: object) -> AsyncIterator[Piece]:
        yield Piece(0, 9, ())
        await asyncio.sleep(0.05)
        yield Piece(9, 9, ())

    monkeypatch.setattr(ledger_care, "report_on", slowly)
    monkeypatch.setattr(ledger_care, "SIGN_OF_LIFE_S", 0.01)
    assert await quire(server, "check", str(writer.ledger_id), "-o", "json") == 0
    told = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert told.count({"done": 0, "of": 9}) > 1 and told.count({"done": 9, "of": 9}) == 1
    await client.close()


async def test_no_ledger_is_recovered_with_unreviewed_restored_metadata(
    server: Server, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its ensemble may predate acknowledged entries, which the recovery would truncate."""
    client, writer = await written(server, 2, close=False)
    review = Restoration("b", "c", RestorationState.REVIEW, 1, 2, 3, False)
    await server.store.put(RESTORATION, encode_restoration(review))
    assert await quire(server, "recover", str(writer.ledger_id)) == EXIT_CONFLICT
    assert f"`quire metadata orphans adopt {writer.ledger_id}`" in capsys.readouterr().err
    assert (await LedgerNodes(server.store).read(writer.ledger_id)).value.state is LedgerState.OPEN
    await client.close()


async def test_an_open_ledger_is_checked_without_fencing_and_recovered_on_request(
    server: Server, capsys: pytest.CaptureFixture[str]
) -> None:
    client, writer = await written(server, 3, close=False)
    ledger = str(writer.ledger_id)
    assert await quire(server, "check", ledger) == 0
    await writer.append(b"it goes on")
    assert (await client.read_metadata(writer.ledger_id)).state is LedgerState.OPEN
    assert await quire(server, "recover", ledger) == 0
    assert "is closed: 4 entries" in capsys.readouterr().out
    assert await quire(server, "recover", ledger, "-o", "json") == 0, "a closed ledger is not changed"
    assert json.loads(capsys.readouterr().out)["state"] == "CLOSED"
    with pytest.raises(LedgerError, match="EFENCED"):
        await writer.append(b"too late")
    await client.close()


async def test_a_ledger_is_deleted_only_after_confirmation(server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    client, writer = await written(server, 1, close=False)
    ledger = str(writer.ledger_id)
    assert await quire(server, "delete", ledger) == EXIT_USAGE
    told = capsys.readouterr().err
    assert "there is no terminal to ask on; give --yes" in told
    assert "application: test" in told and "a writer may still add entries" in told
    assert await client.read_metadata(writer.ledger_id)
    assert await quire(server, "delete", ledger, "--yes") == 0
    assert "is deleted" in capsys.readouterr().out
    assert await quire(server, "delete", ledger, "--yes") == EXIT_MISSING
    await client.close()


async def test_a_process_without_the_path_is_distinguished_from_a_missing_ledger(
    server: Server, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> object:
        raise RefusedError("Not Found")

    monkeypatch.setattr("quire_bookie.cli.ledger.lines", refuse)
    assert await quire(server, "check", "7") == EXIT_FAILED
    assert "does not serve this request" in capsys.readouterr().err
    monkeypatch.undo()
    assert await asyncio.to_thread(run, ["ledger", "check", "7", "--http", "http://127.0.0.1:1"]) == EXIT_NO_ANSWER
    assert "does not answer" in capsys.readouterr().err
    assert await asyncio.to_thread(run, ["ledger", "check", "7", "--http", "nowhere"]) == EXIT_USAGE
