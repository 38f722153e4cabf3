"""Reads a file, a pipe or a terminal while the event loop stays free to answer a server.

A thread reads, because a pipe may be silent for hours. It ends with the process: it must hold no lock of Python's own
streams, so it reads the file descriptor.
"""

import asyncio
import os
import threading
from collections.abc import AsyncIterator
from concurrent.futures import CancelledError

from quire_bookie.errors import ConfigError

READ_BYTES = 128 * 1024
_AHEAD = 4
"""Pieces that the thread may be ahead of the loop."""


async def pieces_of(descriptor: int, name: str) -> AsyncIterator[bytes]:
    """Yield what each read returns, at most `READ_BYTES`, until the end. ConfigError if it cannot be read."""
    loop = asyncio.get_running_loop()
    queue: asyncio.Queue[bytes | OSError] = asyncio.Queue(_AHEAD)

    def read() -> None:
        found: bytes | OSError = b"."
        while found and isinstance(found, bytes):
            try:
                found = os.read(descriptor, READ_BYTES)
            except OSError as error:
                found = error
            putting = queue.put(found)
            try:
                asyncio.run_coroutine_threadsafe(putting, loop).result()
            except (RuntimeError, CancelledError):  # the loop is closed: the command has ended
                putting.close()
                return

    threading.Thread(target=read, name="reads lines", daemon=True).start()
    while piece := await queue.get():
        if isinstance(piece, OSError):
            raise ConfigError(f"cannot read {name}: {piece.strerror}") from piece
        yield piece
