"""Resources are one cluster if they name the same etcd, each by names valid in its own namespace."""

from typing import Any

import pytest

from quire_operator.api.bookie import Bookie
from quire_operator.cluster.observing import namespaces_on
from quire_operator.cluster.one_etcd import is_one, members
from tests.support.kube_resources import bookie, managed_ledger

HERE, THERE = "quire", "prod"
FULL = "quire-etcd.quire.svc.cluster.local:2379"


@pytest.mark.parametrize(
    ("ours", "theirs", "expected"),
    [
        (["quire-etcd:2379"], ["quire-etcd.quire.svc:2379"], True),
        (["quire-etcd:2379"], [FULL], True),
        (["quire-etcd:2379"], ["quire-etcd.quire:2379"], True),
        (["quire-etcd.quire.svc:2379"], [FULL.upper()], True),
        (["quire-etcd:2379"], ["quire-etcd:2379"], False),
        (["quire-etcd:2379"], ["quire-etcd.prod.svc:2379"], False),
        (["quire-etcd:2379"], ["quire-etcd.quire.svc:2380"], False),
        (["etcd-0.example.com:2379", "etcd-1.example.com:2379"], ["etcd-1.example.com:2379"], True),
        (["etcd-1.example.com:2379", "etcd-0.example.com:2379"], ["etcd-0.example.com:02379"], True),
        (["etcd-0.example.com:2379"], ["etcd-0.example.org:2379"], False),
        (["10.0.0.1:2379"], ["10.0.0.1:2379"], True),
        (["10.0.0.1:2379"], ["10.0.0.2:2379"], False),
        (["localhost:2379"], ["localhost:2379"], True),
    ],
)
def test_names_of_one_etcd_in_two_namespaces_are_equal(ours: list[str], theirs: list[str], expected: bool) -> None:
    assert is_one(members(ours, HERE), theirs, THERE) is expected
    assert is_one(members(theirs, THERE), ours, HERE) is expected


def test_the_same_short_name_in_one_namespace_is_one_etcd() -> None:
    assert is_one(members(["quire-etcd:2379"], HERE), ["quire-etcd:2379"], HERE)


def of(manifest: dict[str, Any], namespace: str) -> dict[str, Any]:
    return manifest | {"metadata": manifest["metadata"] | {"namespace": namespace}}


@pytest.mark.parametrize(("endpoint", "expected"), [("quire-etcd.quire.svc:2379", ["orders"]), ("quire-etcd:2379", [])])
def test_a_pool_finds_namespaces_of_pools_that_name_its_etcd_differently(endpoint: str, expected: list[str]) -> None:
    mine = of(bookie(metadata={"endpoints": ["quire-etcd:2379"]}), HERE)
    other = of(bookie(metadata={"endpoints": [endpoint]}), THERE)
    found = namespaces_on(Bookie.model_validate(mine), [of(managed_ledger(), THERE)], [mine, other])
    assert [one.name for one in found] == expected
    assert not any(one.uses_this_pool for one in found), "the same name stands for another etcd"
