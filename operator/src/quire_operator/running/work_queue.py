"""Keys that want a pass: each once however often it was asked for, never two passes of one key at a time. Bounded by
the number of resources. A pass that fails is repeated with back-off; one that ends well says when it wants to be back.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from quire_operator.errors import OperatorError

_log = logging.getLogger("quire.operator")
BACK_OFF_S = 0.5
BACK_OFF_S_MAX = 60.0


@dataclass(frozen=True, slots=True, order=True)
class Key:
    """A resource."""

    kind: str
    namespace: str
    name: str


Work = Callable[[Key], Awaitable[float | None]]
"""One pass; seconds until the next, or None: the resource is gone."""


@dataclass(slots=True)
class QueueStats:
    """Since the process began."""

    passes: int = 0
    failures: int = 0


class WorkQueue:
    """`add` from anywhere in the loop, `run` by as many tasks as there should be passes at once."""

    def __init__(self, back_off_s: float = BACK_OFF_S) -> None:
        """`back_off_s`: pause after a first failure; it doubles."""
        self._back_off_s = back_off_s
        self.stats = QueueStats()
        self._due: dict[Key, float] = {}
        self._busy: set[Key] = set()
        self._failures: dict[Key, int] = {}
        self._changed = asyncio.Condition()

    def __len__(self) -> int:
        """Keys that wait."""
        return len(self._due)

    async def add(self, key: Key, after_s: float = 0.0) -> None:
        """Have a pass of the key, at the latest so many seconds from now."""
        due_s = asyncio.get_running_loop().time() + after_s
        async with self._changed:
            if due_s >= self._due.get(key, float("inf")):
                return
            self._due[key] = due_s
            self._changed.notify_all()

    async def run(self, work: Work) -> None:
        """Passes, until cancelled. A cancelled pass may have done a part of its actions, as a killed operator's."""
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
        try:
            again_s = await work(key)
        except OperatorError as error:
            back_off_s = self._failed(key)
            _log.warning("%s %s/%s: %s; again in %.1f s", key.kind, key.namespace, key.name, error, back_off_s)
            return back_off_s
        except Exception:  # noqa: BLE001 - the root of a pass
            # The root of a pass: what one resource or one pod says must not end the passes of all others.
            back_off_s = self._failed(key)
            _log.exception("%s %s/%s: a pass broke; again in %.1f s", key.kind, key.namespace, key.name, back_off_s)
            return back_off_s
        self._failures.pop(key, None)
        return again_s

    def _failed(self, key: Key) -> float:
        """One more failure in a row; seconds until the next pass."""
        self.stats.failures += 1
        count = self._failures[key] = self._failures.get(key, 0) + 1
        return float(min(BACK_OFF_S_MAX, self._back_off_s * 2 ** min(count - 1, 20)))

    async def _next(self) -> Key:
        """The key that has been due for longest and is not being worked on; it counts as busy from here.

        Looks at all keys: there are hundreds, and a pass costs a thousand times as much.
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
