"""Reads small files with secrets, anew each time: whoever rotates a secret replaces the file."""

import asyncio
from pathlib import Path


async def read_secret(path: str) -> bytes:
    """The content without white space around it. OSError."""
    return (await asyncio.to_thread(Path(path).read_bytes)).strip()


class SecretFiles:
    """Files with keys, for those who have no Disk."""

    async def exists(self, path: str) -> bool:
        """Whether there is such a file."""
        return await asyncio.to_thread(Path(path).is_file)

    async def read_file(self, path: str) -> bytes:
        """Its content, as it is. OSError."""
        return await asyncio.to_thread(Path(path).read_bytes)
