"""The admin server of a real bookie on simulated disks: probes, state, ledgers, cluster."""

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import aiohttp
import pytest

from quire_bookie.admin.listening import listen, port_of
from quire_bookie.admin.web import BookieWeb
from quire_bookie.client import LedgerClient
from quire_bookie.env.chance import SystemChance
from quire_bookie.env.clock import SystemClock
from quire_bookie.env.slow_log import SlowLog
from quire_bookie.errors import StartupError
from quire_bookie.metadata.store import MetadataStore
from quire_bookie.model import EntryId, LedgerId
from quire_bookie.server.process import BookieState, RunningBookie
from quire_bookie.settings.service import ServiceSettings
from quire_bookie.settings.slow import SlowSettings
from tests.support.bookie_world import SETTINGS, BookieWorld
from tests.support.scrapes import ACCEPT_OPENMETRICS, CLASSIC, OPENMETRICS, check_formats


@dataclass(frozen=True)
class Admin:
    """A bookie, its admin server and a client of it."""

    bookie: RunningBookie
    metadata: MetadataStore
    web: BookieWeb
    url: str
    session: aiohttp.ClientSession
    client: LedgerClient

    async def ask(self, method: str, path: str, body: Any = None) -> tuple[int, Any]:
        """Return the status, and the JSON or text of the response."""
        data = None if body is None else json.dumps(body)
        headers = {"Content-Type": "application/json"}
        async with self.session.request(method, self.url + path, data=data, headers=headers) as answer:
            text = await answer.text()
            return answer.status, json.loads(text) if answer.content_type == "application/json" else text

    async def get(self, path: str) -> Any:
        """Return the response to a GET that succeeds."""
        status, answer = await self.ask("GET", path)
        assert status == 200, answer
        return answer

    async def ledger(self, *payloads: bytes, close: bool = True) -> LedgerId:
        """Write a new ledger with these entries."""
        writer = await self.client.create_ledger(ensemble_size=1, write_quorum=1, ack_quorum=1)
        for payload in payloads:
            await writer.append(payload)
        if close:
            await writer.close()
        return writer.ledger_id


@pytest.fixture
async def admin(request: pytest.FixtureRequest) -> AsyncIterator[Admin]:
    world = BookieWorld(settings=getattr(request, "param", SETTINGS))
    running = await world.start()
    assert world.session is not None
    web = BookieWeb(
        world.session, world.disk, {"bookiePort": 3181, "x": True}, clock=SystemClock(), chance=SystemChance()
    )
    listening = listen("127.0.0.1", 0)
    await web.open(listening)
    client = await LedgerClient.open(world.session, clock=SystemClock(), chance=SystemChance())
    async with aiohttp.ClientSession() as session:
        yield Admin(running, world.session, web, f"http://127.0.0.1:{port_of(listening)}", session, client)
    await client.close()
    await web.close()
    await world.stop()


async def test_before_the_bookie_serves_the_probes_fail(admin: Admin) -> None:
    for path in ("/healthz", "/readyz", "/heartbeat", "/api/v1/bookie/is_ready"):
        assert await admin.ask("GET", path) == (503, "starting\n")
    assert (await admin.ask("GET", "/api/v1/bookie/state"))[0] == 503
    status, text = await admin.ask("GET", "/metrics")
    assert status == 200 and "quire_loop_stall_seconds_count" in text and "bookie_SERVER_STATUS" not in text


@pytest.mark.parametrize(
    ("state", "health", "ready"),
    [
        (BookieState.WRITABLE, (200, "ok\n"), (200, "ok\n")),
        (BookieState.READ_ONLY, (200, "ok\n"), (503, "read-only\n")),
        (BookieState.POISONED, (503, "poisoned\n"), (503, "poisoned\n")),
        (BookieState.STOPPED, (503, "stopped\n"), (503, "stopped\n")),
    ],
)
async def test_a_read_only_bookie_is_healthy_but_not_ready(
    admin: Admin, state: BookieState, health: tuple[int, str], ready: tuple[int, str]
) -> None:
    bookie: Any = SimpleNamespace(state=state, bookie=SimpleNamespace(slow=SlowLog()))
    admin.web.serve(bookie)
    assert await admin.ask("GET", "/healthz") == health
    assert await admin.ask("GET", "/readyz") == ready
    assert (await admin.ask("GET", "/heartbeat"))[0] == health[0]


def test_a_port_in_use_is_one_line() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(StartupError, match=f"port {port} on 127.0.0.1 .* Address already in use"):
            listen("127.0.0.1", port)


