"""Finds ledgers with fewer copies than configured, counts and marks them. The workers raise them, not this module.

A broker creates such a ledger while too few bookies are writable, and its client marks it at once. The mark may be
missing if the client died in between, or if a Java auto-recovery found nothing wrong and removed it. So the auditor
checks at its start, when the bookies change, when a ledger is marked, and at an interval. A check writes only missing
marks: a Java worker that removes them causes at most one write per ledger and check.
"""

import asyncio
import logging
from collections.abc import Iterator

from quire_bookie.errors import MetadataFormatError
from quire_bookie.limits import AUDITOR_MARKS_AT_ONCE, NARROW_CHECK_INTERVALS_S, NARROW_CHECK_PAUSE_S
from quire_bookie.metadata import layout
from quire_bookie.metadata.ledger_metadata import decode_ledger_metadata
from quire_bookie.metadata.store import Node
from quire_bookie.model import LedgerId
from quire_bookie.quorum.wanted_copies import WANTED_WRITE_QUORUM, missing_copies
from quire_bookie.recovery.access import ClusterAccess
from quire_bookie.recovery.ledger_folders import ledger_folders
from quire_bookie.recovery.stats import RecoveryStats

_log = logging.getLogger("quire.recovery.narrow")


class NarrowCheck:
    """The narrow check of one auditor. Uses memory for one page of ledgers."""

    def __init__(self, access: ClusterAccess, stats: RecoveryStats) -> None:
        self._access = access
        self._stats = stats
        self._wake = asyncio.Event()

    def wake(self) -> None:
        """Check soon: the bookies changed, or a ledger was marked."""
        self._wake.set()

    async def run(self) -> None:
        """Check repeatedly until cancelled. Raises MetadataError."""
        loop = asyncio.get_running_loop()
        while True:
            self._wake.clear()
            began_s = loop.time()
            found = await self.check()
            pause_s = max(NARROW_CHECK_PAUSE_S, 20 * (loop.time() - began_s))
            try:
                async with asyncio.timeout(max(pause_s, NARROW_CHECK_INTERVALS_S[0 if found else 1])):
                    await self._wake.wait()
            except TimeoutError:
                continue
            await asyncio.sleep(max(0.0, began_s + pause_s - loop.time()))

    async def check(self) -> int:
        """Walk through the metadata of all ledgers once. Return how many have fewer copies than configured.

        Raises MetadataError.
        """
        access, found = self._access, 0
        async for folder in ledger_folders(access.metadata):
            async for page in access.metadata.scan(folder):
                narrow = list(self._narrow(page))
                found += len(narrow)
                for at in range(0, len(narrow), AUDITOR_MARKS_AT_ONCE):
                    part = narrow[at : at + AUDITOR_MARKS_AT_ONCE]
                    made = await asyncio.gather(*(access.marks.mark(ledger, (), again=False) for ledger in part))
                    self._stats.marks_made += sum(made)
        if found != self._stats.ledgers_below_configured_copies:
            _log.info("%d ledgers have fewer copies than configured", found)
        self._stats.ledgers_below_configured_copies = found
        self._stats.narrow_checks += 1
        return found

    def _narrow(self, page: list[Node]) -> Iterator[LedgerId]:
        unmarked = self._access.settings.unmarked_write_quorum
        needle = b"" if unmarked else WANTED_WRITE_QUORUM.encode()  # avoids decoding most ledgers
        for node in page:
            ledger = layout.ledger_of_path(node.key)
            if ledger is None or needle not in node.value:
                continue
            try:
                if missing_copies(decode_ledger_metadata(node.value), unmarked):
                    yield ledger
            except MetadataFormatError:
                self._stats.ledgers_unreadable += 1
