"""The cluster's admin paths on a standalone with its own metadata: a bookie is emptied over HTTP, and serves again."""

import json
from collections.abc import Iterator
from typing import Any
from urllib.error import HTTPError

import pytest

from tests.support.polling import until
from tests.support.standalone import StandaloneProcess

GUARD_S = 150
MESSAGES = 20


@pytest.fixture(scope="module")
def standalone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StandaloneProcess]:
    settings = ("managedLedgerDefaultEnsembleSize=1",)
    process = StandaloneProcess(tmp_path_factory.mktemp("paths"), bookies=2, settings=settings)
    process.start()
    yield process
    process.close()


def refused(standalone: StandaloneProcess, method: str, path: str, body: Any = None) -> tuple[int, str]:
    with pytest.raises(HTTPError) as error:
        standalone.request(method, path, body)
    return error.value.code, json.loads(error.value.read())["reason"]


def test_bookies_and_auto_recovery_are_shown_and_refusals_are_those_of_a_bookie(standalone: StandaloneProcess) -> None:
    bookies = standalone.request("GET", "/api/v1/bookie/list_bookies?type=rw")
    assert len(bookies) == 2
    assert standalone.request("GET", "/api/v1/bookie/cluster_info")["totalBookiesCount"] == 2
    space = standalone.request("GET", "/api/v1/bookie/list_bookie_info")
    assert set(space) == {*bookies, "ClusterInfo"}
    assert standalone.request("GET", "/api/v1/autorecovery/status") == {"enabled": True}
    assert refused(standalone, "GET", "/api/v1/autorecovery/list_under_replicated_ledger")[0] == 404
    code, reason = refused(standalone, "PUT", "/api/v1/quire/drains/nobody:1", {"wish": "drain"})
    assert code == 404
    assert "there is no bookie nobody:1" in reason
    assert refused(standalone, "PUT", f"/api/v1/quire/drains/{min(bookies)}", {"wish": "x"})[0] == 400
    assert refused(standalone, "PUT", "/api/v1/bookie/state/readonly", {"readOnly": True})[0] == 404, "of one bookie"


@pytest.mark.slow
def test_a_bookie_is_drained_and_taken_back_and_its_ledgers_stay_readable(standalone: StandaloneProcess) -> None:
    pulsar = pytest.importorskip("pulsar")
    client = pulsar.Client(standalone.url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    try:
        topics = [f"persistent://public/default/t{number}" for number in range(4)]
        for topic in topics:
            client.subscribe(topic, "s").close()
            producer = client.create_producer(topic)
            for number in range(MESSAGES):
                producer.send(b"%d" % number)
            producer.close()
        holders = {_holder(standalone, topic) for topic in topics}
        bookie = min(holders)
        path = f"/api/v1/quire/drains/{bookie}"
        standalone.request("PUT", path, {"wish": "drain"})
        until(lambda: standalone.request("GET", path)["state"] == "emptied", timeout_s=GUARD_S)
        assert list(standalone.request("GET", "/api/v1/bookie/list_bookies?type=ro")) == [bookie]
        assert bookie not in {_holder(standalone, topic) for topic in topics}
        for topic in topics:
            consumer = client.subscribe(topic, "s")
            assert [int(consumer.receive(20_000).data()) for _ in range(MESSAGES)] == list(range(MESSAGES))
        standalone.request("DELETE", path)
        until(lambda: bookie in standalone.request("GET", "/api/v1/bookie/list_bookies?type=rw"), timeout_s=GUARD_S)
    finally:
        client.close()


def _holder(standalone: StandaloneProcess, topic: str) -> str:
    """The bookie of a topic's first ledger, of which there is one replica."""
    name = topic.removeprefix("persistent://")
    ledger = standalone.request("GET", f"/admin/v2/persistent/{name}/internalStats")["ledgers"][0]["ledgerId"]
    return str(standalone.request("GET", f"/admin/quire/ledgers/{ledger}")["segments"][0]["ensemble"][0])
