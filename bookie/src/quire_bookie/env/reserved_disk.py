"""A disk that releases the space reserve when small files find no space on a full file system.

Other calls are forwarded. Large writes (entry logs, journal files) do not use it: their writers know how much space
they need, and request it from the reserve themselves.
"""

from quire_bookie.env.disk import DirectoryLock, Disk, DiskFile, DiskUsage, JournalFile
from quire_bookie.env.space_reserve import SpaceReserves


class ReservedDisk:
    """Implements `Disk` on top of another one."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self.reserves = SpaceReserves()
        """Set once the folders are known."""

    async def replace_file(self, path: str, content: bytes) -> None:
        """Forward; if there is no space, use the reserve."""
        await self.reserves.retry(self._disk, path, lambda: self._disk.replace_file(path, content))

    async def make_dirs(self, path: str) -> None:
        """Forward; if there is no space, use the reserve."""
        await self.reserves.retry(self._disk, path, lambda: self._disk.make_dirs(path))

    async def rename(self, source: str, target: str) -> None:
        """Forward; if there is no space for the name, use the reserve."""
        await self.reserves.retry(self._disk, target, lambda: self._disk.rename(source, target))

    async def open(self, path: str, *, create: bool = False) -> DiskFile:
        """Forward; if there is no space for the name, use the reserve."""
        return await self.reserves.retry(self._disk, path, lambda: self._disk.open(path, create=create))

    # ---- forwarded
    async def list_dir(self, path: str) -> list[str]:
        """Forward."""
        return await self._disk.list_dir(path)

    async def exists(self, path: str) -> bool:
        """Forward."""
        return await self._disk.exists(path)

    async def modified_ms(self, path: str) -> int | None:
        """Forward."""
        return await self._disk.modified_ms(path)

    async def open_read_only(self, path: str) -> DiskFile:
        """Forward."""
        return await self._disk.open_read_only(path)

    async def create_journal(self, path: str, size: int) -> None:
        """Forward."""
        await self._disk.create_journal(path, size)

    async def allocate(self, path: str, size: int) -> None:
        """Forward."""
        await self._disk.allocate(path, size)

    async def open_journal(self, path: str, *, synced: bool = True) -> JournalFile:
        """Forward."""
        return await self._disk.open_journal(path, synced=synced)

    def boot_id(self) -> str | None:
        """Forward."""
        return self._disk.boot_id()

    async def read_file(self, path: str) -> bytes:
        """Forward."""
        return await self._disk.read_file(path)

    async def remove(self, path: str) -> None:
        """Forward."""
        await self._disk.remove(path)

    async def sync_dir(self, path: str) -> None:
        """Forward."""
        await self._disk.sync_dir(path)

    async def usage(self, path: str) -> DiskUsage:
        """Forward."""
        return await self._disk.usage(path)

    def lock_dir(self, path: str) -> DirectoryLock:
        """Forward."""
        return self._disk.lock_dir(path)
