"""Which ledgers lack replicas, and who is at work on one: the marks and locks of auto-recovery. Decides nothing.

The layout is BookKeeper's, so that its auto-recovery and ours keep out of each other's way:

/ledgers/underreplication/ledgers/<h1>/<h2>/<h3>/<h4>/urL%010d   mark: replicas are missing. Four hex digits a level
                                                                 value: protobuf text, `replica: "<bookie>"` each,
                                                                 `ctime: <ms>` of the first mark
/ledgers/underreplication/locks/urL%010d                         ephemeral: somebody replicates the ledger
                                                                 value: protobuf text `bookieId: "<host>"`

A mark is only ever taken away under the version that was read before the work, so that what was added meanwhile stays.
A lock is a lease: it goes with the session. Whoever acts under it asks `is_held` right before the step that must not
race, and keeps that step short against the session's timeout.
"""

import asyncio
import re
from collections.abc import AsyncGenerator, Iterable
from contextlib import aclosing
from dataclasses import dataclass

from google.protobuf import text_format

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

UNDER_REPLICATION = f"{layout.ROOT}/underreplication"
MARKS = f"{UNDER_REPLICATION}/ledgers"
LOCKS = f"{UNDER_REPLICATION}/locks"
_CONFLICTS_MAX = 20
_NAME = re.compile(r"urL([0-9]{10,19})")


def mark_path(ledger: LedgerId) -> str:
    """The node that says that replicas of a ledger are missing."""
    digits = f"{ledger:016x}"
    levels = "/".join(digits[at : at + 4] for at in range(0, 16, 4))
    return f"{MARKS}/{levels}/urL{ledger:010d}"


def ledger_of_mark(path: str) -> LedgerId | None:
    """The ledger that is marked at `path`; None for every other path, however similar."""
    match = _NAME.fullmatch(path.rpartition("/")[2])
    if match is None:
        return None
    ledger = LedgerId(int(match[1]))
    return ledger if ledger < layout.LEDGER_IDS_END and mark_path(ledger) == path else None


def lock_path(ledger: LedgerId) -> str:
    """The node that says that somebody replicates a ledger."""
    return f"{LOCKS}/urL{ledger:010d}"


def encode_lock(host: str) -> bytes:
    """Value of a lock: whose it is, for a person."""
    quoted = host.replace("\\", "\\\\").replace('"', '\\"')
    return f'bookieId: "{quoted}"\n'.encode()


@dataclass(frozen=True, slots=True)
class Mark:
    """A ledger that lacks replicas. `bookies`: those that are missing, or lack entries of it."""

    ledger: LedgerId
    bookies: tuple[BookieId, ...]
    marked_ms: int | None
    """Wall clock of the first mark; None when the marker did not say."""
    version: int


@dataclass(frozen=True, slots=True)
class Standing:
    """All marks in two figures."""

    count: int
    oldest_ms: int | None
    """When the first of them was marked, by the first page of the list: the lowest ledgers. None: nobody said."""


def encode_mark(bookies: Iterable[BookieId], marked_ms: int | None) -> bytes:
    """A mark's value."""
    message = nodes_pb2.UnderreplicatedLedgerFormat(replica=bookies, ctime=marked_ms)
    return text_format.MessageToString(message, as_utf8=True).encode()


def decode_mark(ledger: LedgerId, node: Node) -> Mark:
    """The mark in a node. MetadataFormatError."""
    message = nodes_pb2.UnderreplicatedLedgerFormat()
    try:
        text_format.Parse(node.value.decode(), message)
    except (UnicodeDecodeError, text_format.ParseError) as error:
        raise MetadataFormatError(f"{node.key}: the mark of ledger {ledger} does not parse: {error}") from error
    marked_ms = message.ctime if message.HasField("ctime") else None
    return Mark(ledger, tuple(BookieId(replica) for replica in message.replica), marked_ms, node.version)


