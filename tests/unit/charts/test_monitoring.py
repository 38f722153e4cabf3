"""Dashboards and alerts: every metric that they name is one that a process of ours shows."""

import ast
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from grafana_foundation_sdk.cog import plugins
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models.dashboard import Dashboard

from tests.unit.charts.rendering import CHART, EVERYTHING, ROOT, objects

ROOMS = (
    "bookie/src/quire_bookie/admin",
    "bookie/src/quire_bookie/exposition",
    "broker/src/quire_broker/admin",
    "broker/src/quire_broker/proxy",
    "operator/src/quire_operator/monitoring",
)
METRIC = re.compile(r"^(bookie|bookkeeper|pulsar|quire)_\w+$")
NAMED = re.compile(r"\b((?:bookie|bookkeeper|pulsar|quire|etcd|kube)_\w+)\b")
OF_OTHERS = {
    "etcd_disk_wal_fsync_duration_seconds_bucket",
    "etcd_mvcc_db_total_size_in_bytes",
    "etcd_server_has_leader",
    "etcd_server_leader_changes_seen_total",
    "etcd_server_quota_backend_bytes",
    "kube_cronjob_status_last_successful_time",
}
"""Of etcd (tests/integration/operator asks a real one) and of kube-state-metrics."""


def shown() -> set[str]:
    """Names that our processes show: constants of the rooms that collect metrics, with what histograms add."""
    found = set()
    for room in ROOMS:
        for path in (ROOT / room).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.Constant) and isinstance(node.value, str) and METRIC.match(node.value):
                    found.add(node.value)
    return found | {
        f"{name}_{end}" for name in found if name.endswith("_seconds") for end in ("bucket", "sum", "count")
    }


def alerts() -> list[dict[str, Any]]:
    """All rules."""
    rules = yaml.safe_load((CHART / "files" / "alerts" / "quire.yaml").read_text())
    return [rule for group in rules["groups"] for rule in group["rules"]]


def dashboards() -> list[Path]:
    """Their files."""
    return sorted((CHART / "files" / "dashboards").glob("*.json"))


def expressions() -> Iterator[tuple[str, str]]:
    """Where it stands, and the query."""
    for rule in alerts():
        yield rule["alert"], rule["expr"]
    for path in dashboards():
        board = json.loads(path.read_text())
        for panel in board["panels"]:
            for target in panel.get("targets", ()):
                yield f"{path.name}: {panel['title']}", target["expr"]
        for variable in board["templating"]["list"]:
            if variable["type"] == "query":
                yield f"{path.name}: {variable['name']}", variable["definition"]


def test_every_metric_of_dashboards_and_alerts_exists() -> None:
    known, unknown, named = shown() | OF_OTHERS, [], set()
    for where, expression in expressions():
        names = set(NAMED.findall(expression))
        named |= names
        assert names or expression.startswith("up{"), where
        unknown += [f"{where}: {name}" for name in names - known]
    assert unknown == []
    assert named >= OF_OTHERS, "names of others that nobody uses any more"


def test_the_check_would_see_a_name_that_is_gone() -> None:
    assert "quire_bookie_limbo" in shown()
    assert "quire_bookie_limbos" not in shown()
    assert "quire_operator_reconcile_seconds_bucket" in shown()


@pytest.mark.parametrize("rule", alerts(), ids=lambda rule: str(rule["alert"]))
def test_an_alert_says_how_bad_it_is_and_what_to_do(rule: dict[str, Any]) -> None:
    assert rule["labels"]["severity"] in ("info", "warning", "critical")
    assert set(rule["annotations"]) == {"summary", "action"}
    assert rule["expr"].count("(") == rule["expr"].count(")")
    assert rule["expr"].count("{") == rule["expr"].count("}")


def test_each_alert_has_a_runbook_and_each_runbook_an_alert() -> None:
    text = (ROOT / "docs" / "kubernetes" / "alerts.md").read_text()
    assert re.findall(r"^### (\w+)$", text, flags=re.MULTILINE) == [rule["alert"] for rule in alerts()]
    for section in re.split(r"^### ", text, flags=re.MULTILINE)[1:]:
        for part in ("**Means** ", "**Check** ", "**Do** "):
            assert part in section, section.splitlines()[0]


def test_no_two_alerts_have_a_name_and_no_two_panels_a_place() -> None:
    names = [rule["alert"] for rule in alerts()]
    assert len(set(names)) == len(names)
    for path in dashboards():
        panels = json.loads(path.read_text())["panels"]
        taken: set[tuple[int, int]] = set()
        for panel in panels:
            at = panel["gridPos"]
            cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
            assert at["x"] + at["w"] <= 24 and not cells & taken, (path.name, panel["title"])
            taken |= cells


@pytest.mark.parametrize("path", dashboards(), ids=lambda path: str(path.stem))
def test_grafana_knows_every_field_of_a_dashboard(path: Path) -> None:
    plugins.register_default_plugins()
    board = json.loads(path.read_text())
    understood = json.loads(JSONEncoder().encode(Dashboard.from_json(board)))
    for variable in board["templating"]["list"]:
        variable.pop("definition", None)  # the query as Grafana's editor shows it, which its models leave out
    assert list(_lost(board, understood)) == []


def _lost(given: Any, kept: Any, where: str = "") -> Iterator[str]:
    """Places whose value is missing or another one."""
    if isinstance(given, dict) and isinstance(kept, dict):
        for key, value in given.items():
            yield from _lost(value, kept.get(key), f"{where}.{key}")
    elif isinstance(given, list) and isinstance(kept, list) and len(given) == len(kept):
        for at, (one, other) in enumerate(zip(given, kept, strict=True)):
            yield from _lost(one, other, f"{where}[{at}]")
    elif given != kept:
        yield where


def test_a_field_that_grafana_does_not_know_is_found() -> None:
    plugins.register_default_plugins()
    board = {"title": "t", "panels": [{"type": "timeseries", "fieldConfig": {"defaults": {"unitt": "s"}}}]}
    understood = json.loads(JSONEncoder().encode(Dashboard.from_json(board)))
    assert list(_lost(board, understood)) == [".panels[0].fieldConfig.defaults.unitt"]


def test_the_chart_hands_them_on_unchanged() -> None:
    found = objects(EVERYTHING)
    rules = found["PrometheusRule/quire"]
    assert [rule for group in rules["spec"]["groups"] for rule in group["rules"]] == alerts()
    assert rules["metadata"]["labels"]["release"] == "prometheus"
    for path in dashboards():
        data = found[f"ConfigMap/quire-dashboard-{path.stem}"]["data"]
        assert json.loads(data[path.name]) == json.loads(path.read_text())
