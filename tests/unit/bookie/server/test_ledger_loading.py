"""Requests for a ledger whose state is not in memory: in their order, and all of them are answered."""

from quire_bookie.errors import DamagedError
from quire_bookie.wire.messages import Status
from tests.unit.bookie.server.scene import LEDGER, Scene, adds, fencing_read


async def test_requests_of_a_ledger_that_is_being_loaded_go_on_in_their_order(scene: Scene) -> None:
    await scene.handle(adds(0))
    scene.journal.settle()
    scene.storage.hidden.add(LEDGER)
    scene.connection.responses()
    await scene.handle(adds(1) + fencing_read() + adds(2))
    assert scene.journal.appended[2:] == [("entries", LEDGER), ("fence", LEDGER)]
    assert scene.statuses() == [Status.FENCED]


async def test_a_state_that_cannot_be_read_is_an_io_error_for_everything_that_waited(scene: Scene) -> None:
    scene.storage.load_error = DamagedError("index", 0, "bits")
    await scene.handle(adds(0, 2) + fencing_read())
    assert scene.statuses() == [Status.IO_ERROR, Status.IO_ERROR]
    assert scene.journal.appended == []
