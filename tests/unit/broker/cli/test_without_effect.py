"""Keys of stock brokers and proxies: each is a setting here, or has a reason why it has no effect."""

import logging
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from quire_bookie.cli.main import run
from quire_bookie.config.files import parse_file
from quire_bookie.config.sources import NO_EFFECT, ProcessConfig, load
from quire_bookie.settings.declared import settings_of
from quire_broker.config.broker import BrokerConfig, StandaloneConfig
from quire_broker.config.proxy import ProxyConfig

ROOT = Path(__file__).parents[4]
GOLDEN = ROOT / "tests" / "golden" / "pulsar-settings"


def _words(text: str) -> list[str]:
    return text.split()


OF_BROKER_FILES = _words("""
athenzDomainNames basicAuthConf bookkeeper_tlsHostnameVerificationEnabled fileSystemProfilePath fileSystemURI
gcsManagedLedgerOffloadBucket gcsManagedLedgerOffloadMaxBlockSizeInBytes gcsManagedLedgerOffloadReadBufferSizeInBytes
gcsManagedLedgerOffloadRegion gcsManagedLedgerOffloadServiceAccountKeyFile managedLedgerOffloadBucket
maxMessageSizeCheckIntervalInSeconds preciseTopicPublishRateLimiterEnable s3ManagedLedgerOffloadBucket
s3ManagedLedgerOffloadMaxBlockSizeInBytes s3ManagedLedgerOffloadReadBufferSizeInBytes s3ManagedLedgerOffloadRegion
s3ManagedLedgerOffloadServiceEndpoint tokenAudience tokenAudienceClaim tokenAuthClaim tokenPublicKey tokenSecretKey
""")
"""Keys of broker.conf that providers and drivers read, not ServiceConfiguration."""
OF_STANDALONE_FILES = [
    *OF_BROKER_FILES,
    *_words("""
ledgerStorageClass nettyMaxFrameSizeBytes dbStorage_writeCacheMaxSizeMb dbStorage_readAheadCacheMaxSizeMb
dbStorage_readAheadCacheBatchSize flushInterval dbStorage_rocksDB_blockCacheSize dbStorage_rocksDB_writeBufferSizeMB
dbStorage_rocksDB_sstSizeInMB dbStorage_rocksDB_blockSize dbStorage_rocksDB_bloomFilterBitsPerKey
dbStorage_rocksDB_numLevels dbStorage_rocksDB_numFilesInLevel0 dbStorage_rocksDB_maxSizeInLevel1MB bookieId
journalMaxGroupWaitMSec journalSyncData diskUsageThreshold diskUsageWarnThreshold allowLoopback gcWaitTime
"""),
]
"""The same of standalone.conf, with the keys of its bookie."""
OF_PROXY_FILES = _words("""
basicAuthConf tokenAudience tokenAudienceClaim tokenAuthClaim tokenPublicKey tokenSecretKey metricsBufferResponse
""")


@dataclass(frozen=True)
class Stock:
    """A file of a stock process with all its keys, and our process that reads it."""

    model: type[ProcessConfig]
    defaults: str
    further: list[str]
    flags: dict[str, Any]

    @property
    def values(self) -> dict[str, str]:
        """The keys with stock's defaults."""
        return dict.fromkeys(self.further, "") | parse_file(GOLDEN / self.defaults)

    def why(self, key: str) -> str:
        """The line that the start logs about a key; empty if there is none."""
        lines, _ = self.model.without_effect([key])
        return lines[0] if lines else ""


STOCK = {
    "broker.conf": Stock(BrokerConfig, "broker-defaults.conf", OF_BROKER_FILES, {"metadata": "etcd://h:1"}),
    "standalone.conf": Stock(
        StandaloneConfig,
        "broker-defaults.conf",
        OF_STANDALONE_FILES,
        {"ensemble_size": 1, "write_quorum": 1, "ack_quorum": 1},
    ),
    "proxy.conf": Stock(ProxyConfig, "proxy-defaults.conf", OF_PROXY_FILES, {"metadata": "etcd://h:1"}),
}
every_file = pytest.mark.parametrize("name", STOCK)


@every_file
def test_each_key_of_a_stock_file_is_a_setting_or_has_a_reason(name: str) -> None:
    stock = STOCK[name]
    assert len(stock.values) > 100
    assert [key for key in stock.values if stock.model.field_of(key) is None and not stock.why(key)] == []


