"""Tests of ledgers of the stock Java client on our bookies: each operation, both protocol versions, all digests."""

from collections.abc import Iterable
from typing import Any

import pytest

from tests.support.java_driver import JavaDriver, described

pytestmark = pytest.mark.compat

DIGESTS = ["CRC32", "CRC32C", "MAC", "DUMMY"]
QUORUMS = [(1, 1, 1), (3, 3, 2), (3, 2, 2)]
FRAME_BYTES = 5 << 20  # the Java client's own limit
OVERHEAD_BYTES = 200  # bytes of a frame besides its payload, in either version


def create(java: JavaDriver, client: str, quorums: tuple[int, int, int] = (3, 3, 2), **options: Any) -> dict[str, Any]:
    ensemble, write_quorum, ack_quorum = quorums
    options = {"digest": "CRC32C", "password": "", **options}
    made: dict[str, Any] = java.call(
        "create", client=client, ensemble=ensemble, write_quorum=write_quorum, ack_quorum=ack_quorum, **options
    )
    return made


def append(java: JavaDriver, ledger: dict[str, Any], count: int, size: int, **options: Any) -> None:
    """Append entries in order; every append must succeed."""
    done = java.call("append", handle=ledger["handle"], count=count, size=size, **options)
    assert done["error"] == "OK"
    assert done["out_of_order"] == 0
    assert done["last"] - done["first"] + 1 == count


def entries(ledger: dict[str, Any], sizes: Iterable[int]) -> list[Any]:
    """Return entries of these sizes as the driver reports them."""
    length = 0
    found = []
    for entry, size in enumerate(sizes):
        length += size
        found.append(described(ledger["ledger"], entry, size, length=length))
    return found


def read(java: JavaDriver, ledger: dict[str, Any], first: int, last: int, **options: Any) -> list[Any]:
    found: list[Any] = java.call("read", handle=ledger["handle"], first=first, last=last, **options)
    return found


@pytest.mark.parametrize("quorums", QUORUMS, ids=lambda quorums: "E{}Qw{}Qa{}".format(*quorums))
@pytest.mark.parametrize("digest", DIGESTS)
def test_ledger_is_written_closed_and_read(
    java: JavaDriver, client: str, digest: str, quorums: tuple[int, int, int]
) -> None:
    protection = {"digest": digest, "password": "secret"}
    ledger = create(java, client, quorums, custom={"made by": "compat"}, **protection)
    for count, size in ((60, 100), (3, 70_000), (5, 0)):
        append(java, ledger, count, size)
    wanted = entries(ledger, [100] * 60 + [70_000] * 3 + [0] * 5)
    assert read(java, ledger, 0, 67) == wanted
    java.call("close", handle=ledger["handle"])
    metadata = java.call("metadata", client=client, ledger=ledger["ledger"])
    assert (metadata["state"], metadata["last"], metadata["length"]) == ("CLOSED", 67, 216_000)
    assert (metadata["digest"], metadata["custom"]) == (digest, {"made by": "compat"})
    assert list(metadata["segments"]) == ["0"]
    for reader in ("v2", "v3"):
        for recovery in (False, True):
            opened = java.call("open", client=reader, ledger=ledger["ledger"], recovery=recovery, **protection)
            assert (opened["lac"], opened["length"]) == (67, 216_000)
            assert read(java, opened, 0, 67) == wanted
            assert java.call("read_last", handle=opened["handle"]) == wanted[-1]
    assert java.call("check_ledger", client=client, ledger=ledger["ledger"], **protection) == []


@pytest.mark.parametrize("digest", DIGESTS)
def test_batch_read_returns_entries_up_to_its_count_and_bytes(java: JavaDriver, digest: str) -> None:
    ledger = create(java, "v2", digest=digest, password="secret")
    append(java, ledger, 100, 1000)
    wanted = entries(ledger, [1000] * 100)

    def batch(first: int, count: int, size: int) -> list[Any]:
        found: list[Any] = java.call("batch_read", handle=ledger["handle"], first=first, count=count, bytes=size)
        return found

    assert batch(0, 100, 5 << 20) == wanted
    assert batch(10, 5, 5 << 20) == wanted[10:15]
    assert batch(0, 100, 0) == wanted
    short = batch(20, 50, 10_000)
    assert short == wanted[20 : 20 + len(short)]
    assert 8 <= len(short) <= 10
    assert batch(30, 10, 1) == wanted[30:31]


def test_a_batch_read_of_a_ledger_with_striped_entries_falls_back_to_single_reads(java: JavaDriver) -> None:
    ledger = create(java, "v2", (3, 2, 2))
    append(java, ledger, 30, 500)
    found = java.call("batch_read", handle=ledger["handle"], first=3, count=20, bytes=5 << 20)
    assert found == entries(ledger, [500] * 30)[3:23]


@pytest.mark.parametrize("password", ["wrong", ""])
def test_wrong_password_neither_recovers_nor_reads(java: JavaDriver, client: str, password: str) -> None:
    ledger = create(java, client, digest="MAC", password="secret")
    append(java, ledger, 5, 100)
    for recovery in (True, False):
        options = {"ledger": ledger["ledger"], "digest": "MAC", "password": password, "recovery": recovery}
        assert java.fails("open", client=client, **options) == "UnauthorizedAccess"
    append(java, ledger, 5, 100)


