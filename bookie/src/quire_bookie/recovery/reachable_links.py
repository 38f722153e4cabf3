"""Links for the reads of one copy: a bookie that is unreachable is not asked again for each entry.

Entries that only an unreachable bookie may hold are asked for one after the other, and each would cost an attempt to
connect, or a timeout. Once a request fails that was sent after an earlier one had failed, the following ones get the
same error at once, for `UNREACHABLE_REMEMBERED_S`. One lost connection is not enough: the next request connects again.

The error stays *unknown*: it never means that an entry is missing. Passes everything else through.
"""

import asyncio
from collections.abc import Callable
from typing import Any

from quire_bookie.client.links.bookie_link import (
    AddSink,
    BatchAnswer,
    BookieLink,
    EntryAnswer,
    Links,
    Purpose,
)
from quire_bookie.client.links.wrapped_links import WrappedLinks
from quire_bookie.errors import BookieUnavailableError, LedgerError
from quire_bookie.limits import UNREACHABLE_REMEMBERED_S
from quire_bookie.model import BookieId, Buffer, EntryId, LedgerId


class _RememberingLink:
    """A link that remembers that its bookie is unreachable."""

    def __init__(self, link: BookieLink) -> None:
        self.bookie = link.bookie
        self._link = link
        self._loop = asyncio.get_running_loop()
        self._has_failed = False
        """Whether the last response was that the bookie is unavailable."""
        self._error: BookieUnavailableError | None = None
        self._until_s = 0.0

    def send_adds(self, ledger: LedgerId, frames: Buffer, sink: AddSink) -> None:
        """See BookieLink."""
        self._link.send_adds(ledger, frames, sink)

    def forget_sink(self, ledger: LedgerId, sink: AddSink) -> None:
        """See BookieLink."""
        self._link.forget_sink(ledger, sink)

    def read(
        self, ledger: LedgerId, entry: EntryId, answer: EntryAnswer, *, fence_key: bytes | None, high_priority: bool
    ) -> None:
        """See BookieLink."""
        if not self._refuses(answer):
            self._link.read(ledger, entry, self._noting(answer), fence_key=fence_key, high_priority=high_priority)

    def read_batch(
        self, ledger: LedgerId, first: EntryId, entries_max: int, bytes_max: int, answer: BatchAnswer
    ) -> None:
        """See BookieLink."""
        if not self._refuses(answer):
            self._link.read_batch(ledger, first, entries_max, bytes_max, self._noting(answer))

    def _refuses(self, answer: Callable[[LedgerError], None]) -> bool:
        if self._error is None or self._loop.time() >= self._until_s:
            return False
        self._loop.call_soon(answer, self._error)
        return True

    def _noting(self, answer: Callable[[Any], None]) -> Callable[[Any], None]:
        is_second = self._has_failed

        def noted(found: object) -> None:
            self._has_failed = isinstance(found, BookieUnavailableError)
            if not isinstance(found, BookieUnavailableError):
                self._error = None
            elif is_second:
                self._error, self._until_s = found, self._loop.time() + UNREACHABLE_REMEMBERED_S
            answer(found)

        return noted


class ReachableLinks(WrappedLinks):
    """The links of one copy, on top of those of the process."""

    def __init__(self, links: Links) -> None:
        super().__init__(links)
        self._made: dict[tuple[BookieId, Purpose], _RememberingLink] = {}

    def link(self, bookie: BookieId, purpose: Purpose) -> BookieLink:
        """See Links."""
        found = self._made.get((bookie, purpose))
        if found is None:
            found = self._made[bookie, purpose] = _RememberingLink(self._links.link(bookie, purpose))
        return found
