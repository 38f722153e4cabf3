"""Following a collection on an API server with expired versions, broken connections and refusals."""

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

from quire_operator.builders import Manifest
from quire_operator.cluster.watching import Collection, Feed
from quire_operator.errors import GoneError, KubeError, UnreachableError

Step = Manifest | Exception
TURNS = 10_000


def item(name: str, version: int, **labels: str) -> Manifest:
    return {"metadata": {"name": name, "namespace": "ns", "resourceVersion": str(version), "labels": labels}}


def event(kind: str, what: Manifest) -> Manifest:
    return {"type": kind, "object": what}


class Server:
    """Serves lists and watches from scripts; a watch without a script waits forever."""

    def __init__(self, lists: list[list[Manifest] | Exception], watches: list[list[Step]]) -> None:
        self.lists, self.watches = lists, watches
        self.watched_from: list[str] = []

    async def listed(self, path: str, selector: str, *, metadata_only: bool) -> tuple[list[Manifest], str]:
        found = self.lists.pop(0)
        if isinstance(found, Exception):
            raise found
        return found, "100"

    async def watch(
        self, path: str, version: str, selector: str, *, metadata_only: bool, for_s: int
    ) -> AsyncIterator[Manifest]:
        self.watched_from.append(version)
        if not self.watches:
            await asyncio.Event().wait()
        for step in self.watches.pop(0):
            if isinstance(step, Exception):
                raise step
            yield step


class Reports:
    def __init__(self) -> None:
        self.all: list[tuple[str, int | None, bool]] = []
        self.changed = asyncio.Event()

    async def __call__(self, what: Manifest, gone: bool) -> None:
        version = what["metadata"].get("resourceVersion")
        self.all.append((what["metadata"]["name"], None if version is None else int(version), gone))
        self.changed.set()


async def reports_of(server: Server, until: Callable[[Reports, Server], bool]) -> Reports:
    reports = Reports()
    client: Any = server
    feed = Feed(client, Collection("/things"), reports, back_off_s=0.0)
    task = asyncio.create_task(feed.run())
    try:
        for _ in range(TURNS):
            await asyncio.sleep(0)
            if until(reports, server):
                return reports
    finally:
        task.cancel()
    raise AssertionError(f"not after {TURNS} turns of the loop: {reports.all}, {server.watched_from}")


def settled(_: Reports, server: Server) -> bool:
    """Return whether the whole script was read, and the feed watches again."""
    return not server.lists and not server.watches and len(server.watched_from) > 0


async def test_each_change_is_reported_once_and_bookmarks_are_not() -> None:
    events: list[Step] = [
        event("MODIFIED", item("a", 101)),
        event("ADDED", item("b", 102)),
        event("BOOKMARK", {"metadata": {"resourceVersion": "150"}}),
        event("DELETED", item("b", 151)),
    ]
    server = Server([[item("a", 1)]], [events])
    reports = await reports_of(server, lambda _, server: len(server.watched_from) == 2)
    assert reports.all == [("a", 1, False), ("a", 101, False), ("b", 102, False), ("b", 151, True)]
    assert server.watched_from == ["100", "151"], "an ended watch continues after the last event"


async def test_a_broken_watch_continues_from_its_last_version() -> None:
    server = Server([[item("a", 1)]], [[event("MODIFIED", item("a", 105)), UnreachableError("cut")], []])
    reports = await reports_of(server, lambda _, server: len(server.watched_from) == 3)
    assert reports.all == [("a", 1, False), ("a", 105, False)]
    assert server.watched_from == ["100", "105", "105"]


async def test_after_an_expired_version_all_is_listed_and_deletions_are_reported() -> None:
    lists: list[list[Manifest] | Exception] = [
        [item("kept", 1), item("gone", 2), item("changed", 3)],
        [item("kept", 1), item("changed", 50), item("new", 60)],
    ]
    reports = await reports_of(Server(lists, [[GoneError(410, "too old")]]), settled)
    assert reports.all[3:] == [("gone", None, True), ("changed", 50, False), ("new", 60, False)]


async def test_a_refused_list_is_retried() -> None:
    server = Server([KubeError(503, "not yet"), UnreachableError("away"), [item("a", 1)]], [])
    assert (await reports_of(server, settled)).all == [("a", 1, False)]
