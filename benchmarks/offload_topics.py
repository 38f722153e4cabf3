"""Measures the effect of offloading on clients of a broker: catch-up reads from the bucket, and publishing.

Both use the stock client in the ordinary way. Part of `benchmarks.offload_bench`.
"""

import statistics
import subprocess
import threading
import time
import urllib.error
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pulsar

from benchmarks.servers import cpu_seconds
from quire_bookie.limits import MIB
from quire_jobs.offload.attempt_notes import FOLDER
from tests.support.standalone import QUIRE, StandaloneProcess

GUARD_S = 300.0
PUBLISHED_PER_S = 1000
PUBLISHED_BYTES = 1024
LEDGER_MIB = 16
OFFLOAD_RATE = 10_000_000
"""Bytes a second that the job reads from bookies during the measurement of publishing."""

Add = Callable[[str, dict[str, float]], None]


@dataclass(frozen=True)
class Bucket:
    """A bucket of the S3 server, which stores its objects as files in `folder`."""

    url: str
    endpoint: str
    folder: Path


def catch_up(add: Add, process: StandaloneProcess, size: int, count: int, rounds: int) -> None:
    """Read both topics in turns; `add` a row a round for each."""
    kept, gone = (f"persistent://public/default/{name}-{size}" for name in ("kept", "gone"))
    client = _client(process)
    for topic in (kept, gone):
        _publish(client, topic, size, count)
    _offload_all(process, gone)
    for number in range(rounds):
        both = (("bookies", kept), ("the bucket", gone))
        for tier, topic in both if number % 2 == 0 else reversed(both):
            cpu_s, began_s = cpu_seconds(process.pid), time.perf_counter()
            _read(client, topic, size, count)
            took_s, mib = time.perf_counter() - began_s, count * size / MIB
            row = {"mb_s": count * size / 1e6 / took_s}
            row["standalone_ms"] = (cpu_seconds(process.pid) - cpu_s) * 1000 / mib
            add(f"{size} B, catch-up from {tier}", row)
    client.close()


