"""A foreign Secret with the name of ours is reported in the status, and nothing is changed until it is resolved."""

from quire_operator.api.bookie import Bookie
from quire_operator.api.managed_ledger import ManagedLedger
from quire_operator.plan.bookie import plan_bookie
from quire_operator.plan.ledger_observation import LedgerObservation
from quire_operator.plan.managed_ledger import plan_managed_ledger
from quire_operator.plan.observation import PoolObservation
from tests.support.kube_resources import bookie, managed_ledger

FAULT = "tls: the Secret pool-bookie-tls was not created by this operator"
POOL = Bookie.model_validate(bookie())


def test_a_foreign_secret_is_a_fault_of_a_pool() -> None:
    found = plan_bookie(PoolObservation(POOL, 0.0, certificate_fault=FAULT), "image")
    (ready,) = [each for each in found.status.conditions if each.type == "Ready"]
    assert (ready.reason, ready.message) == ("InvalidSpec", FAULT)
    assert found.actions == ()


def test_a_foreign_secret_is_a_fault_of_a_namespace() -> None:
    ledger = ManagedLedger.model_validate(managed_ledger())
    found = plan_managed_ledger(LedgerObservation(ledger, 0.0, POOL, certificate_fault=FAULT), "image")
    (ready,) = [each for each in found.status.conditions if each.type == "Ready"]
    assert (ready.reason, ready.message) == ("InvalidSpec", FAULT)
    assert found.actions == ()
