"""Watched lists of topics: changes by other brokers, clients that do not read, errors, and the end of a watch."""

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from quire_broker.errors import NotAllowedError
from quire_broker.names import parse_namespace
from quire_broker.server.broker import BrokerSettings, RunningBroker
from quire_broker.server.topic_lists import TopicLists, compiled
from quire_broker.wire.kinds import Kind
from quire_broker.wire.proto import pulsar_pb2 as pb
from tests.support.broker_wire import Wire
from tests.support.broker_world import running_brokers

NAMESPACE = "public/default"
PREFIX = f"persistent://{NAMESPACE}/"
LEDGERS = f"/managed-ledgers/{NAMESPACE}/persistent/"


def watching(watcher_id: int) -> pb.BaseCommand:
    """Return the command that watches all topics of the namespace."""
    request = pb.CommandWatchTopicList(
        request_id=1, watcher_id=watcher_id, namespace=NAMESPACE, topics_pattern=f"{NAMESPACE}/.*"
    )
    return pb.BaseCommand(type=Kind.WATCH_TOPIC_LIST, watch_topic_list=request)


async def watch(wire: Wire, watcher_id: int = 1) -> list[str]:
    """Watch all topics of the namespace; return those that exist."""
    answer = await wire.answer(watching(watcher_id))
    assert answer.type == Kind.WATCH_TOPIC_LIST_SUCCESS, answer
    return list(answer.watch_topic_list_success.topic)


async def next_update(wire: Wire) -> tuple[list[str], list[str]]:
    frame = await wire.next()
    assert isinstance(frame, pb.BaseCommand) and frame.type == Kind.WATCH_TOPIC_UPDATE, frame
    return list(frame.watch_topic_update.new_topics), list(frame.watch_topic_update.deleted_topics)


def lists_of(broker: RunningBroker) -> TopicLists:
    return broker.parts.topic_lists


async def until_none_is_followed(broker: RunningBroker) -> None:
    async with asyncio.timeout(20):
        while len(lists_of(broker)):  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def test_changes_by_another_broker_arrive_and_cursors_are_none(tmp_path: Path) -> None:
    async with running_brokers(tmp_path, 2) as world:
        wire = await Wire.open(world.brokers[0])
        assert await watch(wire) == []
        other = world.sessions[1]
        await other.put(f"{LEDGERS}one", b"")
        assert await next_update(wire) == ([f"{PREFIX}one"], [])
        await other.put(f"{LEDGERS}one/cursor", b"")
        await other.put(f"{LEDGERS}__change_events", b"")
        await other.put(f"{LEDGERS}two%2Fparts", b"")
        for node in ("one/cursor", "one"):
            await other.delete(LEDGERS + node)
        found = await next_update(wire)
        if not found[1]:  # the deletion came after the pause
            found = (found[0], (await next_update(wire))[1])
        assert found == ([f"{PREFIX}two/parts"], [f"{PREFIX}one"])
        wire.writer.close()
        await until_none_is_followed(world.brokers[0])


async def test_watchers_of_one_namespace_share_the_work_until_the_last_one_leaves(broker: RunningBroker) -> None:
    first, second = await Wire.open(broker), await Wire.open(broker)
    for wire in (first, second):
        await watch(wire)
    assert len(lists_of(broker)) == 1
    first.writer.close()
    close = pb.CommandWatchTopicListClose(request_id=2, watcher_id=1)
    for _ in range(2):  # the second one finds nothing to close
        answer = await second.answer(pb.BaseCommand(type=Kind.WATCH_TOPIC_LIST_CLOSE, watch_topic_list_close=close))
        assert answer.type == Kind.SUCCESS
    await until_none_is_followed(broker)


async def test_a_client_that_does_not_read_gets_one_difference_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running_brokers(tmp_path, 1) as world:
        wire = await Wire.open(world.brokers[0])
        await watch(wire)
        (followed,) = lists_of(world.brokers[0])._followed.values()
        (watcher,) = followed.watchers
        reads_again: list[Any] = []
        connection = watcher._connection
        with monkeypatch.context() as patch:
            patch.setattr(type(connection), "writable", property(lambda self: self is not connection))
            patch.setattr(connection, "on_writable", reads_again.append)
            for number, change in enumerate(("a", "b", "-a"), 1):
                if change.startswith("-"):
                    await world.sessions[0].delete(f"{LEDGERS}{change[1:]}")
                else:
                    await world.sessions[0].put(f"{LEDGERS}{change}", b"")
                async with asyncio.timeout(20):
                    while len(reads_again) < number:  # noqa: ASYNC110
                        await asyncio.sleep(0.01)
        reads_again[-1]()
        assert await next_update(wire) == ([f"{PREFIX}b"], [])


async def test_a_watch_that_takes_too_long_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def impatient(_: int, common: BrokerSettings) -> BrokerSettings:
        return replace(common, session=replace(common.session, request_s=0.2))

    async with running_brokers(tmp_path, 1, of_broker=impatient) as world:
        broker, go_on = world.brokers[0], asyncio.Event()

        async def slowly(namespace: Any) -> Any:
            await go_on.wait()
            return await type(broker.topics).list(broker.topics, namespace)

        monkeypatch.setattr(broker.topics, "list", slowly)
        wire = await Wire.open(broker)
        wire.send(watching(1))
        refused = await wire.next()
        assert isinstance(refused, pb.BaseCommand) and refused.type == Kind.ERROR
        assert "brokerClientRequestTimeoutSeconds" in refused.error.message
        go_on.set()
        await until_none_is_followed(broker)
        assert await watch(wire) == [], "its id is free again"


async def test_an_error_while_listing_ends_no_watch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with running_brokers(tmp_path, 1) as world:
        wire = await Wire.open(world.brokers[0])
        await watch(wire)
        topics, listed = world.brokers[0].topics, []

        async def fails_once(namespace: Any) -> Any:
            listed.append(namespace)
            if len(listed) == 1:
                raise ValueError("a name that cannot be read")
            return await type(topics).list(topics, namespace)

        monkeypatch.setattr(topics, "list", fails_once)
        await world.sessions[0].put(f"{LEDGERS}one", b"")
        assert await next_update(wire) == ([f"{PREFIX}one"], [])
        assert listed == [parse_namespace(NAMESPACE)] * 2


@pytest.mark.parametrize(
    ("pattern", "matches"),
    [
        ("persistent://public/default/in-.*", True),
        ("^persistent://public/default/in-.*$", True),
        ("public/default/in-.*", True),
        (r"public/default/\Qin-\E\d", True),
        ("in-.*", False),
        ("persistent://public/default/in", False),
    ],
)
def test_a_pattern_is_compared_with_the_whole_name_after_the_domain(pattern: str, matches: bool) -> None:
    assert compiled(pattern, 50).matches("public/default/in-1") is matches


def test_a_pattern_that_is_refused_names_value_and_remedy() -> None:
    with pytest.raises(NotAllowedError, match=r"a pattern of topics of 51 characters.*subscriptionPatternMaxLength"):
        compiled("x" * 51, 50)
    with pytest.raises(NotAllowedError, match=r"pattern of topics '\(a': RE2 does not accept it: .*; correct it"):
        compiled("(a", 50)
