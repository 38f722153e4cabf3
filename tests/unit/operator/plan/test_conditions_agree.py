"""Tables of observations: phase and conditions never contradict each other, and other tools judge rightly."""

from collections.abc import Callable, Iterable
from dataclasses import replace
from itertools import islice, product
from typing import Any

import pytest

from quire_operator.api.bookie import Bookie
from quire_operator.api.managed_ledger import RolloutRecord, RolloutStep
from quire_operator.api.operations import OperationType, Step
from quire_operator.api.proxy_spec import Proxy
from quire_operator.api.shared import MetadataStore
from quire_operator.builders.broker import BrokerFacts, revision_of
from quire_operator.plan.bookie import plan_bookie
from quire_operator.plan.ledger_observation import (
    LedgerObservation,
    ObservedBrokerDrain,
    ObservedProxy,
    ObservedRevision,
)
from quire_operator.plan.managed_ledger import plan_managed_ledger
from quire_operator.plan.metadata_target import ObservedTarget, StoreAnswer
from quire_operator.plan.observation import ObservedNamespace, ObservedPod, PoolObservation, Rejection
from quire_operator.plan.operations import begun
from tests.support.sampling import one_in
from tests.support.status_judges import argo_health, kstatus, kubectl_waits_no_more
from tests.unit.operator.plan.test_bookie import running
from tests.unit.operator.plan.test_managed_ledger import THERE, seen

LONG_AGO = "1970-01-01T00:00:00Z"
REJECTED = Rejection("Invalid", "the API server refused (422): StatefulSet pool-bookie: must be less than the limit")
LAST = "pool-bookie-3"
PULLS = ("ImagePullBackOff", 'Back-off pulling image "quire:typo"')
TYPO = ObservedTarget(
    MetadataStore.model_validate({"endpoints": ["a:2379"]}),
    MetadataStore.model_validate({"endpoints": ["d:2379"]}),
    {"a:2379": StoreAnswer("ours")},
    {"d:2379": StoreAnswer(error="no route")},
)
Change = Callable[[PoolObservation], PoolObservation]
LedgerChange = Callable[[LedgerObservation], LedgerObservation]


def last_pod(**fields: Any) -> Change:
    """Return a change of the last pod, whose bookie does not respond any more."""

    def change(seen: PoolObservation) -> PoolObservation:
        pods = tuple(replace(pod, **fields) if pod.name == LAST else pod for pod in seen.pods)
        return replace(seen, pods=pods, bookies={name: one for name, one in seen.bookies.items() if name != LAST})

    return change


def read_only(seen: PoolObservation) -> PoolObservation:
    return replace(seen, bookies=seen.bookies | {LAST: replace(seen.bookies[LAST], writable=False)})


def pod_rejected(seen: PoolObservation) -> PoolObservation:
    """Return a pool whose last pod a quota rejects."""
    assert seen.stateful_set is not None
    return replace(
        seen,
        stateful_set=replace(seen.stateful_set, rejected_pod="pods is forbidden: exceeded quota: compute"),
        pods=tuple(pod for pod in seen.pods if pod.name != LAST),
        bookies={name: one for name, one in seen.bookies.items() if name != LAST},
    )


def new(seen: PoolObservation) -> PoolObservation:
    return replace(seen, stateful_set=None, pods=(), claims=(), bookies={}, known_ids={})


def cluster(**fields: Any) -> Change:
    def change(seen: PoolObservation) -> PoolObservation:
        assert seen.cluster is not None
        return replace(seen, cluster=replace(seen.cluster, **fields))

    return change


def resource(seen: PoolObservation, metadata: dict[str, Any], **spec: Any) -> PoolObservation:
    plain = seen.resource.plain()
    return replace(
        seen,
        resource=Bookie.model_validate(
            plain | {"metadata": plain["metadata"] | metadata, "spec": plain["spec"] | spec},
        ),
    )


