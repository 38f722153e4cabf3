"""Owns the marks and locks of auto-recovery: ledgers that lack replicas, and who repairs them. Decides nothing.

The layout is BookKeeper's, so that its auto-recovery and ours do not repair the same ledger at once:

/ledgers/underreplication/ledgers/<h1>/<h2>/<h3>/<h4>/urL%010d   mark: replicas are missing. Four hex digits a level
                                                                 value: protobuf text, `replica: "<bookie>"` each,
                                                                 `ctime: <ms>` of the first mark
/ledgers/underreplication/locks/urL%010d                         ephemeral: a process replicates the ledger
                                                                 value: protobuf text `bookieId: "<host>"`

A mark is removed only under the version that was read before the work, so that bookies added meanwhile stay marked.
A lock is a lease: it ends with the session. Its owner calls `is_held` right before the step that must not race, and
keeps that step short compared with the session's timeout.
"""

import asyncio
import logging
import re
from collections.abc import AsyncGenerator, Iterable
from contextlib import aclosing

from google.protobuf import text_format

from quire_bookie.dataclass import dataclass
from quire_bookie.env.clock import WallClock
from quire_bookie.errors import (
    BadVersionError,
    MetadataFormatError,
    MetadataUnavailableError,
    MetadataUnknownError,
    NodeMissingError,
)
from quire_bookie.limits import METADATA_PAGE_KEYS, METADATA_UNKNOWN_RETRIES
from quire_bookie.metadata import layout
from quire_bookie.metadata.proto import nodes_pb2
from quire_bookie.metadata.store import ABSENT, MetadataStore, Node
from quire_bookie.model import BookieId, LedgerId

_log = logging.getLogger("quire.metadata.marks")
UNDER_REPLICATION = f"{layout.ROOT}/underreplication"
MARKS = f"{UNDER_REPLICATION}/ledgers"
LOCKS = f"{UNDER_REPLICATION}/locks"
_CONFLICTS_MAX = 20
_NAME = re.compile(r"urL([0-9]{10,19})")


def mark_path(ledger: LedgerId) -> str:
    """Return the path of the mark of a ledger."""
    digits = f"{ledger:016x}"
    levels = "/".join(digits[at : at + 4] for at in range(0, 16, 4))
    return f"{MARKS}/{levels}/urL{ledger:010d}"


def ledger_of_mark(path: str) -> LedgerId | None:
    """Return the ledger that is marked at `path`; None for every other path, however similar."""
    match = _NAME.fullmatch(path.rpartition("/")[2])
    if match is None:
        return None
    ledger = LedgerId(int(match[1]))
    return ledger if ledger < layout.LEDGER_IDS_END and mark_path(ledger) == path else None


def lock_path(ledger: LedgerId) -> str:
    """Return the path of the replication lock of a ledger."""
    return f"{LOCKS}/urL{ledger:010d}"


def encode_lock(host: str) -> bytes:
    """Encode a lock: the name of its owner, for display."""
    quoted = host.replace("\\", "\\\\").replace('"', '\\"')
    return f'bookieId: "{quoted}"\n'.encode()


@dataclass(frozen=True, slots=True)
class Mark:
    """A ledger that lacks replicas. `bookies`: those that are missing, or lack entries of it."""

    ledger: LedgerId
    bookies: tuple[BookieId, ...]
    marked_ms: int | None
    """Wall clock time of the first mark; None if the writer did not record it."""
    version: int


@dataclass(frozen=True, slots=True)
class MarkSummary:
    """Summary of all marks."""

    count: int
    oldest_ms: int | None
    """Time of the earliest mark in the first page of the list (the lowest ledger ids). None: not recorded."""


def encode_mark(bookies: Iterable[BookieId], marked_ms: int | None) -> bytes:
    """Encode a mark's value."""
    message = nodes_pb2.UnderreplicatedLedgerFormat(replica=bookies, ctime=marked_ms)
    return text_format.MessageToString(message, as_utf8=True).encode()


def decode_mark(ledger: LedgerId, node: Node) -> Mark:
    """Decode a mark. MetadataFormatError."""
    message = nodes_pb2.UnderreplicatedLedgerFormat()
    try:
        text_format.Parse(node.value.decode(), message)
    except (UnicodeDecodeError, text_format.ParseError) as error:
        raise MetadataFormatError(f"{node.key}: the mark of ledger {ledger} does not parse: {error}") from error
    marked_ms = message.ctime if message.HasField("ctime") else None
    return Mark(ledger, tuple(BookieId(replica) for replica in message.replica), marked_ms, node.version)


