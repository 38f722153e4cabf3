"""docs/configuration.md and docs/cli.md against the models and the commands: they cannot rot unnoticed."""

import re

import pytest

from quire_bookie.cli.main import run
from quire_bookie.config.auto_recovery import AutoRecoveryProcessConfig
from quire_bookie.config.bookie import BookieConfig
from quire_broker.config.broker import BrokerConfig, StandaloneConfig
from quire_broker.config.proxy import ProxyConfig
from scripts.generate_settings import DOCS, SECTIONS, documentation, rows_of

BOOKIE_COMMANDS = (
    *("info", "read-only", "inspect-journal", "inspect-log", "inspect-index"),
    *("ledger", "scrub", "rebuild-index", "format", "undelete"),
)


def test_the_tables_are_those_of_the_declarations() -> None:
    text = DOCS.read_text()
    assert documentation(text) == text, "run `make settings`"


def test_every_setting_of_a_process_has_a_row() -> None:
    rows = [row for section in SECTIONS for row in rows_of(section)]
    for model in (BookieConfig, BrokerConfig, StandaloneConfig, AutoRecoveryProcessConfig, ProxyConfig):
        for name in model.model_fields:
            assert any(row.startswith(f"| `{model.key_of(name)}` | `{name}` |") for row in rows), name


def test_every_command_on_resources_is_described(capsys: pytest.CaptureFixture[str]) -> None:
    described = DOCS.with_name("cli.md").read_text()
    for group in ("topic", "subscription", "namespace", "tenant", "schema", "broker", "profile"):
        assert run([group, "--help"]) == 0
        listed = capsys.readouterr().out.partition("Commands:\n")[2]
        names = re.findall(r"^  ([a-z-]+) ", listed, re.MULTILINE)
        assert len(names) >= 4
        for name in names:
            assert f"quire {group} {name}" in described, f"{group} {name}"


def test_every_command_is_described(capsys: pytest.CaptureFixture[str]) -> None:
    described = DOCS.with_name("cli.md").read_text()
    for command in (
        "standalone",
        "bookie start",
        "broker start",
        "autorecovery",
        "proxy",
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
