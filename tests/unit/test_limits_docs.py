"""docs/limits.md against the models: each setting it names exists, and its default is the documented limit."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from quire_bookie.config.bookie import BookieConfig, StorageConfig
from quire_bookie.config.sources import ProcessConfig
from quire_broker.config.broker import BrokerConfig, ServingConfig
from quire_broker.config.proxy import ProxyConfig

TEXT = (Path(__file__).resolve().parents[2] / "docs" / "limits.md").read_text()
MODELS: tuple[type[ProcessConfig], ...] = (BookieConfig, StorageConfig, ServingConfig, BrokerConfig, ProxyConfig)
COMPUTED = {"connectionMemoryMaxMb", "diskUsageLwmThreshold"}
"""Without a fixed default: one follows the machine, one the other threshold."""
SUMS = {"reserve on a disk"}
"""Rows whose limit is a sum of settings that have their own rows."""


def rows() -> Iterator[tuple[str, str, list[str]]]:
    """Yield the object, the limit, and the settings that each row names."""
    keys_at = 0
    for line in TEXT.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")] if line.startswith("|") else []
        if not cells:
            keys_at = 0
        elif cells[:2] == ["object", "limit"]:
            keys_at = cells.index("key")
        elif keys_at and not cells[0].startswith("---"):
            yield cells[0], cells[1], re.findall(r"`(\w+)`", cells[keys_at])


NAMED = [(what, bound, key) for what, bound, keys in rows() for key in keys]


def default_of(key: str) -> object:
    """Return the value of a setting that is not set."""
    for model in MODELS:
        for name, info in model.model_fields.items():
            if model.key_of(name) == key:
                return info.default
    raise AssertionError(f"docs/limits.md names {key}, and no process has such a setting")


def shown(key: str, default: float) -> set[str]:
    """The ways in which the page may write a default."""
    sizes = {"Mb": 1 << 20, "MB": 1 << 20, "Mbytes": 1 << 20}
    times = {"Seconds": 1.0, "Millis": 0.001, "Ms": 0.001, "Minutes": 60.0, "zkTimeout": 0.001}
    found = {f"{default:,.0f}"} if default == int(default) else {f"{default * 100:.0f} %"}
    size = next((default * unit for end, unit in sizes.items() if key.endswith(end)), default)
    found |= {f"{size / unit:g} {name}" for name, unit in (("KiB", 1 << 10), ("MiB", 1 << 20), ("GiB", 1 << 30))}
    seconds = next((default * unit for end, unit in times.items() if key.endswith(end)), None)
    if seconds is not None:
        found = {f"{seconds / unit:g} {name}" for name, unit in (("s", 1), ("min", 60), ("h", 3600))}
    if size > 1 << 20 and size % (1 << 20) == 10 << 10:
        found.add(f"{size >> 20:.0f} MiB + 10 KiB" if isinstance(size, int) else "")
    return found - {""}


def test_the_page_names_the_settings_of_its_tables() -> None:
    assert len(NAMED) > 35, "the tables are read"
    assert {"maxConnections", "connectionMemoryMaxMb", "diskUsageThreshold"} <= {key for _, _, key in NAMED}


@pytest.mark.parametrize(("what", "bound", "key"), NAMED, ids=[f"{key}: {what}"[:80] for what, _, key in NAMED])
def test_a_setting_exists_and_its_default_is_the_bound(what: str, bound: str, key: str) -> None:
    default = default_of(key)
    if key in COMPUTED or what in SUMS:
        return
    assert isinstance(default, int | float), f"{key} has no number by default, but {default!r}"
    ways = shown(key, default)
    assert any(re.search(rf"(?<![\d.,]){re.escape(way)}(?![\d.,]*\d)", bound) for way in ways), (
        f"{key} is {default} by default ({', '.join(sorted(ways))}); docs/limits.md says {bound!r}"
    )
