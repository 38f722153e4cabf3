"""Under-replication over HTTP and on the command line, and the end of a ledger's limbo as auto-recovery requests it."""

import asyncio
import json
from collections.abc import AsyncIterator

import aiohttp
import pytest

from quire_bookie.admin.listening import listen, port_of
from quire_bookie.admin.web import BookieWeb
from quire_bookie.cli.commands import EXIT_CONFLICT
from quire_bookie.cli.main import run
from quire_bookie.client import LedgerClient
from quire_bookie.env.chance import SystemChance
from quire_bookie.env.clock import SystemClock
from quire_bookie.errors import BookieUnavailableError
from quire_bookie.metadata import layout
from quire_bookie.metadata.election import Election
from quire_bookie.metadata.registration import BookieRegistry
from quire_bookie.metadata.restoration import RESTORATION, Restoration, RestorationState, encode_restoration
from quire_bookie.metadata.service_info import BookieServiceInfo, encode_service_info, http_endpoint
from quire_bookie.metadata.store import MetadataStore
from quire_bookie.metadata.under_replication import UnderReplication
from quire_bookie.metadata.unrecoverable import UnrecoverableLedgers
from quire_bookie.model import BookieId, LedgerId
from quire_bookie.recovery.bookie_http import BookieHttp
from quire_bookie.server.process import RunningBookie
from tests.support.bookie_world import BookieWorld

ROOT = "/api/v1/autorecovery"
A, B = BookieId("a"), BookieId("b")


class Server:
    """A bookie's admin server and a client of it."""

    def __init__(self, bookie: RunningBookie, store: MetadataStore, port: int, session: aiohttp.ClientSession) -> None:
        self.bookie, self.store, self.port = bookie, store, port
        self.url = f"http://127.0.0.1:{port}"
        self._session = session

    async def ask(self, method: str, path: str, body: object = None) -> tuple[int, object]:
        data = None if body is None else json.dumps(body)
        headers = {"Content-Type": "application/json"}
        async with self._session.request(method, self.url + path, data=data, headers=headers) as answer:
            return answer.status, await answer.json()

    async def command(self, *arguments: str) -> int:
        return await asyncio.to_thread(run, ["cluster", *arguments, "--http", self.url])


@pytest.fixture
async def server() -> AsyncIterator[Server]:
    world = BookieWorld()
    running = await world.start()
    assert world.session is not None
    web = BookieWeb(world.session, world.disk, {}, clock=SystemClock(), chance=SystemChance())
    listening = listen("127.0.0.1", 0)
    await web.open(listening)
    web.serve(running)
    async with aiohttp.ClientSession() as session:
        yield Server(running, world.session, port_of(listening), session)
    await web.close()
    await world.stop()


