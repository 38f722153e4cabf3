"""Owns the nodes that record requested drains of bookies and their progress. No Java process uses them.

/quire/drains                      JSON [{"bookie", "wish", "since_ms", "leaving", "made_read_only"}, ...], by time
/quire/drain-progress/<bookie>     JSON as `Progress`; written by the auditor after each check, for display

All requests are in one node on purpose: each change compares and sets all of them, so that two auditors cannot let two
bookies leave while the others have space for the data of one. Completed work is not recorded here: it follows from the
ledgers' metadata, so that any process can continue after a crash at any step.
"""

import json
from collections.abc import AsyncIterator, Callable
from dataclasses import asdict
from enum import Enum

from quire_bookie.dataclass import dataclass
from quire_bookie.errors import (
    BadVersionError,
    MetadataFormatError,
    MetadataUnavailableError,
    MetadataUnknownError,
    NodeMissingError,
)
from quire_bookie.limits import DRAINS_MAX
from quire_bookie.metadata.store import ABSENT, MetadataStore
from quire_bookie.model import BookieId

DRAINS = "/quire/drains"
DRAIN_PROGRESS = "/quire/drain-progress"
_CONFLICTS_MAX = 20


class Wish(Enum):
    """The requested state of a bookie."""

    DRAIN = "drain"
    """Refuse new entries and move all copies to other bookies."""
    DECOMMISSION = "decommission"
    """Drain, then remove the bookie: its cookie is deleted once the bookie has stopped."""
    CANCEL = "cancel"
    """Return to the previous state; copies that were moved stay where they are."""


@dataclass(frozen=True, slots=True)
class Drain:
    """Request for one bookie. `leaving`: its replicas are being moved; until then it waits for space on others."""

    bookie: BookieId
    wish: Wish
    since_ms: int
    leaving: bool = False
    made_read_only: bool = False
    """Whether the drain made it read-only, so that a cancellation makes it writable. Recorded before the change."""


@dataclass(frozen=True, slots=True)
class Progress:
    """State of a drain at `at_ms`. Sizes are payload bytes from the metadata; an open segment counts as 0."""

    bookie: BookieId
    state: str
    """"waiting", "leaving", "emptied" or "cancelling"."""
    ledgers_left: int
    bytes_left: int
    ledgers_first: int
    """At the start, like `bytes_first` and `began_ms`; ledgers may have been added since."""
    bytes_first: int
    began_ms: int
    at_ms: int
    eta_s: int | None
    """Estimated seconds until the end at the rate so far; None: unknown."""
    blocked_by: tuple[str, ...] = ()


def encode_drains(drains: tuple[Drain, ...]) -> bytes:
    """Encode the value of the node."""
    return json.dumps([asdict(one) | {"wish": one.wish.value} for one in drains]).encode()


def decode_drains(value: bytes) -> tuple[Drain, ...]:
    """Decode the requests. MetadataFormatError: then no process may act on them or overwrite them."""
    try:
        found = json.loads(value)
        return tuple(
            Drain(
                BookieId(str(one["bookie"])),
                Wish(one["wish"]),
                int(one["since_ms"]),
                bool(one["leaving"]),
                bool(one["made_read_only"]),
            )
            for one in found
        )
    except (ValueError, KeyError, TypeError, OverflowError) as error:
        raise MetadataFormatError(f"{DRAINS}: {value[:80]!r} is not a list of drains: {error}") from error


def leaving(drains: tuple[Drain, ...]) -> frozenset[BookieId]:
    """Return the bookies whose replicas must be moved now."""
    return frozenset(one.bookie for one in drains if one.leaving and one.wish is not Wish.CANCEL)


