"""Measures what unused topics cost: memory, CPU, stalls of the event loop, lookups, etcd.

python -m benchmarks.idle_topics [--topics 10000] [--brokers 1] [--bookies 1] [--set KEY=VALUE ...]

Etcd, bookies and brokers on this machine. A small client creates a producer on each topic, publishes one message, waits
for its receipt and closes the producer. Then nothing uses the topics, and the benchmark reports:

* opened: topics per second, with `--parallel` requests at a time
* memory: of all brokers, for each topic; before the first topic and when all are open
* idle: CPU of all brokers while no client asks for anything
* stall: answers to a PING every 5 ms; the longest time to an answer is a stall of the event loop or of the machine
* lookup: latency of LOOKUP, one at a time, of topics in random order
* etcd: keys, bytes, changes and requests for each topic, and the events that watchers receive
* closed: with `--wait S`, the memory after this time, and the time to open a closed topic again
* listing: the time to list the namespace, and its longest stall
* moved: with `--moves`, one broker gets SIGTERM and starts again, another one is killed; from then on, the time until a
  topic that it had open has a producer at another broker

For 100,000 topics: `--topics 100000 --brokers 3 --bookies 3 --moves`.
"""

import argparse
import asyncio
import json
import random
import re
import tempfile
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

from benchmarks.distribution import distribution
from benchmarks.servers import cpu_seconds, resident_mb
from quire_broker.wire.kinds import Kind, LookupType
from quire_broker.wire.proto import pulsar_pb2 as pb
from tests.support.broker_cluster import BrokerCluster, BrokerOfCluster, broker_cluster
from tests.support.broker_wire import Wire

TOPIC = "persistent://public/default/idle-{}"
PING_S = 0.005
LOOKUPS = 2_000
PROGRESS = 5_000
REOPENED = 200
MOVED = 60
"""Topics of a broker that ends of which the next owners are observed."""
MOVED_AT_ONCE = 6
RETRY_S = 0.2
RECEIPT_S = 30.0
ANSWER_S = 40.0  # brokers answer within 25 s
EVENTS = re.compile(r"^etcd_debugging_mvcc_events_total (\S+)", re.M)
CHANGES = re.compile(r"^etcd_debugging_mvcc_(?:put|delete)_total (\S+)", re.M)
REQUESTS = re.compile(r"^grpc_server_handled_total\{\S+ (\S+)", re.M)
USED_BYTES = re.compile(r"^etcd_mvcc_db_total_size_in_use_in_bytes (\S+)", re.M)


async def next_answer(wire: Wire) -> pb.BaseCommand:
    """Return the next command of a broker, except those that it sends of itself."""
    while True:
        frame = await wire.next(ANSWER_S)
        assert isinstance(frame, pb.BaseCommand)
        if frame.type == Kind.PING:
            wire.send(pb.BaseCommand(type=Kind.PONG, pong=pb.CommandPong()))
        elif frame.type not in (Kind.PONG, Kind.CLOSE_PRODUCER):
            return frame


async def answer_to(wire: Wire, command: pb.BaseCommand) -> pb.BaseCommand:
    """Send a request and return the answer."""
    wire.send(command)
    return await next_answer(wire)


