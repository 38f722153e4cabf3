"""Scrapes of /metrics, parsed by Prometheus' own parsers in both formats."""

from collections.abc import Callable, Iterable

from prometheus_client import parser
from prometheus_client.metrics_core import Metric
from prometheus_client.openmetrics import parser as openmetrics_parser

CLASSIC = "text/plain; version=0.0.4; charset=utf-8"
OPENMETRICS = "application/openmetrics-text"
ACCEPT_OPENMETRICS = "application/openmetrics-text;version=1.0.0;q=0.5,text/plain;version=0.0.4;q=0.2,*/*;q=0.1"
"""As a Prometheus server asks."""
_openmetrics_families: Callable[[str], Iterable[Metric]] = openmetrics_parser.text_string_to_metric_families


def series(text: str) -> set[str]:
    """Return the samples without their values. Both formats write names and labels alike."""
    return {line.rpartition(" ")[0] for line in text.splitlines() if not line.startswith("#")}


def check_formats(classic: str, openmetrics: str) -> dict[str, Metric]:
    """Check two scrapes of one process: help and type of each family, and the same series. Return the classic families.

    Only a counter whose published name lacks `_total` may have no type in OpenMetrics.
    """
    found = {family.name: family for family in parser.text_string_to_metric_families(classic)}
    typed = {family.name: family for family in _openmetrics_families(openmetrics)}
    assert found.keys() == typed.keys()
    for name, family in found.items():
        assert family.documentation and family.type != "unknown", name
        assert family.documentation == typed[name].documentation, name
        assert f"# HELP {name}" in classic and f"# TYPE {name}" in classic
        untyped = family.type == "counter" and f"# TYPE {name} counter\n" in classic
        assert typed[name].type == ("unknown" if untyped else family.type), name
    assert series(classic) == series(openmetrics)
    return found
