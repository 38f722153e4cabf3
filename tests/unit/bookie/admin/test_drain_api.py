"""Drains over HTTP and on the command line; the test replaces the auditor."""

import asyncio
from dataclasses import replace

import pytest

from quire_bookie.cli import drain
from quire_bookie.cli.commands import EXIT_FAILED, EXIT_MISSING
from quire_bookie.metadata import layout
from quire_bookie.metadata.cookies import Cookies
from quire_bookie.metadata.drains import Drains, Progress, Wish
from quire_bookie.metadata.election import Election
from quire_bookie.metadata.ledgers import LedgerNodes
from quire_bookie.metadata.unrecoverable import UnrecoverableLedgers
from quire_bookie.model import BookieId, EntryId, LedgerId, LedgerMetadata, Segment
from tests.unit.bookie.admin.test_recovery_api import Server, server

__all__ = ["server"]
X = BookieId("x.example:3181")
PATH = f"/api/v1/quire/drains/{X}"


@pytest.fixture(autouse=True)
def _quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drain, "POLL_S", 0.01)


async def known(server: Server) -> Drains:
    """Register a bookie besides the one that answers; return its drains."""
    await server.store.put(layout.cookie_path(X), b"")
    return Drains(server.store)


def seen(state: str, left: int = 0, *blocked_by: str) -> Progress:
    return Progress(X, state, left, left * 1000, 4, 4000, 1, 2**62, 3700 if left else 0, blocked_by)


async def test_a_decommission_is_requested_as_in_bookkeeper(server: Server) -> None:
    drains = await known(server)
    status, answer = await server.ask("PUT", "/api/v1/autorecovery/decommission", {"bookie_src": X})
    assert status == 200 and isinstance(answer, dict)
    assert (answer["wish"], answer["state"]) == ("decommission", "waiting")
    assert "no auditor is running" in answer["blocked_by"][0]
    (wish,) = await drains.read()
    assert (wish.bookie, wish.wish, wish.leaving) == (X, Wish.DECOMMISSION, False)
    assert (await server.ask("PUT", "/api/v1/autorecovery/decommission", {}))[0] == 400
    status, answer = await server.ask("PUT", "/api/v1/autorecovery/decommission", {"bookie_src": "unknown:1"})
    known_ids = ", ".join(sorted(await Cookies(server.store).bookies()))
    assert status == 404 and f"the known bookies are: {known_ids}" in str(answer)


