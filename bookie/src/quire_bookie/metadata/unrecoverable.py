"""The list of what no replica can serve: for a person. Owns these nodes of ours; no Java process knows them.

/quire/unrecoverable/L%019d   JSON {"ledger", "reason", "since_ms", "last_ms", "attempts", "accepted_ms"}

An entry here says that auto-recovery tried and what it lacked. It goes on trying, less and less often; the note goes
when the ledger is whole again or deleted. A person may accept the loss: then replicas that lack what is lost may take
the place of those of a bookie that leaves. The note stays all the same.
"""

import json
from collections.abc import AsyncIterator
from dataclasses import asdict, dataclass, replace

from quire_bookie.errors import BadVersionError, MetadataError, MetadataUnknownError, NodeMissingError
from quire_bookie.limits import METADATA_UNKNOWN_RETRIES
from quire_bookie.metadata.store import ABSENT, MetadataStore, Node
from quire_bookie.model import LedgerId

UNRECOVERABLE = "/quire/unrecoverable"
_REASON_CHARACTERS_MAX = 2000


@dataclass(frozen=True, slots=True)
class Unrecoverable:
    """What could not be restored of a ledger, and since when."""

    ledger: LedgerId
    reason: str
    since_ms: int
    last_ms: int
    attempts: int
    accepted_ms: int | None = None
    """When a person accepted the loss; None: nobody did."""


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
    """The list."""

    def __init__(self, store: MetadataStore) -> None:
        self._store = store

    async def note(self, ledger: LedgerId, reason: str, now_ms: int) -> None:
        """Put the ledger on the list, or say anew why it is there. MetadataError."""
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
                continue  # another worker's note is as good; ours is written over it

    async def read(self, ledger: LedgerId) -> Unrecoverable | None:
        """The note of a ledger; None when there is none. MetadataUnavailableError."""
        node = await self._store.get(_path(ledger))
        return None if node is None else _decode(node)

    async def accept(self, ledger: LedgerId, now_ms: int) -> Unrecoverable:
        """A person's word that the entries are lost. NodeMissingError when the ledger is not on the list."""
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
        """Take the ledger off the list. Not on it is fine; a note that stays unknown goes with the next call."""
        if await self._store.get(_path(ledger)) is None:
            return
        try:
            await self._store.delete(_path(ledger))
        except (NodeMissingError, MetadataUnknownError):
            return

    async def pages(self) -> AsyncIterator[list[Unrecoverable]]:
        """All of them, by ledger, in pages."""
        async for page in self._store.scan(f"{UNRECOVERABLE}/"):
            found = [entry for node in page if (entry := _decode(node)) is not None]
            if found:
                yield found
