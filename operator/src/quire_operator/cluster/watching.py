"""Follows the changes of a collection: lists it, then watches it for as long as the process runs. Decides nothing.

A watch that ends continues from its last version. If the API server no longer has that version (410 Gone), everything
is listed again, and changes and deletions in between are reported as if they had been watched. Failures are retried
with back-off.
"""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from quire_operator.builders import Manifest
from quire_operator.cluster.kube import Kube
from quire_operator.errors import GoneError, OperatorError

_log = logging.getLogger("quire.operator")
BACK_OFF_S = 0.5
BACK_OFF_S_MAX = 30.0
WATCH_S = 240

Report = Callable[[Manifest, bool], Awaitable[None]]
"""Receives an object, and whether it was deleted. An object deleted between watches has only names and labels."""


@dataclass(frozen=True, slots=True)
class Collection:
    """The collection to watch."""

    path: str
    selector: str = ""
    metadata_only: bool = False


class Feed:
    """Reports each change once. `listed` is set once all existing objects have been reported."""

    def __init__(self, kube: Kube, what: Collection, report: Report, back_off_s: float = BACK_OFF_S) -> None:
        """Report changes to `report`. `back_off_s`: delay after the first failure; it doubles."""
        self.path = what.path
        self.listed = asyncio.Event()
        self.relists = 0
        self._kube = kube
        self._what = what
        self._report = report
        self._back_off_s = back_off_s
        self._known: dict[tuple[str, str], tuple[str, Manifest]] = {}
        self._version = ""
        self._failures = 0

    async def run(self) -> None:
        """Run until cancelled."""
        while True:
            try:
                if not self._version:
                    await self._list()
                await self._watch()
            except GoneError:
                self._version = ""
                await self._pause()
            except OperatorError as error:
                _log.warning("could not watch %s: %s", self._what.path, error)
                await self._pause()

    async def _pause(self) -> None:
        pause_s = min(BACK_OFF_S_MAX, self._back_off_s * 2 ** min(self._failures, 10))
        self._failures += 1
        await asyncio.sleep(pause_s)

    async def _list(self) -> None:
        what = self._what
        items, version = await self._kube.listed(what.path, what.selector, metadata_only=what.metadata_only)
        there = {_name(item) for item in items}
        for name in self._known.keys() - there:
            await self._gone(self._known[name][1])
        for item in items:
            await self._changed(item)
        self._version = version
        self.relists += 1
        self.listed.set()

    async def _watch(self) -> None:
        what = self._what
        watching = self._kube.watch(
            what.path, self._version, what.selector, metadata_only=what.metadata_only, for_s=WATCH_S
        )
        async with contextlib.aclosing(watching) as events:
            async for event in events:
                self._failures = 0
                item = event["object"]
                if event["type"] == "DELETED":
                    await self._gone(item)
                elif event["type"] != "BOOKMARK":
                    await self._changed(item)
                self._version = item["metadata"]["resourceVersion"]

    async def _changed(self, item: Manifest) -> None:
        version = item["metadata"]["resourceVersion"]
        before = self._known.get(_name(item))
        self._known[_name(item)] = (version, _head(item))
        if before is None or before[0] != version:
            await self._report(item, False)

    async def _gone(self, item: Manifest) -> None:
        self._known.pop(_name(item), None)
        await self._report(item, True)


def _name(item: Manifest) -> tuple[str, str]:
    return item["metadata"].get("namespace", ""), item["metadata"]["name"]


def _head(item: Manifest) -> Manifest:
    """Return the metadata that are needed to report the deletion and the owner later."""
    metadata = item["metadata"]
    return {"metadata": {key: metadata[key] for key in ("name", "namespace", "labels") if key in metadata}}