def operation(kind: OperationType, step: Step, age_s: float) -> Change:
    def change(seen: PoolObservation) -> PoolObservation:
        found = begun(kind, step, seen.now_s - age_s, pod=LAST, bookie=seen.known_ids.get(LAST))
        status = seen.resource.status.model_copy(update={"operation": found})
        return replace(seen, resource=seen.resource.model_copy(update={"status": status}))

    return change


def same(seen: Any) -> Any:
    return seen


PODS: dict[str, Change] = {
    "all serve": same,
    "one on a failed node": last_pod(ready=False, started=True),
    "one starts": last_pod(ready=False, started=False),
    "one cannot pull": last_pod(ready=False, started=False, failure=": ".join(PULLS), blocked=PULLS),
    "one cannot be scheduled": last_pod(ready=False, started=False, node=None, blocked=("Unschedulable", "0/3 nodes")),
    "one read-only": read_only,
    "one rejected by a quota": pod_rejected,
    "none yet": new,
}
CLUSTERS: dict[str, Change] = {
    "replicated": same,
    "under-replicated": cluster(under_replicated=3),
    "unreadable": cluster(unrecoverable=2),
    "no metadata": lambda seen: replace(seen, cluster=None),
}
OPERATIONS: dict[str, Change] = {
    "idle": same,
    "roll": operation(OperationType.ROLL, Step.SETTLING, 5),
    "stuck roll": operation(OperationType.ROLL, Step.SETTLING, 5000),
    "drain": operation(OperationType.DRAIN, Step.COPYING, 5),
    "replace": operation(OperationType.REPLACE, Step.REJOINING, 5),
}
SPECS: dict[str, Change] = {
    "valid": same,
    "invalid": lambda seen: replace(seen, certificate_fault="the CA cannot be read"),
    "paused": lambda seen: resource(seen, {}, paused=True),
    "deleted": lambda seen: resource(seen, {"deletionTimestamp": "2030-01-01T00:00:00Z"}),
    "rejected": lambda seen: replace(seen, rejected=REJECTED),
    "another store": lambda seen: replace(seen, target=TYPO),
    "grows": lambda seen: replace(seen, claims=tuple(replace(claim, capacity="1Gi") for claim in seen.claims)),
    "cannot grow": lambda seen: resource(seen, {}, storage={"journal": {"size": "10Gi"}, "ledgers": {"size": "200Gi"}}),
}


@pytest.fixture(scope="module")
def pool() -> PoolObservation:
    """Return a pool of four bookies that serve; ensembles have three."""
    world = running(4)
    world.namespaces = (ObservedNamespace("orders", 3),)
    world.expandable = False
    world.claims = {name: replace(claim, expandable=False) for name, claim in world.claims.items()}
    return world.observe()


def truths(status: dict[str, Any]) -> dict[str, str]:
    return {one["type"]: one["status"] for one in status["conditions"]}


def check(judged: dict[str, Any], word: str, case: object) -> None:
    """Check the invariants of both kinds. `judged`: the resource with its new status; `word`: its phase or state."""
    status = judged["status"]
    found = truths(status)
    generation = judged["metadata"]["generation"]
    assert status["observedGeneration"] == generation, case
    assert {one["observedGeneration"] for one in status["conditions"]} == {generation}, case
    good = found["Ready"] == "True"
    if good:
        assert found["Writable"] == "True", case
        bad = {"Degraded", "Stalled", "WriteRejected", "PodsBlocked", "RolledBack"} & found.keys()
        assert {kind: found[kind] for kind in bad} == dict.fromkeys(bad, "False"), case
        assert found.get("PolicyApplied", "True") == "True", case
    moving, stalled = found["Reconciling"] == "True", found["Stalled"] == "True"
    assert not (moving and stalled), case
    assert not (stalled and found.get("Quiesced") == "True"), case
    if not good and judged["spec"].get("paused") is not True and word != "Stopped":
        assert moving or stalled, case
    if word in ("Running", "Open"):
        assert good, case
    if word == "Degraded":
        assert found["Degraded"] == "True", case
    judgements = (kstatus(judged), argo_health(judged), kubectl_waits_no_more(judged))
    if "deletionTimestamp" in judged["metadata"]:
        assert judgements[:2] == ("Terminating", "Progressing"), case
    elif stalled:
        assert judgements == ("Failed", "Degraded", False), case
    elif not good or moving:
        assert judgements == ("InProgress", "Progressing", good), case
    else:
        assert judgements == ("Current", "Healthy", True), case


