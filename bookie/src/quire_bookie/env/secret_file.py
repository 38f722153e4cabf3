"""Small files with secrets. Reads them again each time, as a rotation replaces the file; writes them for one owner."""

import asyncio
import contextlib
import os
from pathlib import Path

_OWNER_ONLY = 0o600


async def read_secret(path: str) -> bytes:
    """The content without white space around it. OSError."""
    return (await asyncio.to_thread(Path(path).read_bytes)).strip()


async def write_secret(path: str, content: bytes) -> None:
    """Make a durable file that only its owner reads, or replace it. OSError."""
    await asyncio.to_thread(_write, path, content)


def _write(path: str, content: bytes) -> None:
    temporary = f"{path}.new"
    with contextlib.suppress(FileNotFoundError):
        os.unlink(temporary)  # of a start that was cut off; its mode may be another
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, _OWNER_ONLY)
    with open(fd, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(fd)
    os.replace(temporary, path)
    folder = os.open(os.path.dirname(path), os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


class SecretFiles:
    """Files with keys, for those who have no Disk."""

    async def exists(self, path: str) -> bool:
        """Whether there is such a file."""
        return await asyncio.to_thread(Path(path).is_file)

    async def read_file(self, path: str) -> bytes:
        """Its content, as it is. OSError."""
        return await asyncio.to_thread(Path(path).read_bytes)
