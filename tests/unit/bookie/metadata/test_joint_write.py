"""Joint writes: several callers share one transaction, and each gets the outcome of its own part."""

import asyncio
import random
from collections.abc import Sequence
from typing import Any

import pytest

from quire_bookie.errors import BadVersionError, MetadataError, MetadataUnavailableError, MetadataUnknownError
from quire_bookie.metadata.joint_write import JointWrite, Part, Place, grouped
from quire_bookie.metadata.store import ABSENT, Check, Node, Operation, Put, Read
from tests.sim.metadata import SimMetadata, SimMetadataStore

END = Part([Check("/end", ABSENT)], [Put("/end", b"end")])
LONG_S = 60.0


class Store(SimMetadataStore):
    """A session that notes its transactions, and fails the chosen ones."""

    def __init__(self) -> None:
        self.server = SimMetadata(random.Random(1), delay_s=(0.0, 0.0))
        super().__init__(self.server)
        self.keys: list[list[str]] = []
        """The written keys of each transaction, also of one that failed."""
        self.errors: list[MetadataError | None] = []
        """What happens to the next transactions."""
        self.is_late = False
        """Whether a transaction that fails is done nevertheless."""

    async def transact(
        self, checks: Sequence[Check], operations: Sequence[Operation], reads: Sequence[Read] = ()
    ) -> list[list[Node]]:
        self.keys.append([each.key for each in operations])
        error = self.errors.pop(0) if self.errors else None
        if error is None or self.is_late:
            found = await super().transact(checks, operations, reads)
        if error is not None:
            raise error
        return found

    @property
    def stored(self) -> set[str]:
        """The keys of all nodes."""
        return set(self.server.nodes)


async def put(place: Place, key: str, expected: int = ABSENT, size: int = 1) -> None:
    """Write one node at a place, and leave it also after an error."""
    with place:
        await place.write([Check(key, expected)], [Put(key, b"x" * size)])


async def outcomes(*works: Any) -> list[type[BaseException] | None]:
    """The errors of each."""
    return [None if one is None else type(one) for one in await asyncio.gather(*works, return_exceptions=True)]


async def test_all_parts_and_the_conclusion_are_one_transaction() -> None:
    store = Store()
    joint = JointWrite(store, END, LONG_S)
    first, second = joint.place(), joint.place()
    assert await outcomes(put(first, "/a"), put(second, "/b")) == [None, None]
    await joint.settle()
    assert store.keys == [["/a", "/b", "/end"]] and joint.is_concluded


async def test_it_waits_for_places_that_were_taken_beside_one() -> None:
    store = Store()
    joint = JointWrite(store, END, LONG_S)
    outer = joint.place()
    inner = [outer.beside() for _ in range(2)]
    outer.leave()
    writing = asyncio.create_task(put(inner[0], "/a"))
    await asyncio.sleep(0.01)
    assert not store.keys, "one place is still empty"
    inner[1].leave()
    await writing
    assert store.keys == [["/a", "/end"]] and joint.is_concluded


async def test_without_any_part_nothing_is_written() -> None:
    store = Store()
    joint = JointWrite(store, END, LONG_S)
    joint.place().leave()
    await joint.settle()
    assert not store.keys and not joint.is_concluded and not joint.is_unknown


async def test_a_part_that_fails_fails_alone_and_nothing_is_concluded() -> None:
    store = Store()
    await store.put("/b", b"of another writer")
    joint = JointWrite(store, END, LONG_S)
    places = [joint.place() for _ in range(3)]
    works = [put(place, key) for place, key in zip(places, ("/a", "/b", "/c"), strict=True)]
    assert await outcomes(*works) == [None, BadVersionError, None]
    await joint.settle()
    assert store.stored == {"/a", "/b", "/c"} and not joint.is_concluded and not joint.is_unknown


async def test_a_conclusion_that_fails_leaves_the_parts_written() -> None:
    store = Store()
    await store.put("/end", b"of another writer")
    joint = JointWrite(store, END, LONG_S)
    assert await outcomes(put(joint.place(), "/a")) == [None]
    assert store.stored == {"/a", "/end"} and not joint.is_concluded


