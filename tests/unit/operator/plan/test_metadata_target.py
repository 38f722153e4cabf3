"""Which changes of the metadata store reach running children."""

from dataclasses import replace

import pytest

from quire_operator.api.bookie import Bookie
from quire_operator.api.shared import MetadataStore
from quire_operator.plan import actions as act
from quire_operator.plan.bookie import plan_bookie
from quire_operator.plan.managed_ledger import plan_managed_ledger
from quire_operator.plan.metadata_target import (
    OTHER_CLUSTER,
    UNREACHABLE,
    UNVERIFIED,
    ObservedTarget,
    StoreAnswer,
    accepts,
    blocker,
)
from tests.support.kube_resources import bookie, changed
from tests.unit.operator.plan.test_bookie import running
from tests.unit.operator.plan.test_managed_ledger import THERE, seen

OURS, OTHER, EMPTY, SILENT = StoreAnswer("ours"), StoreAnswer("other"), StoreAnswer(""), StoreAnswer(error="no route")


def store(*endpoints: str) -> MetadataStore:
    return MetadataStore.model_validate({"endpoints": endpoints})


def target(
    present: dict[str, StoreAnswer], wanted: dict[str, StoreAnswer], *, accepted: bool = False
) -> ObservedTarget:
    return ObservedTarget(store(*present), store(*wanted), present, wanted, accepted)


A, B, C, D = "a:2379", "b:2379", "c:2379", "d:2379"
TYPO = target({A: OURS}, {D: SILENT})


@pytest.mark.parametrize(
    ("present", "wanted", "reason", "reason_if_accepted"),
    [
        ({A: OURS}, {D: OURS}, None, None),
        ({A: OURS}, {D: SILENT}, UNREACHABLE, None),
        ({A: OURS}, {D: OTHER}, OTHER_CLUSTER, OTHER_CLUSTER),
        ({A: OURS}, {D: EMPTY}, OTHER_CLUSTER, OTHER_CLUSTER),
        # one member is replaced, added or removed
        ({A: OURS, B: OURS}, {B: OURS, C: OURS}, None, None),
        ({A: OURS, B: OURS}, {B: OURS, C: SILENT}, UNREACHABLE, None),
        ({A: OURS, B: OURS}, {B: OURS, C: OTHER}, OTHER_CLUSTER, OTHER_CLUSTER),
        ({A: SILENT, B: OURS}, {B: OURS, C: OURS}, None, None),
        ({A: OURS, B: OURS}, {A: OURS, B: OURS, C: EMPTY}, OTHER_CLUSTER, OTHER_CLUSTER),
        ({A: OURS, B: SILENT}, {A: OURS, B: SILENT}, None, None),
        ({A: OURS, B: OURS}, {B: SILENT}, UNREACHABLE, None),
        # the same endpoints, with other credentials
        ({A: OURS}, {A: SILENT}, UNREACHABLE, None),
        ({A: OURS}, {A: OURS}, None, None),
        # the present store is gone, e.g. restored elsewhere
        ({A: SILENT}, {D: OURS}, UNVERIFIED, None),
        ({A: SILENT}, {D: SILENT}, UNREACHABLE, None),
        ({A: SILENT}, {D: EMPTY}, OTHER_CLUSTER, OTHER_CLUSTER),
        ({A: EMPTY}, {D: OTHER}, UNVERIFIED, None),
        ({A: SILENT}, {C: OURS, D: OTHER}, OTHER_CLUSTER, OTHER_CLUSTER),
        ({A: OURS, B: OTHER}, {A: OURS}, UNVERIFIED, None),
    ],
)
def test_only_the_same_cluster_is_followed(
    present: dict[str, StoreAnswer],
    wanted: dict[str, StoreAnswer],
    reason: str | None,
    reason_if_accepted: str | None,
) -> None:
    for accepted, expected in ((False, reason), (True, reason_if_accepted)):
        found = blocker(target(present, wanted, accepted=accepted))
        assert (None if found is None else found[0]) == expected, accepted


def test_without_a_change_nothing_is_blocked() -> None:
    assert blocker(None) is None


def test_the_message_names_endpoint_cause_and_remedy() -> None:
    found = blocker(TYPO)
    assert found is not None
    assert found[1] == (
        "the pods keep the metadata store a:2379 of cluster ours: d:2379: no route; correct spec.metadata of the "
        "Bookie, or, if it is the same cluster, annotate the Bookie with quire.dev/accept-metadata=d:2379"
    )


@pytest.mark.parametrize(
    ("value", "accepted"),
    [
        ("a:2379,b:2379", True),
        ("b:2379, a:2379", True),
        ("a:2379", False),
        ("a:2379,b:2379,c:2379", False),
        ("", False),
    ],
)
def test_an_acceptance_names_exactly_the_declared_endpoints(value: str, accepted: bool) -> None:
    assert accepts({"quire.dev/accept-metadata": value}, store(A, B)) is accepted


def applied(actions: tuple[object, ...], kind: str) -> str:
    return str([one.manifest for one in actions if isinstance(one, act.Apply) and one.manifest["kind"] == kind])


def test_a_pool_keeps_its_store_while_everything_else_follows_the_spec() -> None:
    pool = running(3).observe()
    declared = Bookie.model_validate(
        changed(pool.resource.plain(), {"spec.metadata.endpoints": [D], "spec.image": "quire:2"})
    )
    found = plan_bookie(replace(pool, resource=declared, target=TYPO), "quire:1")
    for kind in ("StatefulSet", "ConfigMap", "Deployment"):
        assert D not in applied(found.actions, kind)
    assert applied(found.actions, "ConfigMap").count("etcd://a:2379") == 2, "of bookies and of auto-recovery"
    assert "quire:2" in applied(found.actions, "StatefulSet")
    assert [one.reason for one in found.actions if isinstance(one, act.Emit) and one.warning] == [UNREACHABLE]
    stalled = next(one for one in found.status.conditions if one.type == "Stalled")
    assert (stalled.status, stalled.reason) == ("True", UNREACHABLE)

    reported = declared.model_copy(update={"status": found.status})
    again = plan_bookie(replace(pool, resource=reported, target=TYPO), "quire:1")
    assert not [one for one in again.actions if isinstance(one, act.Emit)], "once"

    same = target({A: OURS}, {D: OURS})
    followed = plan_bookie(replace(pool, resource=declared, target=same), "quire:1")
    assert applied(followed.actions, "ConfigMap").count("etcd://d:2379") == 2


def test_brokers_keep_their_store_while_topics_follow_the_spec() -> None:
    given = replace(
        seen(replace(THERE, topics={})), pool=Bookie.model_validate(bookie(metadata={"endpoints": [D]})), target=TYPO
    )
    found = plan_managed_ledger(given, "quire:1")
    for kind in ("StatefulSet", "ConfigMap"):
        assert D not in applied(found.actions, kind)
        assert A in applied(found.actions, kind)
    assert any(isinstance(one, act.CreateTopic) for one in found.actions)
    stalled = next(one for one in found.status.conditions if one.type == "Stalled")
    assert (stalled.status, stalled.reason) == ("True", UNREACHABLE)
