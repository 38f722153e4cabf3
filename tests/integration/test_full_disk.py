"""A standalone on a small file system that is filled by messages and by another program, killed, and started again.

At every level of free bytes down to zero it starts, every acknowledged message is read, topics are subscribed to and
acknowledged; and once topics are deleted it takes messages again, without help from outside. Kills come at random
moments of a start and under load: `QUIRE_KILL_SEED=n` repeats their choices, `QUIRE_DISK_KILLS=20` makes 20 at each
level instead of 1.
"""

import os
import random
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pulsar
import pytest

from tests.support.small_disk import MIB, SmallDisk, small_disk
from tests.support.standalone import StandaloneProcess

pytestmark = pytest.mark.slow

DISK_MIB = 400
TOPICS = [f"persistent://public/default/full-{number}" for number in range(4)]
BODY_BYTES = 100_000
LEVELS = (16 * MIB, 4 * MIB, 1 * MIB, 64 * 1024, 4096, 0)
"""Bytes that another program leaves free."""
KILL_LEVELS = (192 * MIB, 128 * MIB, 96 * MIB, 72 * MIB, 48 * MIB, 32 * MIB, *LEVELS)
"""The first leave room for messages; at about 100 MiB bookies begin to refuse them."""
KILLS = int(os.environ.get("QUIRE_DISK_KILLS", "1"))
KILL_WITHIN_S = 4.0
_QUIET = pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)


def body(topic: str, number: int) -> bytes:
    """What a message holds."""
    return b"%08d" % number + random.Random(f"{topic}/{number}").randbytes(BODY_BYTES)


class Store:
    """The process, and what it acknowledged."""

    def __init__(self, process: StandaloneProcess) -> None:
        self.process = process
        self.acked: dict[str, set[int]] = {topic: set() for topic in TOPICS}
        self.next = 0

    def client(self, timeout_s: int = 20) -> pulsar.Client:
        return pulsar.Client(self.process.url, operation_timeout_seconds=timeout_s, logger=_QUIET)

    def keep_all(self) -> None:
        """A subscription that never acknowledges: what the others consumed is not trimmed."""
        client = self.client()
        for topic in self.acked:
            client.subscribe(topic, "keeper").close()
        client.close()

    def fill(self, messages_max: int, stop: Callable[[], bool] = lambda: False, timeout_s: int = 20) -> bool:
        """Send until a message is refused. Whether one was."""
        refused = threading.Event()

        def told(topic: str, number: int) -> Callable[[pulsar.Result, object], None]:
            def done(result: pulsar.Result, _: object) -> None:
                if result == pulsar.Result.Ok:
                    self.acked[topic].add(number)
                else:
                    refused.set()

            return done

        client = self.client(timeout_s)
        try:
            producers = {
                topic: client.create_producer(
                    topic, send_timeout_millis=3000, block_if_queue_full=True, max_pending_messages=20,
                    batching_enabled=False,
                )
                for topic in self.acked
            }  # fmt: skip
            for _ in range(messages_max):
                if refused.is_set() or stop():
                    break
                self.next += 1
                for topic, producer in producers.items():
                    producer.send_async(body(topic, self.next), told(topic, self.next))
        except pulsar.PulsarException:
            refused.set()
        finally:
            threading.Thread(target=client.close, daemon=True).start()
        return refused.is_set()

    def check(self, subscription: str) -> None:
        """Every topic: a new subscription gets every acknowledged message with its content, and acknowledges it."""
        client = self.client()
        try:
            for topic, numbers in self.acked.items():
                consumer = client.subscribe(
                    topic, subscription, initial_position=pulsar.InitialPosition.Earliest, receiver_queue_size=20
                )
                missing = set(numbers)
                while missing:
                    message = consumer.receive(timeout_millis=30_000)
                    number = int(message.data()[:8])
                    assert message.data() == body(topic, number), f"message {number} of {topic} holds something else"
                    missing.discard(number)
                    consumer.acknowledge(message)
                consumer.close()
        finally:
            client.close()

    def delete(self, topic: str) -> None:
        name = topic.rpartition("/")[2]
        self.process.request("DELETE", f"/admin/v2/persistent/public/default/{name}?force=true")
        del self.acked[topic]

    def wait_until_writable(self, topic: str, within_s: float) -> None:
        """A message is taken. The process makes space by itself: there is no event to wait on from outside."""
        end = time.monotonic() + within_s
        while True:
            client = self.client()
            try:
                client.create_producer(topic, send_timeout_millis=3000).send(b"again")
                return
            except pulsar.PulsarException:
                if time.monotonic() > end:
                    raise AssertionError(f"not writable after {within_s} s:\n{self.process.tail()}") from None
            finally:
                client.close()


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[SmallDisk]:
    with small_disk(tmp_path, DISK_MIB) as found:
        yield found


