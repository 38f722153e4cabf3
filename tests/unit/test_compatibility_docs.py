"""The list of Pulsar's features in docs/compatibility.md: its form, and the settings and routes that it names."""

import re
from pathlib import Path
from typing import Any

import pytest

from quire_bookie.config.files import parse_file
from quire_broker.admin.namespaces import STORED_POLICIES
from quire_broker.admin.openapi import document
from quire_broker.admin.web import all_routes
from quire_broker.config.broker import BrokerConfig
from quire_broker.config.without_effect import BROKER_REASONS
from quire_broker.policies.of_topics import PATHS
from quire_broker.policies.unserved import UNSERVED

ROOT = Path(__file__).parents[2]
STOCK = set(parse_file(ROOT / "tests" / "golden" / "pulsar-settings" / "broker-defaults.conf"))
"""The keys of stock brokers."""
OURS = {info.alias or name for name, info in BrokerConfig.model_fields.items()}
POLICIES = {*STORED_POLICIES, *PATHS, *UNSERVED}
VERDICTS = ("served", "different", "not served")
EXPECTED = (
    *("Non-persistent", "compaction", "Shadow topics", "Topic policies", "Batches, chunks", "Deduplication"),
    *("Delayed messages", "Transactions", "Key_Shared", "Dead letter", "Replicated subscriptions", "entry filters"),
    *(
        "entry metadata",
        "compatibility strategies",
        "Resource groups",
        "OAuth2",
        "Kerberos",
        "Geo-replication",
        "Tiered storage",
    ),
    *("WebSocket", "Functions", "Protocol handlers", "OpenTelemetry", "Proxy", "isolation"),
)


def rows() -> list[tuple[str, str, str]]:
    """Return the rows of the table: feature, verdict and text."""
    text = (ROOT / "docs" / "compatibility.md").read_text()
    table = text.partition("## Features")[2].partition("\n### ")[0]
    found = []
    for line in table.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if len(cells) == 3 and cells[1] and cells[0] != "feature" and not cells[0].startswith("-"):
            found.append((cells[0], cells[1], cells[2]))
    return found


ROWS = rows()


@pytest.mark.parametrize("feature", EXPECTED)
def test_a_feature_of_pulsar_is_listed(feature: str) -> None:
    assert [one for one in ROWS if feature in one[0]] or f"**{feature}**" in (
        ROOT / "docs/compatibility.md"
    ).read_text()


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0])
def test_a_row_has_a_verdict_and_a_reason(row: tuple[str, str, str]) -> None:
    feature, verdict, text = row
    assert verdict in VERDICTS, feature
    assert verdict == "served" or text, f"{feature}: say why"


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0])
def test_a_setting_that_is_named_exists(row: tuple[str, str, str]) -> None:
    feature, _, text = row
    for name in re.findall(r"`(\w+)`", f"{feature} {text}"):
        if name in STOCK and name not in POLICIES:
            assert name in OURS, f"{name}: {BROKER_REASONS.why(name)}"
        elif re.fullmatch(r"[a-z]+(?:[A-Z][A-Za-z]+){2,}", name):
            assert name in OURS | POLICIES | {"maxDeliveryDelayInMillis"}, f"{feature} names {name}"


@pytest.fixture(scope="module")
def paths() -> dict[str, Any]:
    """The described paths of brokers."""
    found: dict[str, Any] = document(all_routes())["paths"]
    return found


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0])
def test_a_route_that_is_named_exists(row: tuple[str, str, str], paths: dict[str, Any]) -> None:
    for method, path in re.findall(r"`(GET|PUT|POST|DELETE) (/\S+)`", row[2]):
        assert method.lower() in paths[path]