class Opener:
    """Opens topics over one connection to each broker, one at a time."""

    def __init__(self, wires: dict[int, Wire], first: int) -> None:
        self.wires, self.asked = wires, first
        self.failed = 0
        """Requests that were refused or not answered in time, and sent again."""

    async def owner(self, name: str) -> Wire:
        """Look the topic up, as clients do."""
        port, authoritative = self.asked, False
        while True:
            request = pb.CommandLookupTopic(topic=name, request_id=1, authoritative=authoritative)
            answer = await answer_to(self.wires[port], pb.BaseCommand(type=Kind.LOOKUP, lookup=request))
            found = answer.lookup_response
            if answer.type == Kind.ERROR or found.response == LookupType.FAILED:
                self.failed += 1
                await asyncio.sleep(RETRY_S)
                port, authoritative = self.asked, False
                continue
            port, authoritative = int(found.brokerServiceUrl.rsplit(":", 1)[1]), found.authoritative
            if port not in self.wires:  # of the broker that ends
                await asyncio.sleep(RETRY_S)
                port, authoritative = self.asked, False
            elif found.response == LookupType.CONNECT:
                return self.wires[port]

    async def open(self, name: str, *, publish: bool = True) -> None:
        """Create a producer, publish one message if asked to, and close the producer."""
        while True:
            wire = await self.owner(name)
            request = pb.CommandProducer(topic=name, producer_id=1, request_id=2, producer_name="p")
            answer = await answer_to(wire, pb.BaseCommand(type=Kind.PRODUCER, producer=request))
            if answer.type == Kind.PRODUCER_SUCCESS:
                break
            self.failed += 1
            await asyncio.sleep(RETRY_S)
        if publish:
            wire.publish(0)
            with suppress(TimeoutError):  # its bundle moved before the message was stored: the topic is there
                async with asyncio.timeout(RECEIPT_S):
                    assert (await next_answer(wire)).type == Kind.SEND_RECEIPT
        closing = pb.CommandCloseProducer(producer_id=1, request_id=3)
        await answer_to(wire, pb.BaseCommand(type=Kind.CLOSE_PRODUCER, close_producer=closing))

    def close(self) -> None:
        """Close its connections."""
        for wire in self.wires.values():
            wire.writer.close()


async def opener(cluster: BrokerCluster, number: int, without: BrokerOfCluster | None = None) -> Opener:
    """Connect to the brokers, all or without one; lookups go to one of them."""
    ports = [broker.port for broker in cluster.brokers if broker is not without]
    wires = {port: await Wire.reach(port) for port in ports}
    for wire in wires.values():
        await wire.connect()
    return Opener(wires, ports[number % len(ports)])


async def open_all(cluster: BrokerCluster, topics: int, parallel: int, limit_s: float) -> tuple[int, float]:
    """Open the topics until the time is over. Return how many were opened, and how long it took in s."""
    begun, numbers, opened, failed = time.monotonic(), iter(range(topics)), 0, 0

    async def some(number: int) -> None:
        nonlocal opened, failed
        one = await opener(cluster, number)
        while time.monotonic() - begun < limit_s and (each := next(numbers, None)) is not None:
            await one.open(TOPIC.format(each))
            opened += 1
            if opened % PROGRESS == 0:
                print(f"{opened} topics after {time.monotonic() - begun:.0f} s", flush=True)
        failed += one.failed
        one.close()

    await asyncio.gather(*(some(number) for number in range(parallel)))
    print(f"requests that failed and were sent again: {failed}", flush=True)
    return opened, time.monotonic() - begun


async def stalls(cluster: BrokerCluster, watch_s: float) -> list[float]:
    """Return how long each PING waited for its answer, in s."""

    async def one(broker: BrokerOfCluster) -> list[float]:
        wire, found = await Wire.reach(broker.port), []
        await wire.connect()
        end_s = time.monotonic() + watch_s
        while (sent_s := time.monotonic()) < end_s:
            await wire.answer(pb.BaseCommand(type=Kind.PING, ping=pb.CommandPing()))
            found.append(time.monotonic() - sent_s)
            await asyncio.sleep(PING_S)
        wire.writer.close()
        return found

    return [each for found in await asyncio.gather(*map(one, cluster.brokers)) for each in found]


async def lookups(cluster: BrokerCluster, topics: int) -> list[float]:
    """Return the latencies of lookups of random topics, in s."""
    one, found, chance = await opener(cluster, 0), [], random.Random(1)
    for _ in range(LOOKUPS):
        name, begun = TOPIC.format(chance.randrange(topics)), time.monotonic()
        await one.owner(name)
        found.append(time.monotonic() - begun)
    one.close()
    return found


async def openings(cluster: BrokerCluster, topics: int) -> list[float]:
    """Return how long it takes to create a producer on random topics, one at a time, in s."""
    one, found = await opener(cluster, 0), []
    for number in random.Random(2).sample(range(topics), min(REOPENED, topics)):
        begun = time.monotonic()
        await one.open(TOPIC.format(number), publish=False)
        found.append(time.monotonic() - begun)
    one.close()
    return found


