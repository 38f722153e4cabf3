"""The rules for all declared objects, as tables: claims, adoption, reverts, deletion, and conditions that agree."""

from dataclasses import replace
from itertools import product
from typing import Any

import pytest

from quire_operator.api.conditions import Truth
from quire_operator.api.managed_ledger import ManagedLedger
from quire_operator.api.tenant import Tenant
from quire_operator.plan import actions as act
from quire_operator.plan.declared import (
    BUSY_REQUEUE_S,
    IDLE_REQUEUE_S,
    Case,
    Decision,
    Difference,
    Removal,
    Surroundings,
    decide,
    rendered,
)
from quire_operator.plan.namespace import ACTIONS_MAX
from quire_operator.plan.observation import Rejection
from tests.support.kube_resources import changed, declared, managed_ledger
from tests.support.status_judges import argo_health, kstatus, kubectl_waits_no_more

NOW_S = 1_900_000_000.0
CREATE = act.SetTenant("shop", ("ops",))
DELETE = act.DeleteTenant("shop")
RELEASE = act.ForgetIsolation("shop~x")
ABSENT_OBJECT = Difference("tenant shop does not exist", (CREATE,), adds=True)
OTHER_VALUE = Difference("adminRoles are x, declared are ops", (CREATE,))
SYNCED: dict[str, Any] = {"status.syncedGeneration": 1}
APPLYING = {
    "type": "Synced",
    "status": "False",
    "reason": "Applying",
    "lastTransitionTime": "2026-01-01T00:00:00Z",
    "observedGeneration": 1,
}
DELETED: dict[str, Any] = {"metadata.deletionTimestamp": "2026-01-02T00:00:00Z"}


def ledger(**spec: Any) -> ManagedLedger:
    return ManagedLedger.model_validate(managed_ledger(**spec))


DELETED_LEDGER = ManagedLedger.model_validate(changed(managed_ledger(), DELETED))


def case(changes: dict[str, Any] | None = None, *, managed: bool = True, **fields: Any) -> Case:
    manifest = changed(declared("Tenant", "shop", managed=managed), changes or {})
    given: dict[str, Any] = {
        "around": Surroundings(NOW_S, ledger()),
        "exists": True,
        "removal": Removal((DELETE,), None, (RELEASE,)),
    }
    return Case("tenant shop", Tenant.model_validate(manifest), **(given | fields))


def around(**fields: Any) -> Surroundings:
    return replace(Surroundings(NOW_S, ledger()), **fields)


def reason(decision: Decision) -> str:
    return decision.outcome.reason


def test_an_object_as_declared_needs_nothing() -> None:
    found = decide(case())
    assert (reason(found), found.actions, found.managed, found.requeue_s) == ("InSync", (), True, IDLE_REQUEUE_S)


def test_an_object_is_claimed_before_the_first_write() -> None:
    unclaimed = case(managed=False, exists=False, differences=(ABSENT_OBJECT,))
    first = decide(unclaimed)
    assert first.actions == (act.SetFinalizer(True),)
    with_finalizer = case(
        {"metadata.finalizers": ["quire.dev/declared"]}, managed=False, exists=False, differences=(ABSENT_OBJECT,)
    )
    second = decide(with_finalizer)
    assert second.managed and second.requeue_s == 0
    assert CREATE not in second.actions, "the claim is in the status before anything is created"
    third = decide(case(exists=False, differences=(ABSENT_OBJECT,)))
    assert CREATE in third.actions and third.requeue_s == BUSY_REQUEUE_S


