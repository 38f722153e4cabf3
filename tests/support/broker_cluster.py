"""Brokers as `quire broker start` runs them, on a real etcd and its bookies, with publishers of the stock client.

The processes are killed, stopped and paused at will; the publishers note when each message was acknowledged.
"""

import itertools
import json
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from urllib.error import HTTPError, URLError

from tests.support.child import Child
from tests.support.etcd_cluster import EtcdCluster
from tests.support.polling import until
from tests.support.ports import free_ports
from tests.support.relay import RelayThread

START_TIMEOUT_S = 90.0
ALL_ACKNOWLEDGED_S = 120.0
_QUIRE = [sys.executable, "-c", "from quire_bookie.cli.main import main; main()"]


def http_call(
    method: str, url: str, body: Any = None, headers: Mapping[str, str] | None = None, *, timeout_s: float = 60.0
) -> tuple[int, Any]:
    """Status and JSON (or text) of a request; redirects of GET are followed."""
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"Content-Type": "application/json", **(headers or {})}, method=method)
    try:
        with urllib.request.urlopen(request, timeout=timeout_s) as answer:
            status, text = answer.status, answer.read().decode()
    except HTTPError as error:
        status, text = error.code, error.read().decode()
    try:
        return status, json.loads(text) if text else None
    except ValueError:
        return status, text


class BrokerOfCluster(Child):
    """One broker with ports of its own, which survive its process."""

    def __init__(self, folder: Path, etcd: str, name: str, settings: dict[str, str]) -> None:
        super().__init__()
        self.log = folder / f"{name}.log"
        self.port, self.http_port = free_ports(2)
        words = ["broker", "start", "--metadata", f"etcd://{etcd}", "--advertise", "127.0.0.1"]
        words += ["--broker-port", str(self.port), "--http-port", str(self.http_port)]
        self._command = _QUIRE + words + [word for item in settings.items() for word in ("--set", "=".join(item))]

    @property
    def url(self) -> str:
        """For clients."""
        return f"pulsar://127.0.0.1:{self.port}"

    @property
    def broker_id(self) -> str:
        """As it registers."""
        return f"127.0.0.1:{self.http_port}"

    def start(self) -> None:
        """Start it and wait until it is healthy."""
        with self.log.open("ab") as output:
            self._process = subprocess.Popen(self._command, stdout=output, stderr=subprocess.STDOUT)
        until(
            self._is_healthy,
            lambda: f"the broker did not start:\n{self.log.read_text()[-4000:]}",
            timeout_s=START_TIMEOUT_S,
            process=self._process,
        )

    def _is_healthy(self) -> bool:
        try:
            return bool(self.call("GET", "/healthz")[0] == 200)
        except (URLError, OSError):
            return False

    def call(self, method: str, path: str, body: Any = None, timeout_s: float = 60.0) -> tuple[int, Any]:
        """Status and JSON (or text) of a REST call; redirects of GET are followed."""
        return http_call(method, f"http://127.0.0.1:{self.http_port}{path}", body, timeout_s=timeout_s)


class BrokerCluster:
    """Etcd, bookies and brokers."""

    def __init__(self, storage: EtcdCluster, brokers: list[BrokerOfCluster], links: list[RelayThread]) -> None:
        self.storage = storage
        self.brokers = brokers
        self.links = links
        """Between each broker and etcd; none unless they were asked for."""

    @property
    def url(self) -> str:
        """All brokers, for clients."""
        return "pulsar://" + ",".join(f"127.0.0.1:{broker.port}" for broker in self.brokers)

    def owner_of(self, topic: str, asked: BrokerOfCluster) -> BrokerOfCluster:
        """Look a persistent topic up."""
        path = topic.replace("persistent://", "/lookup/v2/topic/persistent/")
        status, found = asked.call("GET", path)
        assert status == 200, found
        return next(broker for broker in self.brokers if broker.url == found["brokerUrl"])


