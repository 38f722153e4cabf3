"""The fuse of garbage collection: when too many ledgers are missing at once, it blocks deletions until it is reset.

Owns the decision, and the small file beside the entry logs that keeps a blown fuse and a hold over restarts. Never
deletes anything. The share of a blown fuse refers to the ledgers stored when it blew, so ledgers that arrive later
cannot lower it below the limit. An administrator resets the fuse; it recovers by itself only when the metadata names
the ledgers again.

    file    first line `quire gc 1`, then at most one line each:
            `blown <ms since the epoch> <ledgers missing> <ledgers held>` and `hold <reason>`
"""

import logging
from typing import Final

from quire_bookie.dataclass import dataclass
from quire_bookie.env.clock import WallClock
from quire_bookie.env.disk import Disk
from quire_bookie.errors import DamagedError
from quire_bookie.settings.collection import FuseSettings

_log = logging.getLogger("quire.server.garbage_collection")
_HEAD = "quire gc 1"
FILE_NAME: Final = "gc.state"


@dataclass(frozen=True, slots=True)
class BlownFuse:
    """A blown fuse, which blocks deletions. `since_ms` is wall-clock time in milliseconds."""

    missing: int
    held: int
    since_ms: int

    @property
    def reason(self) -> str:
        """One line for the administrator."""
        return (
            f"{self.missing} of {self.held} ledgers stored here are missing in the metadata at once: nothing is "
            "deleted until the metadata names them again or an administrator resets the fuse"
        )


class GcFuse:
    """Owns fuse and hold of one bookie. `directory`: the folder of the file."""

    def __init__(self, disk: Disk, directory: str, clock: WallClock, settings: FuseSettings | None = None) -> None:
        self._disk = disk
        self._path = f"{directory}/{FILE_NAME}"
        self._clock = clock
        self._settings = settings or FuseSettings()
        self._loaded = False
        self.blown: BlownFuse | None = None
        self.hold: str | None = None
        """The reason of an administrator's hold on deletions; None without a hold."""

    async def load(self) -> None:
        """Read the file once. DamagedError if it does not parse: then nothing may be deleted."""
        if self._loaded:
            return
        if await self._disk.exists(self._path):
            self._parse((await self._disk.read_file(self._path)).decode("utf-8", "replace"))
        self._loaded = True

    async def check(self, missing: int, held: int) -> BlownFuse | None:
        """Update the fuse after a listing; return it if blown. OSError if it cannot be saved."""
        await self.load()
        if self.blown is None:
            if not self._settings.blows(missing, held):
                return None
            self.blown = BlownFuse(missing, held, self._clock.now_ms())
            _log.error("%s", self.blown.reason)
            await self._save()
        elif not self._settings.blows(missing, self.blown.held):
            _log.warning("the metadata names the missing ledgers again: garbage collection continues")
            await self.reset()
        return self.blown

    async def reset(self) -> None:
        """Reset the fuse."""
        await self.load()
        self.blown = None
        await self._save()

    async def set_hold(self, reason: str | None) -> None:
        """Set a hold durably, which blocks deletions; None ends it."""
        await self.load()
        self.hold = None if reason is None else " ".join(reason.split()) or "no reason given"
        await self._save()

    async def _save(self) -> None:
        lines = [_HEAD]
        if self.blown is not None:
            lines.append(f"blown {self.blown.since_ms} {self.blown.missing} {self.blown.held}")
        if self.hold is not None:
            lines.append(f"hold {self.hold}")
        await self._disk.replace_file(self._path, "\n".join([*lines, ""]).encode())

    def _parse(self, text: str) -> None:
        head, *lines = text.splitlines() or [""]
        if head != _HEAD:
            raise DamagedError(self._path, 0, "not a state of garbage collection; repair or remove the file")
        for line in lines:
            word, _, rest = line.partition(" ")
            if word == "hold":
                self.hold = rest
            elif word == "blown" and len(rest.split()) == 3 and all(part.isdigit() for part in rest.split()):
                since_ms, missing, held = map(int, rest.split())
                self.blown = BlownFuse(missing, held, since_ms)
            elif line:
                raise DamagedError(self._path, 0, f"the line {line[:60]!r} is unknown; repair or remove the file")
