"""The journal of a bookie that writes no journal: acknowledges every append in the next loop step.

Owns nothing on disk. Must never call a `done` from inside an append. Acknowledged entries are only in memory: the next
start must detect that the process did not stop cleanly (quire_bookie.server.start.run_notes).
"""

import asyncio
from functools import partial

from quire_bookie.journal.writer import BatchDone, Done, run_dones
from quire_bookie.model import Buffer, LedgerId, Run, RunBatch


class Unwritten:
    """Acknowledges appends without writing them. Event loop's thread only."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._dones: list[Done | None] = []

    def append_run(self, run: Run, done: Done | None) -> None:
        """Call `done` in the next loop step; the run itself is in the write cache."""
        self.append_force(done)

    def append_batch(self, batch: RunBatch, done: BatchDone) -> None:
        """Call `done` in the next loop step."""
        self.append_force(partial(done, batch))

    def append_master_key(self, ledger: LedgerId, key: bytes, done: Done | None = None, token: bytes = b"") -> None:
        """Call `done` in the next loop step."""
        self.append_force(done)

    def append_fence(self, ledger: LedgerId, done: Done | None) -> None:
        """Call `done` in the next loop step."""
        self.append_force(done)

    def append_explicit_lac(self, ledger: LedgerId, packet: Buffer, done: Done | None) -> None:
        """Call `done` in the next loop step."""
        self.append_force(done)

    def append_force(self, done: Done | None) -> None:
        """Call `done` in the next loop step, in the order of the calls: there is nothing to force."""
        if not self._dones:
            self._loop.call_soon(self._run_dones)
        self._dones.append(done)

    def _run_dones(self) -> None:
        dones, self._dones = self._dones, []
        assert dones, "a call is scheduled by the first append"
        run_dones(iter(dones), None)