@contextmanager
def broker_cluster(
    folder: Path, *, brokers: int = 3, bookies: int = 1, linked: bool = False, **settings: str
) -> Iterator[BrokerCluster]:
    """Run a cluster; `settings` of the brokers by their keys. `linked`: each broker has a link to etcd."""
    with ExitStack() as undo:
        storage = EtcdCluster(folder)
        undo.callback(storage.close)
        links = [RelayThread(storage.etcd.port) for _ in range(brokers if linked else 0)]
        for link in links:
            undo.callback(link.close)
        metadata = [f"127.0.0.1:{link.port}" for link in links] or [storage.etcd.endpoint] * brokers
        quorum = {"managedLedgerDefaultEnsembleSize": str(bookies)} if bookies < 3 else {}
        started = [
            BrokerOfCluster(folder, etcd, f"broker{number}", {**quorum, **settings})
            for number, etcd in enumerate(metadata)
        ]
        for broker in started:
            undo.callback(broker.kill)
        storage.add_bookies(bookies)
        started[0].start()
        with ThreadPoolExecutor(brokers) as threads:
            list(threads.map(BrokerOfCluster.start, started[1:]))
        yield BrokerCluster(storage, started, links)


class Publishing:
    """Publishes numbered messages to topics at a steady pace, in a thread, and notes when each is acknowledged."""

    def __init__(self, client: Any, topics: list[str], pause_s: float) -> None:
        self.topics = topics
        self.acknowledged: dict[str, list[tuple[float, int]]] = {topic: [] for topic in topics}
        """Time and number of each acknowledged message, in the order of the acknowledgements."""
        self.ledgers: dict[str, list[int]] = {topic: [] for topic in topics}
        """The ledger of each of them; -1 for one that was stored before it was sent again."""
        self.errors: list[str] = []
        self.sent = 0
        self._pause_s = pause_s
        self._producers = {
            topic: client.create_producer(
                topic,
                producer_name=f"p-{topic.rsplit('/', 1)[1]}",
                batching_enabled=False,
                block_if_queue_full=True,
                send_timeout_millis=0,
                max_pending_messages=100_000,
            )
            for topic in topics
        }
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        due = time.monotonic()
        while not self._ended.is_set():
            for topic, producer in self._producers.items():
                producer.send_async(b"%d" % self.sent, self._noted(topic, self.sent))
            self.sent += 1
            due += self._pause_s
            self._ended.wait(max(0.0, due - time.monotonic()))

    def _noted(self, topic: str, number: int) -> Callable[[Any, Any], None]:
        found, ledgers, errors = self.acknowledged[topic], self.ledgers[topic], self.errors

        def note(result: Any, message_id: Any) -> None:
            if str(result) == "Result.Ok":
                ledgers.append(message_id.ledger_id())
                found.append((time.monotonic(), number))
            else:
                errors.append(f"{topic} {number}: {result}")

        return note

    def wait_for(self, topic: str, since_s: float) -> None:
        """Wait until a message was acknowledged that was sent later than that time."""
        sent = self.sent

        def later() -> bool:
            known = self.acknowledged[topic]
            return bool(known) and known[-1][0] > since_s and known[-1][1] >= sent

        until(later, lambda: f"{topic} is not published to any more: {self.errors[-3:]}", timeout_s=ALL_ACKNOWLEDGED_S)

    def end(self) -> None:
        """Send nothing more, and wait until everything is acknowledged."""
        self._ended.set()
        self._thread.join()
        until(
            lambda: all(len(found) == self.sent for found in self.acknowledged.values()),
            lambda: f"of {self.sent}: { {t: len(f) for t, f in self.acknowledged.items()} } {self.errors[-3:]}",
            timeout_s=ALL_ACKNOWLEDGED_S,
        )

    def gap_of_move(self, topic: str, since_s: float, until_s: float) -> float:
        """Return the longest time between acknowledgements of different ledgers in between, in s."""
        noted = [(at, ledger) for (at, _), ledger in zip(self.acknowledged[topic], self.ledgers[topic], strict=False)]
        pairs = itertools.pairwise(one for one in noted if since_s - 0.5 <= one[0] <= until_s)
        return max((later[0] - earlier[0] for earlier, later in pairs if earlier[1] != later[1]), default=0.0)

    def longest_gap(self, topic: str, since_s: float, until_s: float) -> float:
        """Return the longest time without an acknowledgement in between, in s."""
        times = [at for at, _ in self.acknowledged[topic] if since_s - 0.5 <= at <= until_s]
        return max((later - earlier for earlier, later in itertools.pairwise(times)), default=0.0)


def read_back(pulsar: Any, client: Any, topic: str, last: int) -> list[int]:
    """Return the numbers of a topic from its first message to `last`, in order."""
    reader = client.create_reader(topic, pulsar.MessageId.earliest)
    found: list[int] = []
    while not found or found[-1] != last:
        found.append(int(reader.read_next(20_000).data()))
    reader.close()
    return found
