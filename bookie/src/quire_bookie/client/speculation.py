"""Sends reads that wait too long to a second replica; the first response with a matching digest wins.

Has one timer for all reads of one ledger handle. Owns the waits (BookKeeper's speculative read policy: a first wait
that grows up to a maximum); knows neither the entries nor the bookies of the reads.
"""

from asyncio import TimerHandle
from typing import Protocol

from quire_bookie.client.links.bookie_link import Links
from quire_bookie.settings.client import ClientSettings


class SpeculativeRead(Protocol):
    """A read in progress."""

    def speculate(self, waited_s: float) -> bool:
        """Read from one more replica; `waited_s`: since the last request. Return False if no replica is left."""
        ...


class Speculation:
    """Watches the reads of one ledger handle and triggers speculative reads."""

    def __init__(self, links: Links, settings: ClientSettings) -> None:
        self._links = links
        self._first_s = settings.speculative_read_first_s
        self._growth = settings.speculative_read_growth
        self._max_s = settings.speculative_read_max_s
        self._asked_s: dict[SpeculativeRead, float] = {}
        """Time of the last request of a read."""
        self._waits_s: dict[SpeculativeRead, float] = {}
        """How long the last request may take; only for reads with several requests."""
        self._timer: TimerHandle | None = None
        self._due_s = 0.0
        """When the timer is due."""

    def began(self, read: SpeculativeRead) -> None:
        """Watch the read from now on, unless speculative reads are disabled."""
        if self._first_s:
            self._asked_s[read] = now_s = self._links.now_s()
            # The timer may belong to a read with several requests, which waits longer.
            if self._timer is None or self._due_s > now_s + self._first_s:
                self._arm(now_s, now_s + self._first_s)

    def ended(self, read: SpeculativeRead) -> None:
        """Stop watching the read."""
        self._asked_s.pop(read, None)
        if self._waits_s:
            self._waits_s.pop(read, None)

    def _check(self) -> None:
        self._timer = None
        now_s = self._links.now_s()
        for read, asked_s in list(self._asked_s.items()):
            wait_s = self._waits_s.get(read, self._first_s)
            if asked_s + wait_s > now_s or read not in self._asked_s:
                continue
            if read.speculate(now_s - asked_s):
                self._asked_s[read] = now_s
                self._waits_s[read] = min(wait_s * self._growth, self._max_s)
            else:
                self.ended(read)
        if self._asked_s and self._timer is None:
            due_s = min(asked_s + self._waits_s.get(read, self._first_s) for read, asked_s in self._asked_s.items())
            self._arm(now_s, due_s)

    def _arm(self, now_s: float, due_s: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._due_s = due_s
        self._timer = self._links.call_later(max(due_s - now_s, 0.0), self._check)
