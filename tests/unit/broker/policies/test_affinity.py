"""Bookie affinity groups of namespaces: which values may be stored."""

from typing import Any

import pytest

from quire_broker.policies.affinity import affinity_names, flaw_of_affinity


def test_names_of_groups_are_read() -> None:
    value = {"bookkeeperAffinityGroupPrimary": "a,b", "bookkeeperAffinityGroupSecondary": "c"}
    assert flaw_of_affinity(value) is None
    assert affinity_names(value) == ("a,b", "c")
    assert affinity_names({"bookkeeperAffinityGroupPrimary": 7}) == ("", "")


@pytest.mark.parametrize(
    ("value", "told"),
    [
        (None, "must be an object"),
        ("g1", "must be an object"),
        ({}, "with the field bookkeeperAffinityGroupPrimary"),
        ({"bookkeeperAffinityGroupPrimary": " , "}, "name at least one group"),
        ({"bookkeeperAffinityGroupPrimary": 7}, "is a text"),
        ({"bookkeeperAffinityGroupPrimary": "a\n"}, "control characters"),
        ({"bookkeeperAffinityGroupPrimary": "a", "more": "b"}, "without the field 'more'"),
    ],
    ids=repr,
)
def test_other_values_are_refused(value: Any, told: str) -> None:
    assert told in (flaw_of_affinity(value) or "")