async def listed(cluster: BrokerCluster) -> dict[str, float]:
    """Return the time of a listing of the namespace in s, the names in it, and the longest PING meanwhile in ms."""
    path = "/admin/v2/persistent/public/default"
    begun, probe = time.monotonic(), asyncio.ensure_future(stalls(cluster, 3.0))
    names = (await asyncio.to_thread(cluster.brokers[0].call, "GET", path, timeout_s=120.0))[1]
    took_s = time.monotonic() - begun
    return {"s": round(took_s, 2), "names": len(names), "longest_ping_ms": round(max(await probe) * 1000, 1)}


async def owned(cluster: BrokerCluster, broker: BrokerOfCluster, topics: int, count: int) -> list[str]:
    """Return some topics of a broker."""
    one = await opener(cluster, 0)
    found: list[str] = []
    for number in random.Random(3).sample(range(topics), topics):
        if len(found) == count:
            break
        name = TOPIC.format(number)
        if (await one.owner(name)) is one.wires[broker.port]:
            found.append(name)
    one.close()
    return found


async def moved(cluster: BrokerCluster, gone: BrokerOfCluster, names: list[str], begun_s: float) -> list[float]:
    """Return when each topic of a broker that ends had a producer at another one, in s since then."""
    left, found = iter(names), []

    async def some(number: int) -> None:
        one = await opener(cluster, number, gone)
        for name in left:
            await one.open(name, publish=False)
            found.append(time.monotonic() - begun_s)
        one.close()

    await asyncio.gather(*(some(number) for number in range(MOVED_AT_ONCE)))
    return found


def ended(cluster: BrokerCluster, broker: BrokerOfCluster, topics: int, *, kill: bool) -> dict[str, Any]:
    """End a broker, and return how its topics come to others."""
    names = asyncio.run(owned(cluster, broker, topics, MOVED))
    begun = time.monotonic()

    def end() -> float:
        (broker.kill if kill else broker.stop)()
        return time.monotonic() - begun

    with ThreadPoolExecutor(1) as threads:
        ending = threads.submit(end)
        times = asyncio.run(moved(cluster, broker, names, begun))
        return {"ended_s": round(ending.result(), 1), "served_again_ms": distribution(times)}


class Watched:
    """Figures of a cluster's processes, and their growth."""

    def __init__(self, cluster: BrokerCluster) -> None:
        self.cluster = cluster
        self._at_s, self._before = time.monotonic(), self._read()

    def _etcd(self, *patterns: re.Pattern[str]) -> list[float]:
        with urllib.request.urlopen(f"http://{self.cluster.storage.etcd.endpoint}/metrics", timeout=10) as answer:
            text = answer.read().decode()
        return [sum(map(float, pattern.findall(text))) for pattern in patterns]

    def _read(self) -> list[float]:
        cpu_s = sum(cpu_seconds(broker.pid) for broker in self.cluster.brokers)
        return [cpu_s, *self._etcd(EVENTS, CHANGES, REQUESTS)]

    def grown(self) -> tuple[float, list[float]]:
        """Return the time since the last call, and CPU in s, watch events, changes and requests of etcd in it."""
        (before_s, before), (self._at_s, self._before) = (self._at_s, self._before), (time.monotonic(), self._read())
        return self._at_s - before_s, [now - then for now, then in zip(self._before, before, strict=True)]

    def since(self) -> dict[str, float]:
        """Return the growth per second since the last call."""
        span_s, (cpu_s, *grown) = self.grown()
        names = ("watch_events_s", "etcd_changes_s", "etcd_requests_s")
        rates = {name: round(value / span_s, 2) for name, value in zip(names, grown, strict=True)}
        return {"cpu_percent": round(cpu_s / span_s * 100, 2)} | rates

    @property
    def etcd_kib(self) -> float:
        """KiB of etcd's database that are in use."""
        return self._etcd(USED_BYTES)[0] / 1024

    @property
    def memory_mb(self) -> int:
        """Resident memory of all brokers."""
        return sum(resident_mb(broker.pid) for broker in self.cluster.brokers)

    def storage_mb(self) -> dict[str, int]:
        """Return the resident memory of etcd, and of all bookies."""
        storage = self.cluster.storage
        return {"etcd": resident_mb(storage.etcd.pid), "bookies": sum(resident_mb(one.pid) for one in storage.bookies)}

    @property
    def keys(self) -> int:
        """Keys in etcd."""
        found = self.cluster.storage.etcd.call("kv/range", {"key": "AA==", "range_end": "AA==", "count_only": True})
        return int(str(found.get("count", 0)))

    @property
    def loaded(self) -> int:
        """Topics that brokers have in memory."""
        found = 0
        for broker in self.cluster.brokers:
            text = str(broker.call("GET", "/metrics")[1])
            found += sum(int(float(value)) for value in re.findall(r"^pulsar_broker_topics_count\S* (\S+)", text, re.M))
        return found


