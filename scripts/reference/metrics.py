"""The metrics of every process: name, type and help, read from the sources of the collectors.

A collector builds its metrics from literals: a tuple or a call names the metric and, right behind, its help text, or a
variable with the text. The type stands beside the name or in the call that adds the metric. An integration test
compares the table with what a standalone shows.
"""

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from scripts.reference.tables import GENERATED, table

ROOT = Path(__file__).resolve().parents[2]
_SHARED = ("exposition/rendering.py", "exposition/loop_stalls.py", "exposition/connection_memory.py")
PARTS = {
    "Bookie": ("admin/bookie_collector.py", "admin/names.py", "admin/security_metrics.py"),
    "Auto-recovery": ("admin/recovery_collector.py",),
    "Broker": ("admin/broker_collector.py",),
    "Namespaces and topics of a broker": ("admin/topic_families.py",),
    "WebSocket sessions of a broker": ("admin/websocket_collector.py",),
    "Proxy": ("proxy/collector.py",),
    "Every process but the operator": _SHARED,
    "Every process with traces": ("exposition/spans.py",),
    "Operator": ("monitoring/measurements.py", "monitoring/web.py"),
}
_MEMBERS = ("bookie/src/quire_bookie", "broker/src/quire_broker", "operator/src/quire_operator")
_NAME = re.compile(r"(bookie|bookkeeper|pulsar|quire)_\w+_?\w+")
_TYPES = {
    "add_histogram": "histogram",
    "add_window": "summary",
    "GaugeMetricFamily": "gauge",
    "_gauges": "gauge",
    "CounterMetricFamily": "counter",
    "HistogramMetricFamily": "histogram",
}
_INTRODUCTION = """
What `/metrics` of each process shows: on the HTTP port of a bookie, a broker, a proxy, auto-recovery or the
operator. A standalone shows those of its bookies too. [The manual](../cli.md#metrics) explains namespaces and
topics, [alerts](../kubernetes/alerts.md) which of them matter.
"""


class MetricRow(NamedTuple):
    """A metric as the table shows it."""

    name: str
    type: str
    text: str


def page() -> str:
    """Return the page."""
    lines = ["# Reference of the metrics", GENERATED, _INTRODUCTION]
    for title in PARTS:
        rows = ((f"`{row.name}`", row.type, row.text) for row in rows_of(title))
        lines += [f"## {title}", "", *table(("name", "type", "help"), rows), ""]
    return "\n".join(lines)


def rows_of(title: str) -> list[MetricRow]:
    """Return the metrics of a part, in the order of the source. ValueError for one without a text or a type."""
    found: dict[str, MetricRow] = {}
    for name in PARTS[title]:
        path = next(one for member in _MEMBERS if (one := ROOT / member / name).exists())
        for row in _Module(ast.parse(path.read_text()), path.name).rows():
            found.setdefault(row.name, row)
    return list(found.values())


class _Module:
    """The literals of one module."""

    def __init__(self, tree: ast.Module, name: str) -> None:
        self._name = name
        self._nodes = sorted(
            (node for node in ast.walk(tree) if isinstance(node, ast.expr | ast.Assign)),
            key=lambda node: (node.lineno, node.col_offset),
        )
        self._assigned: dict[str, list[tuple[int, str | None]]] = {}
        """By variable: line and text of each assignment in order; None: a loop assigns it."""
        loops = (node for node in ast.walk(tree) if isinstance(node, ast.For))
        found: list[tuple[int, str, str | None]] = [
            (node.lineno, name.id, None)
            for node in loops
            for name in ast.walk(node.target)
            if isinstance(name, ast.Name)
        ]
        for assign in (node for node in self._nodes if isinstance(node, ast.Assign)):
            found += [(assign.lineno, name, _text(value)) for name, value in _pairs(assign.targets[0], assign.value)]
        for line, name, text in sorted(found, key=lambda one: one[0]):
            self._assigned.setdefault(name, []).append((line, text))

    def rows(self) -> Iterator[MetricRow]:
        """Yield a row for each literal name, where its help stands beside it."""
        for node in self._nodes:
            match node:
                case ast.Tuple(ctx=ast.Load()):
                    yield from self._of_parts(node, node.elts, "")
                case ast.Call():
                    parts = [*node.args, *(keyword.value for keyword in node.keywords)]
                    yield from self._of_parts(node, parts, _TYPES.get(_called(node), ""))

    def _of_parts(self, node: ast.expr, parts: list[ast.expr], kind: str) -> Iterator[MetricRow]:
        texts = [self._value(part) for part in parts]
        names = [text for text in texts if text is not None and _NAME.fullmatch(text)]
        others = [text for text in texts if text is not None and text not in names]
        helps = [text for text in others if text not in ("counter", "gauge") and (" " in text or len(others) == 1)]
        if not names or not (helps or others):
            return
        kinds = [text for text in others if text in ("counter", "gauge")]
        text = helps[0] if helps else next((one for one in others if one not in kinds), "")
        if not text:
            return
        if isinstance(node, ast.Tuple) and len(names) == 2:  # BookKeeper's summary, and the histogram beside it
            yield MetricRow(names[0], "summary", f"{text}, in ms")
            yield MetricRow(names[1], "histogram", text)
            return
        kind = kind or (kinds[0] if kinds else self._added_after(node))
        for name in names:
            yield MetricRow(name, kind, text)

    def _value(self, node: ast.expr) -> str | None:
        if isinstance(node, ast.Name):
            before = [text for line, text in self._assigned.get(node.id, ()) if line < node.lineno]
            return before[-1] if before else None
        return _text(node)

    def _added_after(self, node: ast.expr) -> str:
        """Return the type in the next call that adds metrics; of a name in a call, the call itself."""
        for later in self._nodes:
            if isinstance(later, ast.Call) and (later.lineno, later.col_offset) >= (node.lineno, node.col_offset):
                if kind := _TYPES.get(_called(later)):
                    return kind
                if _called(later) in ("add", "pieces", "numbers"):
                    kinds = [text for part in later.args if (text := _text(part)) in ("counter", "gauge")]
                    if kinds:
                        return str(kinds[0])
        raise ValueError(f"{self._name}:{node.lineno}: no call says whether it is a counter or a gauge")


def _pairs(target: ast.expr, value: ast.expr) -> Iterator[tuple[str, ast.expr]]:
    if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
        for one, part in zip(target.elts, value.elts, strict=True):
            yield from _pairs(one, part)
    elif isinstance(target, ast.Name):
        yield target.id, value


def _text(node: ast.expr) -> str | None:
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else None


def _called(node: ast.Call) -> str:
    return (
        node.func.attr
        if isinstance(node.func, ast.Attribute)
        else node.func.id
        if isinstance(node.func, ast.Name)
        else ""
    )
