"""Stock `pulsar-admin` and `pulsar-perf` against our broker. `make admin-table` compares all commands with stock."""

import json
from pathlib import Path

import pytest

from tests.support.broker_process import BrokerProcess
from tests.support.stock_clients import PULSAR_ADMIN, PULSAR_PERF, run_tool

pytestmark = [pytest.mark.compat, pytest.mark.slow]
MESSAGES = 3000


@pytest.fixture
def configuration(broker: BrokerProcess, tmp_path: Path) -> Path:
    file = tmp_path / "client.conf"
    file.write_text(f"webServiceUrl={broker.http}\nbrokerServiceUrl={broker.url}\n")
    return file


def test_an_administrator_works_with_pulsar_admin(configuration: Path) -> None:
    def admin(*words: str) -> str:
        done = run_tool(PULSAR_ADMIN, configuration, *words)
        assert done.returncode == 0, (words, done.stdout, done.stderr)
        return done.stdout

    admin("tenants", "create", "shop", "--admin-roles", "owner")
    admin("namespaces", "create", "shop/orders")
    admin("namespaces", "set-retention", "shop/orders", "--size", "10M", "--time", "2h")
    assert json.loads(admin("namespaces", "get-retention", "shop/orders")) == {
        "retentionTimeInMinutes": 120,
        "retentionSizeInMB": 10,
    }
    topic = "persistent://shop/orders/paid"
    admin("topics", "create-partitioned-topic", topic, "--partitions", "2")
    admin("topics", "create-subscription", topic, "--subscription", "s")
    stats = json.loads(admin("topics", "partitioned-stats", topic))
    assert (stats["metadata"]["partitions"], stats["msgInCounter"], list(stats["subscriptions"])) == (2, 0, ["s"])
    refused = run_tool(PULSAR_ADMIN, configuration, "namespaces", "delete", "shop/orders")
    assert refused.returncode == 1 and "Cannot delete non empty namespace" in refused.stderr
    admin("topics", "delete-partitioned-topic", topic, "--force")
    admin("namespaces", "delete", "shop/orders")
    admin("tenants", "delete", "shop")
    assert "shop" not in admin("tenants", "list").split()


def test_pulsar_perf_publishes_and_consumes_every_message(configuration: Path, broker: BrokerProcess) -> None:
    topic = "persistent://public/default/perf"
    count = ("--num-messages", str(MESSAGES))
    produced = run_tool(PULSAR_PERF, configuration, "produce", topic, *count, "--rate", "3000", "--size", "100")
    assert produced.returncode == 0, produced.stdout[-3000:]
    reading = ("--subscription-position", "Earliest", "-ss", "s")
    consumed = run_tool(PULSAR_PERF, configuration, "consume", topic, *count, *reading)
    assert consumed.returncode == 0, consumed.stdout[-3000:]
    stats = broker.rest("GET", f"/admin/v2/{topic.replace('://', '/')}/stats")
    assert stats["msgInCounter"] >= MESSAGES
    assert stats["subscriptions"]["s"]["msgOutCounter"] >= MESSAGES