async def test_requests_are_made_shown_and_withdrawn(server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    drains = await known(server)
    await Election(server.store, "ar").win()
    assert await server.ask("GET", PATH) == (200, {"bookie": X, "wish": None, "state": "member"})
    assert (await server.ask("PUT", PATH, {"wish": "fly"}))[0] == 400
    assert (await server.ask("DELETE", PATH))[0] == 404
    assert await server.command("drain", X, "--no-wait") == 0
    assert "the auditor has not examined it yet" in capsys.readouterr().out
    await drains.note(seen("leaving", 3, "no room", "no time"))
    assert await server.command("drains") == 0
    shown = capsys.readouterr().out.splitlines()[1].split("  ")
    progress = "leaving: 3 of 4 ledgers left, 3,000 of 4,000 bytes, about 1:01:40 more"
    assert [cell.strip() for cell in shown if cell] == [X, "drain", progress, "no room; no time"]
    assert await server.command("drains", "-o", "name") == 0
    assert capsys.readouterr().out == f"{X}\n"
    status, answer = await server.ask("GET", "/api/v1/quire/drains")
    assert status == 200 and isinstance(answer, list) and answer[0]["blocked_by"] == ["no room", "no time"]
    assert await server.command("undrain", X) == 0
    assert "is no longer drained" in capsys.readouterr().out
    await drains.wish(X, Wish.DRAIN, 1)
    await drains.change(lambda found: tuple(replace(one, leaving=True) for one in found))
    assert await server.command("undrain", X) == 0
    assert "returns to its previous state" in capsys.readouterr().out
    assert await server.command("drains", "-o", "json") == 0
    assert '"state": "cancelling"' in capsys.readouterr().out
    await drains.change(lambda _: ())
    assert await server.command("drains") == 0
    assert "no bookie is drained" in capsys.readouterr().err


async def test_the_command_follows_a_decommission_to_its_end(
    server: Server, capsys: pytest.CaptureFixture[str]
) -> None:
    drains = await known(server)
    await Election(server.store, "ar").win()
    command = asyncio.ensure_future(server.command("decommission", X))
    while not await drains.read():  # noqa: ASYNC110  a thread does it
        await asyncio.sleep(0.01)
    await drains.note(seen("leaving", 2, "ledgers are open"))
    await asyncio.sleep(0.1)
    await drains.note(seen("emptied"))
    assert await command == 0
    told = capsys.readouterr()
    assert "2 of 4 ledgers left" in told.err and told.err.count("ledgers are open") == 1
    assert "stop its process; its cookie is then removed" in told.out
    await drains.change(lambda _: ())
    await server.store.delete(layout.cookie_path(X))
    assert await server.command("decommission", X) == EXIT_MISSING
    assert "it is decommissioned already or the id is wrong" in capsys.readouterr().err
    assert await server.command("drain", X) == EXIT_MISSING
    assert f"there is no bookie {X}" in capsys.readouterr().err


async def test_a_bookie_without_a_cookie_is_known_while_a_ledger_names_it(
    server: Server, capsys: pytest.CaptureFixture[str]
) -> None:
    assert await server.ask("GET", PATH) == (200, {"bookie": X, "wish": None, "state": "forgotten"})
    assert await server.command("decommission", X) == EXIT_MISSING
    assert f"no bookie {X} belongs to this cluster" in capsys.readouterr().err
    metadata = LedgerMetadata(
        ensemble_size=1, write_quorum=1, ack_quorum=1, segments=(Segment(EntryId(0), (X,)),), c_token=1
    )
    await LedgerNodes(server.store).create(LedgerId(7), metadata)
    assert await server.ask("GET", PATH) == (200, {"bookie": X, "wish": None, "state": "member"})
    assert await server.command("decommission", X, "--no-wait") == 0
    assert [one.bookie for one in await Drains(server.store).read()] == [X]


async def test_a_drain_withdrawn_by_another_client_ends_the_command(
    server: Server, capsys: pytest.CaptureFixture[str]
) -> None:
    drains = await known(server)
    command = asyncio.ensure_future(server.command("drain", X))
    while not await drains.read():  # noqa: ASYNC110  a thread does it
        await asyncio.sleep(0.01)
    await drains.wish(X, Wish.CANCEL, 1)
    assert await command == 0
    assert "was withdrawn" in capsys.readouterr().out


async def test_a_loss_is_accepted_only_for_ledgers_on_the_list(
    server: Server, capsys: pytest.CaptureFixture[str]
) -> None:
    await known(server)
    notes = UnrecoverableLedgers(server.store)
    path = "/api/v1/quire/unrecoverable/accept"
    assert (await server.ask("PUT", path, {"ledger": "x"}))[0] == 400
    assert (await server.ask("PUT", path, {"ledger": 7}))[0] == 409
    assert await server.command("drain", X, "--accept-loss", "7", "--yes", "--no-wait") == EXIT_FAILED
    assert "so no loss is known" in capsys.readouterr().err
    await notes.note(LedgerId(7), "entry 3 is nowhere", 5)
    assert await server.command("drain", X, "--accept-loss", "7", "--yes", "--no-wait") == 0
    assert "entry 3 is nowhere" in capsys.readouterr().err
    note = await notes.read(LedgerId(7))
    assert note is not None and note.accepted_ms is not None
    await notes.note(LedgerId(7), "entry 4 as well", 6)
    again = await notes.read(LedgerId(7))
    assert again is not None and (again.accepted_ms, again.attempts) == (note.accepted_ms, 2)
    assert await server.command("unrecoverable") == 0
    assert "accepted" in capsys.readouterr().out
