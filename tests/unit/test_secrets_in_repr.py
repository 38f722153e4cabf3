"""No `repr` shows a password, a key or a token: it ends up in logs, error messages and answers."""

import dataclasses
import importlib
import pkgutil
import re
from collections.abc import Iterator
from typing import Any

from quire_bookie.config.auto_recovery import AutoRecoveryProcessConfig
from quire_bookie.config.bookie import BookieConfig
from quire_bookie.config.sources import SECRET, ProcessConfig
from quire_bookie.model import LedgerMetadata
from quire_bookie.wire.messages import AddRequest
from quire_broker.config.broker import BrokerConfig, StandaloneConfig

SECRET_NAME = re.compile(r"(^|_)(password|passwd|master_key|fence_key|secret|secret_key|private_key|token|access_key)$")
NO_SECRET = {("_Piece", "key")}
"""Keys of the block index."""


def dataclasses_of_the_product() -> Iterator[type[Any]]:
    """Every dataclass of the four distributions."""
    for package in ("quire_bookie", "quire_broker", "quire_operator", "quire_jobs"):
        root = importlib.import_module(package)
        for found in pkgutil.walk_packages(root.__path__, f"{package}."):
            if found.name.endswith(("_pb2", "__main__")):
                continue
            module = importlib.import_module(found.name)
            for kind in vars(module).values():
                if isinstance(kind, type) and kind.__module__ == found.name and dataclasses.is_dataclass(kind):
                    yield kind


def is_secret(kind: type[Any], field: "dataclasses.Field[Any]") -> bool:
    """By name, and a type that can hold one: text or bytes. Others hold paths, counters or settings with fields."""
    types = set(re.findall(r"\w+", str(field.type)))
    if (kind.__name__, field.name) in NO_SECRET or not types & {"str", "bytes"}:
        return False
    return SECRET_NAME.search(field.name) is not None or (field.name == "key" and "bytes" in types)


def test_no_dataclass_shows_a_secret() -> None:
    fields = [(kind, field) for kind in dataclasses_of_the_product() for field in dataclasses.fields(kind)]
    secrets = [(kind, field) for kind, field in fields if is_secret(kind, field)]
    names = {f"{kind.__name__}.{field.name}" for kind, field in secrets}
    assert {"LedgerMetadata.password", "AddRequest.master_key", "LedgerHandle.master_key", "Pair.key"} <= names
    assert [f"{kind.__module__}.{kind.__name__}.{field.name}" for kind, field in secrets if field.repr] == []


def test_the_text_of_a_ledger_and_of_a_request_holds_no_key() -> None:
    ledger = LedgerMetadata(1, 1, 1, (), password=b"s3cr3t")
    assert "s3cr3t" not in f"{ledger} {ledger!r}"
    given: dict[str, Any] = {field.name: None for field in dataclasses.fields(AddRequest)} | {"master_key": b"s3cr3t"}
    assert "s3cr3t" not in repr(AddRequest(**given))


def test_settings_show_that_a_secret_is_set_and_nothing_more() -> None:
    for kind in (BookieConfig, AutoRecoveryProcessConfig, BrokerConfig, StandaloneConfig):
        config: ProcessConfig = kind.model_construct()
        secrets: dict[str, Any] = {
            name: "s3cr3t" for name, info in kind.model_fields.items() if info.json_schema_extra == SECRET
        }
        assert len(secrets) >= 2, kind
        filled = kind.model_construct(**secrets)
        assert "s3cr3t" not in f"{filled!r} {filled}"
        assert repr(filled).count("(set, not shown)") == len(secrets)
        assert "not shown" not in repr(config)