class UnderReplication:
    """The marks of a cluster."""

    def __init__(self, store: MetadataStore, clock: WallClock) -> None:
        self._store = store
        self._clock = clock

    async def mark(self, ledger: LedgerId, bookies: Iterable[BookieId], *, again: bool = True) -> bool:
        """Say that these bookies lack entries of the ledger, beside those that were named before.

        When it returns the mark is there. `again`: write it also when all of them are named already, because entries
        may be lacking that whoever is at work on it has not seen; without, that is no write, and False.
        MetadataUnknownError, MetadataUnavailableError: it may not be there; call again.
        """
        wanted = sorted(set(bookies))
        path = mark_path(ledger)
        unknown: MetadataUnknownError | None = None
        tried = ABSENT
        for _ in range(_CONFLICTS_MAX):
            node = await self._store.get(path)
            known = self._known(ledger, node)
            new = [bookie for bookie in wanted if known is None or bookie not in known.bookies]
            # Of unknown outcome, but the version is another one: whoever read the mark before cannot take it away.
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
                continue  # somebody marked it, or took the mark away: see what holds now
            except MetadataUnknownError as error:
                unknown = error
        raise unknown or MetadataUnavailableError(f"{path} changed {_CONFLICTS_MAX} times while it was to be marked")

    def _known(self, ledger: LedgerId, node: Node | None) -> Mark | None:
        if node is None:
            return None
        try:
            return decode_mark(ledger, node)
        except MetadataFormatError:
            return Mark(ledger, (), None, node.version)  # what nobody can read is replaced by what can be

    async def read(self, ledger: LedgerId) -> Mark | None:
        """The mark, linearizable; None when there is none. MetadataFormatError, MetadataUnavailableError."""
        node = await self._store.get(mark_path(ledger))
        return None if node is None else decode_mark(ledger, node)

    async def marks(self, *, page_keys: int = METADATA_PAGE_KEYS) -> AsyncGenerator[list[Mark], None]:
        """All marks at one revision, in pages. One that does not parse names no bookies. MetadataUnavailableError."""
        async for page in self._store.scan(f"{MARKS}/", page_keys=page_keys):
            found = []
            for node in page:
                ledger = ledger_of_mark(node.key)
                mark = None if ledger is None else self._known(ledger, node)
                if mark is not None:
                    found.append(mark)
            if found:
                yield found

    async def standing(self, accepted: Iterable[LedgerId]) -> Standing:
        """How many ledgers lack replicas, without reading them all. MetadataUnavailableError.

        `accepted`: those whose loss somebody accepted; they stay marked, and count for nothing.
        """
        given_up = set(accepted)
        # Only a mark that is the same before and after was counted for sure: one that is made meanwhile must not be
        # taken off in place of another ledger's, which would then seem to have all its replicas.
        before = await self._versions(given_up)
        found = await self._store.count(f"{MARKS}/")
        after = await self._versions(before)
        found -= sum(after.get(ledger) == version for ledger, version in before.items())
        times: list[int] = []
        async with aclosing(self.marks()) as pages:
            async for page in pages:
                times = [mark.marked_ms for mark in page if mark.ledger not in given_up and mark.marked_ms is not None]
                break
        return Standing(max(0, found), min(times, default=None))

    async def _versions(self, ledgers: Iterable[LedgerId]) -> dict[LedgerId, int]:
        """Of the marks that there are."""
        found = {ledger: await self._store.get(mark_path(ledger)) for ledger in sorted(ledgers)}
        return {ledger: node.version for ledger, node in found.items() if node is not None}

    async def remove(self, mark: Mark) -> bool:
        """Take the mark away unless it was changed since `mark` was read. False: it was, and stays.

        Gone already counts as done. MetadataUnknownError when that cannot be told.
        """
        path = mark_path(mark.ledger)
        unknown: MetadataUnknownError | None = None
        for _ in range(METADATA_UNKNOWN_RETRIES):
            # A mark made anew begins with version 0 again: only its content tells it from the one that was read.
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
    """Locks of one holder. `host` is what others read as the owner; no other holder of the session may have it too."""

    def __init__(self, store: MetadataStore, host: str) -> None:
        self._store = store
        self._value = encode_lock(host)
        self._left: set[LedgerId] = set()
        self._late: set[LedgerId] = set()
        """Asked for in vain, with an outcome that stayed unknown: the store may still get to it."""
        self._held: set[LedgerId] = set()
        """Taken by `acquire`, until `release`."""
        self._giving_back = asyncio.Lock()

    async def is_marked(self, ledger: LedgerId) -> bool:
        """Whether replicas of the ledger are missing, as far as an auditor said so. Linearizable."""
        return await self._store.get(mark_path(ledger)) is not None

    async def acquire(self, ledger: LedgerId) -> bool:
        """Take the lock of a ledger; False when another has it. MetadataError when that stays unknown."""
        path = lock_path(ledger)
        async with self._giving_back:
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
        """Whether the lock that is there is what was asked for before and thought lost: nobody else gives it back."""
        # It stays noted: another request of unknown outcome may make the lock again after this one is given back.
        return await self.is_held(ledger)

    async def is_held(self, ledger: LedgerId) -> bool:
        """Whether the lock is there and ours, linearizable."""
        return self._is_ours(await self._store.get(lock_path(ledger)))

    def _is_ours(self, node: Node | None) -> bool:
        """The session alone does not tell: auto-recovery beside a bookie shares that of its garbage collection."""
        return node is not None and node.owned and node.value == self._value

    async def release(self, ledger: LedgerId) -> None:
        """Give the lock back. One that was lost is left to whom it belongs.

        One that cannot be reached would stay as long as the session: `release_left` gives it back later.
        """
        self._held.discard(ledger)
        self._left.add(ledger)
        await self.release_left()

    async def release_left(self) -> None:
        """Give back what could not be given back before, as far as the store can be reached now."""
        try:
            async with self._giving_back:
                for ledger in sorted(self._left):
                    await self._release(ledger)
        except (MetadataUnavailableError, MetadataUnknownError):
            return

    async def _release(self, ledger: LedgerId) -> None:
        """One at a time: a second one would take the lock that was acquired meanwhile for the one that was left.

        MetadataUnavailableError, MetadataUnknownError: it is still to be given back.
        """
        if ledger not in self._left:
            return
        try:
            node = await self._store.get(lock_path(ledger))
            if node is not None and self._is_ours(node):
                await self._store.delete(lock_path(ledger), expected=node.version)
        except (BadVersionError, NodeMissingError):
            pass  # it is another's by now
        self._left.discard(ledger)
