"""A Secret of somebody else under the name of ours: said in the status, and nothing is changed until a person acts."""

from quire_operator.api.bookie import Bookie
from quire_operator.api.managed_ledger import ManagedLedger
from quire_operator.plan.bookie import plan_bookie
from quire_operator.plan.ledger_observation import LedgerObservation
from quire_operator.plan.managed_ledger import plan_managed_ledger
from quire_operator.plan.observation import PoolObservation
from tests.support.kube_resources import bookie, managed_ledger

FAULT = "tls: the Secret pool-bookie-tls was not created by this operator"
POOL = Bookie.model_validate(bookie())


def test_of_a_pool() -> None:
    found = plan_bookie(PoolObservation(POOL, 0.0, certificate_fault=FAULT), "image")
    (ready,) = [each for each in found.status.conditions if each.type == "Ready"]
    assert (ready.reason, ready.message) == ("InvalidSpec", FAULT)
    assert found.actions == ()


def test_of_a_namespace() -> None:
    ledger = ManagedLedger.model_validate(managed_ledger())
    found = plan_managed_ledger(LedgerObservation(ledger, 0.0, POOL, certificate_fault=FAULT), "image")
    (ready,) = [each for each in found.status.conditions if each.type == "Ready"]
    assert (ready.reason, ready.message) == ("InvalidSpec", FAULT)
    assert found.actions == ()
