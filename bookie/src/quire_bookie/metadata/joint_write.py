"""Joins writes of several callers into one transaction, so that all of them wait for the store once.

Each caller first takes a *place*, and then writes its *part* there: checks and operations that also stand alone. The
transaction begins when each place has its part or is left. It also has the *conclusion*, which is valid only if every
part is done. If it fails, each part is written alone, and its caller gets the error of its own part; the conclusion is
then the owner's to write. So a caller needs no second way to write: what it gets is what `transact` raises.

The conclusion is not written if a place stays empty for too long after the first part, or if the parts do not fit into
one transaction. It is never written before a part.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from types import TracebackType
from typing import Self, TypeAlias

from quire_bookie.dataclass import dataclass
from quire_bookie.errors import MetadataError, MetadataUnknownError
from quire_bookie.limits import (
    METADATA_JOINT_BYTES_MAX,
    METADATA_JOINT_WAIT_S,
    METADATA_TRANSACTION_OPERATIONS_MAX,
)
from quire_bookie.metadata.store import Check, MetadataStore, Operation, Put

Transact: TypeAlias = Callable[[Sequence[Check], Sequence[Operation]], Awaitable[object]]
"""Executes all operations if all checks hold; `MetadataStore.transact` without reads, or the place of a joint write."""


@dataclass(frozen=True, slots=True)
class Part:
    """Checks and operations that belong together."""

    checks: Sequence[Check]
    operations: Sequence[Operation]

    @property
    def steps(self) -> int:
        """How many checks and operations it has."""
        return len(self.checks) + len(self.operations)

    @property
    def size_bytes(self) -> int:
        """The bytes that it writes."""
        return sum(len(each.value) for each in self.operations if isinstance(each, Put))


def grouped(
    parts: Sequence[Part],
    steps_max: int = METADATA_TRANSACTION_OPERATIONS_MAX,
    bytes_max: int = METADATA_JOINT_BYTES_MAX,
) -> list[list[int]]:
    """Divide parts, in their order, into transactions within the limits. Return their numbers; a large one is alone."""
    groups: list[list[int]] = []
    steps = size_bytes = 0
    for number, part in enumerate(parts):
        steps, size_bytes = steps + part.steps, size_bytes + part.size_bytes
        if not groups or steps > steps_max or size_bytes > bytes_max:
            groups.append([])
            steps, size_bytes = part.steps, part.size_bytes
        groups[-1].append(number)
    return groups


class Place:
    """The place of one caller: it writes at most one part of the joint write. Further ones are written at once."""

    def __init__(self, joint: "JointWrite") -> None:
        """Use `JointWrite.place` instead."""
        self._joint = joint
        self._is_empty = True

    def beside(self) -> "Place":
        """Return one more place, while this one is still empty."""
        assert self._is_empty, "the transaction may have begun"
        return self._joint.place()

    def leave(self) -> None:
        """Write no part. Does nothing if one was written."""
        if self._is_empty:
            self._is_empty = False
            self._joint.left()

    async def write(self, checks: Sequence[Check], operations: Sequence[Operation]) -> None:
        """Write a part together with those of the other places. Errors as `MetadataStore.transact`."""
        is_first, self._is_empty = self._is_empty, False
        await self._joint.write(Part(checks, operations), in_place=is_first)

    def __enter__(self) -> Self:
        """Return the place."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Leave it."""
        self.leave()


class JointWrite:
    """One transaction of several callers."""

    def __init__(self, store: MetadataStore, conclusion: Part, wait_s: float = METADATA_JOINT_WAIT_S) -> None:
        """`wait_s`: how long the first part waits for the others."""
        self._store = store
        self._conclusion = conclusion
        self._wait_s = wait_s
        self._empty = 0
        self._waiting: list[tuple[Part, asyncio.Future[None]]] = []
        self._timer: asyncio.TimerHandle | None = None
        self._work: asyncio.Task[None] | None = None
        self.is_concluded = False
        """Whether the conclusion was written. See `settle`."""
        self.is_unknown = False
        """Whether it may have been written."""

    def place(self) -> Place:
        """Return a place for one caller. The first one may not be the last: take all before any is used."""
        self._empty += 1
        return Place(self)

    def left(self) -> None:
        """See `Place.leave`."""
        self._empty -= 1
        if not self._empty and self._waiting:
            self._begin()

    async def write(self, part: Part, *, in_place: bool) -> None:
        """See `Place.write`."""
        if self._work is not None or not in_place:
            self._empty -= in_place
            await self._store.transact(part.checks, part.operations)
            return
        loop = asyncio.get_running_loop()
        entry = part, loop.create_future()
        self._waiting.append(entry)
        if self._timer is None:
            self._timer = loop.call_later(self._wait_s, self._begin)
        self.left()
        try:
            await entry[1]
        finally:
            if entry in self._waiting:
                self._waiting.remove(entry)

    def _begin(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self._work is None:
            entries, self._waiting = self._waiting, []
            work = self._write(entries, is_whole=not self._empty)
            self._work = asyncio.get_running_loop().create_task(work, name="joint write")

    async def _write(self, entries: "list[tuple[Part, asyncio.Future[None]]]", *, is_whole: bool) -> None:
        try:
            entries = [entry for entry in entries if not entry[1].done()]
            parts = [part for part, _ in entries]
            if entries and is_whole and len(grouped([*parts, self._conclusion])) == 1:
                await self._write_group(entries, self._conclusion)
            else:
                groups = [[entries[number] for number in numbers] for numbers in grouped(parts)]
                await asyncio.gather(*(self._write_group(group) for group in groups))
        finally:  # no caller waits for a task that ended
            for _, done in entries:
                if not done.done():
                    done.set_exception(MetadataUnknownError("the joint write ended before its outcome was known"))

    async def _write_group(
        self, entries: "list[tuple[Part, asyncio.Future[None]]]", conclusion: Part | None = None
    ) -> None:
        parts = [*(part for part, _ in entries), *([] if conclusion is None else [conclusion])]
        try:
            await self._store.transact(
                [check for part in parts for check in part.checks],
                [operation for part in parts for operation in part.operations],
            )
        except MetadataUnknownError as error:
            self.is_unknown = conclusion is not None
            for _, done in entries:
                if not done.done():
                    done.set_exception(MetadataUnknownError(str(error)))
        except MetadataError as error:
            if len(parts) > 1:
                await asyncio.gather(*(self._write_group([entry]) for entry in entries))
            elif not entries[0][1].done():
                entries[0][1].set_exception(error)
        else:
            self.is_concluded = conclusion is not None
            for _, done in entries:
                if not done.done():
                    done.set_result(None)

    async def settle(self) -> None:
        """Wait until nothing of it is being written. Call it when every caller has returned, also after an error."""
        if self._work is not None:
            await asyncio.wait({self._work})
