"""Which bookies a person wants emptied, and how far that is. Owns these nodes of ours; no Java process knows them.

/quire/drains                      JSON [{"bookie", "wish", "since_ms", "leaving", "made_read_only"}, ...], by time
/quire/drain-progress/<bookie>     JSON as `Progress`; written by the auditor after each look, for people

All wishes are in one node on purpose: whoever lets one more bookie leave compares and sets all of them, so that two
auditors at once cannot let two bookies leave where there is room for one. What is done of a drain is not written here:
it follows from the ledgers' metadata, so that anybody can go on after a crash at any step.
"""

import json
from collections.abc import AsyncIterator, Callable
from dataclasses import asdict, dataclass
from enum import Enum

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
    """What a person wants of a bookie."""

    DRAIN = "drain"
    """Take no new entries, and have everything copied away."""
    DECOMMISSION = "decommission"
    """The same, and then forget the bookie: its cookie goes once it has been stopped."""
    CANCEL = "cancel"
    """Back to how it was; what was copied away stays there."""


@dataclass(frozen=True, slots=True)
class Drain:
    """One bookie. `leaving`: it was let go, so its replicas are moved; until then it waits for room."""

    bookie: BookieId
    wish: Wish
    since_ms: int
    leaving: bool = False
    made_read_only: bool = False
    """By us, so that a cancelled drain makes it writable again. Noted before it is done."""


@dataclass(frozen=True, slots=True)
class Progress:
    """What the auditor saw at `at_ms`. Sizes are payload bytes, from the metadata; an open segment counts nothing."""

    bookie: BookieId
    state: str
    """"waiting", "leaving", "emptied" or "cancelling"."""
    ledgers_left: int
    bytes_left: int
    ledgers_first: int
    """When it began, like `bytes_first` and `began_ms`; more may have come since."""
    bytes_first: int
    began_ms: int
    at_ms: int
    eta_s: int | None
    """Seconds until it is done at the rate so far; None: not known."""
    blocked_by: tuple[str, ...] = ()


def encode_drains(drains: tuple[Drain, ...]) -> bytes:
    """The value of the node."""
    return json.dumps([asdict(one) | {"wish": one.wish.value} for one in drains]).encode()


def decode_drains(value: bytes) -> tuple[Drain, ...]:
    """The wishes in a node. MetadataFormatError: then nobody acts, and nobody writes over it."""
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
        raise MetadataFormatError(f"{DRAINS}: {value[:80]!r} is no list of drains: {error}") from error


def leaving(drains: tuple[Drain, ...]) -> frozenset[BookieId]:
    """Those whose replicas are to be moved away now."""
    return frozenset(one.bookie for one in drains if one.leaving and one.wish is not Wish.CANCEL)


def with_wish(drains: tuple[Drain, ...], bookie: BookieId, wish: Wish, now_ms: int) -> tuple[Drain, ...]:
    """The wishes after a person said one. Saying it again changes nothing; another one keeps what was done. Pure.

    Cancelling what nobody wished changes nothing; what was not let go yet is cancelled at once.
    """
    known = next((one for one in drains if one.bookie == bookie), None)
    if known is None:
        return drains if wish is Wish.CANCEL else (*drains, Drain(bookie, wish, now_ms))
    if wish is Wish.CANCEL and not known.leaving:
        return tuple(one for one in drains if one is not known)
    changed = Drain(bookie, wish, known.since_ms, known.leaving, known.made_read_only)
    return tuple(changed if one is known else one for one in drains)


class Drains:
    """The wishes and their progress in a store."""

    def __init__(self, store: MetadataStore) -> None:
        self._store = store

    async def read(self) -> tuple[Drain, ...]:
        """All wishes, linearizable. MetadataFormatError, MetadataUnavailableError."""
        node = await self._store.get(DRAINS)
        return () if node is None else decode_drains(node.value)

    async def leaving(self) -> frozenset[BookieId]:
        """See `leaving`."""
        return leaving(await self.read())

    async def change(self, decide: Callable[[tuple[Drain, ...]], tuple[Drain, ...]]) -> tuple[Drain, ...]:
        """Replace the wishes by what `decide` makes of those that hold, and return it.

        `decide` may be asked again after a conflict or an outcome that stayed unknown, so doing it twice must be as
        good as once. MetadataError; BadVersionError never.
        """
        unknown: MetadataUnknownError | None = None
        for _ in range(_CONFLICTS_MAX):
            node = await self._store.get(DRAINS)
            known = () if node is None else decode_drains(node.value)
            wanted = decide(known)
            if wanted == known:
                return known
            if len(wanted) > DRAINS_MAX:
                raise MetadataUnavailableError(f"{len(wanted)} drains at once; cancel or finish some: {DRAINS_MAX} fit")
            try:
                await self._store.put(DRAINS, encode_drains(wanted), expected=ABSENT if node is None else node.version)
                return wanted
            except BadVersionError:
                continue
            except MetadataUnknownError as error:
                unknown = error
        raise unknown or MetadataUnavailableError(f"{DRAINS} changed {_CONFLICTS_MAX} times while it was to be changed")

    async def wish(self, bookie: BookieId, wish: Wish, now_ms: int) -> tuple[Drain, ...]:
        """A person's word; see `with_wish`."""
        return await self.change(lambda drains: with_wish(drains, bookie, wish, now_ms))

    # ---- progress
    async def progress(self) -> AsyncIterator[Progress]:
        """What was last seen of each; what does not parse is left out."""
        async for page in self._store.scan(f"{DRAIN_PROGRESS}/"):
            for node in page:
                found = _decode_progress(node.value)
                if found is not None:
                    yield found

    async def progress_of(self, bookie: BookieId) -> Progress | None:
        """What was last seen of one."""
        node = await self._store.get(f"{DRAIN_PROGRESS}/{bookie}")
        return None if node is None else _decode_progress(node.value)

    async def note(self, progress: Progress) -> None:
        """Write it for people. MetadataError; one of unknown outcome is as good as written."""
        try:
            await self._store.put(f"{DRAIN_PROGRESS}/{progress.bookie}", json.dumps(asdict(progress)).encode())
        except MetadataUnknownError:
            return

    async def forget(self, bookie: BookieId) -> None:
        """Take the progress away. One that stays is overwritten by the next drain."""
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