async def test_a_foreign_address_is_one_line() -> None:
    with pytest.raises(StartupError, match=r"port 1234 on 192\.0\.2\.1 cannot be listened on"):
        listen("192.0.2.1", 1234)


async def test_metrics_name_the_bookie_and_show_the_latency_of_adds(admin: Admin) -> None:
    admin.web.serve(admin.bookie)
    await admin.ledger(b"one", b"two")
    text = await admin.get("/metrics")
    assert f'bookie_SERVER_STATUS{{bookie="{admin.bookie.bookie_id}"}} 1.0\n' in text
    assert f'quire_bookie_start_seconds{{bookie="{admin.bookie.bookie_id}",step="replay"}}' in text


async def test_metrics_are_parsed_in_both_formats(admin: Admin) -> None:
    admin.web.serve(admin.bookie)
    await admin.ledger(b"one", b"two")
    texts = []
    for accept, content_type in (("*/*", CLASSIC), (ACCEPT_OPENMETRICS, OPENMETRICS)):
        async with admin.session.get(admin.url + "/metrics", headers={"Accept": accept}) as answer:
            assert answer.headers["Content-Type"].startswith(content_type)
            texts.append(await answer.text())
    found = check_formats(*texts)
    assert found["quire_bookie_add_seconds"].type == "histogram"
    assert found["quire_connection_memory_bytes"].type == "gauge"


async def test_a_ledger_is_listed_shown_read_and_deleted(admin: Admin) -> None:
    admin.web.serve(admin.bookie)
    ledger = await admin.ledger(b"zero", b"one", b"\xff two")
    assert await admin.get("/api/v1/ledger/list") == {str(ledger): None}
    described = (await admin.get(f"/api/v1/ledger/metadata?ledger_id={ledger}"))[str(ledger)]
    assert "state=CLOSED, lastEntryId=2" in described
    assert "password=OMITTED" in described
    assert (await admin.get("/api/v1/ledger/list?print_metadata=true")) == {str(ledger): described}
    assert await admin.get(f"/api/v1/ledger/read?ledger_id={ledger}&start_entry_id=1") == {
        "1": "one",
        "2": "\ufffd two",
    }
    assert await admin.ask("DELETE", f"/api/v1/ledger/delete?ledger_id={ledger}") == (200, {"deleted": ledger})
    assert await admin.get("/api/v1/ledger/list") == {}
    assert (await admin.ask("DELETE", f"/api/v1/ledger/delete?ledger_id={ledger}"))[0] == 404


async def test_reading_an_open_ledger_does_not_fence_its_writer(admin: Admin) -> None:
    admin.web.serve(admin.bookie)
    writer = await admin.client.create_ledger(ensemble_size=1, write_quorum=1, ack_quorum=1)
    await writer.append(b"first")
    await writer.append(b"second")
    assert await admin.get(f"/api/v1/ledger/read?ledger_id={writer.ledger_id}") == {"0": "first"}
    assert await writer.append(b"third") == EntryId(2)
    await writer.close()


@pytest.mark.parametrize(
    ("path", "status", "reason"),
    [
        ("/api/v1/ledger/metadata", 400, "ledger_id is missing"),
        ("/api/v1/ledger/metadata?ledger_id=x", 400, "ledger_id=x is not an integer"),
        ("/api/v1/ledger/metadata?ledger_id=-4", 400, "not negative"),
        ("/api/v1/ledger/metadata?ledger_id=4711", 404, "ledger 4711 does not exist"),
        ("/api/v1/ledger/read?ledger_id=4711", 404, "ledger 4711 does not exist"),
        ("/api/v1/ledger/list?page=-1", 400, "pages start at 1"),
        ("/api/v1/bookie/list_bookies?type=all", 400, "rw"),
        ("/api/v1/nothing", 404, "/api/v1/nothing"),
    ],
)
async def test_an_invalid_request_is_refused_with_a_reason(admin: Admin, path: str, status: int, reason: str) -> None:
    admin.web.serve(admin.bookie)
    found, answer = await admin.ask("GET", path)
    assert (found, reason in answer["reason"]) == (status, True), answer


