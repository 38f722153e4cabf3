"""Tests of ledger tokens at a bookie: when a token is stored and durable, and which responses contain it."""

import pytest

from quire_bookie.errors import DiskFullError, StorageError
from quire_bookie.model import LEDGER_TOKEN_BYTES_MAX, EntryId, LedgerId
from quire_bookie.wire import client_codec, client_v3
from quire_bookie.wire.messages import BookieInfoResponse, Status
from tests.unit.bookie.server.fakes import FakeStorage
from tests.unit.bookie.server.scene import DIGEST, KEY, LEDGER, Scene, adds, fencing_read

TOKEN, OTHER = b"0123456789abcdef", b"fedcba9876543210"


async def asked(scene: Scene, token: bytes, key: bytes | None = None) -> tuple[bool | None, bytes | None]:
    """Return whether the bookie knows the ledger, and its token there. With `key` the token is declared."""
    await scene.handle(client_v3.ledger_token(1, LEDGER, token, key))
    scene.journal.settle()
    await scene.turn()
    (answer,) = scene.connection.responses(3)
    assert isinstance(answer, BookieInfoResponse) and answer.status is Status.OK and answer.ids is not None
    return answer.ids.ledger_known, answer.token


async def test_a_declared_token_is_durable_before_the_response_and_before_the_first_entry(scene: Scene) -> None:
    await scene.handle(client_v3.ledger_token(1, LEDGER, TOKEN, KEY))
    assert scene.connection.responses(3) == [] and scene.journal.appended == [("token", LEDGER)]
    scene.journal.settle()
    await scene.turn()
    (answer,) = scene.connection.responses(3)
    assert isinstance(answer, BookieInfoResponse) and answer.token == TOKEN
    await scene.stored(adds(0))
    assert scene.journal.appended == [("token", LEDGER), ("entries", LEDGER)], "the key is logged once, with the token"
    assert await asked(scene, TOKEN) == (True, TOKEN)


async def test_a_request_without_a_key_stores_nothing(scene: Scene) -> None:
    assert await asked(scene, TOKEN) == (False, None)
    assert scene.storage.infos == {} and scene.journal.appended == []


async def test_entries_without_a_token_never_get_one(scene: Scene) -> None:
    await scene.stored(adds(0))
    assert await asked(scene, TOKEN, KEY) == (True, None)
    assert scene.storage.infos[LEDGER].token == b""


async def test_an_explicit_lac_without_a_token_never_gets_one(scene: Scene) -> None:
    await scene.handle(client_codec.v3_write_lac(4, LEDGER, EntryId(0), KEY, DIGEST.encode_lac(LEDGER, EntryId(0))))
    scene.journal.settle()
    await scene.turn()
    scene.connection.sent.clear()
    assert await asked(scene, TOKEN, KEY) == (True, None)


async def test_a_fence_of_an_unknown_ledger_does_not_prevent_a_token(scene: Scene) -> None:
    await scene.stored(fencing_read())
    assert await asked(scene, TOKEN, KEY) == (True, TOKEN)
    assert scene.storage.infos[LEDGER].fenced


async def test_the_first_token_stays_and_another_one_is_counted(scene: Scene) -> None:
    assert await asked(scene, TOKEN, KEY) == (True, TOKEN)
    assert scene.bookie.stats.tokens_refused == 0
    assert await asked(scene, OTHER, KEY) == (True, TOKEN)
    assert await asked(scene, b"") == (True, TOKEN), "a client whose metadata has no token receives it, too"
    assert scene.bookie.stats.tokens_refused == 2
    assert scene.storage.infos[LEDGER].token == TOKEN


async def test_with_another_master_key_no_token_is_stored(scene: Scene) -> None:
    await scene.stored(fencing_read())
    assert await asked(scene, TOKEN, b"another key of 20 by") == (True, None)


async def test_a_token_that_may_not_be_durable_yet_is_logged_again(scene: Scene) -> None:
    for _ in range(2):
        await scene.handle(client_v3.ledger_token(1, LEDGER, TOKEN, KEY))
    assert scene.journal.appended == [("token", LEDGER)] * 2 and scene.connection.responses(3) == []
    scene.journal.settle()
    await scene.turn()
    assert len(scene.connection.responses(3)) == 2
    scene.storage.infos[LEDGER].dirty = False  # a flush wrote it
    assert await asked(scene, TOKEN, KEY) == (True, TOKEN)
    assert len(scene.journal.appended) == 2


@pytest.mark.parametrize("revivable", [False, True])
async def test_a_tombstone_has_its_token_only_if_it_may_be_revived(scene: Scene, revivable: bool) -> None:
    assert await asked(scene, TOKEN, KEY) == (True, TOKEN)
    info = scene.storage.infos[LEDGER]
    info.deleted = info.fenced = True
    info.superfluous = revivable
    assert await asked(scene, OTHER, KEY) == (True, TOKEN if revivable else None)


async def test_no_token_is_stored_if_limbo_may_have_lost_the_ledger(scene: Scene) -> None:
    scene.storage.limbo.add(LEDGER)
    assert await asked(scene, TOKEN, KEY) == (True, None)
    assert scene.storage.infos == {}


async def test_a_token_that_finds_no_space_is_logged_before_the_next_entry_is_acknowledged(scene: Scene) -> None:
    await scene.handle(client_v3.ledger_token(1, LEDGER, TOKEN, KEY))
    scene.journal.settle(DiskFullError("full"))
    await scene.turn()
    (answer,) = scene.connection.responses(3)
    assert answer.status is Status.READ_ONLY
    await scene.handle(adds(0, recovery=True, high_priority=True))
    scene.journal.settle()
    await scene.turn()
    assert scene.connection.responses() == [], "its entry precedes its token in the journal"
    scene.journal.settle()
    await scene.turn()
    assert [answer.status for answer in scene.connection.responses()] == [Status.OK]
    assert [kind for kind, _ in scene.journal.appended] == ["token", "entries", "token", "entries"]


async def test_a_poisoned_bookie_refuses_a_token(scene: Scene) -> None:
    scene.bookie.poison(StorageError("the journal failed"))
    (answer,) = await scene.ask_v3(client_v3.ledger_token(1, LEDGER, TOKEN, KEY))
    assert answer.status is Status.IO_ERROR and isinstance(scene.storage, FakeStorage) and not scene.storage.infos


@pytest.mark.parametrize("ledger, token, key", [(-1, TOKEN, KEY), (3, bytes(LEDGER_TOKEN_BYTES_MAX + 1), KEY)])
async def test_an_impossible_request_is_refused(scene: Scene, ledger: int, token: bytes, key: bytes) -> None:
    (answer,) = await scene.ask_v3(client_v3.ledger_token(1, LedgerId(ledger), token, key))
    assert answer.status is Status.BAD_REQUEST
