"""docs/configuration.md and docs/cli.md against the models and the commands: they cannot rot unnoticed."""

import json
import re
from pathlib import Path

import pytest

from quire_bookie.cli.main import run
from quire_bookie.config import BookieConfig, ProcessConfig
from quire_bookie.config.auto_recovery import AutoRecoveryProcessConfig
from quire_bookie.config.bookie import StorageConfig
from quire_bookie.config.bookie_security import BookieSecurityConfig
from quire_bookie.config.client_security import ClientSecurityConfig
from quire_bookie.config.connections import ConnectionMemoryConfig
from quire_bookie.config.http_server import HttpAccessConfig, HttpServerConfig
from quire_bookie.config.ledger_client import LedgerClientConfig
from quire_bookie.config.metadata_access import MetadataAccessConfig
from quire_bookie.config.recovery import AutoRecoveryConfig
from quire_bookie.config.roles import RolesConfig
from quire_broker.config.broker import BrokerConfig, ServingConfig, StandaloneConfig
from quire_broker.config.security import BrokerSecurityConfig

DOCS = Path(__file__).resolve().parents[2] / "docs"
TEXT = (DOCS / "configuration.md").read_text()
SECTIONS: dict[str, type[ProcessConfig]] = {
    "Journal and storage": StorageConfig,
    "Memory of connections": ConnectionMemoryConfig,
    "Topics and clients": ServingConfig,
    "Standalone": StandaloneConfig,
    "Bookie": BookieConfig,
    "Auto-recovery": AutoRecoveryConfig,
    "Auto-recovery process": AutoRecoveryProcessConfig,
    "Ledger client": LedgerClientConfig,
    "Metadata access": MetadataAccessConfig,
    "HTTP access": HttpAccessConfig,
    "HTTP over TLS": HttpServerConfig,
    "Roles of clients": RolesConfig,
    "Bookie security": BookieSecurityConfig,
    "Secured bookies": ClientSecurityConfig,
    "Broker security": BrokerSecurityConfig,
    "Broker": BrokerConfig,
}


BOOKIE_COMMANDS = (
    *("info", "read-only", "inspect-journal", "inspect-log", "inspect-index"),
    *("ledger", "scrub", "rebuild-index", "format", "undelete"),
)


def rows_of(model: type[ProcessConfig], without: set[str]) -> list[str]:
    """The table's rows, as they must stand in the document."""
    return [
        f"| `{model.key_of(name)}` | `{name}` | `{json.dumps(info.default)}` | {info.description} |"
        for name, info in model.model_fields.items()
        if name not in without
    ]


def expected_rows(section: str) -> list[str]:
    """Shared settings stand once, in the sections of what shares them."""
    shared_models = (
        *(StorageConfig, ServingConfig, BookieSecurityConfig, ClientSecurityConfig, AutoRecoveryConfig),
        *(LedgerClientConfig, MetadataAccessConfig, BrokerSecurityConfig, HttpServerConfig),
    )
    shared = {name for model in shared_models for name in model.model_fields}
    model = SECTIONS[section]
    parts = (ConnectionMemoryConfig, HttpAccessConfig, RolesConfig)
    """In models that share more: each has a section of its own."""
    if model in parts:
        return rows_of(model, set())
    in_parts = {name for part in parts if issubclass(model, part) for name in part.model_fields}
    return rows_of(model, in_parts if model in shared_models else shared)


@pytest.mark.parametrize("section", SECTIONS)
def test_every_setting_is_described_as_the_model_has_it(section: str) -> None:
    body = re.split(r"^## ", TEXT.split(f"\n## {section}\n")[1], flags=re.MULTILINE)[0]
    rows = [line for line in body.splitlines() if line.startswith("| `")]
    assert rows == expected_rows(section)


def test_every_command_is_described(capsys: pytest.CaptureFixture[str]) -> None:
    described = (DOCS / "cli.md").read_text()
    for command in (
        "standalone",
        "bookie start",
        "broker start",
        "autorecovery",
        "produce",
        "consume",
        "topic list",
        "config show",
    ):
        assert f"quire {command}" in described
        assert run([*command.split(), "--help"]) == 0
        for flag in re.findall(r"--[a-z][a-z-]+", capsys.readouterr().out):
            assert flag in described or flag == "--help", f"{command} {flag}"
    for command in BOOKIE_COMMANDS:
        assert f"`{command}" in described or f"bookie {command}" in described, command
        assert run(["bookie", command, "--help"]) == 0
    for command in ("ledger list", "ledger info", "ledger read"):
        assert f"quire {command}" in described
        assert run([*command.split(), "--help"]) == 0