def test_missing_entries_and_ledgers_have_their_error_codes(java: JavaDriver, client: str) -> None:
    options = {"client": client, "digest": "CRC32C", "recovery": False}
    assert java.fails("open", ledger=999_999, **options) == "NoSuchLedgerExistsOnMetadataServer"
    ledger = create(java, client)
    append(java, ledger, 3, 10)
    assert java.fails("read", handle=ledger["handle"], first=2, last=3) == "Read"  # past the LAC, refused by the client
    assert java.fails("read", handle=ledger["handle"], first=3, last=3, unconfirmed=True) == "NoSuchEntry"
    empty = create(java, client)
    missing = java.fails("read", handle=empty["handle"], first=0, last=0, unconfirmed=True)
    assert missing in ("NoSuchLedgerExists", "NoSuchEntry")


def test_deleted_ledger_cannot_be_opened(java: JavaDriver, client: str) -> None:
    ledger = create(java, client)
    append(java, ledger, 3, 10)
    java.call("close", handle=ledger["handle"])
    assert ledger["ledger"] in java.call("list_ledgers", client=client)
    java.call("delete", client=client, ledger=ledger["ledger"])
    assert ledger["ledger"] not in java.call("list_ledgers", client=client)
    assert java.fails("delete", client=client, ledger=ledger["ledger"]) == "NoSuchLedgerExistsOnMetadataServer"


def test_an_empty_ledger_is_closed_and_recovered_as_empty(java: JavaDriver, client: str) -> None:
    for recovery in (False, True):
        ledger = create(java, client)
        if not recovery:
            java.call("close", handle=ledger["handle"])
        opened = java.call("open", client=client, ledger=ledger["ledger"], digest="CRC32C", recovery=True)
        assert (opened["lac"], opened["length"]) == (-1, 0)
        assert java.call("metadata", client=client, ledger=ledger["ledger"])["last"] == -1


def test_entries_up_to_the_clients_frame_limit_are_stored_and_read(java: JavaDriver, client: str) -> None:
    ledger = create(java, client, (3, 2, 2))
    size = FRAME_BYTES - OVERHEAD_BYTES
    append(java, ledger, 3, size, window=1)
    assert read(java, ledger, 0, 2) == entries(ledger, [size] * 3)


def test_reads_see_the_lac_of_the_last_entry(java: JavaDriver, client: str) -> None:
    ledger = create(java, client)
    append(java, ledger, 100, 50, window=1)
    opened = java.call("open", client=client, ledger=ledger["ledger"], digest="CRC32C", recovery=False)
    # Each entry carries the LAC before it, so a reader sees one less than the confirmed entry.
    assert opened["lac"] == 98
    assert java.call("read_lac", handle=opened["handle"], how="read") == 98
    assert java.call("read_lac", handle=opened["handle"], how="try") == 98
    append(java, ledger, 1, 50)
    assert java.call("read_lac", handle=opened["handle"], how="try") == 99
    assert read(java, opened, 0, 99) == entries(ledger, [50] * 100)
    assert read(java, opened, 100, 100, unconfirmed=True) == [described(ledger["ledger"], 100, 50)]


def test_entries_with_ids_of_the_writer_may_come_in_any_order(java: JavaDriver, client: str) -> None:
    ledger = create(java, client, adv=True, ledger=5_000_000_000 + (client == "v3"))
    wanted = list(range(40))
    done = java.call("append_at", handle=ledger["handle"], entries=wanted[::-1], size=64)
    assert done == {"error": "OK", "lac": 39}
    found = read(java, ledger, 0, 39)
    assert [entry[0] for entry in found] == wanted
    assert [entry[3] for entry in found] == [described(ledger["ledger"], entry, 64)[3] for entry in wanted]
    assert java.call("append_at", handle=ledger["handle"], entries=[7], size=64)["error"] == "DuplicateEntryId"


def test_many_ledgers_at_once_keep_their_entries_apart(java: JavaDriver, client: str) -> None:
    shape = {"ensemble": 3, "write_quorum": 2, "ack_quorum": 2, "digest": "CRC32C"}
    done = java.call("many_ledgers", client=client, ledgers=60, entries=20, size=300, **shape)
    assert done["error"] == "OK"
    assert len(set(done["ledgers"])) == 60
    for ledger in done["ledgers"]:
        opened = java.call("open", client=client, ledger=ledger, digest="CRC32C", recovery=False)
        assert read(java, opened, 0, 19) == entries(opened, [300] * 20)


def test_both_protocol_versions_write_and_read_at_once(java: JavaDriver) -> None:
    ledgers = [create(java, name, (3, 2, 2)) for name in ("v2", "v3") * 4]
    running = [java.send("append", handle=ledger["handle"], count=2000, size=1024) for ledger in ledgers]
    for ledger, writing in zip(ledgers, running, strict=True):
        assert writing.result(120)["error"] == "OK"
        assert read(java, ledger, 0, 1999) == entries(ledger, [1024] * 2000)
