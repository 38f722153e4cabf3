"""One conformance suite for both metadata stores: whatever the port promises holds on SQLite and on a real etcd."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from quire_bookie.errors import BadVersionError, MetadataError, MetadataUnavailableError, NodeMissingError
from quire_bookie.limits import METADATA_VALUE_BYTES_MAX
from quire_bookie.metadata.opening import open_metadata_store
from quire_bookie.metadata.store import (
    ABSENT,
    Check,
    Delete,
    Event,
    EventKind,
    Get,
    MetadataStore,
    Node,
    Operation,
    Put,
    Read,
    Under,
    Watch,
)
from quire_bookie.settings.metadata import MetadataSettings
from tests.support.etcd_server import EtcdServer

SETTINGS = MetadataSettings(session_timeout_s=5, operation_timeout_s=10, connect_timeout_s=5)
CREATED, MODIFIED, DELETED = EventKind.CREATED, EventKind.MODIFIED, EventKind.DELETED


@pytest.fixture(params=["local", "etcd"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Of an empty store."""
    if request.param == "local":
        return f"local:{tmp_path / 'metadata'}"
    server: EtcdServer = request.getfixturevalue("etcd_server")
    return server.url


@pytest.fixture
async def store(url: str) -> AsyncIterator[MetadataStore]:
    """An open store."""
    opened = await open_metadata_store(url, SETTINGS)
    yield opened
    await opened.close()


async def collect(watch: Watch, enough: Callable[[list[Event]], bool]) -> list[Event]:
    """Events until `enough`."""
    events: list[Event] = []
    async with asyncio.timeout(20):
        async for event in watch:
            events.append(event)
            if enough(events):
                break
    return events


async def scan_all(store: MetadataStore, prefix: str, *, page_keys: int = 1000, keys_only: bool = False) -> list[Node]:
    """All nodes of a scan, which must not come in pages larger than asked for."""
    nodes: list[Node] = []
    async for page in store.scan(prefix, page_keys=page_keys, keys_only=keys_only):
        assert 0 < len(page) <= page_keys
        nodes += page
    return nodes


async def test_versions_start_at_zero_grow_by_one_and_start_again_after_a_delete(store: MetadataStore) -> None:
    assert await store.get("/a") is None
    assert [await store.put("/a", value) for value in (b"x", b"y", b"")] == [0, 1, 2]
    assert await store.get("/a") == Node("/a", b"", 2)
    await store.delete("/a")
    assert await store.put("/a", b"z") == 0


async def test_a_compare_and_set_writes_only_over_the_version_it_expects(store: MetadataStore) -> None:
    assert await store.put("/a", b"1", expected=ABSENT) == 0
    with pytest.raises(BadVersionError):
        await store.put("/a", b"2", expected=ABSENT)
    with pytest.raises(BadVersionError):
        await store.put("/a", b"2", expected=1)
    with pytest.raises(BadVersionError):
        await store.put("/missing", b"2", expected=0)
    assert await store.put("/a", b"3", expected=0) == 1
    assert await store.get("/a") == Node("/a", b"3", 1)


async def test_of_many_writers_with_one_expected_version_exactly_one_wins(store: MetadataStore) -> None:
    await store.put("/a", b"")
    outcomes = await asyncio.gather(
        *(store.put("/a", str(n).encode(), expected=0) for n in range(20)), return_exceptions=True
    )
    won = [n for n, outcome in enumerate(outcomes) if outcome == 1]
    assert len(won) == 1
    assert sum(isinstance(outcome, BadVersionError) for outcome in outcomes) == 19
    node = await store.get("/a")
    assert node is not None and node.value == str(won[0]).encode()


async def test_a_delete_tells_a_missing_node_from_a_changed_one(store: MetadataStore) -> None:
    with pytest.raises(NodeMissingError):
        await store.delete("/a")
    with pytest.raises(BadVersionError):
        await store.delete("/a", expected=0)
    await store.put("/a", b"")
    await store.put("/a", b"")
    with pytest.raises(BadVersionError):
        await store.delete("/a", expected=0)
    await store.delete("/a", expected=1)
    assert await store.get("/a") is None


async def test_a_transaction_happens_as_a_whole_or_not_at_all(store: MetadataStore) -> None:
    await store.put("/a", b"a")
    with pytest.raises(BadVersionError):
        await store.transact([Check("/a", 0), Check("/b", 0)], [Put("/a", b"changed"), Put("/b", b"b"), Delete("/a/x")])
    assert await store.get("/a") == Node("/a", b"a", 0)
    assert await store.get("/b") is None
    await store.put("/old", b"")
    await store.transact(
        [Check("/a", 0), Check("/b", ABSENT)],
        [
            Put("/a", b"changed"),
            Put("/b", b"b"),
            Delete("/old"),
            Delete("/never-there"),
            Put("/e", b"", ephemeral=True),
        ],
    )
    assert await store.get("/a") == Node("/a", b"changed", 1)
    assert await store.get("/b") == Node("/b", b"b", 0)
    assert await store.get("/old") is None
    assert await store.get("/e") == Node("/e", b"", 0, ephemeral=True, owned=True)


