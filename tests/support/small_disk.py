"""A small separate ext4 on a loop device, and a file that fills it to any level."""

import contextlib
import os
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

MIB = 1024 * 1024


@dataclass(frozen=True)
class SmallDisk:
    """A mounted file system. `folder` is its root."""

    folder: Path

    @property
    def ballast(self) -> Path:
        """A file that stands for the data of another program."""
        return self.folder / "ballast"

    def free_bytes(self) -> int:
        """The free bytes, as `df` shows them."""
        found = os.statvfs(self.folder)
        return found.f_bavail * found.f_frsize

    def fill(self, leave_bytes: int) -> None:
        """Let the ballast grow until at most `leave_bytes` are free; it never shrinks."""
        # Unbuffered, so that bytes that do not fit are not written again when the file is closed.
        with self.ballast.open("ab", buffering=0) as file:
            while (surplus := self.free_bytes() - leave_bytes) > 0:
                try:
                    file.write(bytes(min(surplus, 4 * MIB)))
                    os.fsync(file.fileno())
                except OSError:
                    if surplus < 4096:
                        return
                    with contextlib.suppress(OSError):
                        while True:
                            file.write(bytes(1024))
                    return


@contextlib.contextmanager
def small_disk(folder: Path, size_mib: int) -> Iterator[SmallDisk]:
    """Yield an empty ext4 of that size below `folder`. Skips the test with the reason if none can be mounted."""
    if os.geteuid() != 0:
        pytest.skip("only root may mount a file system")
    image, mount = folder / "disk.img", folder / "mount"
    mount.mkdir()
    with image.open("wb") as file:
        file.truncate(size_mib * MIB)
    for command in (["mkfs.ext4", "-q", "-m", "0", str(image)], ["mount", "-o", "loop", str(image), str(mount)]):
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            pytest.skip(f"{command[0]} failed: {done.stderr.strip()}")
    try:
        yield SmallDisk(mount)
    finally:
        subprocess.run(["umount", str(mount)], check=True)
        image.unlink()
