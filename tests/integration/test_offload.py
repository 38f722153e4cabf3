"""Tests of offloading to a real S3 service by `quire standalone`, with the stock Python client."""

import urllib.error
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pulsar
import pytest

from tests.support.polling import until
from tests.support.s3_server import S3Server, require_s3
from tests.support.standalone import StandaloneProcess

pytestmark = pytest.mark.slow
TOPIC = "persistent://public/default/old"
PATH = "/admin/v2/persistent/public/default/old"
GUARD_S = 90.0
MESSAGES = 300
SETTINGS = (
    "managedLedgerMaxEntriesPerLedger=50",
    "managedLedgerMinLedgerRolloverTimeMinutes=0",
    "defaultRetentionTimeInMinutes=-1",
    "defaultRetentionSizeInMB=-1",
    "retentionCheckIntervalInSeconds=1",
    "managedLedgerOffloadDeletionLagMs=0",
    "managedLedgerOffloadDriver=aws-s3",
    "managedLedgerOffloadBucket=ledgers",
)


def payload(number: int) -> bytes:
    return b"message %04d " % number + bytes([number % 251]) * 2000


@pytest.fixture
def s3(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[S3Server]:
    server = S3Server(require_s3(), tmp_path)
    server.start()
    server.make_bucket("ledgers")
    for name, value in server.environment.items():
        monkeypatch.setenv(name, value)
    yield server
    server.stop()


@pytest.fixture
def standalone(s3: S3Server, tmp_path: Path) -> Iterator[StandaloneProcess]:
    found = StandaloneProcess(tmp_path, settings=SETTINGS)
    found.start()
    yield found
    found.close()


def objects(s3: S3Server) -> list[str]:
    return sorted(path.name for path in (s3.buckets / "ledgers").iterdir() if path.is_file())


def ledgers(standalone: StandaloneProcess) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = standalone.request("GET", f"{PATH}/internalStats")["ledgers"]
    return found


def in_bookies(standalone: StandaloneProcess, ledger: int) -> bool:
    try:
        standalone.request("GET", f"/admin/quire/ledgers/{ledger}")
    except urllib.error.HTTPError as error:
        assert error.code == 404
        return False
    return True


def produce(url: str) -> list[int]:
    """Publish all messages; return the publish time of each, in ms."""
    client = pulsar.Client(url)
    producer = client.create_producer(TOPIC, batching_enabled=False)
    for number in range(MESSAGES):
        producer.send(payload(number))
    client.close()
    return read(url)[1]


def read(url: str, start_ms: int | None = None) -> tuple[list[bytes], list[int]]:
    """Read everything from the earliest message, or from a publish time on."""
    client = pulsar.Client(url)
    reader = client.create_reader(TOPIC, pulsar.MessageId.earliest)
    if start_ms is not None:
        reader.seek(start_ms)
    found: list[bytes] = []
    times: list[int] = []
    while reader.has_message_available():
        message = reader.read_next(60_000)
        found.append(message.data())
        times.append(message.publish_timestamp())
    client.close()
    return found, times


def offload_all(standalone: StandaloneProcess) -> list[int]:
    """Offload all closed ledgers, wait until the bookies' copies are deleted, and return the ids of these ledgers."""
    tail = ledgers(standalone)[-1]["ledgerId"]
    standalone.request("PUT", f"{PATH}/offload", {"ledgerId": tail, "entryId": 0, "partitionIndex": -1})
    until(
        lambda: standalone.request("GET", f"{PATH}/offload")["status"] != "RUNNING",
        "the offload does not end",
        timeout_s=GUARD_S,
    )
    status = standalone.request("GET", f"{PATH}/offload")
    assert status["status"] == "SUCCESS", status
    assert status["firstUnoffloadedMessage"]["ledgerId"] == tail
    closed = [item["ledgerId"] for item in ledgers(standalone) if item["timestamp"]]
    assert all(item["offloaded"] == (item["ledgerId"] in closed) for item in ledgers(standalone))
    until(
        lambda: not any(in_bookies(standalone, ledger) for ledger in closed),
        "the bookies' copies do not go",
        timeout_s=GUARD_S,
    )
    return closed


def test_stock_client_reads_and_seeks_after_the_bookies_copies_are_deleted(
    s3: S3Server, standalone: StandaloneProcess
) -> None:
    times = produce(standalone.url)
    closed = offload_all(standalone)
    assert len(closed) == 6 and len(objects(s3)) == 12
    expected = [payload(number) for number in range(MESSAGES)]
    assert read(standalone.url)[0] == expected
    middle = times[120]
    assert read(standalone.url, middle)[0] == expected[times.index(middle) :]
    standalone.kill()
    standalone.start()
    assert read(standalone.url)[0] == expected
    text = standalone.text("/metrics")
    assert "quire_broker_offload_reads_total" in text and "pulsar_storage_offloaded_size" in text
    client = pulsar.Client(standalone.url)
    consumer = client.subscribe(TOPIC, "s", initial_position=pulsar.InitialPosition.Earliest)
    for number in range(MESSAGES):
        message = consumer.receive(60_000)
        assert message.data() == payload(number)
        consumer.acknowledge(message)
    client.close()
    standalone.request("DELETE", f"{PATH}?force=true")
    until(lambda: objects(s3) == [], "the deleted topic's objects stay", timeout_s=GUARD_S)


def refusal(standalone: StandaloneProcess, method: str, path: str, body: Any) -> tuple[int, str]:
    with pytest.raises(urllib.error.HTTPError) as caught:
        standalone.request(method, path, body)
    return caught.value.code, caught.value.read().decode()


def test_attempts_over_http_are_accepted_or_refused_with_reasons(s3: S3Server, standalone: StandaloneProcess) -> None:
    produce(standalone.url)
    first = ledgers(standalone)[0]
    tail = ledgers(standalone)[-1]["ledgerId"]
    target = {"driver": "aws-s3", "properties": {"bucket": "ledgers", "serviceEndpoint": s3.endpoint}}
    begun = standalone.request("POST", f"{PATH}/offload/begin", {"ledgerId": first["ledgerId"], **target})
    assert (begun["ledgerId"], begun["entries"], begun["size"]) == (first["ledgerId"], first["entries"], first["size"])
    again = refusal(standalone, "POST", f"{PATH}/offload/begin", {"ledgerId": first["ledgerId"], **target})
    assert again[0] == 409 and "in progress" in again[1]
    code, text = refusal(standalone, "POST", f"{PATH}/offload/begin", {"ledgerId": tail, **target})
    assert code == 409 and "is open" in text
    code, text = refusal(standalone, "POST", f"{PATH}/offload/begin", {"ledgerId": 9999, **target})
    assert code == 409 and "is not listed" in text
    body = {"ledgerId": first["ledgerId"], "uuid": begun["uuid"], "entries": begun["entries"], "size": begun["size"]}
    code, text = refusal(standalone, "POST", f"{PATH}/offload/complete", body)
    assert code == 409 and "could not verify the objects" in text
    code, text = refusal(standalone, "POST", f"{PATH}/offload/complete", body | {"size": 1})
    assert code == 409 and "the offload has" in text
    assert refusal(standalone, "POST", f"{PATH}/offload/begin", {"ledgerId": "x", **target})[0] == 400
    assert refusal(standalone, "POST", f"{PATH}/offload/abort", {"ledgerId": 1, "uuid": "x"})[0] == 400
    abort = {"ledgerId": first["ledgerId"], "uuid": begun["uuid"]}
    standalone.request("POST", f"{PATH}/offload/abort", abort)
    standalone.request("POST", f"{PATH}/offload/abort", abort)
    assert standalone.request("POST", f"{PATH}/offload/begin", {"ledgerId": first["ledgerId"], **target})["uuid"]


def test_policies_of_a_namespace_start_offloads_of_its_topics(s3: S3Server, standalone: StandaloneProcess) -> None:
    namespace = "/admin/v2/namespaces/public/default"
    (s3.buckets / "others").mkdir()
    policies = {
        "managedLedgerOffloadDriver": "aws-s3",
        "managedLedgerOffloadBucket": "others",
        "managedLedgerOffloadThresholdInBytes": 0,
        "managedLedgerOffloadedReadPriority": "TIERED_STORAGE_FIRST",
    }
    standalone.request("POST", f"{namespace}/offloadPolicies", policies)
    assert standalone.request("GET", f"{namespace}/offloadPolicies") == policies
    code, text = refusal(standalone, "POST", f"{namespace}/offloadPolicies", {"managedLedgerOffloadDriver": "tape"})
    assert code == 412 and "use one of aws-s3" in text
    standalone.request("PUT", f"{namespace}/offloadDeletionLagMs", -1)
    assert standalone.request("GET", f"{namespace}/offloadDeletionLagMs") == -1
    produce(standalone.url)

    def is_offloaded() -> bool:
        # The last ledgers may still roll over, so the first listing may be incomplete.
        listed = ledgers(standalone)[:-1]
        stored = len(list((s3.buckets / "others").iterdir()))
        return stored >= max(12, 2 * len(listed)) and all(item["offloaded"] for item in listed)

    until(is_offloaded, "not everything is offloaded by itself", timeout_s=GUARD_S)
    assert all(in_bookies(standalone, item["ledgerId"]) for item in ledgers(standalone))
    s3.stop()
    assert read(standalone.url)[0] == [payload(number) for number in range(MESSAGES)]
