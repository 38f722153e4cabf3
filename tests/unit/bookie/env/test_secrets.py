"""Secrets of the settings, and the files that contain them."""

import os
from pathlib import Path

import pytest

from quire_bookie.env.secret_file import read_secret, secret_text, write_secret
from quire_bookie.errors import ConfigError


async def test_a_secret_is_the_text_or_the_content_of_the_file_that_it_names(tmp_path: Path) -> None:
    (tmp_path / "s").write_bytes(b"sesame\n")
    assert await secret_text("plain", "key") == b"plain"
    assert await secret_text("", "key") == b""
    assert await secret_text(f"file://{tmp_path}/s", "key") == b"sesame"
    assert await secret_text(f"file:{tmp_path}/s", "key") == b"sesame"


async def test_a_file_without_a_secret_is_reported_with_its_key(tmp_path: Path) -> None:
    (tmp_path / "empty").write_bytes(b"\n")
    with pytest.raises(ConfigError, match=r"key: .*/empty is empty"):
        await secret_text(f"file://{tmp_path}/empty", "key")
    with pytest.raises(ConfigError, match=r"key: .*/absent cannot be read: No such file"):
        await secret_text(f"file://{tmp_path}/absent", "key")


async def test_only_its_owner_can_read_a_written_secret(tmp_path: Path) -> None:
    path = tmp_path / "secret"
    (tmp_path / "secret.new").write_bytes(b"of a start that was cut off")
    await write_secret(str(path), b"one")
    await write_secret(str(path), b"two")
    assert path.stat().st_mode & 0o777 == 0o600
    assert await read_secret(str(path)) == b"two"
    assert os.listdir(tmp_path) == ["secret"]
