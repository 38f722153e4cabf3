"""Stock `pulsar-admin` and `pulsar-perf` against our broker. `make admin-table` compares all commands with stock."""

import functools
import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.broker_process import BrokerProcess
from tests.support.java_driver import JAVA_OPTIONS, ROOT, built

pytestmark = [pytest.mark.compat, pytest.mark.slow]
ADMIN = "org.apache.pulsar.admin.cli.PulsarAdminTool"
PERF = "org.apache.pulsar.testclient.PulsarPerfTestTool"
TIMEOUT_S = 120
MESSAGES = 3000
Tool = Callable[..., "subprocess.CompletedProcess[str]"]


@functools.cache
def jars() -> str:
    return built("stock tools", "fetch.sh", str(ROOT / "tests" / "compat" / "clients" / "java"), "tools")


@pytest.fixture
def tool(broker: BrokerProcess, tmp_path: Path) -> Tool:
    """Runs a tool with the addresses of the broker, and returns how it ended."""
    file = tmp_path / "client.conf"
    file.write_text(f"webServiceUrl={broker.http}\nbrokerServiceUrl={broker.url}\n")

    def run(program: str, *words: str) -> "subprocess.CompletedProcess[str]":
        command = ["java", "-Xmx768m", *JAVA_OPTIONS, "-cp", jars(), program, str(file), *words]
        return subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)

    return run


def test_an_administrator_works_with_pulsar_admin(tool: Tool) -> None:
    def admin(*words: str) -> str:
        done = tool(ADMIN, *words)
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
    assert topic in admin("topics", "list-partitioned-topics", "shop/orders")
    admin("topics", "create-subscription", topic, "--subscription", "s")
    assert admin("topics", "subscriptions", topic).split() == ["s"]
    stats = json.loads(admin("topics", "partitioned-stats", topic))
    assert (stats["metadata"]["partitions"], stats["msgInCounter"], list(stats["subscriptions"])) == (2, 0, ["s"])
    refused = tool(ADMIN, "namespaces", "delete", "shop/orders")
    assert refused.returncode == 1 and "Cannot delete non empty namespace" in refused.stderr
    admin("topics", "delete-partitioned-topic", topic, "--force")
    admin("namespaces", "delete", "shop/orders")
    admin("tenants", "delete", "shop")
    assert "shop" not in admin("tenants", "list").split()


def test_pulsar_perf_publishes_and_consumes_every_message(tool: Tool, broker: BrokerProcess) -> None:
    topic = "persistent://public/default/perf"
    produced = tool(PERF, "produce", topic, "--num-messages", str(MESSAGES), "--rate", "3000", "--size", "100")
    assert produced.returncode == 0, produced.stdout[-3000:]
    consumed = tool(
        PERF, "consume", topic, "--num-messages", str(MESSAGES), "--subscription-position", "Earliest", "-ss", "s"
    )
    assert consumed.returncode == 0, consumed.stdout[-3000:]
    stats = broker.rest("GET", f"/admin/v2/{topic.replace('://', '/')}/stats")
    assert stats["msgInCounter"] >= MESSAGES
    assert stats["subscriptions"]["s"]["msgOutCounter"] >= MESSAGES
