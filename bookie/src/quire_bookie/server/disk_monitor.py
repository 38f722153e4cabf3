"""Watches the space of a bookie's folders and says when to turn read-only and back. Never deletes anything."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence

from quire_bookie.env.disk import Disk, DiskUsage

_log = logging.getLogger("quire.server.disk")


def should_be_read_only(read_only: bool, usages: Sequence[DiskUsage], threshold: float, low_watermark: float) -> bool:
    """Read-only from `threshold` (share of a disk in use) on; writable again once all are below `low_watermark`."""
    fullest = max((1.0 - usage.free_bytes / usage.total_bytes for usage in usages if usage.total_bytes), default=0.0)
    return fullest >= low_watermark if read_only else fullest >= threshold


class DiskMonitor:
    """Looks at the folders from time to time. `set_read_only` is called on each change of mind.

    `out_of_space`: somebody who tries again by himself still finds no space; `disk_full` tells of a single write.
    """

    def __init__(
        self,
        disk: Disk,
        folders: Sequence[str],
        set_read_only: Callable[[bool], Awaitable[None]],
        *,
        threshold: float,
        low_watermark: float,
        interval_s: float,
        out_of_space: Callable[[], bool] = lambda: False,
    ) -> None:
        self._disk = disk
        self._folders = tuple(dict.fromkeys(folders))
        self._set_read_only = set_read_only
        self._threshold = threshold
        self._low_watermark = low_watermark
        self._interval_s = interval_s
        self._out_of_space = out_of_space
        self._full = asyncio.Event()
        self.read_only = False
        self.total_bytes = 0
        self.free_bytes = 0

    def disk_full(self) -> None:
        """A write found no space: turn read-only now."""
        self._full.set()

    async def first_look(self) -> bool:
        """Whether to start read-only."""
        self.read_only = await self._wanted()
        return self.read_only

    async def look(self) -> None:
        """One look; adjusts the mode."""
        wanted = await self._wanted()
        if wanted == self.read_only:
            return
        self.read_only = wanted
        mode = "read-only" if wanted else "writable again"
        _log.warning("the bookie is %s: %d of %d bytes are free", mode, self.free_bytes, self.total_bytes)
        await self._set_read_only(wanted)

    async def _wanted(self) -> bool:
        usages = [await self._disk.usage(folder) for folder in self._folders]
        self.total_bytes, self.free_bytes = usages[-1].total_bytes, usages[-1].free_bytes
        full = self._full.is_set() or self._out_of_space()
        self._full.clear()
        return full or should_be_read_only(self.read_only, usages, self._threshold, self._low_watermark)

    async def run(self) -> None:
        """Look for as long as the bookie lives; cancel to end."""
        while True:
            try:
                async with asyncio.timeout(self._interval_s):
                    await self._full.wait()
            except TimeoutError:
                pass
            try:
                await self.look()
            except OSError as error:
                _log.error("the space of the disks cannot be read: %s", error)
            if self.read_only:
                # A full disk reports itself with every write: one look per interval is enough.
                await asyncio.sleep(self._interval_s)
