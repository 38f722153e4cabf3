"""Write what follows from the declarations of the settings: `make settings`.

    docs/configuration.md       the tables
    the operator's list of keys of bookies and brokers, which it cannot import

Unit tests fail while a file differs.
"""

import json
import re
from pathlib import Path

from quire_bookie.config.auto_recovery import AutoRecoveryProcessConfig
from quire_bookie.config.bookie import BookieConfig, StorageConfig
from quire_bookie.config.bookie_security import BookieSecurityConfig
from quire_bookie.config.client_security import ClientSecurityConfig
from quire_bookie.config.connections import ConnectionMemoryConfig
from quire_bookie.config.http_server import HttpAccessConfig, HttpServerConfig
from quire_bookie.config.ledger_client import LedgerClientConfig
from quire_bookie.config.metadata_access import MetadataAccessConfig
from quire_bookie.config.recovery import AutoRecoveryConfig
from quire_bookie.config.roles import RolesConfig
from quire_bookie.config.sources import ProcessConfig
from quire_broker.config.access import ClientAccessConfig
from quire_broker.config.broker import BrokerConfig, ServingConfig, StandaloneConfig
from quire_broker.config.proxy import ProxyConfig
from quire_broker.config.security import BrokerSecurityConfig

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs" / "configuration.md"
KNOWN = ROOT / "operator" / "src" / "quire_operator" / "generated" / "known_settings.py"
WIDTH = 118
KNOWN_HEAD = '"""Keys that the processes know. Written by scripts/generate_settings.py from their own models."""\n'
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
    "Client access": ClientAccessConfig,
    "Broker security": BrokerSecurityConfig,
    "Broker": BrokerConfig,
    "Proxy": ProxyConfig,
}
"""Sections of the page. A setting that several kinds of process share is in one of them."""
_SHARED = (
    *(StorageConfig, ServingConfig, BookieSecurityConfig, ClientSecurityConfig, AutoRecoveryConfig),
    *(LedgerClientConfig, MetadataAccessConfig, BrokerSecurityConfig, HttpServerConfig),
)
_PARTS = (ConnectionMemoryConfig, HttpAccessConfig, ClientAccessConfig, RolesConfig)
"""Parts of shared models, with sections of their own."""


def keys_of(model: type[ProcessConfig]) -> list[str]:
    """Return the keys of a model, in order."""
    return [model.key_of(name) for name in model.model_fields]


def rows_of(section: str) -> list[str]:
    """Return the rows of the table of a section."""
    model = SECTIONS[section]
    without: set[str] = set()
    if model in (*_SHARED, *_PARTS):
        without = {key for part in _PARTS if part is not model and issubclass(model, part) for key in keys_of(part)}
    else:
        without = {key for shared in _SHARED for key in keys_of(shared)}
    return [
        f"| `{model.key_of(name)}` | `{name}` | `{json.dumps(info.default)}` | {info.description} |"
        for name, info in model.model_fields.items()
        if model.key_of(name) not in without
    ]


def documentation(text: str) -> str:
    """Return the page with the rows of its tables replaced."""
    for section in SECTIONS:
        head, found, rest = text.partition(f"\n## {section}\n")
        assert found, f"{DOCS.name} has no section {section}"
        table = re.compile(r"(?<=\|---\|---\|---\|---\|\n)(\| `.*\n)*")
        begin, end = next(match.span() for match in table.finditer(rest))
        text = head + found + rest[:begin] + "".join(f"{row}\n" for row in rows_of(section)) + rest[end:]
    return text


def known_settings() -> str:
    """Return the operator's module of known keys."""
    parts = [
        f"{name} = frozenset(\n    (\n{_keys_of(model)}\n    )\n)\n"
        for name, model in (("BOOKIE_KEYS", BookieConfig), ("BROKER_KEYS", BrokerConfig), ("PROXY_KEYS", ProxyConfig))
    ]
    return KNOWN_HEAD + "\n" + "\n".join(parts)


def _keys_of(model: type[ProcessConfig]) -> str:
    """Return the keys in lines, each as full as possible."""
    lines: list[list[str]] = [[]]
    for key in sorted(keys_of(model)):
        if lines[-1] and len(_line_of([*lines[-1], key])) > WIDTH:
            lines.append([])
        lines[-1].append(key)
    return "\n".join(map(_line_of, lines))


def _line_of(keys: list[str]) -> str:
    comma = "," if len(keys) == 1 else ""
    return "        *(" + ", ".join(f'"{key}"' for key in keys) + f"{comma}),"


if __name__ == "__main__":
    DOCS.write_text(documentation(DOCS.read_text()))
    KNOWN.write_text(known_settings())
