"""The password of a broker's ledgers: configured, or stored in the data folder of a standalone."""

from pathlib import Path
from typing import Any

import pytest

from quire_bookie.env.chance import SystemChance
from quire_bookie.errors import ConfigError, StartupError
from quire_broker.cli.ledger_password import configured_password, standalone_password
from quire_broker.config.broker import BrokerConfig, StandaloneConfig


async def drawn(folder: Path, **values: Any) -> bytes:
    return await standalone_password(StandaloneConfig.model_validate(values), str(folder), SystemChance())


async def test_a_standalone_generates_one_password_that_only_its_owner_can_read(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    first = await drawn(tmp_path / "a")
    assert len(first) == 48 and await drawn(tmp_path / "a") == first != await drawn(tmp_path / "b")
    file = tmp_path / "a" / "ledger-password"
    assert file.stat().st_mode & 0o777 == 0o600 and file.read_bytes().strip() == first


async def test_a_configured_password_is_used_and_none_is_generated(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("sesame\n")
    folder = tmp_path / "data"
    folder.mkdir()
    for given in ("sesame", f"file://{tmp_path}/file"):
        assert await drawn(folder, managedLedgerPassword=given) == b"sesame"
        assert await configured_password(BrokerConfig.model_validate({"managedLedgerPassword": given})) == b"sesame"
    assert not list(folder.iterdir())
    assert await configured_password(BrokerConfig.model_validate({})) == b""


async def test_a_password_that_cannot_be_read_ends_the_start(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"managedLedgerPassword: .*/absent cannot be read"):
        await drawn(tmp_path, managedLedgerPassword=f"file://{tmp_path}/absent")
    (tmp_path / "ledger-password").write_bytes(b"\n")
    with pytest.raises(StartupError, match="is empty"):
        await drawn(tmp_path)
