"""Cookies: BookKeeper's bytes, invalid values, and ledgers that require a cookie to stay."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quire_bookie.errors import BadVersionError, MetadataFormatError, MetadataUnknownError, NodeMissingError
from quire_bookie.metadata.cookies import Cookie, CookieInUseError, Cookies, decode_cookie, encode_cookie
from quire_bookie.metadata.ledgers import LedgerNodes
from quire_bookie.metadata.store import Check
from quire_bookie.model import BookieId, EntryId, LedgerId, LedgerMetadata, Segment
from tests.sim.metadata import SimMetadata, SimMetadataStore
from tests.support.golden_etcd import history

STOCK = sorted({change.value for change in history() if "/cookies/" in change.key})
COOKIE = Cookie(BookieId("b-00ff"), ("quire1:/j",), ("quire1:/l0", "quire1:/l1"), "the-instance")

names = st.text(st.characters(exclude_categories=("Cs", "Cc"), exclude_characters=",\t"), min_size=1, max_size=12)
folders = st.lists(names, min_size=1, max_size=3).map(tuple)


@pytest.mark.parametrize("value", STOCK)
def test_a_stock_cookie_is_written_back_byte_for_byte(value: bytes) -> None:
    assert encode_cookie(decode_cookie(value)) == value


def test_a_stock_cookie_is_decoded_as_configured() -> None:
    cookie = decode_cookie(next(value for value in STOCK if b"run-ms/bookie5" in value))
    assert cookie == Cookie(
        BookieId("127.0.0.1:3185"),
        ("/var/bk/run-ms/bookie5/journal",),
        ("/var/bk/run-ms/bookie5/ledgers",),
        "e7dcf228-ff3a-4e8e-bd9f-7cd8b626f023",
        ("/var/bk/run-ms/bookie5/ledgers",),
    )


@given(st.builds(Cookie, names.map(BookieId), folders, folders, st.none() | names, st.none() | folders))
def test_every_cookie_survives_its_encoding(cookie: Cookie) -> None:
    assert decode_cookie(encode_cookie(cookie)) == cookie


@given(st.binary(max_size=80))
def test_invalid_values_are_refused_with_our_own_error(junk: bytes) -> None:
    for value in (junk, b"5\n" + junk):
        with pytest.raises(MetadataFormatError):
            decode_cookie(value)


@pytest.mark.parametrize("value", [b"2\n", b"4\nbookieHost: 'b' journalDir: 'j' ledgerDirs: '2\t/a'", b"x\n"])
def test_old_versions_and_wrong_counts_are_refused(value: bytes) -> None:
    with pytest.raises(MetadataFormatError):
        decode_cookie(value)


def test_a_folder_name_that_would_split_a_field_is_not_written() -> None:
    for cookie in (
        Cookie(BookieId("b"), ("/a,b",), ("/l",), None),
        Cookie(BookieId("b"), ("/a",), ("/l\tx",), None),
    ):
        with pytest.raises(ValueError, match="folder"):
            encode_cookie(cookie)


async def test_creating_the_same_cookie_again_is_accepted_and_another_one_is_not(store: SimMetadataStore) -> None:
    cookies = Cookies(store)
    assert await cookies.read(COOKIE.bookie) is None
    await cookies.create(COOKIE)
    await cookies.create(COOKIE)
    with pytest.raises(BadVersionError):
        await cookies.create(Cookie(COOKIE.bookie, ("quire1:/other",), ("quire1:/l",), "the-instance"))
    stored = await cookies.read(COOKIE.bookie)
    assert stored is not None and stored.value == COOKIE
    assert await cookies.bookies() == [COOKIE.bookie]


async def test_a_create_with_a_lost_response_is_read_back(server: SimMetadata, store: SimMetadataStore) -> None:
    server.unknown_chance = 0.5
    for n in range(30):
        cookie = Cookie(BookieId(f"b{n}"), ("quire1:/j",), ("quire1:/l",), "i")
        try:
            await Cookies(store).create(cookie)
        except MetadataUnknownError:
            assert f"/ledgers/cookies/b{n}" not in server.nodes
        else:
            assert f"/ledgers/cookies/b{n}" in server.nodes


async def test_a_cookie_stays_while_a_ledger_names_its_bookie(store: SimMetadataStore) -> None:
    cookies, nodes = Cookies(store), LedgerNodes(store)
    await cookies.create(COOKIE)
    ledger = LedgerMetadata(
        ensemble_size=1,
        write_quorum=1,
        ack_quorum=1,
        segments=(Segment(EntryId(0), (BookieId("other"),)), Segment(EntryId(5), (COOKIE.bookie,))),
    )
    await nodes.create(LedgerId(3), ledger)
    with pytest.raises(CookieInUseError, match="ledger 3 still names"):
        await cookies.delete(COOKIE.bookie)
    await nodes.delete(LedgerId(3))
    await store.put(f"/ledgers/available/readonly/{COOKIE.bookie}", b"", ephemeral=True)
    with pytest.raises(CookieInUseError, match="is running"):
        await cookies.delete(COOKIE.bookie)
    await store.delete(f"/ledgers/available/readonly/{COOKIE.bookie}")
    await cookies.delete(COOKIE.bookie)
    assert await cookies.bookies() == []
    with pytest.raises(NodeMissingError, match="no cookie"):
        await cookies.delete(COOKIE.bookie)


async def test_a_cookie_stays_if_its_bookie_returns_or_a_request_changes_meanwhile(
    store: SimMetadataStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    cookies = Cookies(store)
    await cookies.create(COOKIE)
    with pytest.raises(CookieInUseError, match="changed meanwhile"):
        await cookies.delete(COOKIE.bookie, Check("/wish", 0))

    async def comes_back(bookie: BookieId) -> None:
        await store.put(f"/ledgers/available/{bookie}", b"", ephemeral=True)

    monkeypatch.setattr(cookies, "check_free", comes_back)
    with pytest.raises(CookieInUseError, match="changed meanwhile"):
        await cookies.delete(COOKIE.bookie)
    assert await cookies.bookies() == [COOKIE.bookie]


async def test_a_cookie_stays_while_metadata_that_may_name_its_bookie_cannot_be_read(
    server: SimMetadata, store: SimMetadataStore
) -> None:
    cookies = Cookies(store)
    await cookies.create(COOKIE)
    server.write("/ledgers/00/0000/L0009", b"scribble", None)
    await cookies.check_free(COOKIE.bookie)
    server.write("/ledgers/00/0000/L0009", b"scribble of " + COOKIE.bookie.encode(), None)
    with pytest.raises(CookieInUseError, match="may name"):
        await cookies.delete(COOKIE.bookie)


async def test_a_cookie_is_replaced_only_if_unchanged_since_the_read(
    server: SimMetadata, store: SimMetadataStore
) -> None:
    cookies = Cookies(store)
    await cookies.create(COOKIE)
    read = await cookies.read(COOKIE.bookie)
    assert read is not None
    grown = replace(COOKIE, ledger_dirs=(*COOKIE.ledger_dirs, "quire1:/l2"))
    await cookies.update(grown, expected=read.version)
    after = await cookies.read(COOKIE.bookie)
    assert after is not None and after.value == grown
    await cookies.update(grown, expected=read.version)  # its response was lost, and it is sent again
    with pytest.raises(BadVersionError):
        await cookies.update(replace(COOKIE, ledger_dirs=("quire1:/other",)), expected=read.version)
