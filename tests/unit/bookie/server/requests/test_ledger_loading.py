"""Tests of requests for a ledger whose state is not in memory: all are answered, in order."""

from typing import Any

import pytest

from quire_bookie.errors import DamagedError
from quire_bookie.model import LedgerId
from quire_bookie.server.requests.ledger_loading import LedgerLoading
from quire_bookie.wire.messages import Status
from quire_bookie.wire.server_codec import ServerCodec
from tests.unit.bookie.server.scene import LEDGER, Scene, adds, fencing_read


async def test_requests_of_a_ledger_that_is_being_loaded_continue_in_order(scene: Scene) -> None:
    await scene.handle(adds(0))
    scene.journal.settle()
    scene.storage.hidden.add(LEDGER)
    scene.connection.responses()
    await scene.handle(adds(1) + fencing_read() + adds(2))
    assert scene.journal.appended[2:] == [("entries", LEDGER), ("fence", LEDGER)]
    assert scene.statuses() == [Status.FENCED]


async def test_a_state_that_cannot_be_read_is_an_io_error_for_all_waiting_requests(scene: Scene) -> None:
    scene.storage.load_error = DamagedError("index", 0, "bits")
    await scene.handle(adds(0, 2) + fencing_read())
    assert scene.statuses() == [Status.IO_ERROR, Status.IO_ERROR]
    assert scene.journal.appended == []


async def test_an_add_waits_behind_a_fence_that_waits_for_the_state_even_if_the_state_was_loaded_meanwhile(
    scene: Scene,
) -> None:
    await scene.stored(adds(0))
    scene.storage.hidden.add(LEDGER)
    scene.bookie.handle(scene.connection.real, ServerCodec().feed(fencing_read()))
    scene.storage.hidden.clear()
    await scene.handle(adds(1))
    assert scene.journal.appended[-1] == ("fence", LEDGER)
    assert scene.statuses() == [Status.FENCED]


async def test_adds_to_a_ledger_in_memory_do_not_wait_while_another_one_is_loaded(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With many ledgers some state is always being loaded, which once slowed down every add."""
    await scene.stored(adds(0))
    asked: list[int] = []
    with_ledger = LedgerLoading.with_ledger

    def noted(self: LedgerLoading, ledger: LedgerId, *actions: Any) -> None:
        asked.append(ledger)
        with_ledger(self, ledger, *actions)

    monkeypatch.setattr(LedgerLoading, "with_ledger", noted)
    other = LedgerId(LEDGER + 1)
    scene.bookie.handle(scene.connection.real, ServerCodec().feed(adds(0, ledger=other) + adds(1)))
    assert asked == [other]
    assert scene.journal.appended[-1] == ("entries", LEDGER)
    await scene.turn()
    scene.journal.settle()
    assert scene.statuses() == [Status.OK, Status.OK]


async def test_new_ledgers_of_one_turn_are_found_by_one_read_and_each_key_precedes_its_entries(scene: Scene) -> None:
    ledgers = [LedgerId(LEDGER + at) for at in range(200)]
    await scene.stored(adds(0))
    scene.storage.hidden.add(LEDGER)  # one of them exists
    before = len(scene.journal.appended)
    await scene.handle(b"".join(adds(entry, ledger=each) for entry in (1, 2) for each in ledgers))
    assert scene.storage.lookups == [ledgers[:128], ledgers[128:]]
    for ledger in ledgers:
        kinds = [kind for kind, each in scene.journal.appended[before:] if each == ledger]
        assert kinds == (["entries"] if ledger == LEDGER else ["key", "entries"])
    scene.journal.settle()
    assert scene.statuses() == [Status.OK] * 200


async def test_a_failed_read_for_many_ledgers_fails_the_requests_of_each(scene: Scene) -> None:
    scene.storage.load_error = DamagedError("index", 0, "bits")
    await scene.handle(b"".join(adds(0, ledger=LedgerId(LEDGER + at)) for at in range(5)))
    assert scene.statuses() == [Status.IO_ERROR] * 5
    scene.storage.load_error = None
    await scene.handle(adds(0))
    scene.journal.settle()
    assert scene.statuses() == [Status.OK]


async def test_a_ledger_known_to_be_new_is_created_without_a_read(scene: Scene) -> None:
    scene.storage.new = {LEDGER, LedgerId(LEDGER + 1)}
    scene.storage.limbo = {LedgerId(LEDGER + 1)}
    await scene.handle(adds(0, 1) + adds(0, ledger=LedgerId(LEDGER + 1)) + adds(2))
    assert scene.storage.lookups == []
    assert [each for each in scene.journal.appended if each[0] == "key"] == [("key", LEDGER)]
    assert scene.journal.appended[0] == ("key", LEDGER)
    scene.journal.settle()
    assert sorted(scene.statuses(), key=lambda each: each.name) == [Status.FENCED, Status.OK, Status.OK]