def publishing(
    add: Add, process: StandaloneProcess, metadata: str, bucket: Bucket, seconds: float, rounds: int
) -> None:
    """Publish alone, then during an offload job; `add` a row a round for each."""
    source, tail = "persistent://public/default/source", "persistent://public/default/tail"
    client = _client(process)
    per_round = -(-int(seconds * OFFLOAD_RATE * 1.2) // (LEDGER_MIB * MIB))
    _publish(client, source, 1024, (rounds * per_round + 1) * LEDGER_MIB * MIB // 1024)
    closed = [each["ledgerId"] for each in _ledgers(process, source) if each["timestamp"]]
    producer = client.create_producer(tail, batching_enabled=False, block_if_queue_full=True)
    _latencies(producer, lambda elapsed_s: elapsed_s >= 2)  # warms up
    for number in range(rounds):
        quiet = _latencies(producer, lambda elapsed_s: elapsed_s >= seconds)
        add("publishing, quiet", _percentiles(quiet))
        some = closed[number * per_round : (number + 1) * per_round]
        command = [QUIRE, "jobs", "run", "offload", "--json", "--local", "--metadata", metadata]
        command += ["--http", process.http, f"target={bucket.url}", f"endpoint={bucket.endpoint}", f"topics={source}"]
        command += [f"rate={OFFLOAD_RATE}", f"ledgers={','.join(map(str, some))}"]
        log = process.log.with_name(f"job-{number}.log")
        with log.open("wb") as file:
            job = subprocess.Popen(command, stdout=file, stderr=file)
        try:
            _wait(lambda: job.poll() is not None or any(_notes(bucket)), "the job did not copy anything")  # noqa: B023
            beside = _latencies(producer, lambda elapsed_s: elapsed_s >= seconds or job.poll() is not None)  # noqa: B023
            if job.wait(GUARD_S):
                raise SystemExit(f"the offload job failed:\n{log.read_text()[-3000:]}")
        finally:
            job.kill()
        add("publishing, offload at its rate", _percentiles(beside))
    client.close()


def _client(process: StandaloneProcess) -> Any:
    return pulsar.Client(
        process.url, operation_timeout_seconds=60, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
    )


def _publish(client: Any, topic: str, size: int, count: int) -> None:
    """Publish messages of an entry each, with their number in the first 8 bytes."""
    producer = client.create_producer(topic, batching_enabled=False, block_if_queue_full=True)
    rest, failed = bytes(size - 8), threading.Event()

    def acknowledged(result: Any, _id: Any) -> None:
        if result != pulsar.Result.Ok:
            failed.set()

    for number in range(count):
        producer.send_async(number.to_bytes(8, "big") + rest, acknowledged)
    producer.flush()
    producer.close()
    if failed.is_set():
        raise SystemExit(f"not all messages of {topic} were acknowledged")


def _read(client: Any, topic: str, size: int, count: int) -> None:
    """Read all messages from the earliest on; fail when they differ from those published."""
    reader = client.create_reader(topic, pulsar.MessageId.earliest)
    for number in range(count):
        data = reader.read_next(timeout_millis=60_000).data()
        if int.from_bytes(data[:8], "big") != number or len(data) != size:
            raise SystemExit(f"{topic} gave message {int.from_bytes(data[:8], 'big')} in place of {number}")
    reader.close()


def _path(topic: str) -> str:
    return f"/admin/v2/{topic.replace('://', '/')}"


def _ledgers(process: StandaloneProcess, topic: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = process.request("GET", f"{_path(topic)}/internalStats")["ledgers"]
    return found


def _offload_all(process: StandaloneProcess, topic: str) -> None:
    """Offload all ledgers except the open one; wait until the bookies' copies are deleted."""
    path = f"{_path(topic)}/offload"
    tail = _ledgers(process, topic)[-1]["ledgerId"]
    process.request("PUT", path, {"ledgerId": tail, "entryId": 0, "partitionIndex": -1})
    _wait(lambda: process.request("GET", path)["status"] != "RUNNING", "the offload did not end")
    status = process.request("GET", path)
    if status["status"] != "SUCCESS":
        raise SystemExit(f"the offload of {topic} failed: {status}")
    closed = [each["ledgerId"] for each in _ledgers(process, topic) if each["timestamp"]]
    _wait(lambda: not any(_in_bookies(process, ledger) for ledger in closed), "the bookies' copies were not deleted")


def _in_bookies(process: StandaloneProcess, ledger: int) -> bool:
    try:
        process.request("GET", f"/admin/quire/ledgers/{ledger}")
    except urllib.error.HTTPError as error:
        if error.code != 404:
            raise
        return False
    return True


def _notes(bucket: Bucket) -> Iterator[Path]:
    """Yield the notes of the ledgers that a job is about to copy."""
    return (bucket.folder / FOLDER).glob("*-ledger-*")


def _latencies(producer: Any, is_over: Callable[[float], bool]) -> list[float]:
    """Publish at a steady rate until `is_over(elapsed seconds)`; return the seconds from due time to
    acknowledgement."""
    found: list[float] = []
    payload = bytes(PUBLISHED_BYTES)
    began_s = time.perf_counter()

    def send(due_s: float) -> None:
        producer.send_async(payload, lambda _result, _id: found.append(time.perf_counter() - due_s))

    sent = 0
    while not is_over(time.perf_counter() - began_s):
        due_s = began_s + sent / PUBLISHED_PER_S
        if (pause_s := due_s - time.perf_counter()) > 0:
            time.sleep(pause_s)
        send(due_s)
        sent += 1
    producer.flush()
    return found


def _percentiles(latencies_s: list[float]) -> dict[str, float]:
    cuts = statistics.quantiles(latencies_s, n=100)
    return {"p50_ms": cuts[49] * 1000, "p99_ms": cuts[98] * 1000, "messages": len(latencies_s)}


def _wait(holds: Callable[[], bool], what: str) -> None:
    """Poll the condition: another process changes it, so there is no event to wait for."""
    deadline = time.monotonic() + GUARD_S
    while not holds():
        if time.monotonic() > deadline:
            raise SystemExit(what)
        time.sleep(0.05)