class UnderReplication:
    """Reads and writes the marks of a cluster."""

    def __init__(self, store: MetadataStore, clock: WallClock) -> None:
        self._store = store
        self._clock = clock

    async def mark(self, ledger: LedgerId, bookies: Iterable[BookieId], *, again: bool = True) -> bool:
        """Mark these bookies as lacking entries of the ledger, in addition to those already marked.

        The mark exists on return. `again`: write it even if all bookies are named already, because entries may be
        missing that a running repair has not seen; without it, such a call writes nothing and returns False.
        MetadataUnknownError, MetadataUnavailableError: the mark may not exist; call again.
        """
        wanted = sorted(set(bookies))
        path = mark_path(ledger)
        unknown: MetadataUnknownError | None = None
        tried = ABSENT
        for _ in range(_CONFLICTS_MAX):
            node = await self._store.get(path)
            known = self._known(ledger, node)
            new = [bookie for bookie in wanted if known is None or bookie not in known.bookies]
            # The outcome is unknown, but the version has changed: a process that read the mark before cannot remove it.
            written = unknown is not None and known is not None and known.version != tried
            if known is not None and not new and (not again or written):
                return unknown is not None
            tried = ABSENT if node is None else node.version
            marked_ms = self._clock.now_ms() if known is None else known.marked_ms
            value = encode_mark([*(known.bookies if known else ()), *new], marked_ms)
            try:
                await self._store.put(path, value, expected=tried)
                return True
            except BadVersionError:
                continue  # another process marked it or removed the mark: read it again
            except MetadataUnknownError as error:
                unknown = error
        raise unknown or MetadataUnavailableError(f"{path} changed {_CONFLICTS_MAX} times meanwhile; try again")

    def _known(self, ledger: LedgerId, node: Node | None) -> Mark | None:
        if node is None:
            return None
        try:
            return decode_mark(ledger, node)
        except MetadataFormatError:
            return Mark(ledger, (), None, node.version)  # an unreadable mark is replaced by a valid one

    async def renew(self, ledger: LedgerId) -> None:
        """Write the mark again, unchanged, if it exists: the ledger changed, and workers look at it at once.

        MetadataUnknownError, MetadataUnavailableError: workers may look at it later.
        """
        path = mark_path(ledger)
        node = await self._store.get(path)
        if node is None:
            return
        try:
            await self._store.put(path, node.value, expected=node.version)
        except BadVersionError:
            _log.debug("%s changed meanwhile, which wakes workers too", path)

    async def read(self, ledger: LedgerId) -> Mark | None:
        """Return the mark, linearizable, or None. MetadataFormatError, MetadataUnavailableError."""
        node = await self._store.get(mark_path(ledger))
        return None if node is None else decode_mark(ledger, node)

    async def marks(self, *, page_keys: int = METADATA_PAGE_KEYS) -> AsyncGenerator[list[Mark], None]:
        """Yield all marks at one revision, in pages. Invalid ones have no bookies. MetadataUnavailableError."""
        async for page in self._store.scan(f"{MARKS}/", page_keys=page_keys):
            found = []
            for node in page:
                ledger = ledger_of_mark(node.key)
                mark = None if ledger is None else self._known(ledger, node)
                if mark is not None:
                    found.append(mark)
            if found:
                yield found

    async def marked(self) -> AsyncGenerator[list[LedgerId], None]:
        """Yield the ids of all marked ledgers at one revision, in pages. MetadataUnavailableError."""
        async for page in self._store.scan(f"{MARKS}/", page_keys=METADATA_PAGE_KEYS, keys_only=True):
            yield [ledger for node in page if (ledger := ledger_of_mark(node.key)) is not None]

    async def summary(self, accepted: Iterable[LedgerId]) -> MarkSummary:
        """Count the ledgers that lack replicas, without reading them all. MetadataUnavailableError.

        `accepted`: ledgers whose loss the operator accepted; they stay marked but are not counted.
        """
        given_up = set(accepted)
        # Subtract only marks that are the same before and after the count. One that is created meanwhile may not be in
        # the count; subtracting it would hide another ledger that lacks replicas.
        before = await self._versions(given_up)
        found = await self._store.count(f"{MARKS}/")
        after = await self._versions(before)
        found -= sum(after.get(ledger) == version for ledger, version in before.items())
        times: list[int] = []
        async with aclosing(self.marks()) as pages:
            async for page in pages:
                times = [mark.marked_ms for mark in page if mark.ledger not in given_up and mark.marked_ms is not None]
                break
        return MarkSummary(max(0, found), min(times, default=None))

    async def _versions(self, ledgers: Iterable[LedgerId]) -> dict[LedgerId, int]:
        """Return the versions of the marks that exist."""
        found = {ledger: await self._store.get(mark_path(ledger)) for ledger in sorted(ledgers)}
        return {ledger: node.version for ledger, node in found.items() if node is not None}

    async def remove(self, mark: Mark) -> bool:
        """Remove the mark unless it has changed since `mark` was read; then return False.

        A mark that is already removed counts as done. MetadataUnknownError if the outcome stays unknown.
        """
        path = mark_path(mark.ledger)
        unknown: MetadataUnknownError | None = None
        for _ in range(METADATA_UNKNOWN_RETRIES):
            # A mark that was created again starts at version 0: only its content distinguishes it from the one read.
            node = await self._store.get(path)
            if node is None:
                return True
            if self._known(mark.ledger, node) != mark:
                return False
            try:
                await self._store.delete(path, expected=mark.version)
                return True
            except BadVersionError:
                return await self._store.get(path) is None
            except MetadataUnknownError as error:
                unknown = error
        assert unknown is not None
        raise unknown


