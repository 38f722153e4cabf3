"""The probes and the scrape of the operator, over a real socket."""

import asyncio
import contextlib
from dataclasses import dataclass, field

import aiohttp
import pytest

from quire_operator.errors import OperatorError
from quire_operator.monitoring.bounded import HttpBounds
from quire_operator.monitoring.measurements import Measurements
from quire_operator.monitoring.web import OperatorHealth, resident_bytes, serving
from tests.support.unreadable_requests import check_refusals, sent


@dataclass
class Lease:
    held: asyncio.Event = field(default_factory=asyncio.Event)
    turned_s: float | None = None
    answered_s: float | None = None


def health_of(lease: Lease) -> OperatorHealth:
    return OperatorHealth(lease, Measurements(), lambda: 3, lambda: 0.0)


async def test_a_live_operator_answers_on_its_three_paths() -> None:
    lease = Lease()
    async with serving(health_of(lease), 0, "127.0.0.1") as port, aiohttp.ClientSession() as session:

        async def ask(path: str) -> tuple[int, str]:
            async with session.get(f"http://127.0.0.1:{port}{path}") as answer:
                return answer.status, await answer.text()

        assert await ask("/healthz") == (200, "ok\n")
        assert (await ask("/readyz"))[0] == 503, "nobody has answered yet"
        lease.turned_s = lease.answered_s = asyncio.get_running_loop().time()
        assert await ask("/readyz") == (200, "ok\n")
        status, text = await ask("/metrics")
        assert status == 200
        assert "quire_operator_leader 0\n" in text
        assert "quire_operator_queue_length 3\n" in text
        lease.held.set()
        assert "quire_operator_leader 1\n" in (await ask("/metrics"))[1]


async def test_a_request_that_is_no_http_shows_and_logs_no_token(caplog: pytest.LogCaptureFixture) -> None:
    async with serving(health_of(Lease()), 0, "127.0.0.1") as port:
        await check_refusals(port, caplog)


async def test_a_body_that_cannot_be_read_is_one_line_of_the_log(caplog: pytest.LogCaptureFixture) -> None:
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
def test_a_silent_api_server_is_no_reason_to_be_restarted_and_a_task_that_hangs_is(
    turned_s: float | None, answered_s: float | None, ill: str | None, not_ready: str | None
) -> None:
    health = health_of(Lease(turned_s=turned_s, answered_s=answered_s))
    assert health.ill(100.0) == ill
    assert health.not_ready(100.0) == not_ready


async def test_a_port_that_is_taken_is_said() -> None:
    async with serving(health_of(Lease()), 0, "127.0.0.1") as port:
        with pytest.raises(OperatorError, match="--metrics-port"):
            async with serving(health_of(Lease()), port, "127.0.0.1"):
                raise AssertionError("two listen on one port")


def test_the_memory_of_this_process_is_known() -> None:
    assert all(size > 10 * 2**20 for size in resident_bytes())


async def test_a_connection_ends_in_time_and_an_address_has_a_share() -> None:
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
