"""The groups of bookies of a ledger: their names, their form in the metadata, and their members."""

import json

import pytest

from quire_bookie.model import BookieId
from quire_bookie.quorum.bookie_groups import PLACEMENT, BookieGroups, groups_of

BOOKIES = {BookieId(name): group for name, group in (("a", "fast"), ("b", "fast"), ("c", "slow"), ("d", "other"))}


def test_names_are_separated_by_commas() -> None:
    assert BookieGroups.named("fast, new", "slow,") == BookieGroups(frozenset({"fast", "new"}), frozenset({"slow"}))
    assert BookieGroups.named(" , ", "slow") is None


@pytest.mark.parametrize("groups", [BookieGroups(frozenset({"x", "y"})), BookieGroups(frozenset("x"), frozenset("z"))])
def test_the_metadata_keep_them(groups: BookieGroups) -> None:
    assert groups_of(groups.custom()) == groups


def test_the_form_is_that_of_stock_brokers() -> None:
    value = json.loads(BookieGroups(frozenset({"g2", "g1"}), frozenset({"g3"})).custom()[PLACEMENT])
    assert value == {
        "policyClass": "org.apache.pulsar.bookie.rackawareness.IsolatedBookieEnsemblePlacementPolicy",
        "properties": {"isolationBookieGroups": "g1,g2", "secondaryIsolationBookieGroups": "g3"},
    }


@pytest.mark.parametrize(
    "value",
    [b"", b"\xff", b"[]", b"7", b"{}", b'{"properties":null}', b'{"properties":{"isolationBookieGroups":7}}'],
    ids=repr,
)
def test_a_value_that_is_not_readable_names_no_group(value: bytes) -> None:
    assert groups_of({PLACEMENT: value}) is None


def test_metadata_without_groups_permit_all_bookies() -> None:
    assert groups_of({}) is None


def test_secondary_groups_help_out_only_where_the_primary_ones_are_too_small() -> None:
    groups = BookieGroups(frozenset({"fast"}), frozenset({"slow"}))
    everyone = frozenset(BOOKIES)
    assert groups.members(everyone, BOOKIES.__getitem__, 2) == {"a", "b"}
    assert groups.members(everyone, BOOKIES.__getitem__, 3) == {"a", "b", "c"}
    assert groups.members(everyone, BOOKIES.__getitem__, 4) == {"a", "b", "c"}, "never one of another group"


def test_secondary_groups_help_out_where_an_ensemble_of_the_primary_ones_would_be_too_small() -> None:
    groups = BookieGroups(frozenset({"fast"}), frozenset({"slow"}))
    machines = {"a": 1, "b": 1, "c": 2, "d": 3}
    found = groups.members(
        frozenset(BOOKIES), BOOKIES.__getitem__, 2, lambda bookies: len({machines[one] for one in bookies})
    )
    assert found == {"a", "b", "c"}
