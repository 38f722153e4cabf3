"""Runs in a pod with the stock Pulsar client: sends numbered messages continuously, reads and checks them all.

Decides about a run: an acknowledged message that is not read is lost, a number before a smaller one of its producer is
reordered, and a message that was never sent, or has different content, is invented. A message may arrive twice, as a
client that lost its connection sends unacknowledged messages again.

HTTP on port 8090: `/status` returns the progress; `/settle?timeout=60` stops sending, waits until every acknowledged
message was read, and resumes; `/reread/start` stops sending, checks every topic from its beginning, and resumes;
`/reread` returns the result of that; `/rate?rate=500` sets the messages a second of each producer. Needs only the
client, and no code of Quire.
"""

import hashlib
import json
import logging
import os
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import ClassVar
from urllib.parse import parse_qs, urlsplit

import pulsar

URL = os.environ["LOAD_URL"]
AUTHORITY = os.environ["LOAD_CA"]
"""A file with the authority of the brokers' certificates."""
TOPICS = os.environ["LOAD_TOPICS"].split(",")
RATE = float(os.environ.get("LOAD_RATE", "200"))
"""Initial messages a second of each producer."""
SIZE_BYTES = int(os.environ.get("LOAD_SIZE", "1024"))
PORT = 8090
IN_FLIGHT = 1000
RETRY_S = 0.2
READ_MS = 500
DIGEST_CHARACTERS = 64
QUIET_S = 60.0
"""A second reading that gets no message for this long before its end has lost the rest."""

log = logging.getLogger("load")


