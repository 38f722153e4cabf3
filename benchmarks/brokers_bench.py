"""`make bench-brokers`: measures how long publishers wait while a topic goes to another broker.

Etcd, three bookies and three brokers on this machine, with default settings and deduplication; the stock client
publishes to four topics, 100 messages per second each. The gap of a topic is the time from the last acknowledgement of
its old ledger to the first one of the next at one of these events; without an event, the longest time between two:

* kill: SIGKILL of an owner
* stop: SIGTERM of an owner
* unload: of a bundle (`PUT .../{bundle}/unload`)
* unload topic: of one topic, which its owner loads again
* steady: no event

The gaps of "others" are the longest times between two acknowledgements of the other topics, at the same times: a stall
of the machine or of a disk stops all topics, a slow move only its own.

Prints each distribution, and those of the steps of the moves, as the brokers log them: `given` steps are those of the
old owner, `received` steps those of the new one. At the end every topic is read back: each message once, in order.
`--quick` runs few rounds, `--json FILE` stores the numbers. `--idle N` first opens N more topics in the same
namespace, which nothing uses then: they are in the bundles that move.
"""

import argparse
import asyncio
import json
import re
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.distribution import distribution
from benchmarks.idle_topics import open_all
from tests.support.broker_cluster import BrokerCluster, BrokerOfCluster, Publishing, broker_cluster, read_back

TOPICS = 4
PAUSE_S = 0.01
SETTLE_S = 0.6
OPENED_AT_ONCE = 32
OPEN_S = 600.0
MOVED = re.compile(r"quire\.broker\.handover: \S+ is (served by|ours now).*: (idle closed|read) (.*) ms")
"""A line of a broker's log with the steps of a move: of its old owner, or of its new one."""
NAMESPACE = "/admin/v2/namespaces/public/default"


class Bench:
    """One running cluster with its publishers."""

    def __init__(self, cluster: BrokerCluster, publishing: Publishing) -> None:
        self.cluster, self.publishing = cluster, publishing
        self.gaps: dict[str, list[float]] = {}

    def owners(self) -> dict[str, BrokerOfCluster]:
        """Return the owner of each topic."""
        asked = self.cluster.brokers[0]
        return {topic: self.cluster.owner_of(topic, asked) for topic in self.publishing.topics}

    def measure(self, name: str, topics: list[str], event: Callable[[], None]) -> None:
        """Cause the event and record the gap of each of the topics."""
        since_s = time.monotonic()
        event()
        for topic in topics:
            self.publishing.wait_for(topic, since_s)
        time.sleep(SETTLE_S)
        until_s = time.monotonic()
        gap = self.publishing.longest_gap if name == "steady" else self.publishing.gap_of_move
        found = [gap(topic, since_s, until_s) for topic in topics]
        self.gaps.setdefault(name, []).extend(found)
        others = set(self.publishing.topics) - set(topics)
        if others:
            stalls = [self.publishing.longest_gap(topic, since_s, until_s) for topic in others]
            self.gaps.setdefault(f"{name}: others", []).append(max(stalls))
        print(f"  {name}: {', '.join(f'{gap * 1000:.0f}' for gap in sorted(found))} ms", file=sys.stderr, flush=True)

    def steps(self) -> dict[str, list[float]]:
        """Return how long the steps of all moves took, in s."""
        found: dict[str, list[float]] = {}
        for broker in self.cluster.brokers:
            for line in MOVED.finditer(broker.log.read_text()):
                side = "given" if line[1] == "served by" else "received"
                for step in f"{line[2]} {line[3]}".split(", "):
                    name, _, taken_ms = step.rpartition(" ")
                    found.setdefault(f"{side}: {name}", []).append(float(taken_ms) / 1000)
        return found

    def victim(self) -> tuple[BrokerOfCluster, list[str]]:
        """Return the broker with the most topics, and these."""
        owners = self.owners()
        found = max(self.cluster.brokers, key=lambda broker: list(owners.values()).count(broker))
        return found, [topic for topic, owner in owners.items() if owner is found]


