"""Tests of a standalone without authentication, reached from a non-loopback address: stock clients, admin requests."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from urllib.error import HTTPError

import pulsar
import pytest
from pulsar.schema import JsonSchema, Record, String

from tests.support.own_address import own_address
from tests.support.standalone import StandaloneProcess

TIMEOUT_MS = 30_000


class Note(Record):  # type: ignore[misc]
    """A message whose schema the client requests over HTTP."""

    text = String()


def running(folder: Path, *settings: str) -> Iterator[StandaloneProcess]:
    process = StandaloneProcess(folder, host=own_address(), settings=settings)
    process.start()
    yield process
    process.close()


@pytest.fixture(scope="module")
def standalone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StandaloneProcess]:
    yield from running(tmp_path_factory.mktemp("closed"))


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[StandaloneProcess]:
    yield from running(tmp_path, "httpServerAdminRemote=true")


def test_a_stock_client_with_an_http_url_works(standalone: StandaloneProcess) -> None:
    client = pulsar.Client(standalone.http)
    try:
        topic = "persistent://public/default/over-http"
        consumer = client.subscribe(re.compile("persistent://public/default/over-.*"), "by-pattern")
        producer = client.create_producer(topic, schema=JsonSchema(Note))
        by_name = client.subscribe(topic, "by-name", schema=JsonSchema(Note))
        producer.send(Note(text="hello"))
        assert by_name.receive(TIMEOUT_MS).value().text == "hello"
        assert client.get_topic_partitions(topic) == [topic]
        consumer.close()
    finally:
        client.close()


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("PUT", "/admin/v2/namespaces/public/mine", None),
        ("POST", "/admin/v2/namespaces/public/default/offloadPolicies", {"offloadBucket": "elsewhere"}),
        ("DELETE", "/admin/v2/persistent/public/default/over-http", None),
        ("GET", "/admin/quire/ledgers/0/entries", None),
        ("GET", "/", None),
    ],
)
def test_an_admin_request_is_refused_with_the_setting_that_opens_the_port(
    standalone: StandaloneProcess, method: str, path: str, body: object
) -> None:
    with pytest.raises(HTTPError) as refused:
        standalone.request(method, path, body)
    assert refused.value.code == 403
    assert "httpServerAdminRemote=true" in json.loads(refused.value.read())["reason"]


def test_probes_and_metrics_are_answered(standalone: StandaloneProcess) -> None:
    assert standalone.text("/healthz").strip() == "ok"
    assert standalone.text("/admin/v2/brokers/health") == "ok"
    assert "quire_broker" in standalone.text("/metrics")


def test_the_setting_opens_the_port(opened: StandaloneProcess) -> None:
    opened.request("PUT", "/admin/v2/namespaces/public/mine")
    assert "public/mine" in opened.request("GET", "/admin/v2/namespaces/public")
