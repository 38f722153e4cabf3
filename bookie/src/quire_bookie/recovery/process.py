"""Starts and stops auto-recovery in one process: registrations, connections, workers and auditor.

If one part fails, all of it ends: a partial auto-recovery would look like a complete one. `failed` then holds the
reason, and the owner of the process stops or restarts it.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Coroutine
from typing import Any

from quire_bookie.env.chance import Chance
from quire_bookie.env.clock import WallClock
from quire_bookie.env.own_links import OwnLinks
from quire_bookie.errors import MetadataError, StartupError
from quire_bookie.metadata.election import Election
from quire_bookie.metadata.recovery_controls import RecoveryControls
from quire_bookie.metadata.store import MetadataStore
from quire_bookie.metadata.under_replication import ReplicationLocks
from quire_bookie.recovery.access import ClusterAccess
from quire_bookie.recovery.auditor import Auditor
from quire_bookie.recovery.drainage import SetReadOnly
from quire_bookie.recovery.ledger_repair import EndLimbo, LedgerRepair
from quire_bookie.recovery.replication_worker import ReplicationWorkers
from quire_bookie.recovery.stats import RecoveryStats
from quire_bookie.settings.client import ClientSettings
from quire_bookie.settings.recovery import RecoverySettings

_log = logging.getLogger("quire.recovery")


class RunningAutoRecovery:
    """A running auto-recovery. Created by `start_auto_recovery`."""

    def __init__(
        self, access: ClusterAccess, auditor: Auditor | None, workers: ReplicationWorkers, stats: RecoveryStats
    ) -> None:
        self.stats = stats
        self.workers = workers
        self.auditor = auditor
        self.access = access
        self.failed: asyncio.Future[BaseException] = asyncio.get_running_loop().create_future()
        """Done when a part died; the result is the reason."""
        self._task = asyncio.get_running_loop().create_task(self._run(), name="auto-recovery")
        self._task.add_done_callback(self._ended)

    async def _run(self) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(_run_until_cancelled(self.workers.run, "replication workers"))
            if self.auditor is not None:
                group.create_task(_run_until_cancelled(self.auditor.run, "auditor"))

    def _ended(self, task: "asyncio.Task[None]") -> None:
        if task.cancelled() or self.failed.done():
            return
        error = task.exception()
        assert error is not None  # `_run_until_cancelled` returns in no other way
        _log.error("auto-recovery stops: %s", error, exc_info=error)
        self.failed.set_result(error)

    async def stop(self) -> None:
        """End the tasks, resign as auditor and release all locks."""
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        if self.auditor is not None:
            await self.auditor.resign()
        await self.access.close()


async def _run_until_cancelled(part: Callable[[], Coroutine[Any, Any, None]], what: str) -> None:
    """Run a part until it is cancelled from outside. Raises RuntimeError if it ends in another way."""
    task = asyncio.get_running_loop().create_task(part(), name=what)
    try:
        await asyncio.wait([task])
    except asyncio.CancelledError:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        raise
    if task.cancelled():
        raise RuntimeError(f"{what}: cancelled unexpectedly")
    task.result()
    raise RuntimeError(f"{what}: ended unexpectedly")


async def start_auto_recovery(
    settings: RecoverySettings,
    *,
    metadata: MetadataStore,
    clock: WallClock,
    chance: Chance,
    name: str,
    client_settings: ClientSettings | None = None,
    end_limbo: EndLimbo | None = None,
    set_read_only: SetReadOnly | None = None,
    own_links: OwnLinks | None = None,
) -> RunningAutoRecovery:
    """Start the workers and, if configured, a candidate for auditor.

    `name` identifies this process in locks and election.

    `end_limbo`, `set_read_only`: functions that reach a bookie; None: over its HTTP port. `own_links`: links to the
    bookies in this process. Raises StartupError, MetadataUnavailableError, ConfigError.
    """
    async with contextlib.AsyncExitStack() as undo:
        access = await ClusterAccess.open(
            metadata,
            settings,
            client_settings or ClientSettings(),
            clock=clock,
            chance=chance,
            own_links=own_links,
        )
        undo.push_async_callback(access.close)
        controls = RecoveryControls(metadata)
        try:
            await controls.ensure_layout()
        except MetadataError as error:
            raise StartupError(f"auto-recovery cannot start: {error}") from error
        stats = RecoveryStats()
        locks = ReplicationLocks(metadata, name)
        limbo = end_limbo or access.http.end_limbo
        repair = LedgerRepair(access, locks, limbo, stats)
        workers = ReplicationWorkers(access, repair, locks, controls, stats)
        auditor = Auditor(access, Election(metadata, name), controls, stats, set_read_only) if settings.audits else None
        undo.pop_all()
    return RunningAutoRecovery(access, auditor, workers, stats)