async def test_the_cluster_is_shown_as_the_metadata_has_it(admin: Admin) -> None:
    admin.web.serve(admin.bookie)
    bookie = str(admin.bookie.bookie_id)
    assert await admin.get("/api/v1/bookie/list_bookies?type=rw") == {bookie: None}
    assert await admin.get("/api/v1/bookie/list_bookies?print_hostnames=true") == {
        bookie: f"127.0.0.1:{admin.bookie.port}"
    }
    assert await admin.get("/api/v1/bookie/list_bookies?type=ro") == {}
    cluster = await admin.get("/api/v1/bookie/cluster_info")
    assert cluster["totalBookiesCount"] == cluster["writableBookiesCount"] == 1
    assert cluster["auditorElected"] is False
    space = await admin.get("/api/v1/bookie/info")
    asked = await admin.get("/api/v1/bookie/list_bookie_info")
    assert asked[bookie] == f": {{Free: {space['freeSpace']}, Total: {space['totalSpace']}}}"
    assert asked["ClusterInfo"] == asked[bookie]
    assert await admin.get("/api/v1/quire/places") == {bookie: {"machine": "127.0.0.1", "rack": "/default-rack"}}


async def test_the_sanity_check_writes_to_this_bookie_and_deletes_its_ledger(admin: Admin) -> None:
    admin.web.serve(admin.bookie)
    before = admin.bookie.bookie.stats.add_entries
    assert await admin.get("/api/v1/bookie/sanity") == {"passed": True, "readOnly": False}
    assert admin.bookie.bookie.stats.add_entries == before + 10
    assert await admin.get("/api/v1/ledger/list") == {}


async def test_a_bookie_is_set_read_only_and_back(admin: Admin) -> None:
    admin.web.serve(admin.bookie)
    assert await admin.get("/api/v1/bookie/state/readonly") == {"readOnly": False}
    assert await admin.ask("PUT", "/api/v1/bookie/state/readonly", {"readOnly": True}) == (200, {"readOnly": True})
    state = await admin.get("/api/v1/bookie/state")
    assert (state["running"], state["readOnly"], state["shuttingDown"]) == (True, True, False)
    assert await admin.get("/api/v1/bookie/sanity") == {"passed": True, "readOnly": True}
    assert await admin.ask("PUT", "/api/v1/bookie/state/readonly", {"readOnly": "false"}) == (200, {"readOnly": False})


@pytest.mark.parametrize("body", [None, {}, {"readOnly": 3}, [1]])
async def test_a_body_without_the_request_changes_nothing(admin: Admin, body: Any) -> None:
    admin.web.serve(admin.bookie)
    status, answer = await admin.ask("PUT", "/api/v1/bookie/state/readonly", body)
    assert status == 400, answer
    assert await admin.get("/api/v1/bookie/state/readonly") == {"readOnly": False}


async def test_settings_are_shown_and_not_changed(admin: Admin) -> None:
    assert await admin.get("/api/v1/config/server_config") == {"bookiePort": "3181", "x": "true"}
    status, answer = await admin.ask("PUT", "/api/v1/config/server_config", {"bookiePort": "1"})
    assert status == 403
    assert "restart" in answer["reason"]


async def test_mark_and_files_are_reported(admin: Admin) -> None:
    admin.web.serve(admin.bookie)
    ((name, place),) = (await admin.get("/api/v1/bookie/last_log_mark")).items()
    assert name.startswith("LastLogMark: Journal Id ")
    assert place.startswith("Pos: ")
    files = await admin.get("/api/v1/bookie/list_disk_file?file_type=journal,entrylog")
    assert set(files) == {"journal files", "entrylog files"}
    assert files["journal files"]
    status, answer = await admin.ask("GET", "/api/v1/bookie/list_disk_file?file_type=index")  # none on this disk
    assert status == 503 and "mount its volume" in answer["reason"]


async def test_garbage_collection_is_forced_and_its_compactions_are_suspended_and_resumed(admin: Admin) -> None:
    admin.web.serve(admin.bookie)
    assert await admin.get("/api/v1/bookie/gc") == {"is_in_force_gc": "false"}
    (details,) = await admin.get("/api/v1/bookie/gc_details")
    assert details["majorCompactionCounter"] == details["lastMajorCompactionTime"] == 0
    none = {"isMajorGcSuspended": "false", "isMinorGcSuspended": "false"}
    assert await admin.get("/api/v1/bookie/gc/suspend_compaction") == none
    status, answer = await admin.ask("PUT", "/api/v1/bookie/gc/suspend_compaction", {"suspendMajor": True})
    assert (status, answer) == (200, {"isMajorGcSuspended": "true", "isMinorGcSuspended": "false"})
    status, answer = await admin.ask("PUT", "/api/v1/bookie/gc/resume_compaction", {"resumeMajor": "true"})
    assert (status, answer) == (200, none)
    rounds = admin.bookie.garbage_collection.stats.rounds
    assert (await admin.ask("PUT", "/api/v1/bookie/gc", {"forceMajor": False}))[0] == 200
    async with asyncio.timeout(60):
        while admin.bookie.garbage_collection.stats.completed_rounds < rounds + 2:  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def test_a_hold_is_set_with_its_reason_and_lifted(admin: Admin) -> None:
    admin.web.serve(admin.bookie)
    assert await admin.get("/api/v1/bookie/gc/hold") == {"hold": False, "reason": ""}
    held = {"hold": True, "reason": "restoring the metadata"}
    assert await admin.ask("PUT", "/api/v1/bookie/gc/hold", held) == (200, held)
    assert admin.bookie.garbage_collection.fuse.hold == "restoring the metadata"
    assert (await admin.ask("PUT", "/api/v1/bookie/gc/hold", {"hold": False}))[1]["hold"] is False