@pytest.mark.parametrize("is_late", [False, True])
async def test_an_unknown_outcome_is_unknown_to_everyone(is_late: bool) -> None:
    store = Store()
    store.errors, store.is_late = [MetadataUnknownError("no answer")], is_late
    joint = JointWrite(store, END, LONG_S)
    first, second = joint.place(), joint.place()
    assert await outcomes(put(first, "/a"), put(second, "/b")) == [MetadataUnknownError] * 2
    assert len(store.keys) == 1, "whether to write again is decided by each caller"
    assert joint.is_unknown and not joint.is_concluded
    assert store.stored == ({"/a", "/b", "/end"} if is_late else set())


async def test_the_parts_do_not_need_the_session_that_the_conclusion_needs() -> None:
    store = Store()
    store.errors = [MetadataUnavailableError("no lease")]
    joint = JointWrite(store, END, LONG_S)
    first, second = joint.place(), joint.place()
    assert await outcomes(put(first, "/a"), put(second, "/b")) == [None, None]
    assert store.keys == [["/a", "/b", "/end"], ["/a"], ["/b"]] and not joint.is_concluded


async def test_a_second_write_of_a_caller_is_done_at_once() -> None:
    store = Store()
    joint = JointWrite(store, END, LONG_S)
    place, other = joint.place(), joint.place()
    writing = asyncio.create_task(put(place, "/a"))
    await asyncio.sleep(0)
    await place.write([], [Put("/again", b"")])
    assert store.keys == [["/again"]]
    other.leave()
    await writing
    assert store.keys == [["/again"], ["/a", "/end"]]


async def test_a_late_place_delays_the_others_only_for_a_time() -> None:
    store = Store()
    joint = JointWrite(store, END, wait_s=0.01)
    place, late = joint.place(), joint.place()
    await put(place, "/a")
    await put(late, "/b")
    await joint.settle()
    assert store.keys == [["/a"], ["/b"]] and not joint.is_concluded, "the end is not written before a part"


async def test_a_cancelled_caller_is_left_out() -> None:
    store = Store()
    joint = JointWrite(store, END, LONG_S)
    first, second = joint.place(), joint.place()
    gone = asyncio.create_task(put(first, "/gone"))
    await asyncio.sleep(0)
    gone.cancel()
    await asyncio.wait({gone})
    await put(second, "/b")
    assert store.keys == [["/b", "/end"]]


async def test_a_cancelled_caller_does_not_end_a_write_that_has_begun() -> None:
    store = Store()
    joint = JointWrite(store, END, LONG_S)
    first, second = joint.place(), joint.place()
    gone = asyncio.create_task(put(first, "/gone"))
    other = asyncio.create_task(put(second, "/b"))
    while not store.keys:  # noqa: ASYNC110  no event tells
        await asyncio.sleep(0)
    gone.cancel()
    await other
    await joint.settle()
    assert gone.cancelled() and joint.is_concluded and store.stored == {"/gone", "/b", "/end"}


async def test_too_many_parts_are_several_transactions_without_the_conclusion() -> None:
    store = Store()
    joint = JointWrite(store, END, LONG_S)
    places = [joint.place() for _ in range(70)]
    await asyncio.gather(*(put(place, f"/{number}") for number, place in enumerate(places)))
    await joint.settle()
    assert sorted(len(keys) for keys in store.keys) == [20, 50] and not joint.is_concluded
    assert len(store.stored) == 70


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [
        ([], []),
        ([1], [[0]]),
        ([4, 4, 4], [[0, 1], [2]]),
        ([20, 1], [[0], [1]]),
        ([1, 20, 1], [[0], [1], [2]]),
        ([1] * 5, [[0, 1, 2], [3, 4]]),
    ],
)
def test_parts_are_divided_by_their_number_and_their_bytes(sizes: list[int], expected: list[list[int]]) -> None:
    parts = [Part([Check("/k", 0)], [Put("/k", b"x" * size)]) for size in sizes]
    assert grouped(parts, steps_max=6, bytes_max=10) == expected