def measure(cluster: BrokerCluster, given: argparse.Namespace) -> dict[str, Any]:
    """Run all steps and return the figures."""
    found, watched = {}, Watched(cluster)
    memory_mb, keys, etcd_kib = watched.memory_mb, watched.keys, watched.etcd_kib

    def note(name: str, value: object) -> None:
        found[name] = value
        print(f"{name}: {value}", flush=True)

    def note_idle(prefix: str = "") -> None:
        watched.since()
        time.sleep(given.idle)
        note(f"{prefix}idle", watched.since() | {"loaded": watched.loaded, "memory_mb": watched.memory_mb})
        note(f"{prefix}stall_ms", distribution(asyncio.run(stalls(cluster, given.idle))))
        note(f"{prefix}lookup_ms", distribution(asyncio.run(lookups(cluster, topics))))

    note("start", {"memory_mb": memory_mb, "etcd_keys": keys})
    watched.grown()
    topics, took_s = asyncio.run(open_all(cluster, given.topics, given.parallel, given.open_for))
    cpu_s, events, changes, requests = watched.grown()[1]
    opened = {"topics": topics, "s": round(took_s, 1), "topics_s": round(topics / took_s, 1)}
    note("opened", opened | {"broker_cpu_ms": round(cpu_s * 1000 / topics, 2)})
    each = {"watch_events": events, "changes": changes, "requests": requests}
    note("etcd_per_open", {name: round(value / topics, 2) for name, value in each.items()})
    grown_kib = (watched.memory_mb - memory_mb) * 1024
    note("memory", {"mb": watched.memory_mb, "kib_per_topic": round(grown_kib / topics, 1)})
    stored = {"keys": (watched.keys - keys) / topics, "kib": (watched.etcd_kib - etcd_kib) / topics}
    note("etcd_per_topic", {name: round(value, 2) for name, value in stored.items()})
    note("storage_mb", watched.storage_mb())
    time.sleep(given.settle)
    note_idle()
    if given.wait:
        watched.since()
        time.sleep(given.wait)
        note("closing", watched.since())
        note_idle("closed: ")
    note("open_again_ms", distribution(asyncio.run(openings(cluster, topics))))
    note("listing", asyncio.run(listed(cluster)))
    if given.moves:
        first, second = cluster.brokers[-1], cluster.brokers[-2]
        note("sigterm", ended(cluster, first, topics, kill=False))
        begun = time.monotonic()
        first.start()
        note("started_again_s", round(time.monotonic() - begun, 1))
        note("sigkill", ended(cluster, second, topics, kill=True))
    return found


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--topics", type=int, default=10_000)
    parser.add_argument("--brokers", type=int, default=1)
    parser.add_argument("--bookies", type=int, default=1)
    parser.add_argument("--parallel", type=int, default=32, help="topics that are opened at a time")
    parser.add_argument("--open-for", type=float, default=3600.0, help="seconds after which no further topic is opened")
    parser.add_argument("--settle", type=float, default=15.0, help="seconds between opening and measuring")
    parser.add_argument("--idle", type=float, default=60.0, help="seconds of each measurement of idle topics")
    parser.add_argument("--wait", type=float, default=0.0, help="seconds until all topics are closed; 0: do not")
    parser.add_argument("--moves", action="store_true", help="end two of at least three brokers")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="a setting of the brokers")
    parser.add_argument("--json", type=Path, help="store the numbers in this file")
    given = parser.parse_args()
    if given.moves and given.brokers < 3:
        parser.error("--moves needs --brokers 3")
    settings = dict(each.split("=", 1) for each in given.set)
    with (
        tempfile.TemporaryDirectory(prefix="quire-idle-") as folder,
        broker_cluster(Path(folder), brokers=given.brokers, bookies=given.bookies, **settings) as cluster,
    ):
        found = measure(cluster, given)
    if given.json:
        given.json.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
