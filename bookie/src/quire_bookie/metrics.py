"""Metrics: one reading, and readings as Prometheus text. Names and values are made by whoever owns the counters.

Bookies and brokers both render through `render`; nothing is registered and nothing is kept between two scrapes.
Text format: https://prometheus.io/docs/instrumenting/exposition_formats/, version 0.0.4.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
Kind = Literal["counter", "gauge"]


@dataclass(frozen=True, slots=True)
class Reading:
    """One value at this moment. Readings of one name share kind and text; units are in the name or the text."""

    name: str
    kind: Kind
    text: str
    value: float
    labels: Mapping[str, str] = field(default_factory=dict)


def of_stats(
    stats: object, names: Mapping[str, tuple[str, Kind, str]], labels: Mapping[str, str] | None = None
) -> list[Reading]:
    """Readings of a Stats dataclass: `names` maps its attributes to name, kind and text."""
    return [
        Reading(name, kind, text, getattr(stats, attribute), labels or {})
        for attribute, (name, kind, text) in names.items()
    ]


def render(readings: Iterable[Reading]) -> str:
    """Prometheus text. Readings of one name are put together, in the order in which names first came."""
    families: dict[str, list[Reading]] = {}
    for reading in readings:
        families.setdefault(reading.name, []).append(reading)
    lines: list[str] = []
    for name, members in families.items():
        lines.append(f"# HELP {name} {_escaped(members[0].text, quotes=False)}")
        lines.append(f"# TYPE {name} {members[0].kind}")
        lines.extend(f"{name}{_labels(reading.labels)} {reading.value!r}" for reading in members)
    return "\n".join(lines) + "\n"


def _labels(labels: Mapping[str, str]) -> str:
    if not labels:
        return ""
    return "{" + ",".join(f'{name}="{_escaped(value)}"' for name, value in labels.items()) + "}"


def _escaped(value: str, *, quotes: bool = True) -> str:
    text = value.replace("\\", "\\\\").replace("\n", "\\n")
    return text.replace('"', '\\"') if quotes else text
