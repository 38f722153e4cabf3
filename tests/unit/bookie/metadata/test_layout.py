"""Paths of ledgers, and paths that are not ledgers."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quire_bookie.metadata.layout import LEDGER_IDS_END, SHORT_LEDGER_IDS_END, ledger_of_path, ledger_path
from quire_bookie.model import LedgerId
from tests.support.golden_etcd import dump, history


@pytest.mark.parametrize(
    ("ledger", "path"),
    [
        (0, "/ledgers/00/0000/L0000"),
        (1, "/ledgers/00/0000/L0001"),
        (1234567, "/ledgers/00/0123/L4567"),
        (SHORT_LEDGER_IDS_END - 1, "/ledgers/21/4748/L3646"),
        (SHORT_LEDGER_IDS_END, "/ledgers/000/0000/0021/4748/L3647"),
        (1 << 32 | 7, "/ledgers/000/0000/0042/9496/L7303"),
        (LEDGER_IDS_END - 1, "/ledgers/922/3372/0368/5477/L5807"),
    ],
)
def test_a_path_is_the_id_in_groups_of_digits(ledger: int, path: str) -> None:
    assert ledger_path(LedgerId(ledger)) == path
    assert ledger_of_path(path) == ledger


@given(st.integers(0, LEDGER_IDS_END - 1) | st.integers(0, 2**33))
def test_every_id_is_decoded_from_its_path(ledger: int) -> None:
    assert ledger_of_path(ledger_path(LedgerId(ledger))) == ledger


@pytest.mark.parametrize(
    "path",
    [
        "/ledgers",
        "/ledgers/INSTANCEID",
        "/ledgers/idgen/ID-1",
        "/ledgers/cookies/127.0.0.1:3181",
        "/ledgers/available/00/0000/L0001",
        "/ledgers/underreplication/ledgers/0000/0000/0000/0001/urL0000000001",
        "/ledgers/00/0000/L0001/x",
        "/ledgers/00/0000/L00011",
        "/ledgers/00/0000/0001",
        "/ledgers/99/9999/L9999",  # ten digits, but not below 2**31 - 1
        "/ledgers/000/0000/0000/0000/L0001",  # nineteen digits for a small id: never written
        "/ledgers/999/9999/9999/9999/L9999",
        "/ledgers/00/0000/L000\u0661",
    ],
)
def test_other_nodes_are_not_ledgers(path: str) -> None:
    assert ledger_of_path(path) is None


def test_exactly_the_ledgers_of_a_stock_cluster_are_found() -> None:
    keys = {change.key for change in history()} | {stored.key for stored in dump("pulsar-topics.txt")}
    found = {key for key in keys if ledger_of_path(key) is not None}
    assert found == {key for key in keys if key.startswith("/ledgers/") and "/L0" in key}
    assert found
