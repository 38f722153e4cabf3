"""Keys of stock brokers: each is a setting here, or has a reason why it has no effect."""

import logging
from pathlib import Path

import pytest

from quire_bookie.cli.main import run
from quire_bookie.config.sources import load
from quire_broker.config.broker import BrokerConfig, StandaloneConfig
from quire_broker.config.without_effect import reports, why_without_effect

STOCK = (Path(__file__).parents[3] / "golden" / "pulsar-settings" / "broker-keys.txt").read_text().split()
"""The keys of Pulsar 4.0.7's ServiceConfiguration."""
OURS = {info.alias or name for name, info in BrokerConfig.model_fields.items()}


def test_each_key_of_stock_brokers_is_a_setting_or_has_a_reason() -> None:
    assert len(STOCK) > 500
    assert [key for key in STOCK if key not in OURS and why_without_effect(key) is None] == []


def test_a_reason_is_a_sentence_of_one_line() -> None:
    lines, unknown = reports(key for key in STOCK if key not in OURS)
    assert not unknown
    for line in lines:
        assert line.startswith("no effect: ") and "\n" not in line and not line.endswith(".")


def test_keys_are_reported_by_reason_and_others_as_unknown() -> None:
    lines, unknown = reports(["webSocketNumIoThreads", "ourOwn", "numIOThreads", "webSocketServiceEnabled"])
    assert unknown == ["ourOwn"]
    assert [line.split(": ")[1] for line in lines] == ["webSocketNumIoThreads, webSocketServiceEnabled", "numIOThreads"]


@pytest.mark.parametrize("command", [["broker", "start"], ["standalone"]])
def test_the_start_reports_each_key_of_a_file_once_and_no_value(
    command: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def service(_config: object, _stop: object) -> int:
        return 0

    for name in ("serve_broker", "serve_standalone"):
        monkeypatch.setattr(f"quire_broker.cli.serving.{name}", service)
    file = tmp_path / "broker.conf"
    file.write_text("tlsKeyStorePassword=hidden\nzookeeperServers=zk:2181\nmine=1\nmanagedLedgerCacheSizeMB=64\n")
    given = ["--set", "metadata=etcd://h:1", "--set", "authenticationProviders=token"]
    with caplog.at_level(logging.WARNING):
        assert run([*command, "--config", str(file), *given, "--event-loop", "asyncio"]) == 0
    said = [record.getMessage() for record in caplog.records]
    assert len(said) == 4
    assert said[3].startswith("authenticationProviders token has no effect")
    assert sum("tlsKeyStorePassword" in line for line in said) == sum("zookeeperServers" in line for line in said) == 1
    assert said[2] == f"{file}: unknown to Quire, ignored: mine"
    assert "hidden" not in "".join(said) and "zk:2181" not in "".join(said)


@pytest.mark.parametrize("model", [BrokerConfig, StandaloneConfig])
@pytest.mark.parametrize(
    ("text", "limit", "ignored"),
    [
        ("backlogQuotaDefaultLimitGB=2", 2 << 30, ()),
        ("backlogQuotaDefaultLimitGB=0.5", 1 << 29, ()),
        ("backlogQuotaDefaultLimitGB=2\nbacklogQuotaDefaultLimitBytes=7", 7, ()),
        ("backlogQuotaDefaultLimitGB=-1", -1, ("backlogQuotaDefaultLimitGB",)),
        ("backlogQuotaDefaultLimitGB=", -1, ()),
    ],
)
def test_the_older_key_of_the_backlog_quota_has_its_effect(
    model: type[BrokerConfig] | type[StandaloneConfig], text: str, limit: int, ignored: tuple[str, ...], tmp_path: Path
) -> None:
    file = tmp_path / "broker.conf"
    file.write_text(text)
    loaded = load(model, flags={"metadata": "etcd://h:1"}, environment={}, file=file)
    assert (loaded.config.backlog_quota_default_limit_bytes, loaded.ignored) == (limit, ignored)
