"""A collection as it changes, over an API server that forgets, breaks off and refuses."""

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
    """Answers lists and watches from scripts; watches of which none is left wait for ever."""

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


class Told:
    def __init__(self) -> None:
        self.all: list[tuple[str, int | None, bool]] = []
        self.changed = asyncio.Event()

    async def __call__(self, what: Manifest, gone: bool) -> None:
        version = what["metadata"].get("resourceVersion")
        self.all.append((what["metadata"]["name"], None if version is None else int(version), gone))
        self.changed.set()


async def told_by(server: Server, until: Callable[[Told, Server], bool]) -> Told:
    told = Told()
    client: Any = server
    feed = Feed(client, Collection("/things"), told, back_off_s=0.0)
    task = asyncio.create_task(feed.run())
    try:
        for _ in range(TURNS):
            await asyncio.sleep(0)
            if until(told, server):
                return told
    finally:
        task.cancel()
    raise AssertionError(f"not after {TURNS} turns of the loop: {told.all}, {server.watched_from}")


def settled(_: Told, server: Server) -> bool:
    """Everything in the script was read, and it watches again."""
    return not server.lists and not server.watches and len(server.watched_from) > 0


async def test_each_change_is_told_once_and_bookmarks_are_not() -> None:
    events: list[Step] = [
        event("MODIFIED", item("a", 101)),
        event("ADDED", item("b", 102)),
        event("BOOKMARK", {"metadata": {"resourceVersion": "150"}}),
        event("DELETED", item("b", 151)),
    ]
    server = Server([[item("a", 1)]], [events])
    told = await told_by(server, lambda _, server: len(server.watched_from) == 2)
    assert told.all == [("a", 1, False), ("a", 101, False), ("b", 102, False), ("b", 151, True)]
    assert server.watched_from == ["100", "151"], "one that ended goes on behind the last event"


async def test_a_broken_watch_goes_on_where_it_was() -> None:
    server = Server([[item("a", 1)]], [[event("MODIFIED", item("a", 105)), UnreachableError("cut")], []])
    told = await told_by(server, lambda _, server: len(server.watched_from) == 3)
    assert told.all == [("a", 1, False), ("a", 105, False)]
    assert server.watched_from == ["100", "105", "105"]


async def test_a_forgotten_version_is_listed_anew_and_what_went_meanwhile_is_told() -> None:
    lists: list[list[Manifest] | Exception] = [
        [item("kept", 1), item("gone", 2), item("changed", 3)],
        [item("kept", 1), item("changed", 50), item("new", 60)],
    ]
    told = await told_by(Server(lists, [[GoneError(410, "too old")]]), settled)
    assert told.all[3:] == [("gone", None, True), ("changed", 50, False), ("new", 60, False)]


async def test_a_server_that_refuses_at_first_is_asked_again() -> None:
    server = Server([KubeError(503, "not yet"), UnreachableError("away"), [item("a", 1)]], [])
    assert (await told_by(server, settled)).all == [("a", 1, False)]