@one_in(3)
def test_a_pool_never_contradicts_itself(pool: PoolObservation, every: int) -> None:
    words = set()
    for pods, clusters, operations, spec in islice(product(PODS, CLUSTERS, OPERATIONS, SPECS), 0, None, every):
        case = (pods, clusters, operations, spec)
        given = SPECS[spec](OPERATIONS[operations](CLUSTERS[clusters](PODS[pods](pool))))
        status = plan_bookie(given, "quire:1").status.plain()
        check(given.resource.plain() | {"status": status}, status["phase"], case)
        words.add(status["phase"])
    expected = {"Creating", "Running", "Updating", "Scaling", "Replacing", "Degraded", "Invalid", "Paused", "Deleting"}
    assert words >= expected, "the table reaches every word"


@pytest.mark.parametrize(
    ("pods", "clusters", "spec", "reason"),
    [
        ("all serve", "replicated", "valid", "Serving"),
        ("one on a failed node", "replicated", "valid", "BookiesAway"),
        ("one cannot pull", "replicated", "valid", "ImagePullBackOff"),
        ("one cannot be scheduled", "replicated", "valid", "Unschedulable"),
        ("one read-only", "replicated", "valid", "BookiesReadOnly"),
        ("one rejected by a quota", "replicated", "valid", "FailedCreate"),
        ("all serve", "under-replicated", "valid", "LedgersLackReplicas"),
        ("all serve", "unreadable", "valid", "LedgersUnreadable"),
        ("all serve", "replicated", "rejected", "Invalid"),
        ("all serve", "replicated", "another store", "MetadataTargetUnreachable"),
        ("all serve", "replicated", "cannot grow", "VolumesCannotGrow"),
    ],
)
def test_ready_names_the_reason(pool: PoolObservation, pods: str, clusters: str, spec: str, reason: str) -> None:
    found = plan_bookie(SPECS[spec](CLUSTERS[clusters](PODS[pods](pool))), "quire:1").status
    (ready,) = [one for one in found.conditions if one.type == "Ready"]
    assert ready.reason == reason


def rollout(step: RolloutStep) -> LedgerChange:
    """Return a change at one of its steps, long after its limit."""

    def change(seen: LedgerObservation) -> LedgerObservation:
        assert seen.pool is not None
        wanted = revision_of(seen.resource, BrokerFacts(seen.pool, "quire:1"))
        kept = replace(wanted, name="former")
        record = RolloutRecord(
            step=step, revision=wanted.name, good=kept.name, started_at=LONG_AGO, step_started_at=LONG_AGO
        )
        status = seen.resource.status.model_copy(update={"rollout": record})
        there = None if seen.stateful_set is None else replace(seen.stateful_set, revision=wanted.name)
        return replace(
            seen,
            resource=seen.resource.model_copy(update={"status": status}),
            stateful_set=there,
            revisions=(ObservedRevision("orders-broker-former", "u", True, kept),),
        )

    return change


def brokers(there: int, *pods: ObservedPod, leaving: ObservedBrokerDrain | None = None) -> LedgerChange:
    """Return a change to several brokers of which one is declared."""

    def change(seen: LedgerObservation) -> LedgerObservation:
        assert seen.stateful_set is not None
        return replace(
            seen, stateful_set=replace(seen.stateful_set, replicas=there), pods=(*seen.pods, *pods), leaving=leaving
        )

    return change


def proxies(there: ObservedProxy) -> LedgerChange:
    """Return a change to declared proxies."""

    def change(seen: LedgerObservation) -> LedgerObservation:
        spec = seen.resource.spec.model_copy(update={"proxy": Proxy.model_validate({})})
        return replace(seen, resource=seen.resource.model_copy(update={"spec": spec}), proxy=there)

    return change