async def test_a_transaction_of_the_largest_size_goes_through(store: MetadataStore) -> None:
    await store.transact([Check(f"/k/{n}", ABSENT) for n in range(50)], [Put(f"/k/{n}", b"v") for n in range(50)])
    assert len(await store.children("/k")) == 50


async def test_sequential_nodes_count_on_their_parent_and_never_repeat(store: MetadataStore) -> None:
    assert await store.put_sequential("/p/n-", b"first") == "/p/n-0"
    assert await store.put_sequential("/p/n-", b"second", ephemeral=True) == "/p/n-1"
    assert await store.get("/p") == Node("/p", b"", 1)
    assert await store.get("/p/n-0") == Node("/p/n-0", b"first", 0)
    assert await store.get("/p/n-1") == Node("/p/n-1", b"second", 0, ephemeral=True, owned=True)
    await store.delete("/p/n-1")
    keys = await asyncio.gather(*(store.put_sequential("/p/n-", b"") for _ in range(20)))
    assert sorted(keys) == sorted(f"/p/n-{n}" for n in range(2, 22))


async def test_nodes_below_a_prefix_are_counted(store: MetadataStore) -> None:
    assert await store.count("/p/") == 0
    for key in ("/p", "/p/a", "/p/a/x", "/p/b", "/pq"):
        await store.put(key, b"")
    assert (await store.count("/p/"), await store.count("/p")) == (3, 5)


async def test_children_are_the_first_names_below_and_need_no_parent(store: MetadataStore) -> None:
    for key in ("/p/a", "/p/a-b", "/p/a/x", "/p/a/y/z", "/p/c/d", "/pq", "/p/é", "/p/0"):
        await store.put(key, b"")
    assert await store.children("/p") == ["0", "a", "a-b", "c", "é"]
    assert await store.children("/p/a") == ["x", "y"]
    assert await store.children("/p/0") == []
    assert await store.children("/nothing") == []
    assert await store.children("/") == ["p", "pq"]


async def test_children_of_a_large_tree_are_complete(store: MetadataStore) -> None:
    keys = [f"/t/{n % 7}/{n:05d}" for n in range(2500)] + [f"/t/x{n}" for n in range(1100)]
    await asyncio.gather(*(store.put(key, b"") for key in keys))
    assert await store.children("/t") == sorted([str(n) for n in range(7)] + [f"x{n}" for n in range(1100)])


@pytest.mark.parametrize("page_keys", [1, 3, 7, 1000])
async def test_a_scan_gives_every_node_once_in_order_of_its_key(store: MetadataStore, page_keys: int) -> None:
    keys = ["/s/a", "/s/a-b", "/s/a/x", "/s/b", "/s/c", "/s/z", "/s/é"]
    for key in [*keys, "/r", "/t", "/s"]:
        await store.put(key, key.encode())
    assert await scan_all(store, "/s/", page_keys=page_keys) == [Node(key, key.encode(), 0) for key in keys]
    bare = await scan_all(store, "/s/", page_keys=page_keys, keys_only=True)
    assert [(node.key, node.value) for node in bare] == [(key, b"") for key in keys]
    assert await scan_all(store, "/nothing/") == []


async def test_a_scan_shows_one_revision_whatever_is_written_meanwhile(store: MetadataStore) -> None:
    for n in range(10):
        await store.put(f"/s/{n}", b"old")
    seen: list[Node] = []
    async for page in store.scan("/s/", page_keys=2):
        seen += page
        await store.put("/s/9", b"new")
        await store.put(f"/s/9{len(seen)}", b"new")
        if len(seen) == 2:
            await store.delete("/s/5")
    assert seen == [Node(f"/s/{n}", b"old", 0) for n in range(10)]


async def test_a_scan_may_be_left_in_the_middle(store: MetadataStore) -> None:
    for n in range(4):
        await store.put(f"/s/{n}", b"")
    async with contextlib.aclosing(store.scan("/s/", page_keys=1)) as pages:  # type: ignore[type-var]
        async for page in pages:
            assert page[0].key == "/s/0"
            break
    assert await store.put("/s/0", b"") == 1


