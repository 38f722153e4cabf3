"""Tests of adds under stored ids: a writer's repetitions are accepted, entries of another ledger never."""

import pytest

from quire_bookie.errors import DamagedError
from quire_bookie.model import EntryId, LedgerId
from quire_bookie.wire.messages import AddResponse, Status
from tests.unit.bookie.server.scene import LEDGER, Scene, adds, entry_bytes


def held(scene: Scene) -> dict[int, bytes]:
    return {entry: body for (ledger, entry), body in scene.storage.entries.items() if ledger == LEDGER}


@pytest.fixture(params=["in memory", "on the disk"])
def memory(request: pytest.FixtureRequest, scene: Scene) -> bool:
    """Whether stored entries are in memory."""
    return bool(request.param == "in memory")


async def stored(scene: Scene, data: bytes, memory: bool) -> None:
    await scene.stored(data)
    if memory:
        scene.storage.cached |= scene.storage.entries.keys()


async def refused(scene: Scene, data: bytes, status: Status = Status.UNAUTHORIZED) -> None:
    before, logged = held(scene), [each for each in scene.journal.appended if each[0] == "entries"]
    await scene.handle(data)
    await scene.turn()
    assert set(scene.statuses()) == {status}
    assert held(scene) == before
    assert [each for each in scene.journal.appended if each[0] == "entries"] == logged


async def test_a_repetition_is_accepted_and_answered_after_its_own_sync(scene: Scene, memory: bool) -> None:
    await stored(scene, adds(0, 4), memory)
    await scene.handle(adds(1, 5))
    await scene.turn()
    assert scene.statuses() == []
    scene.journal.settle()
    assert scene.connection.responses() == [AddResponse(Status.OK, LEDGER, EntryId(1), 5)]
    assert sorted(held(scene)) == [0, 1, 2, 3, 4, 5]


async def test_adds_behind_a_repetition_that_waits_for_the_disk_do_not_overtake_it(scene: Scene) -> None:
    await scene.stored(adds(0, 6))
    await scene.handle(adds(0, 2))
    await scene.handle(adds(2, 4))
    await scene.handle(adds(6, 2))
    await scene.turn()
    scene.journal.settle()
    await scene.turn()
    scene.journal.settle()
    answers = [answer for answer in scene.connection.responses() if isinstance(answer, AddResponse)]
    found = [entry for answer in answers for entry in range(answer.first, answer.first + answer.count)]
    assert found == list(range(8))


@pytest.mark.parametrize("fenced", [False, True])
async def test_the_first_entry_of_another_ledger_is_refused_and_so_are_later_ones(
    scene: Scene, memory: bool, fenced: bool
) -> None:
    await stored(scene, adds(0, 3), memory)
    scene.storage.infos[LEDGER].fenced = fenced
    before = held(scene)
    await scene.handle(adds(0, payload=b"foreign") + adds(3, payload=b"foreign"))
    await scene.turn()
    assert set(scene.statuses()) == {Status.UNAUTHORIZED, Status.FENCED}
    assert held(scene) == before
    assert scene.storage.infos[LEDGER].fenced and (("fence", LEDGER) in scene.journal.appended) is not fenced
    assert scene.bookie.stats.adds_foreign == 1


async def test_a_client_that_repeats_foreign_adds_does_not_fill_the_log(
    scene: Scene, memory: bool, caplog: pytest.LogCaptureFixture
) -> None:
    await stored(scene, adds(0, 3), memory)
    for _ in range(5):
        await refused(scene, adds(0, payload=b"foreign"))
    assert scene.bookie.stats.adds_foreign == 5
    assert caplog.text.count("of another ledger") == 1


async def test_a_run_with_one_foreign_entry_is_refused_as_a_whole(scene: Scene, memory: bool) -> None:
    await stored(scene, adds(0, 3), memory)
    scene.storage.entries[LEDGER, EntryId(2)] = entry_bytes(2, payload=b"another")
    await refused(scene, adds(0, 6))


async def test_entries_with_other_headers_belong_to_another_ledger(scene: Scene, memory: bool) -> None:
    """A writer repeats an entry with its original LAC."""
    await stored(scene, adds(0), memory)
    await refused(scene, adds(0, lac=5))


async def test_a_gap_may_be_filled_because_stock_clients_choose_ids_in_any_order(scene: Scene, memory: bool) -> None:
    await stored(scene, adds(0) + adds(5), memory)
    await scene.handle(adds(3, 2))
    await scene.turn()
    scene.journal.settle()
    assert scene.statuses() == [Status.OK]
    assert sorted(held(scene)) == [0, 3, 4, 5]


async def test_an_add_fails_if_the_stored_entries_are_damaged(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    await scene.stored(adds(0, 3))

    async def damaged(*_: object) -> list[bytes]:
        raise DamagedError("log", 7, "a flipped bit")

    monkeypatch.setattr(scene.storage, "read_many", damaged)
    await refused(scene, adds(0, 3), Status.IO_ERROR)


async def test_the_first_entry_under_the_id_of_a_deleted_ledger_is_refused(scene: Scene) -> None:
    await scene.stored(adds(0, 2))
    info = scene.storage.infos[LEDGER]
    info.deleted = info.fenced = True
    await refused(scene, adds(0))
    await refused(scene, adds(2), Status.FENCED)


async def test_recovery_adds_replace_stored_entries(scene: Scene, memory: bool) -> None:
    await stored(scene, adds(0, 3), memory)
    await scene.handle(adds(1, lac=0, recovery=True))
    scene.journal.settle()
    assert scene.statuses() == [Status.OK]


async def test_two_first_entries_in_one_iteration_are_never_both_accepted(scene: Scene) -> None:
    await scene.stored(adds(0, ledger=LedgerId(77)))
    scene.storage.infos[LEDGER] = type(scene.storage.infos[LedgerId(77)])(
        LEDGER, scene.storage.infos[LedgerId(77)].master_key
    )
    await scene.handle(adds(0, payload=b"one") + adds(0, payload=b"two"))
    await scene.turn()
    scene.journal.settle()
    assert scene.statuses() == [Status.UNAUTHORIZED, Status.OK] or scene.statuses() == []
    assert held(scene) == {0: entry_bytes(0, payload=b"one")}