SECOND = ObservedPod("orders-broker-1", "u1", ready=True)
AWAY = replace(SECOND, ready=False, ready_since=LONG_AGO)
LEDGER: dict[str, list[tuple[str, LedgerChange]]] = {
    "brokers": [
        ("serve", same),
        ("silent", lambda seen: replace(seen, namespace=None)),
        ("new", lambda seen: replace(seen, namespace=None, stateful_set=None, pods=())),
        ("blocked", lambda seen: replace(seen, pods=(*seen.pods, ObservedPod("orders-broker-1", blocked=PULLS)))),
    ],
    "changes": [("none", same), *((step.value, rollout(step)) for step in RolloutStep)],
    "topics": [
        ("there", same),
        (
            "missing",
            lambda seen: replace(seen, namespace=None if seen.namespace is None else replace(THERE, topics={})),
        ),
    ],
    "bookies": [
        ("enough", same),
        ("too few", lambda seen: replace(seen, writable_bookies=2)),
        ("unknown", lambda seen: replace(seen, writable_bookies=None)),
        ("lacking", lambda seen: replace(seen, under_replicated=4)),
    ],
    "writes": [
        ("accepted", same),
        ("rejected", lambda seen: replace(seen, rejected=REJECTED)),
        ("invalid", lambda seen: replace(seen, certificate_fault="the CA cannot be read")),
        ("another store", lambda seen: replace(seen, target=TYPO)),
    ],
}
LEDGER_SPECS: dict[str, dict[str, Any]] = {
    "as declared": {},
    "paused": {"paused": True},
    "stopped": {"brokers": {"replicas": 0}},
}


SEVERAL: list[tuple[str, LedgerChange]] = [
    ("draining", brokers(2, SECOND, leaving=ObservedBrokerDrain(True, 1, 3, others=True))),
    ("silent while it leaves", brokers(2, SECOND)),
    ("drained", brokers(2, SECOND, leaving=ObservedBrokerDrain(True, 4, 0, others=True))),
    ("away", brokers(1, AWAY)),
    ("proxies start", proxies(ObservedProxy())),
    ("proxies away", proxies(ObservedProxy(unavailable_since=LONG_AGO))),
]


def words_of(parts: Iterable[tuple[tuple[str, LedgerChange], ...]]) -> set[str]:
    """Check the status in each combination, with each spec. Return the states."""
    words = set()
    for (name, spec), changes in product(LEDGER_SPECS.items(), parts):
        given = seen(THERE, **spec)
        for _, change in changes:
            given = change(given)
        status = plan_managed_ledger(given, "quire:1").status.plain()
        check(given.resource.plain() | {"status": status}, status["state"], (name, *(part[0] for part in changes)))
        words.add(status["state"])
    return words


@one_in(5)
def test_a_managed_ledger_never_contradicts_itself(every: int) -> None:
    words = words_of(islice(product(*LEDGER.values()), 0, None, every))
    assert words == {"Creating", "Open", "Degraded", "Invalid", "Paused", "Stopped"}


def test_a_managed_ledger_with_several_brokers_never_contradicts_itself() -> None:
    words = words_of(product(SEVERAL, LEDGER["changes"], LEDGER["writes"]))
    assert words == {"Open", "Draining", "Degraded", "Invalid", "Paused", "Stopped"}


def test_a_new_generation_is_not_ready_until_it_is_observed(pool: PoolObservation) -> None:
    judged = pool.resource.plain() | {"status": plan_bookie(pool, "quire:1").status.plain()}
    assert (kstatus(judged), argo_health(judged), kubectl_waits_no_more(judged)) == ("Current", "Healthy", True)
    judged["metadata"] |= {"generation": judged["metadata"]["generation"] + 1}
    assert (kstatus(judged), argo_health(judged), kubectl_waits_no_more(judged)) == ("InProgress", "Progressing", False)
