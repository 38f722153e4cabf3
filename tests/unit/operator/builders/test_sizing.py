"""Pods request memory for their caches, unless the user names other amounts."""

from typing import Any

import pytest

from quire_operator.api.bookie import Bookie
from quire_operator.api.managed_ledger import ManagedLedger
from quire_operator.builders import auto_recovery, sizing
from quire_operator.builders.bookie import BookieFacts
from quire_operator.builders.bookie import stateful_set as bookies
from quire_operator.builders.broker import BrokerFacts, revision_of
from tests.support.kube_resources import bookie, managed_ledger

POOL = Bookie.model_validate(bookie())
LEDGER = ManagedLedger.model_validate(managed_ledger())


def resources_of(template: dict[str, Any]) -> dict[str, dict[str, str]]:
    """Return the resources of the main container."""
    found: dict[str, dict[str, str]] = template["spec"]["containers"][0]["resources"]
    return found


@pytest.mark.parametrize(
    ("template", "memory_mib"),
    [
        (bookies(POOL, BookieFacts(3, "image"))["spec"]["template"], 768),
        (revision_of(LEDGER, BrokerFacts(POOL, "image")).template, 704),
        (auto_recovery.deployment(POOL, "image")["spec"]["template"], 256),
    ],
    ids=["bookie", "broker", "auto-recovery"],
)
def test_every_pod_requests_cpu_and_memory(template: dict[str, Any], memory_mib: int) -> None:
    assert resources_of(template) == {
        "requests": {"cpu": "100m", "memory": f"{memory_mib}Mi"},
        "limits": {"memory": f"{2 * memory_mib}Mi"},
    }


def test_larger_caches_request_more() -> None:
    spec = Bookie.model_validate(bookie(engine={"writeCache": "1Gi", "readCache": "2Gi"})).spec
    assert sizing.bookie_resources(spec).requests["memory"] == f"{512 + 1024 + 2048 + 64}Mi"
    cached = ManagedLedger.model_validate(managed_ledger(brokers={"cache": "1Gi"})).spec
    assert sizing.broker_resources(cached).limits["memory"] == f"{2 * (640 + 1024)}Mi"


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (
            {"requests": {"memory": "4Gi"}},
            {"requests": {"memory": "4Gi", "cpu": "100m"}},
        ),
        (
            {"limits": {"memory": "300Mi", "cpu": "2"}},
            {"limits": {"memory": "300Mi", "cpu": "2"}},
        ),
        (
            {"limits": {"cpu": "2"}},
            {"requests": {"memory": "768Mi"}, "limits": {"cpu": "2", "memory": "1536Mi"}},
        ),
    ],
)
def test_what_the_user_names_has_no_default(given: dict[str, Any], expected: dict[str, Any]) -> None:
    found = sizing.bookie_resources(Bookie.model_validate(bookie(resources=given)).spec)
    assert found.plain() == {"requests": {}, "limits": {}} | expected


def test_a_limit_is_never_below_its_request() -> None:
    for given in ({"limits": {"memory": "64Mi"}}, {"requests": {"memory": "64Gi"}}):
        found = sizing.bookie_resources(Bookie.model_validate(bookie(resources=given)).spec)
        assert not {"memory"} <= found.requests.keys() & found.limits.keys()