class ReplicationLocks:
    """Locks of one owner. `host` is the owner's name that others read; it must be unique in the session."""

    def __init__(self, store: MetadataStore, host: str) -> None:
        self._store = store
        self._value = encode_lock(host)
        self._left: set[LedgerId] = set()
        self._late: set[LedgerId] = set()
        """Requested with an unknown outcome, so far without success: the store may still execute the request."""
        self._held: set[LedgerId] = set()
        """Acquired and not released."""
        self._releasing = asyncio.Lock()

    async def is_marked(self, ledger: LedgerId) -> bool:
        """Return whether replicas of the ledger are missing according to its mark. Linearizable."""
        return await self._store.get(mark_path(ledger)) is not None

    async def acquire(self, ledger: LedgerId) -> bool:
        """Acquire the lock of a ledger; False if another process has it. MetadataError if that stays unknown."""
        path = lock_path(ledger)
        async with self._releasing:
            await self._release(ledger)
        try:
            await self._store.put(path, self._value, expected=ABSENT, ephemeral=True)
            held = True
        except BadVersionError:
            held = ledger in self._late and ledger not in self._held and await self._came_late(ledger)
        except MetadataUnknownError:
            self._left.add(ledger)
            self._late.add(ledger)
            held = await self.is_held(ledger)
            if held:
                self._left.discard(ledger)
        if held:
            self._held.add(ledger)
        return held

    async def _came_late(self, ledger: LedgerId) -> bool:
        """Return whether an earlier request of unknown outcome created the lock: only this owner releases it."""
        # Keep it noted: another request of unknown outcome may create the lock again after this one is released.
        return await self.is_held(ledger)

    async def is_held(self, ledger: LedgerId) -> bool:
        """Return whether the lock exists and is ours, linearizable."""
        return self._is_ours(await self._store.get(lock_path(ledger)))

    def _is_ours(self, node: Node | None) -> bool:
        """Compare session and name: auto-recovery in a bookie's process shares the session of its GC."""
        return node is not None and node.owned and node.value == self._value

    async def release(self, ledger: LedgerId) -> None:
        """Release the lock. One that was lost is left to its new owner.

        If the store is unavailable the lock would last as long as the session: `release_left` releases it later.
        """
        self._held.discard(ledger)
        self._left.add(ledger)
        await self.release_left()

    async def release_left(self) -> None:
        """Release locks that could not be released before, as far as the store is available."""
        try:
            async with self._releasing:
                for ledger in sorted(self._left):
                    await self._release(ledger)
        except (MetadataUnavailableError, MetadataUnknownError):
            return

    async def _release(self, ledger: LedgerId) -> None:
        """Release one lock. Only one call at a time: another could mistake a lock acquired meanwhile for the old one.

        MetadataUnavailableError, MetadataUnknownError: the lock must still be released.
        """
        if ledger not in self._left:
            return
        try:
            node = await self._store.get(lock_path(ledger))
            if node is not None and self._is_ours(node):
                await self._store.delete(lock_path(ledger), expected=node.version)
        except (BadVersionError, NodeMissingError):
            pass  # it belongs to another process now
        self._left.discard(ledger)
