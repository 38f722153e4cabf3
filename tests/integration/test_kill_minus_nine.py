"""SIGKILL at random moments, several times in a row, while a stock client writes and reads real text.

Feeds lines of the Python standard library through `pulsar-client` into a partitioned topic on three bookies (E3 Qw3
Qa2) and proves by content what Quire promises. 50,000 lines by default; `QUIRE_KILL_LINES=all` takes every line there
is, `QUIRE_KILL_SEED=n` repeats a run.
"""

import os
import random
import threading
import time
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pulsar
import pytest

from tests.support.etcd_server import EtcdServer
from tests.support.source_lines import Line, source_lines
from tests.support.standalone import StandaloneProcess

pytestmark = pytest.mark.slow

PARTITIONS = 3
TOPIC = "persistent://public/default/library"
QUIET = pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
SETTLED_S = 5.0
"""An ack older than this at a kill was persisted: the cursor writes at least every second."""
LOOK_INTERVAL_S = 0.2

Key = tuple[str, int]


def wanted_lines() -> int | None:
    """From QUIRE_KILL_LINES."""
    asked = os.environ.get("QUIRE_KILL_LINES", "50000")
    return None if asked == "all" else int(asked)


@pytest.fixture
def chance() -> random.Random:
    """A seed that is printed, so that a failure can be repeated."""
    seed = int(os.environ.get("QUIRE_KILL_SEED", random.SystemRandom().randrange(1 << 32)))
    print(f"repeat with QUIRE_KILL_SEED={seed}")
    return random.Random(seed)


@dataclass
class Feed:
    """What was sent and what the broker acknowledged, shared with the client's callback threads."""

    lines: list[Line]
    acked: set[Key] = field(default_factory=set)
    sent: set[Key] = field(default_factory=set)
    errors: list[str] = field(default_factory=list)
    unacked_at_a_kill: set[Key] = field(default_factory=set)
    changed: threading.Condition = field(default_factory=threading.Condition)

    def run(self, url: str, *, batching: bool) -> None:
        """Send every line in order, never giving up."""
        client = pulsar.Client(url, logger=QUIET, operation_timeout_seconds=60)
        producer = client.create_producer(
            TOPIC,
            producer_name="feeder",
            send_timeout_millis=0,
            block_if_queue_full=True,
            max_pending_messages=2000,
            batching_enabled=batching,
            batching_max_publish_delay_ms=2,
            message_routing_mode=pulsar.PartitionsRoutingMode.RoundRobinDistribution,
        )
        for line in self.lines:
            key = (line.file, line.number)
            with self.changed:
                self.sent.add(key)
            producer.send_async(
                line.text.encode(),
                self._on_ack(key),
                partition_key=line.file,
                properties={"file": line.file, "line": str(line.number)},
            )
        producer.flush()
        client.close()

    def _on_ack(self, key: Key) -> Any:
        def done(result: Any, _: Any) -> None:
            with self.changed:
                if result == pulsar.Result.Ok:
                    self.acked.add(key)
                else:
                    self.errors.append(f"{key}: {result}")
                self.changed.notify_all()

        return done

    def wait_for_acks(self, count: int) -> None:
        """Until that many sends were acknowledged."""
        with self.changed:
            assert self.changed.wait_for(lambda: len(self.acked) >= count or self.errors, timeout=120), (
                f"only {len(self.acked)} acknowledged"
            )

    def note_kill(self) -> None:
        """Sends that may come twice: those without an answer when the process died."""
        with self.changed:
            self.unacked_at_a_kill |= self.sent - self.acked