def with_wish(drains: tuple[Drain, ...], bookie: BookieId, wish: Wish, now_ms: int) -> tuple[Drain, ...]:
    """Return the requests with a new one added. A repeated one changes nothing; another kind keeps the progress. Pure.

    Cancelling a request that does not exist changes nothing; a drain that has not started is removed at once.
    """
    known = next((one for one in drains if one.bookie == bookie), None)
    if known is None:
        return drains if wish is Wish.CANCEL else (*drains, Drain(bookie, wish, now_ms))
    if wish is Wish.CANCEL and not known.leaving:
        return tuple(one for one in drains if one is not known)
    changed = Drain(bookie, wish, known.since_ms, known.leaving, known.made_read_only)
    return tuple(changed if one is known else one for one in drains)


class Drains:
    """Reads and writes the requests and their progress."""

    def __init__(self, store: MetadataStore) -> None:
        self._store = store

    async def read(self) -> tuple[Drain, ...]:
        """Return all requests, linearizable. MetadataFormatError, MetadataUnavailableError."""
        node = await self._store.get(DRAINS)
        return () if node is None else decode_drains(node.value)

    async def leaving(self) -> frozenset[BookieId]:
        """Read the requests; see the function `leaving`."""
        return leaving(await self.read())

    async def change(self, decide: Callable[[tuple[Drain, ...]], tuple[Drain, ...]]) -> tuple[Drain, ...]:
        """Replace the requests by `decide(current)`, and return the result.

        `decide` may be called again after a conflict or an unknown outcome, so it must be idempotent. MetadataError;
        never BadVersionError.
        """
        unknown: MetadataUnknownError | None = None
        for _ in range(_CONFLICTS_MAX):
            node = await self._store.get(DRAINS)
            known = () if node is None else decode_drains(node.value)
            wanted = decide(known)
            if wanted == known:
                return known
            if len(wanted) > DRAINS_MAX:
                raise MetadataUnavailableError(f"{len(wanted)} drains; at most {DRAINS_MAX} fit: cancel or finish some")
            try:
                await self._store.put(DRAINS, encode_drains(wanted), expected=ABSENT if node is None else node.version)
                return wanted
            except BadVersionError:
                continue
            except MetadataUnknownError as error:
                unknown = error
        raise unknown or MetadataUnavailableError(f"{DRAINS} changed {_CONFLICTS_MAX} times meanwhile; try again")

    async def wish(self, bookie: BookieId, wish: Wish, now_ms: int) -> tuple[Drain, ...]:
        """Record a request of the operator; see `with_wish`."""
        return await self.change(lambda drains: with_wish(drains, bookie, wish, now_ms))

    # ---- progress
    async def progress(self) -> AsyncIterator[Progress]:
        """Yield the last progress of each drain; values that do not parse are skipped."""
        async for page in self._store.scan(f"{DRAIN_PROGRESS}/"):
            for node in page:
                found = _decode_progress(node.value)
                if found is not None:
                    yield found

    async def progress_of(self, bookie: BookieId) -> Progress | None:
        """Return the last progress of one drain."""
        node = await self._store.get(f"{DRAIN_PROGRESS}/{bookie}")
        return None if node is None else _decode_progress(node.value)

    async def note(self, progress: Progress) -> None:
        """Write progress for display. MetadataError; an unknown outcome is ignored."""
        try:
            await self._store.put(f"{DRAIN_PROGRESS}/{progress.bookie}", json.dumps(asdict(progress)).encode())
        except MetadataUnknownError:
            return

    async def forget(self, bookie: BookieId) -> None:
        """Remove the progress. If that fails, the next drain overwrites it."""
        try:
            await self._store.delete(f"{DRAIN_PROGRESS}/{bookie}")
        except (NodeMissingError, MetadataUnknownError):
            return


def _decode_progress(value: bytes) -> Progress | None:
    try:
        found = json.loads(value)
        return Progress(
            BookieId(str(found["bookie"])),
            str(found["state"]),
            int(found["ledgers_left"]),
            int(found["bytes_left"]),
            int(found["ledgers_first"]),
            int(found["bytes_first"]),
            int(found["began_ms"]),
            int(found["at_ms"]),
            None if found["eta_s"] is None else int(found["eta_s"]),
            tuple(map(str, found["blocked_by"])),
        )
    except (ValueError, KeyError, TypeError, OverflowError):
        return None
