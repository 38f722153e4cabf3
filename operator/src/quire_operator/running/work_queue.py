"""Queue of resources to reconcile: each key is queued once, and never processed concurrently.

Bounded by the number of resources. A successful reconciliation returns the seconds until the next one; failures follow
kopf's contract for handlers: TemporaryError states the delay of the retry, PermanentError is not retried before the
resource changes or `RESYNC_S` has passed, and any other exception is retried with back-off.

kopf's daemons and timers cannot take its place: docs/decisions/0009.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import kopf

_log = logging.getLogger("quire.operator")
BACK_OFF_S = 0.5
BACK_OFF_S_MAX = 60.0
RESYNC_S = 300.0
"""Whatever caused a permanent error may change without a watch that reports it."""


def back_off_s(retry: int) -> float:
    """Return the delay after this many failures in a row, 0 for the first; it doubles up to a maximum."""
    return float(min(BACK_OFF_S_MAX, BACK_OFF_S * 2 ** min(retry, 20)))


@dataclass(frozen=True, slots=True, order=True)
class Key:
    """Identifies a resource."""

    kind: str
    namespace: str
    name: str


Work = Callable[[Key, int], Awaitable[float | None]]
"""Reconciles a resource and returns the seconds until the next time, or None if the resource is gone.

The number is that of former failures in a row, kopf's `retry`.
"""


@dataclass(slots=True)
class QueueStats:
    """Counters since the start of the process."""

    passes: int = 0
    failures: int = 0


class WorkQueue:
    """Schedules keys. Call `add` from anywhere in the event loop; each task in `run` processes one key at a time."""

    def __init__(self) -> None:
        """Create an empty queue."""
        self.stats = QueueStats()
        self._due: dict[Key, float] = {}
        self._busy: set[Key] = set()
        self._failures: dict[Key, int] = {}
        self._changed = asyncio.Condition()

    def __len__(self) -> int:
        """Return the number of queued keys."""
        return len(self._due)

    async def add(self, key: Key, after_s: float = 0.0) -> None:
        """Queue a key, to be processed after at most this many seconds."""
        due_s = asyncio.get_running_loop().time() + after_s
        async with self._changed:
            if due_s >= self._due.get(key, float("inf")):
                return
            self._due[key] = due_s
            self._changed.notify_all()

    async def run(self, work: Work) -> None:
        """Process keys until cancelled. A cancelled reconciliation may have performed a part of its actions."""
        while True:
            key = await self._next()
            try:
                again_s = await self._pass(work, key)
            finally:
                async with self._changed:
                    self._busy.discard(key)
                    self._changed.notify_all()
            if again_s is not None:
                await self.add(key, again_s)

    async def _pass(self, work: Work, key: Key) -> float | None:
        self.stats.passes += 1
        retry, who = self._failures.get(key, 0), f"{key.kind} {key.namespace}/{key.name}"
        try:
            again_s = await work(key, retry)
        except kopf.PermanentError as error:
            again_s = RESYNC_S
            _log.error("%s: %s; not retried before it changes", who, error)
        except kopf.TemporaryError as error:
            again_s = back_off_s(retry) if error.delay is None else error.delay
            _log.warning("%s: %s; retrying in %.1f s", who, error, again_s)
        except Exception:  # noqa: BLE001 - the root of a reconciliation
            # An unexpected state of one resource or pod must not stop the reconciliation of all others.
            again_s = back_off_s(retry)
            _log.exception("%s: unexpected error; retrying in %.1f s", who, again_s)
        else:
            self._failures.pop(key, None)
            return again_s
        self.stats.failures += 1
        self._failures[key] = retry + 1
        return again_s

    async def _next(self) -> Key:
        """Return the key that has been due for longest and is not being processed; mark it as busy.

        Scans all keys: there are hundreds, and a reconciliation costs a thousand times more.
        """
        async with self._changed:
            while True:
                now_s = asyncio.get_running_loop().time()
                due_s, key = min(
                    ((due_s, key) for key, due_s in self._due.items() if key not in self._busy),
                    default=(None, None),
                )
                if key is not None and due_s is not None and due_s <= now_s:
                    del self._due[key]
                    self._busy.add(key)
                    return key
                try:
                    async with asyncio.timeout(None if due_s is None else due_s - now_s):
                        await self._changed.wait()
                except TimeoutError:
                    continue