def content(topic: str, number: int) -> bytes:
    """Return a message's content: topic and number, a filling derived from them, and a digest of both."""
    head = f"{topic} {number} ".encode()
    filling = hashlib.sha256(head).hexdigest().encode()
    body = head + (filling * (SIZE_BYTES // len(filling) + 1))[: max(0, SIZE_BYTES - len(head) - DIGEST_CHARACTERS)]
    return body + hashlib.sha256(body).hexdigest().encode()


class Checker:
    """Checks the messages read from one topic, in the order of the log."""

    def __init__(self, topic: str) -> None:
        self.topic = topic
        self.seen = bytearray()
        self.last = -1
        self.read = 0
        self.repeated = 0
        self.faults: list[str] = []

    def take(self, data: bytes, sent: int) -> None:
        """Check one message. `sent`: all numbers below it were passed to the client."""
        self.read += 1
        try:
            topic, text, _ = data.split(b" ", 2)
            number = int(text)
        except ValueError:
            self.fault(f"invented: {data[:60]!r}")
            return
        if topic.decode() != self.topic or number >= sent or data != content(self.topic, number):
            self.fault(f"invented: {data[:60]!r}, {sent} were sent")
            return
        if number < len(self.seen) and self.seen[number]:
            self.repeated += 1
            return
        if number < self.last:
            self.fault(f"reordered: {number} after {self.last}")
        self.seen.extend(bytes(max(0, number + 1 - len(self.seen))))
        self.seen[number] = 1
        self.last = max(self.last, number)

    def fault(self, text: str) -> None:
        """Record a fault; only the first ones are kept."""
        if len(self.faults) < 20:
            self.faults.append(f"{self.topic}: {text}")

    def missing(self, acknowledged: bytearray) -> list[int]:
        """Return the numbers that were acknowledged and not read."""
        if self.seen.startswith(acknowledged):
            return []
        return [n for n, is_acked in enumerate(acknowledged) if is_acked and not (n < len(self.seen) and self.seen[n])]


class Lane:
    """Runs one topic with its producer and its reader, each in its own thread."""

    def __init__(self, topic: str) -> None:
        self.topic = topic
        self.checker = Checker(topic)
        self.sent = 0
        self.acknowledged = bytearray()
        self.acked = 0
        self.failed = 0
        self.first_ack_s: float | None = None
        self.last_ack_s = 0.0
        self.longest_pause_s = 0.0
        self.sending = threading.Event()
        self.sending.set()
        self.rate = RATE
        self._room = threading.Semaphore(IN_FLIGHT)
        for work in (self._produce, self._read):
            threading.Thread(target=self._forever, args=(work,), daemon=True).start()

    def _forever(self, work: object) -> None:
        """Repeat `work` after errors, such as a client that finds no broker yet; a connected client recovers itself."""
        while True:
            try:
                work()  # type: ignore[operator]
            except Exception as error:  # noqa: BLE001  any error is logged and retried
                log.info("%s: %s: %s", self.topic, type(error).__name__, error)
            time.sleep(RETRY_S)

    def _client(self) -> pulsar.Client:
        logger = pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
        return pulsar.Client(
            URL,
            operation_timeout_seconds=30,
            connection_timeout_ms=3000,
            tls_trust_certs_file_path=AUTHORITY,
            tls_validate_hostname=True,
            logger=logger,
        )

    def _produce(self) -> None:
        # Without a send timeout the client sends each message until it is acknowledged, in order.
        producer = self._client().create_producer(
            self.topic, send_timeout_millis=0, block_if_queue_full=True, max_pending_messages=IN_FLIGHT
        )
        due_s = time.monotonic()
        while True:
            self.sending.wait()
            self._room.acquire()
            number = self.sent
            self.sent = number + 1
            producer.send_async(content(self.topic, number), lambda result, _, n=number: self._sent(result, n))
            due_s = max(due_s + 1 / self.rate, time.monotonic() - 0.05)
            time.sleep(max(0.0, due_s - time.monotonic()))

    def _sent(self, result: object, number: int) -> None:
        self._room.release()
        if result != pulsar.Result.Ok:
            self.failed += 1
            log.warning("%s: message %d: %s", self.topic, number, result)
            return
        now_s = time.time()
        if self.first_ack_s is None:
            self.first_ack_s = now_s
        else:
            self.longest_pause_s = max(self.longest_pause_s, now_s - self.last_ack_s)
        self.last_ack_s = now_s
        self.acknowledged.extend(bytes(max(0, number + 1 - len(self.acknowledged))))
        self.acknowledged[number] = 1
        self.acked += 1

    def _read(self) -> None:
        """Read all messages. The client reconnects by itself; after an error that ends it, read from the beginning."""
        faults, self.checker = self.checker.faults, Checker(self.topic)
        self.checker.faults = faults
        reader = self._client().create_reader(self.topic, pulsar.MessageId.earliest)
        while True:
            try:
                message = reader.read_next(READ_MS)
            except pulsar.Timeout:
                continue
            self.checker.take(message.data(), self.sent)

    def is_settled(self) -> bool:
        """Return whether nothing is in flight and every acknowledged message was read."""
        return self.acked + self.failed == self.sent and not self.checker.missing(self.acknowledged)

    def reread(self, faults: list[str]) -> None:
        """Add the faults of a second reading from the beginning to the end; only while nothing is sent."""
        checker, client = Checker(self.topic), self._client()
        try:
            reader = client.create_reader(self.topic, pulsar.MessageId.earliest)
            heard_s = time.monotonic()
            while time.monotonic() < heard_s + QUIET_S and reader.has_message_available():
                try:
                    checker.take(reader.read_next(READ_MS).data(), self.sent)
                except pulsar.Timeout:
                    continue
                heard_s = time.monotonic()
        except pulsar.PulsarException as error:
            checker.fault(f"could not be read again: {error}")
        client.close()
        missing = checker.missing(self.acknowledged)
        faults += checker.faults + ([f"{self.topic}: lost on reading again: {missing[:20]}"] if missing else [])

    def status(self) -> dict[str, object]:
        """Return the counters of this lane; pauses count from the last request with `fresh`."""
        pause_s = self.longest_pause_s
        if self.last_ack_s and self.sending.is_set():
            pause_s = max(pause_s, time.time() - self.last_ack_s)
        return {
            "topic": self.topic,
            "sent": self.sent,
            "acknowledged": self.acked,
            "failed": self.failed,
            "read": self.checker.read,
            "repeated": self.checker.repeated,
            "first_ack_s": self.first_ack_s,
            "longest_pause_s": round(pause_s, 3),
            "faults": self.checker.faults,
        }


class Handler(BaseHTTPRequestHandler):
    """Responds in JSON."""

    lanes: ClassVar[list[Lane]] = []
    reread: ClassVar[dict[str, object] | None] = None
    """Faults of the last second reading, and the number of acknowledged messages; None while it runs."""

    def do_GET(self) -> None:
        """Handle a request; all are GETs, as they come through the API server's proxy."""
        parts = urlsplit(self.path)
        query = {key: values[-1] for key, values in parse_qs(parts.query).items()}
        timeout_s = float(query.get("timeout", "60"))
        faults: list[str] = []
        if parts.path == "/settle":
            faults = self._settle(timeout_s, go_on=True)
        elif parts.path == "/reread/start":
            Handler.reread = None
            threading.Thread(target=self._reread, daemon=True).start()
        elif parts.path == "/rate":
            for lane in self.lanes:
                lane.rate = float(query["rate"])
        body = {
            "now_s": time.time(),
            "faults": faults,
            "reread": self.reread,
            "lanes": [lane.status() for lane in self.lanes],
        }
        if query.get("fresh"):
            for lane in self.lanes:
                lane.longest_pause_s = 0.0
        data = json.dumps(body).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: object) -> None:
        """Log no requests."""

    def _set_sending(self, on: bool) -> None:
        for lane in self.lanes:
            if on:
                lane.last_ack_s = time.time()
                lane.sending.set()
            else:
                lane.sending.clear()

    def _reread(self) -> None:
        faults = self._settle(QUIET_S, go_on=False)
        if not faults:
            ended: list[str] = []
            readings = [threading.Thread(target=self._reread_lane, args=(lane, faults, ended)) for lane in self.lanes]
            for each in readings:
                each.start()
            for each in readings:
                each.join()
            faults += [f"{lane.topic}: its second reading failed" for lane in self.lanes if lane.topic not in ended]
        acknowledged = sum(lane.acked for lane in self.lanes)
        self._set_sending(True)
        Handler.reread = {"faults": faults, "acknowledged": acknowledged}

    @staticmethod
    def _reread_lane(lane: Lane, faults: list[str], ended: list[str]) -> None:
        """Reread one lane. `ended` lists it only if it completed, as an error in a thread is not reported."""
        lane.reread(faults)
        ended.append(lane.topic)

    def _settle(self, timeout_s: float, go_on: bool) -> list[str]:
        self._set_sending(False)
        deadline_s = time.monotonic() + timeout_s
        while time.monotonic() < deadline_s and not all(lane.is_settled() for lane in self.lanes):
            time.sleep(0.1)
        faults = [fault for lane in self.lanes for fault in lane.checker.faults]
        for lane in self.lanes:
            missing = lane.checker.missing(lane.acknowledged)
            if missing:
                faults.append(f"{lane.topic}: acknowledged and not read ({len(missing)}): {missing[:20]}")
            if lane.acked + lane.failed != lane.sent:
                faults.append(f"{lane.topic}: {lane.sent - lane.acked - lane.failed} sent without a response")
            if lane.failed:
                faults.append(f"{lane.topic}: {lane.failed} refused although the client has no send timeout")
        if go_on:
            self._set_sending(True)
        return faults


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, stream=sys.stdout, format="%(asctime)s %(message)s")
    Handler.lanes = [Lane(topic) for topic in TOPICS]
    ThreadingHTTPServer(("", PORT), Handler).serve_forever()