def _end_and_restart(bench: Bench, name: str, end: Callable[[BrokerOfCluster], None]) -> None:
    victim, topics = bench.victim()
    bench.measure(name, topics, lambda: end(victim))
    victim.start()


def _unload_bundle(bench: Bench) -> None:
    topic = bench.publishing.topics[len(bench.gaps.get("unload", ())) % TOPICS]
    asked = bench.cluster.brokers[0]
    path = topic.replace("persistent://", "/lookup/v2/topic/persistent/") + "/bundle"
    bundle = asked.call("GET", path)[1]

    def unload() -> None:
        status, answer = asked.call("PUT", f"{NAMESPACE}/{bundle}/unload")
        assert status == 204, answer

    bench.measure("unload", [topic], unload)


def _unload_topic(bench: Bench) -> None:
    topic = bench.publishing.topics[len(bench.gaps.get("unload topic", ())) % TOPICS]
    owner = bench.owners()[topic]

    def unload() -> None:
        status, answer = owner.call("PUT", topic.replace("persistent://", "/admin/v2/persistent/") + "/unload")
        assert status == 204, answer

    bench.measure("unload topic", [topic], unload)


EVENTS: dict[str, Callable[[Bench], None]] = {
    "steady": lambda bench: bench.measure("steady", bench.publishing.topics, lambda: None),
    "unload": _unload_bundle,
    "unload topic": _unload_topic,
    "stop": lambda bench: _end_and_restart(bench, "stop", BrokerOfCluster.stop),
    "kill": lambda bench: _end_and_restart(bench, "kill", BrokerOfCluster.kill),
}
ROUNDS = {"steady": 3, "unload": 120, "unload topic": 60, "stop": 16, "kill": 8}
QUICK = {"steady": 1, "unload": 6, "unload topic": 6, "stop": 1, "kill": 1}


def run(rounds: dict[str, int], idle: int) -> tuple[dict[str, list[float]], dict[str, list[float]]]:
    """Return the gaps of each event and the durations of each step, in s."""
    import pulsar

    topics = [f"persistent://public/default/handed-{number}" for number in range(TOPICS)]
    with (
        tempfile.TemporaryDirectory(prefix="quire-brokers-") as folder,
        broker_cluster(Path(folder), bookies=3, brokerDeduplicationEnabled="true") as cluster,
    ):
        if idle:
            asyncio.run(open_all(cluster, idle, OPENED_AT_ONCE, OPEN_S))
        logger = pulsar.FileLogger(pulsar.LoggerLevel.Info, f"{folder}/client.log")
        client = pulsar.Client(cluster.url, logger=logger, io_threads=2)
        bench = Bench(cluster, Publishing(client, topics, PAUSE_S))
        time.sleep(SETTLE_S)
        for name, count in rounds.items():
            for _ in range(count):
                EVENTS[name](bench)
        bench.publishing.end()
        for topic in topics:
            found = read_back(pulsar, client, topic, bench.publishing.sent - 1)
            if found != list(range(bench.publishing.sent)):
                raise SystemExit(f"{topic}: {len(found)} messages for {bench.publishing.sent} sent")
        client.close()
        return bench.gaps, bench.steps()


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="few rounds")
    parser.add_argument("--only", help="events by comma, e.g. unload,kill")
    parser.add_argument("--idle", type=int, default=0, help="topics that nothing uses")
    parser.add_argument("--json", type=Path, help="store the numbers in this file")
    asked = parser.parse_args()
    rounds = QUICK if asked.quick else ROUNDS
    if asked.only:
        rounds = {name: rounds[name] for name in asked.only.split(",")}
    gaps, steps = run(rounds, asked.idle)
    results: dict[str, Any] = {name: distribution(found) for name, found in (gaps | steps).items()}
    for name, found in results.items():
        print(f"{name:19} " + "  ".join(f"{key} {value:g}" for key, value in found.items()) + "  (ms)")
    if asked.json:
        asked.json.write_text(json.dumps({"gaps_s": gaps, "steps_s": steps, "results": results}, indent=1))


if __name__ == "__main__":
    main()