def feed_under_kills(
    server: StandaloneProcess, feed: Feed, chance: random.Random, *, kills: int, batching: bool
) -> None:
    """Write everything while the process is killed and restarted `kills` times."""
    writer = threading.Thread(target=feed.run, args=(server.url,), kwargs={"batching": batching}, daemon=True)
    writer.start()
    for threshold in sorted(chance.sample(range(len(feed.lines) // 20, len(feed.lines) * 9 // 10), kills)):
        feed.wait_for_acks(threshold)
        feed.note_kill()
        server.kill()
        server.start()
    writer.join(240)
    assert not writer.is_alive(), f"the writer hangs with {len(feed.acked)} of {len(feed.lines)} acknowledged"
    assert not feed.errors, feed.errors[:5]


def read_everything(server: StandaloneProcess) -> dict[int, list[tuple[Key, str]]]:
    """Every message of every partition, by readers from the earliest."""
    client = pulsar.Client(server.url, logger=QUIET)
    found: dict[int, list[tuple[Key, str]]] = {}
    for partition in range(PARTITIONS):
        reader = client.create_reader(f"{TOPIC}-partition-{partition}", pulsar.MessageId.earliest)
        messages = found.setdefault(partition, [])
        while reader.has_message_available():
            message = reader.read_next(30_000)
            properties = message.properties()
            messages.append(((properties["file"], int(properties["line"])), message.data().decode()))
        reader.close()
    client.close()
    return found


def check_log(feed: Feed, found: dict[int, list[tuple[Key, str]]], *, exactly_once: bool) -> None:
    """Nothing acknowledged is lost, reordered or invented; repeats only where they are allowed."""
    texts = {(line.file, line.number): line.text for line in feed.lines}
    count: Counter[Key] = Counter()
    last: dict[str, int] = defaultdict(int)
    for messages in found.values():
        for key, text in messages:
            assert texts[key] == text, f"{key} has other content"
            count[key] += 1
            if count[key] == 1:
                assert key[1] > last[key[0]], f"{key} comes after line {last[key[0]]}"
                last[key[0]] = key[1]
    missing = feed.acked - set(count)
    assert not missing, f"{len(missing)} acknowledged messages are lost, e.g. {sorted(missing)[:3]}"
    repeated = {key for key, times in count.items() if times > 1}
    if exactly_once:
        assert not repeated, f"{len(repeated)} messages came twice, e.g. {sorted(repeated)[:3]}"
    assert repeated <= feed.unacked_at_a_kill, f"acknowledged messages came twice: {sorted(repeated)[:3]}"


def is_subscribed(server: StandaloneProcess, subscription: str) -> bool:
    """Whether the client has come back to every partition: only then do its acks reach this process."""
    name = TOPIC.removeprefix("persistent://")
    try:
        stats = [
            server.request("GET", f"/admin/v2/persistent/{name}-partition-{partition}/stats")
            for partition in range(PARTITIONS)
        ]
    except OSError:
        return False  # not there yet, or not answering for a topic that it is still opening
    return all(found["subscriptions"].get(subscription, {}).get("consumers") for found in stats)


def consume_under_kills(server: StandaloneProcess, expected: int, chance: random.Random, *, kills: int) -> None:
    """Read and acknowledge everything while the process is killed; only unsettled acks may be delivered again."""
    client = pulsar.Client(server.url, logger=QUIET, operation_timeout_seconds=60)
    consumer = client.subscribe(
        TOPIC, "readers", consumer_type=pulsar.ConsumerType.Exclusive, initial_position=pulsar.InitialPosition.Earliest
    )
    thresholds = sorted(chance.sample(range(expected // 20, expected * 9 // 10), kills))
    acked_at: dict[str, float] = {}
    received: Counter[str] = Counter()
    settled: set[str] = set()
    subscribed = True
    looked_at = 0.0
    while len(received) < expected:
        message = consumer.receive(60_000)
        name = str(message.message_id())
        assert name not in settled, f"{name} was delivered again although its ack was persisted long ago"
        received[name] += 1
        consumer.acknowledge(message)
        if not subscribed and time.monotonic() - looked_at > LOOK_INTERVAL_S:
            subscribed, looked_at = is_subscribed(server, "readers"), time.monotonic()
        if subscribed:  # before, the client keeps its acks: how old they are says nothing about this process
            acked_at[name] = time.monotonic()
        if thresholds and len(received) >= thresholds[0]:
            thresholds.pop(0)
            settled |= {name for name, when in acked_at.items() if when < time.monotonic() - SETTLED_S}
            # A younger ack may die with this process: it must not grow old, and count as settled, under the next.
            acked_at.clear()
            subscribed = False
            server.kill()
            server.start()
    client.close()


def run_acceptance(server: StandaloneProcess, chance: random.Random, *, deduplication: bool) -> None:
    """The whole of it against one server."""
    feed = Feed(source_lines(wanted_lines()))
    server.start()
    try:
        server.request("PUT", f"/admin/v2/persistent/{TOPIC.removeprefix('persistent://')}/partitions", PARTITIONS)
        feed_under_kills(server, feed, chance, kills=4, batching=not deduplication)
        found = read_everything(server)
        check_log(feed, found, exactly_once=deduplication)
        consume_under_kills(server, sum(len(m) for m in found.values()), chance, kills=3)
        assert server.stop() == 0, server.tail()
    except BaseException:
        print(server.tail())
        raise
    finally:
        server.close()


def test_nothing_acknowledged_is_lost_and_only_unacknowledged_sends_come_twice(
    tmp_path: Path, chance: random.Random
) -> None:
    run_acceptance(StandaloneProcess(tmp_path, bookies=3), chance, deduplication=False)


def test_with_deduplication_every_message_is_there_exactly_once(tmp_path: Path, chance: random.Random) -> None:
    server = StandaloneProcess(tmp_path, bookies=3, settings=("brokerDeduplicationEnabled=true",))
    run_acceptance(server, chance, deduplication=True)


def test_the_same_holds_with_metadata_in_etcd(tmp_path: Path, chance: random.Random, etcd_server: EtcdServer) -> None:
    # A killed process leaves its leases behind, and its successor waits for their end: let that be 5 s, not 30.
    server = StandaloneProcess(tmp_path, bookies=3, metadata=f"etcd://{etcd_server.endpoint}")
    run_acceptance(server, chance, deduplication=False)
