"""Small files with secrets: reads them again each time, as a rotation may replace them; writes them for one owner."""

import asyncio
import contextlib
import os
from pathlib import Path

from quire_bookie.env.durable import sync_all, sync_path
from quire_bookie.errors import ConfigError

_FILE = "file:"
_OWNER_ONLY = 0o600


async def read_secret(path: str) -> bytes:
    """Return the content without surrounding white space. OSError."""
    return (await asyncio.to_thread(Path(path).read_bytes)).strip()


async def secret_text(value: str, key: str) -> bytes:
    """Return a secret of the settings: its text, or the content, stripped, of the file that a `file:` URL names.

    ConfigError if the file is empty or unreadable. `key` names the setting.
    """
    if not value.startswith(_FILE):
        return value.encode()
    path = value.removeprefix(_FILE)
    path = path.removeprefix("//") if path.startswith("//") else path
    try:
        found = await read_secret(path)
    except OSError as error:
        raise ConfigError(f"{key}: {path} cannot be read: {error.strerror}") from error
    if not found:
        raise ConfigError(f"{key}: {path} is empty; write the secret into it, or remove the setting")
    return found


async def write_secret(path: str, content: bytes) -> None:
    """Create or replace a durable file that only its owner can read. OSError."""
    await asyncio.to_thread(_write, path, content)


def _write(path: str, content: bytes) -> None:
    temporary = f"{path}.new"
    with contextlib.suppress(FileNotFoundError):
        os.unlink(temporary)  # left by an interrupted start; its mode may differ
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, _OWNER_ONLY)
    with open(fd, "wb") as file:
        file.write(content)
        file.flush()
        sync_all(fd)
    os.replace(temporary, path)
    sync_path(os.path.dirname(path))


class SecretFiles:
    """Reads files with keys, for callers without a Disk."""

    async def exists(self, path: str) -> bool:
        """Return whether the file exists."""
        return await asyncio.to_thread(Path(path).is_file)

    async def read_file(self, path: str) -> bytes:
        """Return the unmodified content. OSError."""
        return await asyncio.to_thread(Path(path).read_bytes)
