"""The offload job with a bucket that throttles, fails and cuts uploads, and with a broker that is not Quire's.

One run meets all faults, each for its own ledger: objects are named after their ledger.
"""

from collections.abc import Iterator
from typing import Any

import pytest
from aiohttp import web

from quire_broker.managed_ledger.nodes.ledger_list import LedgerRecord
from quire_jobs.source.loop_thread import shared_loop
from tests.integration.jobs import test_offload_job
from tests.integration.jobs.test_offload_job import GUARD_S, World, consumed, produce
from tests.support.polling import until
from tests.support.s3_relay import Cut, Fault, Refuse, S3Relay

world = test_offload_job.world
stock = test_offload_job.stock
SIZE_BYTES = 90 * 1024
"""Size of a message: a ledger of 100 messages is uploaded in two parts."""
PER_LEDGER = 100
PASSING = 2


@pytest.fixture
def relay(world: World) -> Iterator[S3Relay]:
    """A relay to the bucket, for the job and for the brokers, which read from the address that the job gives."""
    found = S3Relay(world.s3.port)
    shared_loop().run(found.open)
    yield found
    shared_loop().run(found.close)


@pytest.fixture
def namespace(world: World) -> str:
    """A namespace in which bookies' copies are deleted as soon as a ledger is offloaded."""
    world.process.request("PUT", "/admin/v2/namespaces/public/faults", {})
    world.process.request("PUT", "/admin/v2/namespaces/public/faults/offloadDeletionLagMs", 0)
    return "public/faults"


def bookies_copy_is_gone(record: LedgerRecord) -> bool:
    return record.offload is not None and record.offload.bookies_deleted


def offloaded(world: World, topic: str) -> list[bool]:
    """Return the `offloaded` flags of a topic's ledgers, as its broker reports them."""
    stats = world.process.request("GET", f"/admin/v2/{topic.replace('://', '/')}/internalStats")
    return [ledger["offloaded"] for ledger in stats["ledgers"]]


def test_ledgers_that_a_failing_bucket_rejects_stay_on_bookies_until_the_next_run(
    world: World, stock: Any, relay: S3Relay, namespace: str
) -> None:
    topic = f"persistent://{namespace}/uploads"
    sent = produce(stock, topic, 4 * PER_LEDGER + 10, SIZE_BYTES)
    ledgers = [sent[at : at + PER_LEDGER] for at in range(0, 4 * PER_LEDGER, PER_LEDGER)]
    before = world.names()
    throttled, indexless, cut, slowed = (record.ledger_id for record in world.records(topic)[:4])
    asked = dict.fromkeys((throttled, indexless, cut, slowed), 0)
    rules: dict[int, tuple[str, Fault, float]] = {
        throttled: ("partNumber", Refuse(503, "SlowDown"), float("inf")),
        indexless: (f"-ledger-{indexless}-index", Refuse(500, "InternalError"), float("inf")),
        cut: ("partNumber=2", Cut(100_000), float("inf")),
        slowed: ("partNumber", Refuse(503, "SlowDown"), PASSING),
    }

    def faults(method: str, path: str) -> Fault:
        for ledger, (part, fault, times) in rules.items():
            own = path.partition("?")[0].removesuffix("-index").endswith(f"-ledger-{ledger}")
            if method == "PUT" and own and part in path and asked[ledger] < times:
                asked[ledger] += 1
                return fault
        return None

    relay.faults = faults
    summary = world.offload(topic, f"endpoint={relay.endpoint}", code=1)
    assert summary["outcome"] == "partly", summary
    assert (summary["counts"]["ledgers_offloaded"], summary["counts"]["ledgers_failed"]) == (1, 3)
    assert asked[slowed] == PASSING and all(times > 1 for times in asked.values()), (
        "each fault occurred and was retried"
    )
    problems = {problem["subject"]: problem for problem in summary["problems"]}
    assert set(problems) == {f"ledger {ledger} of {topic}" for ledger in (throttled, indexless, cut)}
    for problem in problems.values():
        assert "could not be written" in problem["reason"] and "\n" not in problem["reason"], problem
        assert problem["retry_helps"]
    assert "the service limits the rate of requests" in problems[f"ledger {throttled} of {topic}"]["reason"]
    assert f"-ledger-{indexless}-index" in problems[f"ledger {indexless} of {topic}"]["reason"]

    until(
        lambda: bookies_copy_is_gone(world.records(topic)[3]),
        "the bookies still have the offloaded ledger",
        timeout_s=GUARD_S,
    )
    records = world.records(topic)
    assert [record.offloaded for record in records] == offloaded(world, topic) == [False, False, False, True, False]
    assert [record.offload for record in records[:3]] == [None] * 3, "their attempts are aborted"
    (uuid,) = {record.offload.uuid for record in records if record.offload is not None}
    objects = {name for name in world.names() - before if not name.startswith(".quire/")}
    assert {name[:36] for name in objects} == {uuid} and len(objects) == 2, "the others left no objects"
    assert world.offloaded_payloads(records[:4]) == [[], [], [], ledgers[3]]
    assert consumed(stock, topic, len(sent)) == sent

    relay.faults = lambda method, path: None
    summary = world.offload(topic, f"endpoint={relay.endpoint}")
    assert summary["outcome"] == "succeeded" and summary["counts"]["ledgers_offloaded"] == 3, summary
    until(
        lambda: all(map(bookies_copy_is_gone, world.records(topic)[:4])),
        "the bookies still have copies",
        timeout_s=GUARD_S,
    )
    assert offloaded(world, topic) == [True] * 4 + [False]
    assert world.offloaded_payloads(world.records(topic)[:4]) == ledgers
    assert not any(name.startswith(".quire/attempts/") for name in world.names() - before)
    relay.ranges.clear()
    assert consumed(stock, topic, len(sent)) == sent and relay.ranges, "now from the bucket"


def test_a_topic_of_a_stock_broker_fails_with_the_reason(world: World, stock: Any) -> None:
    topic = "persistent://public/default/stock"
    produce(stock, topic, PER_LEDGER + 10)
    before = world.names()

    async def unknown(_request: web.Request) -> web.Response:
        return web.json_response({"reason": "HTTP 404 Not Found"}, status=404)

    async def listen() -> web.AppRunner:
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", unknown)
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        return runner

    runner = shared_loop().run(listen)
    try:
        port = runner.addresses[0][1]
        summary = world.offload(topic, f"http=http://127.0.0.1:{port}", code=3)
    finally:
        shared_loop().run(runner.cleanup)
    assert summary["outcome"] == "failed" and summary["counts"]["ledgers_failed"] == 1
    (problem,) = summary["problems"]
    assert f"the broker that owns {topic} is not Quire's (it responds with 404 to offload/begin)" in problem["reason"]
    assert "use that broker's own offloader, or move the topic to Quire" in problem["reason"]
    assert not problem["retry_helps"]
    assert [record.offload for record in world.records(topic)] == [None, None]
    assert world.names() == before
