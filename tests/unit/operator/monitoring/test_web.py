"""The probes and the scrape of the operator, over a real socket."""

import asyncio
import contextlib
from dataclasses import dataclass, field

import aiohttp
import pytest

from quire_operator.errors import OperatorError
from quire_operator.monitoring.bounded import HttpBounds
from quire_operator.monitoring.measurements import Histogram, Measurements
from quire_operator.monitoring.web import OperatorHealth, serving
from tests.support.scrapes import ACCEPT_OPENMETRICS, CLASSIC, OPENMETRICS, check_formats
from tests.support.unreadable_requests import check_refusals, sent


@dataclass
class Lease:
    held: asyncio.Event = field(default_factory=asyncio.Event)
    turned_s: float | None = None
    answered_s: float | None = None


def health_of(lease: Lease) -> OperatorHealth:
    return OperatorHealth(lease, Measurements(), lambda: 3, lambda: 0.0)


async def test_a_running_operator_responds_on_its_three_paths() -> None:
    lease = Lease()
    async with serving(health_of(lease), 0, "127.0.0.1") as port, aiohttp.ClientSession() as session:

        async def ask(path: str) -> tuple[int, str]:
            async with session.get(f"http://127.0.0.1:{port}{path}") as answer:
                return answer.status, await answer.text()

        assert await ask("/healthz") == (200, "ok\n")
        assert (await ask("/readyz"))[0] == 503, "the API server has not responded yet"
        lease.turned_s = lease.answered_s = asyncio.get_running_loop().time()
        assert await ask("/readyz") == (200, "ok\n")
        status, text = await ask("/metrics")
        assert status == 200
        assert "quire_operator_leader 0.0\n" in text
        assert "quire_operator_queue_length 3.0\n" in text
        lease.held.set()
        assert "quire_operator_leader 1.0\n" in (await ask("/metrics"))[1]


async def scraped(health: OperatorHealth, accept: str) -> tuple[str, str]:
    """Return content type and text."""
    async with serving(health, 0, "127.0.0.1") as port, aiohttp.ClientSession() as session:
        url, headers = f"http://127.0.0.1:{port}/metrics", {"Accept": accept}
        async with session.get(url, headers=headers) as answer:
            assert answer.status == 200
            return answer.headers["Content-Type"], await answer.text()


async def test_metrics_are_parsed_in_both_formats() -> None:
    health = health_of(Lease())
    health.measurements.passes["Bookie"] = Histogram()
    health.measurements.errors["Bookie", "KubeError"] = 2
    item = {"metadata": {"namespace": "ns", "name": 'a"b\\c\nd'}, "status": {"phase": "Ready"}}
    health.measurements.note_resources("Bookie", [item])
    classic, openmetrics = await scraped(health, "*/*"), await scraped(health, ACCEPT_OPENMETRICS)
    assert classic[0] == CLASSIC and openmetrics[0].startswith(OPENMETRICS)
    found = check_formats(classic[1], openmetrics[1])
    assert found["quire_operator_reconcile_errors"].type == "counter"
    assert found["quire_operator_reconcile_seconds"].type == "histogram"
    assert found["quire_operator_resource_phase"].samples[0].labels["name"] == 'a"b\\c\nd'
    assert found["process_resident_memory_bytes"].samples[0].value > 10 * 2**20


async def test_a_malformed_accept_header_gets_the_classic_format() -> None:
    for version in ("abc", "2.\N{DEGREE SIGN}"):
        accept = f"application/openmetrics-text;version={version}"
        assert (await scraped(health_of(Lease()), accept))[0] == CLASSIC


async def test_an_invalid_http_request_shows_and_logs_no_token(caplog: pytest.LogCaptureFixture) -> None:
    async with serving(health_of(Lease()), 0, "127.0.0.1") as port:
        await check_refusals(port, caplog)


async def test_an_unreadable_body_is_one_log_line(caplog: pytest.LogCaptureFixture) -> None:
    head = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nContent-Encoding: gzip\r\nContent-Length: 9\r\n\r\n"
    async with serving(health_of(Lease()), 0, "127.0.0.1") as port:
        assert (await sent(port, head + b"no gzip..")).startswith("HTTP/1.1 ")
    assert not [record for record in caplog.records if record.exc_info]


@pytest.mark.parametrize(
    ("turned_s", "answered_s", "ill", "not_ready"),
    [
        (None, None, None, "the API server has not responded yet"),
        (100.0, 100.0, None, None),
        (100.0, 60.0, None, "the API server last responded 40 s ago"),
        (30.0, 30.0, "the lease was last checked 70 s ago", "the API server last responded 70 s ago"),
    ],
)
def test_only_a_hanging_task_requires_a_restart_and_not_a_silent_api_server(
    turned_s: float | None, answered_s: float | None, ill: str | None, not_ready: str | None
) -> None:
    health = health_of(Lease(turned_s=turned_s, answered_s=answered_s))
    assert health.ill(100.0) == ill
    assert health.not_ready(100.0) == not_ready


async def test_a_port_in_use_is_an_error() -> None:
    async with serving(health_of(Lease()), 0, "127.0.0.1") as port:
        with pytest.raises(OperatorError, match="--metrics-port"):
            async with serving(health_of(Lease()), port, "127.0.0.1"):
                raise AssertionError("two listen on one port")


async def test_a_connection_has_a_deadline_and_an_address_a_limit() -> None:
    async with serving(health_of(Lease()), 0, "127.0.0.1", HttpBounds(0.2, 2)) as port:
        stalled, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET /healthz HTTP/1.1\r\nX-Slow: ")
        other, _ = await asyncio.open_connection("127.0.0.1", port)
        refused, _ = await asyncio.open_connection("127.0.0.1", port)
        for reader in (refused, stalled, other):
            with contextlib.suppress(ConnectionResetError):
                assert await asyncio.wait_for(reader.read(), 30) == b""
        again, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET /healthz HTTP/1.1\r\nHost: here\r\n\r\n")
        answer = await asyncio.wait_for(again.read(), 30)
        assert answer.startswith(b"HTTP/1.1 200 OK")
        assert b"Connection: close" in answer


async def test_at_the_limit_of_all_addresses_the_oldest_connection_makes_room() -> None:
    bounds = HttpBounds(connection_s=0, connections_max=3)
    async with serving(health_of(Lease()), 0, "127.0.0.1", bounds) as port:
        held = [
            await asyncio.open_connection("127.0.0.1", port, local_addr=(f"127.0.1.{number}", 0))
            for number in range(1, 4)
        ]
        assert (await sent(port, b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")).startswith("HTTP/1.1 200")
        with contextlib.suppress(ConnectionError):
            assert await asyncio.wait_for(held[0][0].read(), 30) == b""
        for _, writer in held:
            writer.close()
