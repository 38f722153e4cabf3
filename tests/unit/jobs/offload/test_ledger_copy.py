"""The note of an attempt around `complete`, for each response; integration tests cover copying."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from quire_bookie.env.clock import SystemClock
from quire_bookie.model import LedgerId
from quire_bookie.object_store.opening import open_object_store
from quire_bookie.object_store.store import ObjectStore
from quire_broker.names import parse_topic
from quire_jobs.errors import SourceUnavailableError
from quire_jobs.offload import ledger_copy
from quire_jobs.offload.attempt_notes import AttemptNote, decode_note, write_note
from quire_jobs.offload.broker_admin import Attempt, AttemptRefusedError, BrokerAdmin
from quire_jobs.offload.ledger_copy import CopySettings, LedgerCopy
from quire_jobs.source.broker_http import BrokerHttp

TOPIC = parse_topic("t")
ATTEMPT = Attempt("0f1e2d3c-4b5a-4978-8695-a4b3c2d1e0f0", LedgerId(7), 10, 100)
NOTE = AttemptNote("c1", TOPIC.ledger_name, 7, ATTEMPT.uuid, "me", 1)
ASKED = AttemptNote("c1", TOPIC.ledger_name, 7, ATTEMPT.uuid, "me", 1, asked=True)


@pytest.fixture
def objects(tmp_path: Path) -> ObjectStore:
    return open_object_store(f"file://{tmp_path}", {})


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ledger_copy, "COMPLETE_PAUSE_S", 0.0)


@asynccontextmanager
async def completing(objects: ObjectStore, statuses: list[int]) -> AsyncIterator[LedgerCopy]:
    """Yield a copy before `complete`, with its note marked as asked, and a server with these responses, the last
    repeated."""

    async def complete(_request: web.Request) -> web.Response:
        status = statuses.pop(0) if len(statuses) > 1 else statuses[0]
        return web.json_response({"reason": f"answer {status}"}, status=status)

    app = web.Application()
    app.router.add_post("/{path:.*}/offload/complete", complete)
    async with TestServer(app) as server, BrokerHttp(f"http://127.0.0.1:{server.port}") as brokers:
        await write_note(objects, ASKED)
        settings = CopySettings("me", "c1", "aws-s3", {})
        yield LedgerCopy(BrokerAdmin(brokers), cast(Any, None), objects, settings, SystemClock())


async def noted(objects: ObjectStore) -> AttemptNote | None:
    return decode_note(NOTE.name, await objects.get(NOTE.name) or b"")


async def test_after_a_refusal_a_sweep_may_remove_the_objects(objects: ObjectStore) -> None:
    async with completing(objects, [409]) as copy:
        with pytest.raises(AttemptRefusedError, match="answer 409"):
            await copy._complete(TOPIC, ATTEMPT, NOTE)
    assert await noted(objects) == NOTE


async def test_after_a_lost_response_a_refusal_does_not_allow_a_sweep(objects: ObjectStore) -> None:
    async with completing(objects, [503, 409]) as copy:
        with pytest.raises(AttemptRefusedError):
            await copy._complete(TOPIC, ATTEMPT, NOTE)
    assert await noted(objects) == ASKED


async def test_without_a_response_no_sweep_may_remove_the_objects(objects: ObjectStore) -> None:
    async with completing(objects, [503]) as copy:
        with pytest.raises(SourceUnavailableError):
            await copy._complete(TOPIC, ATTEMPT, NOTE)
    assert await noted(objects) == ASKED


async def test_complete_is_requested_until_the_broker_responds(objects: ObjectStore) -> None:
    async with completing(objects, [503, 503, 200]) as copy:
        await copy._complete(TOPIC, ATTEMPT, NOTE)
    assert await noted(objects) == ASKED
