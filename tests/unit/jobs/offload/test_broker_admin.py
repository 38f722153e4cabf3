"""Meaning of the owner's responses for an attempt: refused, not Quire's, not allowed, or worth a retry."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from quire_bookie.model import LedgerId
from quire_broker.names import parse_topic
from quire_jobs.errors import NotFoundError, QuireJobError, SourceUnavailableError
from quire_jobs.offload.broker_admin import Attempt, AttemptRefusedError, BrokerAdmin, StockBrokerError
from quire_jobs.source.broker_http import BrokerHttp
from tests.support.ports import free_port

TOPIC = parse_topic("persistent://shop/orders/placed")
LEDGER = LedgerId(7)
ATTEMPT = Attempt("0f1e2d3c-4b5a-4978-8695-a4b3c2d1e0f0", LEDGER, 10, 100)
JETTY = "<html><h2>HTTP ERROR 404</h2>Problem accessing /admin/v2/persistent/shop/orders/placed/offload/begin</html>"


@dataclass
class Owner:
    """A broker that gives the same response to every request, and the requests it received."""

    admin: BrokerAdmin
    asked: list[tuple[str, dict[str, Any]]] = field(default_factory=list)

    async def begin(self) -> Attempt:
        return await self.admin.begin(TOPIC, LEDGER, driver="aws-s3", properties={"bucket": "b"}, owner="me")


@asynccontextmanager
async def answering(status: int, body: Any) -> AsyncIterator[Owner]:
    """Serve `body`: JSON, or text unchanged."""
    asked: list[tuple[str, dict[str, Any]]] = []

    async def answer(request: web.Request) -> web.Response:
        asked.append((request.path, await request.json()))
        if isinstance(body, str):
            return web.Response(text=body, status=status, content_type="text/html")
        return web.json_response(body, status=status)

    app = web.Application()
    app.router.add_post("/{path:.*}", answer)
    async with TestServer(app) as server, BrokerHttp(f"http://127.0.0.1:{server.port}") as brokers:
        yield Owner(BrokerAdmin(brokers), asked)


async def test_requests_go_to_the_topic_s_path_with_all_facts_of_the_attempt() -> None:
    async with answering(200, {"uuid": ATTEMPT.uuid, "ledgerId": 7, "entries": 10, "size": 100}) as owner:
        assert await owner.begin() == ATTEMPT
        await owner.admin.complete(TOPIC, ATTEMPT)
        assert await owner.admin.abort(TOPIC, ATTEMPT)
    path = "/admin/v2/persistent/shop/orders/placed/offload"
    assert owner.asked == [
        (f"{path}/begin", {"ledgerId": 7, "driver": "aws-s3", "properties": {"bucket": "b"}, "owner": "me"}),
        (f"{path}/complete", {"ledgerId": 7, "uuid": ATTEMPT.uuid, "entries": 10, "size": 100}),
        (f"{path}/abort", {"ledgerId": 7, "uuid": ATTEMPT.uuid}),
    ]


@pytest.mark.parametrize(
    ("status", "body"),
    [
        (404, {"reason": "HTTP 404 Not Found"}),
        (404, JETTY),
        (404, ""),
        (405, {"reason": "HTTP 405 Method Not Allowed"}),
        (405, ""),
    ],
)
async def test_the_error_for_a_stock_broker_says_what_to_do_instead(status: int, body: Any) -> None:
    async with answering(status, body) as owner:
        with pytest.raises(StockBrokerError) as refused:
            await owner.begin()
    said = str(refused.value)
    assert f"the broker that owns {TOPIC} is not Quire's (it responds with {status} to offload/begin)" in said
    assert "use that broker's own offloader, or move the topic to Quire" in said
    assert len(owner.asked) == 1


@pytest.mark.parametrize(
    ("status", "reason"),
    [(409, "ledger 7: an attempt of another job is in progress"), (404, f"there is no topic {TOPIC}")],
)
async def test_a_refusal_of_a_quire_broker_is_quoted(status: int, reason: str) -> None:
    async with answering(status, {"reason": reason}) as owner:
        with pytest.raises(AttemptRefusedError) as refused:
            await owner.begin()
    assert str(refused.value) == reason


@pytest.mark.parametrize(
    ("status", "kind", "said"),
    [
        (401, QuireJobError, "set QUIRE_TOKEN to a token with the permission for it"),
        (403, QuireJobError, "set QUIRE_TOKEN to a token with the permission for it"),
        (400, QuireJobError, "HTTP 400: it says why"),
        (429, SourceUnavailableError, "HTTP 429: it says why"),
        (500, SourceUnavailableError, "HTTP 500: it says why"),
        (503, SourceUnavailableError, "HTTP 503: it says why"),
    ],
)
async def test_other_errors_name_the_ledger_and_show_whether_a_retry_helps(
    status: int, kind: type[Exception], said: str
) -> None:
    async with answering(status, {"reason": "it says why"}) as owner:
        for ask in (owner.begin, lambda: owner.admin.complete(TOPIC, ATTEMPT)):
            with pytest.raises(QuireJobError) as refused:
                await ask()
            assert type(refused.value) is kind
            assert str(refused.value).startswith(f"ledger 7 of {TOPIC}: HTTP {status}: ") and said in str(refused.value)


@pytest.mark.parametrize("status", [404, 409])
async def test_an_attempt_that_the_broker_dropped_can_neither_complete_nor_abort(status: int) -> None:
    async with answering(status, {"reason": "ledger 7 has no such attempt"}) as owner:
        with pytest.raises(AttemptRefusedError, match="ledger 7 has no such attempt"):
            await owner.admin.complete(TOPIC, ATTEMPT)
        assert not await owner.admin.abort(TOPIC, ATTEMPT)


async def test_a_refused_connection_is_worth_a_retry() -> None:
    async with BrokerHttp(f"http://127.0.0.1:{free_port()}") as brokers:
        with pytest.raises(SourceUnavailableError, match="does not answer"):
            await BrokerAdmin(brokers).complete(TOPIC, ATTEMPT)


def test_a_retry_in_the_same_run_does_not_help_after_a_refusal() -> None:
    assert not issubclass(StockBrokerError, (NotFoundError, SourceUnavailableError))
    assert not issubclass(AttemptRefusedError, SourceUnavailableError)