async def test_a_fuse_is_shown_and_can_only_be_reset(admin: Admin) -> None:
    admin.web.serve(admin.bookie)
    assert await admin.get("/api/v1/bookie/gc/fuse") == {"blown": False}
    await admin.bookie.garbage_collection.fuse.check(90, 100)
    blown = await admin.get("/api/v1/bookie/gc/fuse")
    assert (blown["blown"], blown["missing"], blown["held"]) == (True, 90, 100)
    assert (await admin.ask("PUT", "/api/v1/bookie/gc/fuse", {"reset": False}))[0] == 400
    assert await admin.ask("PUT", "/api/v1/bookie/gc/fuse", {"reset": True}) == (200, {"blown": False})


async def test_the_load_of_the_last_minute_has_the_latencies(admin: Admin, monkeypatch: pytest.MonkeyPatch) -> None:
    admin.web.serve(admin.bookie)
    assert await admin.get("/api/v1/bookie/load") == {"window": None}
    await admin.ledger(b"one", b"two")
    assert await admin.get("/api/v1/bookie/load") == {"window": None}, "a minute has not passed"
    monkeypatch.setattr("quire_bookie.admin.load_window.SPAN_S", 0.0)
    found = (await admin.get("/api/v1/bookie/load"))["window"]
    assert set(found) == {
        *("seconds", "journalWrites", "journalWriteP99Seconds", "adds", "addP99Seconds"),
        *("addedBytes", "readBytes", "cpuSeconds"),
    }
    assert found["adds"] == 2 and found["journalWrites"] >= 1
    assert found["addedBytes"] >= 6 and found["addP99Seconds"] > 0 and found["journalWriteP99Seconds"] > 0


async def test_the_scrub_and_the_quarantine_report_nothing_of_a_healthy_bookie(admin: Admin) -> None:
    admin.web.serve(admin.bookie)
    assert (await admin.get("/api/v1/bookie/scrub"))["damages"] == []
    assert await admin.get("/api/v1/bookie/quarantine") == []


async def test_expanding_the_storage_is_refused_until_the_next_start(admin: Admin) -> None:
    admin.web.serve(admin.bookie)
    status, answer = await admin.ask("PUT", "/api/v1/bookie/expand_storage")
    assert status == 409
    assert "allowStorageExpansion" in answer["reason"]


ALL_SLOW = replace(SETTINGS, service=ServiceSettings(slow=SlowSettings(1e-9)))


@pytest.mark.parametrize("admin", [ALL_SLOW], indirect=True)
async def test_slow_requests_and_adds_are_logged_and_counted(admin: Admin, caplog: pytest.LogCaptureFixture) -> None:
    admin.web.serve(admin.bookie)
    ledger = await admin.ledger(b"one")
    assert (await admin.ask("GET", "/api/v1/none"))[0] == 404
    text = await admin.get("/metrics")
    events = [vars(record)["event"] for record in caplog.records if record.name == "quire.slow"]
    (add,) = [event for event in events if event["operation"] == "add" and event["ledger"] == ledger]
    parts = [add[part] for part in ("space_ms", "queue_ms", "journal_ms", "answer_ms")]
    assert sum(parts) == pytest.approx(add["took_ms"], abs=0.5)
    (request,) = [event for event in events if event["operation"] == "admin"][:1]
    assert (request["method"], request["path"], request["status"]) == ("GET", "/api/v1/none", 404)
    assert f'quire_bookie_slow_operations_total{{bookie="{admin.bookie.bookie_id}",operation="admin"}} 1.0' in text