@pytest.mark.parametrize(
    ("differences", "policy", "adopted"),
    [
        ((), "IfEqual", True),
        ((ABSENT_OBJECT,), "IfEqual", True),
        ((OTHER_VALUE,), "IfEqual", False),
        ((ABSENT_OBJECT, OTHER_VALUE), "IfEqual", False),
        ((OTHER_VALUE,), "Always", True),
    ],
)
def test_an_existing_object_is_adopted_only_if_nothing_is_overwritten(
    differences: tuple[Difference, ...], policy: str, adopted: bool
) -> None:
    metadata = {"metadata.finalizers": ["quire.dev/declared"], "spec.adoptionPolicy": policy}
    found = decide(case(metadata, managed=False, differences=differences))
    assert found.managed is adopted
    if not adopted:
        assert reason(found) == "NotAdopted" and not found.actions
        assert OTHER_VALUE.what in found.outcome.message and "adoptionPolicy" in found.outcome.message


def test_a_change_by_others_is_reverted_and_reported_once() -> None:
    found = decide(case(SYNCED, differences=(OTHER_VALUE,)))
    assert found.reverted is not None and found.reverted.what == OTHER_VALUE.what
    assert found.actions == (act.Emit("RevertingDrift", f"tenant shop: {OTHER_VALUE.what}", warning=True), CREATE)
    again = decide(case(SYNCED | {"status.conditions": [APPLYING]}, differences=(OTHER_VALUE,)))
    assert again.actions == (CREATE,) and again.reverted is None


def test_a_change_of_the_spec_is_no_drift() -> None:
    found = decide(case(SYNCED | {"metadata.generation": 2}, differences=(OTHER_VALUE,)))
    assert found.actions == (CREATE,) and found.reverted is None


def test_a_change_while_no_broker_responded_is_drift_too() -> None:
    unknown = [APPLYING | {"status": "Unknown", "reason": "NoBroker"}]
    found = decide(case(SYNCED | {"status.conditions": unknown}, differences=(OTHER_VALUE,)))
    assert found.reverted is not None


def test_the_generation_in_sync_is_recorded_and_kept_while_the_state_is_not_known() -> None:
    in_sync = case({"metadata.generation": 3})
    assert rendered(in_sync, decide(in_sync))["synced_generation"] == 3
    silent = case(SYNCED | {"metadata.generation": 3}, exists=None)
    assert rendered(silent, decide(silent))["synced_generation"] == 1


def test_the_report_of_a_revert_stays() -> None:
    reverted = {"at": "2026-01-01T00:00:00Z", "what": "x"}
    found = decide(case({"status.reverted": reverted}))
    assert found.reverted is not None and found.reverted.what == "x"


def test_actions_of_one_reconciliation_are_bounded() -> None:
    many = tuple(Difference(str(number), (CREATE,)) for number in range(3 * ACTIONS_MAX))
    found = decide(case(differences=many))
    assert len(found.actions) == ACTIONS_MAX
    assert f"{3 * ACTIONS_MAX - 5} more" in found.outcome.message


@pytest.mark.parametrize(
    ("fields", "expected", "truth"),
    [
        ({"around": around(ledger=None)}, "NoManagedLedger", Truth.FALSE),
        ({"around": around(rival="Tenant ns/older")}, "Claimed", Truth.FALSE),
        ({"fault": ("Contradiction", "3 partitions exist")}, "Contradiction", Truth.FALSE),
        ({"exists": None}, "NoBroker", Truth.UNKNOWN),
        ({"around": around(rejected=Rejection("Refused", "no"))}, "Refused", Truth.FALSE),
        ({"waits": ("NoNamespace", "missing")}, "NoNamespace", Truth.FALSE),
        ({"around": around(ledger=ledger(paused=True))}, "Paused", Truth.FALSE),
        ({"around": around(ledger=DELETED_LEDGER)}, "ManagedLedgerDeleted", Truth.FALSE),
    ],
)
def test_nothing_is_written_while_something_is_in_the_way(fields: dict[str, Any], expected: str, truth: Truth) -> None:
    found = decide(case(**({"differences": (OTHER_VALUE,)} | fields)))
    assert (reason(found), found.actions, found.outcome.ready) == (expected, (), truth)