@pytest.fixture
def store(disk: SmallDisk, tmp_path: Path) -> Iterator[Store]:
    process = StandaloneProcess(disk.folder, settings=("diskCheckInterval=1000", "gcQuarantineMinSeconds=0"))
    process.log = tmp_path / "standalone.log"
    try:
        process.start()
        found = Store(process)
        found.keep_all()
        yield found
    finally:
        process.close()


@pytest.mark.timeout(600)
def test_a_disk_filled_by_messages_loses_nothing_and_is_writable_again_after_topics_are_deleted(store: Store) -> None:
    assert store.fill(100_000), "the disk never got full"
    store.process.kill()
    for start in range(2):
        store.process.start()
        store.check(f"after-{start}")
        store.process.kill()
    store.process.start()
    for topic in TOPICS[1:]:
        store.delete(topic)
    store.wait_until_writable(TOPICS[0] + "-again", 120)
    store.check("at-the-end")


@pytest.mark.timeout(1200)
def test_at_every_level_of_free_bytes_it_starts_and_serves_and_makes_space_of_what_is_deleted(
    store: Store, disk: SmallDisk
) -> None:
    chance = random.Random(17)
    store.fill(250)
    for level, leave_bytes in enumerate(LEVELS):
        store.process.kill() if chance.random() < 0.5 else store.process.stop()
        disk.fill(leave_bytes)
        store.process.start()
        writing = threading.Thread(target=store.fill, args=(20,))
        writing.start()
        store.check(f"level-{level}")
        disk.fill(leave_bytes)
        writing.join()
        store.check(f"level-{level}-written")
        store.process.kill()
        disk.fill(leave_bytes)
        store.process.start()
        store.check(f"level-{level}-again")
    for topic in TOPICS[1:]:
        store.delete(topic)
    store.wait_until_writable(TOPICS[0] + "-again", 180)
    store.check("at-the-end")


class Load:
    """Messages are sent, topics are made, read and deleted, until the process is killed."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._ended = threading.Event()
        self._threads = [threading.Thread(target=work) for work in (self._send, self._churn)]
        for thread in self._threads:
            thread.start()

    def end(self) -> None:
        """After the kill."""
        self._ended.set()
        for thread in self._threads:
            thread.join()

    def _send(self) -> None:
        while not self._ended.is_set():
            self._store.fill(1000, self._ended.is_set, timeout_s=2)

    def _churn(self) -> None:
        """Metadata, fences, cursors and deletions, beside the messages. It repeats killed and refused ones."""
        while not self._ended.is_set():
            client = self._store.client(timeout_s=2)
            try:
                self._use_a_topic(client)
            except (pulsar.PulsarException, OSError):
                self._ended.wait(0.05)
            finally:
                threading.Thread(target=client.close, daemon=True).start()

    def _use_a_topic(self, client: pulsar.Client) -> None:
        consumer = client.subscribe("persistent://public/default/churned", "churn")
        producer = client.create_producer("persistent://public/default/churned", send_timeout_millis=1000)
        for number in range(20):
            producer.send(b"%d" % number)
            consumer.acknowledge(consumer.receive(1000))
        self._store.process.request("DELETE", "/admin/v2/persistent/public/default/churned?force=true")


@pytest.mark.timeout(600 + 90 * len(KILL_LEVELS) * KILLS)
def test_killed_at_random_moments_at_every_level_of_free_bytes_it_keeps_every_acknowledged_message(
    store: Store, disk: SmallDisk
) -> None:
    seed = int(os.environ.get("QUIRE_KILL_SEED", random.SystemRandom().randrange(1 << 32)))
    print(f"repeat with QUIRE_KILL_SEED={seed}")
    chance = random.Random(seed)
    moment = threading.Event()  # never set: a wait for it ends at the moment of a kill
    for level, leave_bytes in enumerate(KILL_LEVELS):
        for _ in range(KILLS):
            load = Load(store)
            disk.fill(leave_bytes)
            moment.wait(chance.uniform(0.0, KILL_WITHIN_S))
            store.process.kill()
            load.end()
            disk.fill(leave_bytes)
            if chance.random() < 0.5:
                store.process.launch()
                moment.wait(chance.uniform(0.0, KILL_WITHIN_S))
                store.process.kill()
                disk.fill(leave_bytes)
            store.process.start()
        store.check(f"killed-{level}")
        print(f"{leave_bytes} bytes left free: {sum(map(len, store.acked.values()))} messages acknowledged and read")
    for topic in TOPICS[1:]:
        store.delete(topic)
    store.wait_until_writable(TOPICS[0] + "-again", 180)
    store.check("at-the-end")