@every_file
def test_a_reason_is_a_sentence_of_one_line(name: str) -> None:
    stock = STOCK[name]
    lines, unknown = stock.model.without_effect(key for key in stock.values if stock.model.field_of(key) is None)
    assert not unknown
    for line in lines:
        assert line.startswith("no effect: ") and "\n" not in line and not line.endswith(".")


@every_file
def test_a_file_with_all_keys_and_defaults_of_stock_is_read(name: str, tmp_path: Path) -> None:
    stock = STOCK[name]
    file = tmp_path / name
    file.write_text("".join(f"{key}={value}\n" for key, value in stock.values.items()))
    loaded = load(stock.model, flags=stock.flags, environment={}, file=file)
    given = {key for key, value in stock.values.items() if value}
    ours = {key for key in given if stock.model.field_of(key) is not None}
    assert {key for key, _, origin, _ in loaded.rows() if origin.startswith("file")} >= ours - {
        stock.model.key_of(flag) for flag in stock.flags
    }
    assert set(loaded.ignored) == given - ours


@every_file
def test_a_setting_with_a_name_of_stock_is_read_by_the_code(name: str) -> None:
    stock = STOCK[name]
    sources = "".join(path.read_text() for part in ("bookie", "broker") for path in (ROOT / part / "src").rglob("*.py"))
    read = set(re.findall(r"\.(\w+)", sources))
    declared = {
        one.short: field for each in stock.model._settings_classes() for field, one in settings_of(each).items()
    }
    fields = [field for key in stock.values if (field := stock.model.field_of(key)) is not None]
    assert len(fields) > 30
    unread = {field for field in fields if declared.get(field, field) not in read}
    assert [field for field in unread if not is_reported(stock.model, field)] == []


def is_reported(model: type[ProcessConfig], field: str) -> bool:
    """Whether the start reports that the setting has no effect."""
    extra = model.model_fields[field].json_schema_extra
    return isinstance(extra, dict) and NO_EFFECT in extra


def test_settings_without_effect_that_are_given_are_reported() -> None:
    given = BrokerConfig(metadata="etcd://h:1", bookkeeperTLSTrustStorePasswordPath="/hidden")
    assert given.doubts == [
        "bookkeeperTLSTrustStorePasswordPath has no effect: trusted certificates in PEM have no password"
    ]
    assert BrokerConfig(metadata="etcd://h:1").doubts == []


@pytest.mark.parametrize(
    ("name", "key", "port"),
    [
        ("broker.conf", "brokerServicePort", lambda found: found.broker_port),
        ("standalone.conf", "webServicePort", lambda found: found.http_port),
        ("proxy.conf", "servicePort", lambda found: found.port),
    ],
)
def test_a_port_without_a_value_is_closed_as_on_stock(
    name: str, key: str, port: Callable[[Any], int | None], tmp_path: Path
) -> None:
    stock = STOCK[name]
    file = tmp_path / name
    tls = "servicePortTls" if stock.model is ProxyConfig else "brokerServicePortTls"
    file.write_text(f"{key}=\n{tls}=6651\ntlsCertificateFilePath=c\ntlsKeyFilePath=k\ntokenAuthClaim=\n")
    config: Any = load(stock.model, flags=stock.flags, environment={}, file=file).config
    assert port(config) is None
    assert config.token_auth_claim == "sub"


def test_keys_are_reported_by_reason_and_others_as_unknown() -> None:
    lines, unknown = BrokerConfig.without_effect(
        ["webSocketNumIoThreads", "ourOwn", "numIOThreads", "webSocketServiceEnabled"]
    )
    assert unknown == ["ourOwn"]
    assert [line.split(": ")[1] for line in lines] == ["webSocketNumIoThreads, webSocketServiceEnabled", "numIOThreads"]


@pytest.mark.parametrize("command", [["broker", "start"], ["standalone"], ["proxy"]])
def test_the_start_reports_each_key_of_a_file_once_and_no_value(
    command: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def service(_config: object, _stop: object) -> int:
        return 0

    for name in ("serving.serve_broker", "serving.serve_standalone", "serve_proxy.serve"):
        monkeypatch.setattr(f"quire_broker.cli.{name}", service)
    file = tmp_path / "broker.conf"
    file.write_text(
        "tlsKeyStorePassword=hidden\nzookeeperServers=zk:2181\nmine=1\nauthenticationRefreshCheckSeconds=7\n"
    )
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
