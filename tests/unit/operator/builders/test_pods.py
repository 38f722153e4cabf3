"""What the pods of all parts have in common."""

from typing import Any

import pytest

from quire_operator.api.bookie import Bookie
from quire_operator.api.managed_ledger import ManagedLedger
from quire_operator.builders import auto_recovery
from quire_operator.builders.bookie import BookieFacts, stateful_set
from quire_operator.builders.broker import BrokerFacts, revision_of
from tests.support.kube_resources import bookie, managed_ledger


def pods(**fields: Any) -> list[dict[str, Any]]:
    """Return the pods of bookies, auto-recovery and brokers. `fields`: of the pool, and of its brokers."""
    pool = Bookie.model_validate(bookie(**fields))
    ledger = ManagedLedger.model_validate(managed_ledger(brokers=fields))
    return [
        stateful_set(pool, BookieFacts(3, "image"))["spec"]["template"]["spec"],
        auto_recovery.deployment(pool, "image")["spec"]["template"]["spec"],
        revision_of(ledger, BrokerFacts(pool, "image")).template["spec"],
    ]


@pytest.mark.parametrize(
    ("fields", "name"),
    [
        ({}, None),
        ({"priorityClassName": "quire-storage"}, "quire-storage"),
        ({"podTemplate": {"spec": {"priorityClassName": "ours"}}}, "ours"),
        ({"priorityClassName": "quire-storage", "podTemplate": {"spec": {"priorityClassName": "ours"}}}, "ours"),
    ],
)
def test_pods_have_the_priority_that_the_spec_names(fields: dict[str, Any], name: str | None) -> None:
    assert [pod.get("priorityClassName") for pod in pods(**fields)] == [name] * 3