async def test_recovery_is_switched(server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    assert await server.ask("GET", f"{ROOT}/status") == (200, {"enabled": True})
    assert await server.ask("PUT", f"{ROOT}/status?enabled=false") == (200, {"enabled": False})
    assert (await server.ask("PUT", f"{ROOT}/status"))[0] == 400
    assert await server.command("autorecovery") == 0
    assert await server.command("autorecovery", "on") == 0
    assert capsys.readouterr().out.split() == ["off", "on"]
    assert await server.ask("GET", f"{ROOT}/status") == (200, {"enabled": True})


@pytest.mark.parametrize("header", [{"Origin": "https://evil.example"}, {"Sec-Fetch-Site": "cross-site"}])
async def test_a_page_of_another_site_switches_nothing(server: Server, header: dict[str, str]) -> None:
    url = f"{server.url}{ROOT}/status?enabled=false"
    async with aiohttp.ClientSession(headers=header) as session, session.put(url) as answer:
        assert answer.status == 403
    assert await server.ask("GET", f"{ROOT}/status") == (200, {"enabled": True})


async def test_recovery_stays_off_while_a_restore_is_reviewed(server: Server) -> None:
    """It would close ledgers at the end of the backup's ensemble."""
    await server.ask("PUT", f"{ROOT}/status?enabled=false")
    review = Restoration("b", "c", RestorationState.REVIEW, 1, 2, 3, False)
    await server.store.put(RESTORATION, encode_restoration(review))
    assert (await server.ask("PUT", f"{ROOT}/status?enabled=true"))[0] == 409
    assert await server.ask("PUT", f"{ROOT}/status?enabled=false") == (200, {"enabled": False})


async def test_marked_ledgers_are_listed(server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    path = f"{ROOT}/list_under_replicated_ledger"
    assert (await server.ask("GET", path))[0] == 404
    assert await server.command("under-replicated") == 0
    assert "nothing is under-replicated" in capsys.readouterr().err
    marks = UnderReplication(server.store, SystemClock())
    await marks.mark(LedgerId(3), [A])
    await marks.mark(LedgerId(4), [A, B])
    assert await server.ask("GET", path) == (200, [3, 4])
    assert await server.ask("GET", f"{path}?missingreplica=b") == (200, [4])
    assert await server.ask("GET", f"{path}?excludingmissingreplica=b") == (200, [3])
    assert await server.ask("GET", f"{path}?print_missing_replica=true") == (200, {"3": ["a"], "4": ["a", "b"]})
    assert await server.command("under-replicated", "--bookie", "b") == 0
    assert capsys.readouterr().out.splitlines()[1:] == ["     4  a, b"]
    await marks.mark(LedgerId(5), [])
    assert await server.command("under-replicated") == 0
    assert "5  no bookie: it was created with too few copies" in capsys.readouterr().out
    assert await server.command("status") == 0
    assert "ledgers with too few copies  0" in capsys.readouterr().out


async def test_marked_ledgers_are_counted_without_accepted_losses(server: Server) -> None:
    path = "/api/v1/quire/under-replication"
    assert await server.ask("GET", path) == (200, {"count": 0, "oldest_ms": None})
    marks, notes = UnderReplication(server.store, SystemClock()), UnrecoverableLedgers(server.store)
    for ledger in (3, 4, 5):
        await marks.mark(LedgerId(ledger), [A])
    oldest = await marks.read(LedgerId(4))
    assert oldest is not None
    for ledger in (3, 9):  # the mark of 9 was removed meanwhile
        await notes.note(LedgerId(ledger), "lost", 1)
        await notes.accept(LedgerId(ledger), 2)
    assert await server.ask("GET", path) == (200, {"count": 2, "oldest_ms": oldest.marked_ms})


async def test_the_auditor_and_the_delay(server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    assert (await server.ask("GET", f"{ROOT}/who_is_auditor"))[0] == 404
    assert (await server.ask("PUT", f"{ROOT}/trigger_audit"))[0] == 409
    assert await server.command("lost-bookie", "--now") == EXIT_CONFLICT
    assert "start `quire autorecovery`" in capsys.readouterr().err
    await Election(server.store, "me").win()
    assert await server.ask("GET", f"{ROOT}/who_is_auditor") == (200, {"Auditor": "me"})
    assert await server.command("auditor") == 0
    assert await server.command("lost-bookie", "--delay", "45") == 0
    assert capsys.readouterr().out == "me\na bookie counts as lost after 45 s\n"
    assert await server.ask("PUT", f"{ROOT}/trigger_audit") == (200, {"triggered": True})
    assert await server.ask("GET", f"{ROOT}/lost_bookie_recovery_delay") == (200, {"delay_seconds": 45})
    for wrong in ({}, {"delay_seconds": -1}, {"delay_seconds": "soon"}, {"delay_seconds": True}):
        assert (await server.ask("PUT", f"{ROOT}/lost_bookie_recovery_delay", wrong))[0] == 400


async def test_unrecoverable_ledgers_are_shown_with_their_reason(
    server: Server, capsys: pytest.CaptureFixture[str]
) -> None:
    await UnrecoverableLedgers(server.store).note(LedgerId(9), "b1 and b2 lost entry 5", 1_800_000_000_000)
    assert await server.command("unrecoverable") == 0
    assert capsys.readouterr().out.splitlines()[1].split(maxsplit=4) == [
        *("9", "2027-01-15T08:00:00+00:00", "1", "-", "b1 and b2 lost entry 5")
    ]
    assert await server.command("status", "-o", "json") == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["underReplicatedLedgers"], found["unrecoverableLedgers"], found["writableBookiesCount"]) == (0, 1, 1)


async def test_the_limbo_of_a_ledger_ends_when_auto_recovery_requests_it(server: Server) -> None:
    storage = server.bookie.storage
    client = await LedgerClient.open(server.store, clock=SystemClock(), chance=SystemChance())
    writer = await client.create_ledger(ensemble_size=1, write_quorum=1, ack_quorum=1)
    await writer.append(b"kept")
    await writer.close()
    await client.close()
    ledger = writer.ledger_id
    await storage.enter_limbo([LedgerId(100)])
    assert (await storage.load_ledger(ledger)).limbo  # type: ignore[union-attr]
    info = BookieServiceInfo((http_endpoint("127.0.0.1", server.port),))
    await server.store.put(layout.writable_path(A), encode_service_info(info))
    registry = await BookieRegistry.open(server.store)
    limbo = BookieHttp(registry)
    await limbo.end_limbo(A, ledger)
    assert not (await storage.load_ledger(ledger)).limbo  # type: ignore[union-attr]
    assert storage.is_limbo(LedgerId(60)), "only that ledger's limbo ended"
    with pytest.raises(BookieUnavailableError, match="not held here"):
        await limbo.end_limbo(A, LedgerId(60))
    with pytest.raises(BookieUnavailableError, match="no HTTP port"):
        await limbo.end_limbo(B, ledger)
    assert (await server.ask("PUT", "/api/v1/quire/limbo/end", {"ledger": "x"}))[0] == 400
    await registry.close()


async def test_an_http_port_of_another_service_is_reported(server: Server) -> None:
    info = BookieServiceInfo((http_endpoint("127.0.0.1", server.bookie.port),))
    await server.store.put(layout.writable_path(A), encode_service_info(info))
    registry = await BookieRegistry.open(server.store)
    with pytest.raises(BookieUnavailableError, match="did not end limbo"):
        await BookieHttp(registry).end_limbo(A, LedgerId(5))
    await registry.close()