async def test_a_watch_sees_each_change_once_in_order_from_when_it_was_opened(store: MetadataStore) -> None:
    await store.put("/w/before", b"")
    watch = await store.watch("/w/")
    await store.put("/w/a", b"1")
    await store.put("/other", b"")
    await store.put("/w/a", b"2")
    await store.transact([], [Put("/w/b", b""), Delete("/w/before")])
    await store.delete("/w/a")
    await store.put("/w/a", b"3")
    events = await collect(watch, lambda seen: len(seen) == 6)
    by_key = [Event(CREATED, "/w/a"), Event(MODIFIED, "/w/a"), Event(DELETED, "/w/a"), Event(CREATED, "/w/a")]
    assert [event for event in events if event.key == "/w/a"] == by_key
    assert set(events) - set(by_key) == {Event(CREATED, "/w/b"), Event(DELETED, "/w/before")}


async def test_a_closed_watch_ends_its_reader(store: MetadataStore) -> None:
    watch = await store.watch("/w/")
    reader = asyncio.ensure_future(collect(watch, lambda _: False))
    await store.put("/w/a", b"")
    await watch.close()
    assert len(await asyncio.wait_for(reader, 10)) <= 1


async def test_ephemeral_nodes_go_when_the_session_ends_and_others_stay(url: str) -> None:
    first = await open_metadata_store(url, SETTINGS)
    await first.put("/e/mine", b"", ephemeral=True)
    await first.put("/e/kept", b"")
    await first.put("/e/detached", b"", ephemeral=True)
    await first.put("/e/detached", b"stays")
    assert await first.get("/e/mine") == Node("/e/mine", b"", 0, ephemeral=True, owned=True)
    assert await first.get("/e/detached") == Node("/e/detached", b"stays", 1)
    await first.close()
    second = await open_metadata_store(url, SETTINGS)
    assert await second.children("/e") == ["detached", "kept"]
    await second.close()


async def test_what_was_written_is_there_after_closing_and_opening_again(url: str) -> None:
    first = await open_metadata_store(url, SETTINGS)
    value = bytes(range(256)) * 100
    await first.put("/a/b", value)
    await first.put("/a/b", value)
    await first.close()
    await first.close()
    second = await open_metadata_store(url, SETTINGS)
    assert await second.get("/a/b") == Node("/a/b", value, 1)
    await second.close()


async def test_a_value_over_the_limit_is_refused_and_the_largest_is_stored(store: MetadataStore) -> None:
    await store.put("/large", bytes(METADATA_VALUE_BYTES_MAX))
    with pytest.raises(MetadataError):
        await store.put("/larger", bytes(METADATA_VALUE_BYTES_MAX + 1))
    assert [len(node.value) for node in await scan_all(store, "/large")] == [METADATA_VALUE_BYTES_MAX]


async def test_a_closed_store_refuses_further_work(url: str) -> None:
    opened = await open_metadata_store(url, SETTINGS)
    await opened.close()
    with pytest.raises(MetadataUnavailableError):
        await opened.get("/a")


async def test_a_session_listener_can_be_removed(store: MetadataStore) -> None:
    remove = store.on_session(lambda _: None)
    remove()
    remove()


async def test_a_read_returns_nodes_and_the_first_ones_under_a_prefix(store: MetadataStore) -> None:
    for key in ("/a", "/a/1", "/a/2", "/a/3", "/ab"):
        await store.put(key, key.encode())
    await store.put("/a", b"again")
    await store.put("/mine", b"", ephemeral=True)
    found = await store.read([Get("/a"), Get("/missing"), Under("/a/", 2), Under("/none/", 2), Get("/mine")])
    assert [[node.key for node in each] for each in found] == [["/a"], [], ["/a/1", "/a/2"], [], ["/mine"]]
    assert found[0] == [Node("/a", b"again", 1)]
    assert (found[4][0].ephemeral, found[4][0].owned) == (True, True)


async def test_a_transaction_returns_nodes_as_they_are_after_it(store: MetadataStore) -> None:
    await store.put("/list", b"old")
    await store.put("/list/gone", b"")
    await store.put("/list/kept", b"k")
    reads: list[Read] = [Get("/list"), Under("/list/", 5), Get("/counter")]
    operations: list[Operation] = [Put("/list", b"new"), Delete("/list/gone"), Put("/counter", b"")]
    found = await store.transact([Check("/list", 0), Check("/counter", ABSENT)], operations, reads)
    assert found == [[Node("/list", b"new", 1)], [Node("/list/kept", b"k", 0)], [Node("/counter", b"", 0)]]
    with pytest.raises(BadVersionError):
        await store.transact([Check("/list", 0)], operations, reads)
    assert await store.get("/counter") == Node("/counter", b"", 0)
