"""The ledgers that a bookie stores, independent of the metadata."""

from quire_bookie.metadata.cookies import decode_cookie
from quire_bookie.metadata.ledgers import LedgerNodes
from quire_bookie.model import LedgerId
from tests.unit.bookie.admin.test_web import Admin, admin

__all__ = ["admin"]


async def test_stored_ledgers_are_listed_in_pages_even_if_missing_from_the_metadata(admin: Admin) -> None:
    admin.web.serve(admin.bookie)
    ledgers = [await admin.ledger(b"one", b"two", close=False) for _ in range(3)]
    await LedgerNodes(admin.metadata).delete(ledgers[1])
    first = await admin.get("/api/v1/quire/holdings?limit=2")
    assert first["bookie"] == admin.bookie.bookie_id
    assert first["ledgers"] == [{"ledger": one, "last": 1, "fenced": False, "limbo": False} for one in ledgers[:2]]
    second = await admin.get(f"/api/v1/quire/holdings?after={first['next']}")
    assert [row["ledger"] for row in second["ledgers"]] == ledgers[2:] and second["next"] is None


async def test_one_ledger_is_described_with_its_length_up_to_the_last_entry(admin: Admin) -> None:
    admin.web.serve(admin.bookie)
    ledger = await admin.ledger(b"12345", b"678")
    found = await admin.get(f"/api/v1/quire/holdings/{ledger}")
    assert found == {
        "ledger": ledger,
        "last": 1,
        "lac": 0,
        "length": 8,
        "lastWriteMs": None,
        "fenced": False,
        "limbo": False,
    }
    await admin.bookie.storage.flush()
    assert (await admin.get(f"/api/v1/quire/holdings/{ledger}"))["length"] == 8
    assert (await admin.ask("GET", "/api/v1/quire/holdings/999"))[0] == 404
    assert (await admin.ask("GET", f"/api/v1/quire/holdings/{2**63}"))[0] == 400


async def test_a_bookie_in_limbo_never_reports_a_ledger_as_not_stored(admin: Admin) -> None:
    admin.web.serve(admin.bookie)
    await admin.bookie.storage.enter_limbo([LedgerId(1000)])
    found = await admin.get("/api/v1/quire/holdings/999")
    assert found == {
        "ledger": 999,
        "last": None,
        "lac": -1,
        "length": None,
        "lastWriteMs": None,
        "fenced": True,
        "limbo": True,
    }
    assert (await admin.ask("GET", "/api/v1/quire/holdings/1001"))[0] == 404


async def test_the_cookie_is_the_one_in_the_bookies_own_folders(admin: Admin) -> None:
    admin.web.serve(admin.bookie)
    found = await admin.get("/api/v1/quire/cookie")
    assert decode_cookie(found["cookie"].encode()).bookie == found["bookie"] == admin.bookie.bookie_id


async def test_a_starting_bookie_refuses_the_requests(admin: Admin) -> None:
    assert (await admin.ask("GET", "/api/v1/quire/holdings"))[0] == 503
