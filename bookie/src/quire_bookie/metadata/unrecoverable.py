"""Owns the list of ledgers with entries that no replica can serve, for operators. No Java process uses these nodes.

/quire/unrecoverable/L%019d   JSON {"ledger", "reason", "since_ms", "last_ms", "attempts", "accepted_ms"}

A note records that auto-recovery failed, and why. It keeps trying at growing intervals; the note is removed once the
ledger is intact or deleted. The operator may accept the loss: then replicas without the lost entries may replace those
of a bookie that is drained. The note stays nevertheless.
"""

import json
from collections.abc import AsyncIterator
from dataclasses import asdict, replace

from quire_bookie.dataclass import dataclass
from quire_bookie.errors import BadVersionError, MetadataError, MetadataUnknownError, NodeMissingError
from quire_bookie.limits import METADATA_UNKNOWN_RETRIES
from quire_bookie.metadata.store import ABSENT, MetadataStore, Node
from quire_bookie.model import LedgerId

UNRECOVERABLE = "/quire/unrecoverable"
_REASON_CHARACTERS_MAX = 2000


@dataclass(frozen=True, slots=True)
class Unrecoverable:
    """Reason why a ledger could not be restored, and the times of the attempts."""

    ledger: LedgerId
    reason: str
    since_ms: int
    last_ms: int
    attempts: int
    accepted_ms: int | None = None
    """When the operator accepted the loss, or None."""


def _path(ledger: LedgerId) -> str:
    return f"{UNRECOVERABLE}/L{ledger:019d}"


def _decode(node: Node) -> Unrecoverable | None:
    try:
        found = json.loads(node.value)
        return Unrecoverable(
            LedgerId(int(found["ledger"])),
            str(found["reason"]),
            int(found["since_ms"]),
            int(found["last_ms"]),
            int(found["attempts"]),
            None if found.get("accepted_ms") is None else int(found["accepted_ms"]),
        )
    except (ValueError, KeyError, TypeError, OverflowError):
        return None


class UnrecoverableLedgers:
    """Reads and writes the list."""

    def __init__(self, store: MetadataStore) -> None:
        self._store = store

    async def note(self, ledger: LedgerId, reason: str, now_ms: int) -> None:
        """Add the ledger to the list, or update its reason. MetadataError."""
        for _ in range(METADATA_UNKNOWN_RETRIES):
            node = await self._store.get(_path(ledger))
            known = None if node is None else _decode(node)
            since_ms, attempts = (now_ms, 0) if known is None else (known.since_ms, known.attempts)
            accepted_ms = None if known is None else known.accepted_ms
            text = reason[:_REASON_CHARACTERS_MAX]
            entry = Unrecoverable(ledger, text, since_ms, now_ms, attempts + 1, accepted_ms)
            value = json.dumps(asdict(entry)).encode()
            try:
                await self._store.put(_path(ledger), value, expected=ABSENT if node is None else node.version)
                return
            except (BadVersionError, MetadataUnknownError):
                continue  # another worker wrote a note: overwrite it with ours

    async def read(self, ledger: LedgerId) -> Unrecoverable | None:
        """Return the note of a ledger, or None. MetadataUnavailableError."""
        node = await self._store.get(_path(ledger))
        return None if node is None else _decode(node)

    async def accept(self, ledger: LedgerId, now_ms: int) -> Unrecoverable:
        """Record that the operator accepts the loss. NodeMissingError if the ledger is not on the list."""
        unknown: MetadataError | None = None
        for _ in range(METADATA_UNKNOWN_RETRIES):
            node = await self._store.get(_path(ledger))
            known = None if node is None else _decode(node)
            if node is None or known is None:
                raise NodeMissingError(f"ledger {ledger} is not on the list of unrecoverable ledgers")
            if known.accepted_ms is not None:
                return known
            entry = replace(known, accepted_ms=now_ms)
            try:
                await self._store.put(_path(ledger), json.dumps(asdict(entry)).encode(), expected=node.version)
                return entry
            except (BadVersionError, MetadataUnknownError) as error:
                unknown = error
        raise unknown or MetadataUnknownError(f"the note of ledger {ledger} could not be changed")

    async def clear(self, ledger: LedgerId) -> None:
        """Remove the ledger from the list, if it is there. After an unknown outcome the next call removes the note."""
        if await self._store.get(_path(ledger)) is None:
            return
        try:
            await self._store.delete(_path(ledger))
        except (NodeMissingError, MetadataUnknownError):
            return

    async def pages(self) -> AsyncIterator[list[Unrecoverable]]:
        """Yield all notes, by ledger, in pages."""
        async for page in self._store.scan(f"{UNRECOVERABLE}/"):
            found = [entry for node in page if (entry := _decode(node)) is not None]
            if found:
                yield found