def test_unknown_is_not_absent() -> None:
    found = decide(case(SYNCED, exists=None, differences=()))
    assert found.outcome.synced is Truth.UNKNOWN and not found.actions and found.managed


@pytest.mark.parametrize(
    ("changes", "fields", "actions", "held"),
    [
        ({}, {}, (RELEASE, act.SetFinalizer(False)), False),
        ({"spec.deletionPolicy": "Delete"}, {}, (DELETE,), True),
        ({"spec.deletionPolicy": "Delete"}, {"exists": False}, (RELEASE, act.SetFinalizer(False)), False),
        ({"spec.deletionPolicy": "Delete"}, {"exists": None}, (), True),
        ({"spec.deletionPolicy": "Delete"}, {"removal": Removal((DELETE,), "has 2 namespaces")}, (), True),
        ({"spec.deletionPolicy": "Delete"}, {"around": around(rival="Tenant a/b")}, (act.SetFinalizer(False),), False),
        ({"spec.deletionPolicy": "Delete"}, {"around": around(rejected=Rejection("Refused", "in use"))}, (), True),
        ({"spec.deletionPolicy": "Delete", "status.managed": False}, {}, (act.SetFinalizer(False),), False),
        ({"metadata.finalizers": []}, {}, (), False),
    ],
)
def test_a_deletion_removes_only_what_is_ours_and_only_if_declared(
    changes: dict[str, Any], fields: dict[str, Any], actions: tuple[object, ...], held: bool
) -> None:
    found = decide(case(DELETED | changes, **fields))
    assert found.actions == actions
    assert (reason(found) == "DeletionHeld") is held


def test_a_deletion_without_its_managed_ledger_ends_and_says_that_the_object_stays() -> None:
    found = decide(case(DELETED | {"spec.deletionPolicy": "Delete"}, around=around(ledger=None), exists=None))
    event, last = found.actions
    assert isinstance(event, act.Emit) and "was not deleted" in event.message
    assert last == act.SetFinalizer(False)


def test_conditions_never_contradict_each_other_and_other_tools_judge_rightly() -> None:
    seen = set()
    for exists, managed, differences, surroundings, fault, policy in product(
        (None, True, False),
        (True, False),
        ((), (ABSENT_OBJECT,), (OTHER_VALUE,)),
        (
            around(),
            around(ledger=None),
            around(rival="Tenant ns/a"),
            around(rejected=Rejection("Refused", "no")),
            around(ledger=ledger(paused=True)),
        ),
        (None, ("Contradiction", "x")),
        ("IfEqual", "Always"),
    ):
        at = case(
            {"spec.adoptionPolicy": policy},
            managed=managed,
            exists=exists,
            differences=differences,
            around=surroundings,
            fault=fault,
        )
        decision = decide(at)
        findings = {one.type: one for one in decision.outcome.findings()}
        truths = {kind: one.status for kind, one in findings.items()}
        ready, paused = truths["Ready"] is Truth.TRUE, decision.outcome.reason == "Paused"
        if ready:
            assert (truths["Synced"], truths["Reconciling"], truths["Stalled"]) == (
                Truth.TRUE,
                Truth.FALSE,
                Truth.FALSE,
            )
        else:
            assert paused or Truth.TRUE in (truths["Reconciling"], truths["Stalled"])
        assert not (truths["Reconciling"] is Truth.TRUE and truths["Stalled"] is Truth.TRUE)
        resource = at.resource.plain()
        resource["status"] = at.resource.status.model_copy(update=rendered(at, decision)).plain()
        assert (kstatus(resource) == "Current") is ready
        assert (kstatus(resource) == "Failed") is (truths["Stalled"] is Truth.TRUE)
        assert (argo_health(resource) == "Healthy") is ready
        assert kubectl_waits_no_more(resource) is ready
        seen.add(decision.outcome.reason)
    assert seen >= {"InSync", "Applying", "NoBroker", "Claimed", "NotAdopted", "Paused", "Refused", "Contradiction"}
