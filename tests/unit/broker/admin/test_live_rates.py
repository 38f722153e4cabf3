"""Streams of rates and their history over HTTP, of a running broker."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from quire_broker.admin import live_rates
from quire_broker.admin.live_rates import event_of
from quire_broker.admin.rate_history import Values
from quire_broker.names import parse_topic
from quire_broker.server.broker import RunningBroker
from quire_broker.settings.console import ConsoleSettings
from tests.support.broker_world import running_brokers
from tests.support.unreadable_requests import sent


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[RunningBroker]:
    async with running_brokers(tmp_path, 1) as world:
        name = parse_topic("public/default/orders")
        assert await world.brokers[0].parts.lookups.find(name) is not None
        await world.brokers[0].topics.get(name, create=True)
        yield world.brokers[0]


@pytest.fixture
async def session() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession() as found:
        yield found


def url(broker: RunningBroker, path: str) -> str:
    return f"http://127.0.0.1:{broker.http_port}/admin/quire{path}"


async def first_event(answer: aiohttp.ClientResponse) -> Any:
    line = await answer.content.readline()
    assert line.startswith(b"data: ")
    return json.loads(line[6:])


async def test_a_stream_has_the_topics_of_the_broker_or_of_one_namespace(
    broker: RunningBroker, session: aiohttp.ClientSession
) -> None:
    async with session.get(url(broker, "/live")) as answer:
        assert answer.content_type == "text/event-stream"
        event = await first_event(answer)
    assert event["topics"] == {"persistent://public/default/orders": [0, 0, 0, 0, 0]}
    assert event["namespaces"] == {"public/default": [0, 0, 0, 0, 0]}
    async with session.get(url(broker, "/live/public/other")) as answer:
        assert (await first_event(answer))["topics"] == {}


@pytest.mark.parametrize("path", ["/admin/quire/live", "/admin/v2/broker-stats/topics"])
async def test_the_head_of_a_streamed_response_has_no_body(broker: RunningBroker, path: str) -> None:
    request = f"HEAD {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
    async with asyncio.timeout(20):
        head, _, body = (await sent(broker.http_port, request.encode())).partition("\r\n\r\n")
    assert head.startswith("HTTP/1.1 200 ") and body == ""


async def test_a_stream_ends_so_that_the_role_is_checked_again(
    broker: RunningBroker, session: aiohttp.ClientSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live_rates, "LIVE_STREAM_S", 0.05)
    monkeypatch.setattr(live_rates, "LIVE_STEP_S", 0.01)
    async with session.get(url(broker, "/live")) as answer, asyncio.timeout(20):
        assert (await answer.read()).count(b"data: ") >= 1


async def test_streams_have_a_bound_and_leave_room_when_they_end(
    broker: RunningBroker, session: aiohttp.ClientSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live_rates, "LIVE_STREAMS_MAX", 1)
    monkeypatch.setattr(live_rates, "LIVE_STEP_S", 0.01)
    async with session.get(url(broker, "/live")) as answer:
        await first_event(answer)
        async with session.get(url(broker, "/live")) as refused:
            assert refused.status == 503
            assert "1 consoles follow this broker" in (await refused.json())["reason"]
    async with asyncio.timeout(20):
        while True:
            async with session.get(url(broker, "/live")) as again:
                if again.status == 200:
                    break
            await asyncio.sleep(0.01)


async def test_a_stopping_broker_ends_its_streams(tmp_path: Path, session: aiohttp.ClientSession) -> None:
    async with running_brokers(tmp_path, 1) as world:
        answer = await session.get(url(world.brokers[0], "/live"))
        await first_event(answer)
    async with asyncio.timeout(20):
        await answer.read()
    answer.close()


async def test_the_history_is_shown_of_broker_namespace_and_topic(
    broker: RunningBroker, session: aiohttp.ClientSession
) -> None:
    for path, status in (
        ("/rates", 200),
        ("/rates/public/none", 404),
        ("/rates/persistent/public/default/none", 404),
    ):
        async with session.get(url(broker, path)) as answer:
            assert answer.status == status
            found = await answer.json()
    assert "no rates of persistent://public/default/none are kept" in found["reason"]


async def test_a_broker_without_console_keeps_no_rates(tmp_path: Path, session: aiohttp.ClientSession) -> None:
    async with running_brokers(tmp_path, 1, console=ConsoleSettings(enabled=False)) as world:
        for path in ("/rates", "/live", "/live/public/default"):
            async with session.get(url(world.brokers[0], path)) as answer:
                assert answer.status == 404
                assert "webConsoleEnabled=false" in (await answer.json())["reason"]


def test_an_event_has_the_busiest_topics_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live_rates, "LIVE_TOPICS_MAX", 1)
    event = event_of({"persistent://a/b/quiet": Values(1, 1), "persistent://a/c/busy": Values(1, 5)})
    assert set(event["topics"]) == {"persistent://a/c/busy"} and set(event["namespaces"]) == {"a/c"}
    assert event["total"] == (2, 6, 0, 0, 0) and event["loaded"] == 2
