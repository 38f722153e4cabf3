"""Findings from objects, as tables."""

from typing import Any

import pytest

from quire_operator.kubectl.explaining import Severity, drain_line, of_ledger, of_pod, of_resource, of_topic
from tests.unit.operator.plan.test_bookie import running


def resource(**status: Any) -> dict[str, Any]:
    return {"kind": "Bookie", "metadata": {"name": "pool", "generation": 2}, "spec": {}, "status": status}


def condition(kind: str, status: str, reason: str = "Because", message: str = "why") -> dict[str, Any]:
    return {"type": kind, "status": status, "reason": reason, "message": message}


def texts(found: list[Any], severity: Severity | None = None) -> list[str]:
    return [one.what for one in found if severity is None or one.severity is severity]


@pytest.mark.parametrize(
    ("given", "severity"),
    [
        (condition("Ready", "True"), None),
        (condition("Ready", "False"), Severity.WRONG),
        (condition("FullyReplicated", "Unknown"), Severity.UNKNOWN),
        (condition("Degraded", "False"), None),
        (condition("Degraded", "True"), Severity.WRONG),
        (condition("DiskPressure", "True"), Severity.WRONG),
        (condition("ScaleDownBlocked", "True"), Severity.WRONG),
        (condition("NotYetServed", "False"), None),
        (condition("BookiesUnguarded", "True"), Severity.WRONG),
        (condition("Reconciling", "True"), None),
        (condition("Stalled", "True", "Stuck"), Severity.WRONG),
        (condition("Stalled", "True", "VolumesCannotGrow"), Severity.WRONG),
        (condition("Reconciling", "False", "NothingToDo"), None),
        (condition("ReplaceBlocked", "True"), Severity.WRONG),
        (condition("Quiesced", "False"), None),
    ],
)
def test_a_condition_with_a_bad_status_is_a_finding(given: dict[str, Any], severity: Severity | None) -> None:
    found = of_resource(resource(observedGeneration=2, conditions=[given]), [])
    assert [one.severity for one in found] == ([] if severity is None else [severity])


def test_a_healthy_pool_has_no_findings_and_a_stuck_one_has() -> None:
    world = running()
    assert of_resource(world.resource, []) == []
    world.broken.add("quire:2")
    world.change(image="quire:2")
    for _ in range(150):
        world.reconcile()
        world.settle()
    assert any("(Stuck)" in text for text in texts(of_resource(world.resource, []), Severity.WRONG))


def test_an_empty_termination_message_is_ignored() -> None:
    ended = {"name": "quire", "lastState": {"terminated": {"exitCode": 1, "message": " \n", "reason": "Error"}}}
    found = of_pod({"metadata": {"name": "p"}, "status": {"containerStatuses": [ended]}}, [])
    assert texts(found) == ["container quire exited with code 1 (0 restarts): Error"]


def test_a_missing_or_outdated_status_is_a_finding() -> None:
    assert texts(of_resource(resource(), []), Severity.UNKNOWN) == ["it has no status yet"]
    found = of_resource(resource(observedGeneration=1, phase="Running"), [])
    assert texts(found, Severity.UNKNOWN) == ["the operator has not observed the latest change of its spec yet"]


def test_bookies_brokers_and_the_operation_of_a_resource_are_findings() -> None:
    given = resource(
        observedGeneration=2,
        bookies=[
            {"pod": "pool-bookie-0", "id": "a", "state": "Writable"},
            {"pod": "pool-bookie-1", "id": "b", "state": "ReadOnly", "reason": "disk full"},
        ],
        brokers=[{"pod": "orders-broker-0", "ready": False}],
        operation={"type": "Drain", "step": "Copying", "stepStartedAt": "then", "message": "3 ledgers left"},
        drain={"pod": "orders-broker-2", "startedAt": "then", "bundles": 7, "message": "it does not respond"},
    )
    assert texts(of_resource(given, [])) == [
        "bookie b in pool-bookie-1 is ReadOnly: disk full",
        "broker orders-broker-0 does not respond",
        "Drain is in progress, at Copying since then: 3 ledgers left",
        "broker orders-broker-2 hands over its bundles since then: 7 left; it does not respond",
    ]


def pod(*containers: dict[str, Any], **conditions: str) -> dict[str, Any]:
    return {
        "metadata": {"name": "pool-bookie-0"},
        "status": {
            "phase": "Running",
            "conditions": [
                {"type": kind, "status": status, "message": "0/3 nodes"} for kind, status in conditions.items()
            ],
            "containerStatuses": [{"name": "quire"} | one for one in containers],
        },
    }


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (pod(Ready="True"), []),
        (pod(Ready="False"), ["it is not ready"]),
        (pod(PodScheduled="False"), ["it cannot be scheduled: 0/3 nodes"]),
        (
            pod({"state": {"waiting": {"reason": "ImagePullBackOff", "message": "x"}}}, Ready="False"),
            ["waits: ImagePullBackOff x"],
        ),
        (pod({"state": {"waiting": {"reason": "ContainerCreating"}}}, Ready="False"), ["it is not ready"]),
        (
            pod(
                {
                    "restartCount": 4,
                    "state": {"waiting": {"reason": "CrashLoopBackOff"}},
                    "lastState": {"terminated": {"exitCode": 1, "message": "first\nthe folder /data is empty"}},
                },
                Ready="False",
            ),
            ["CrashLoopBackOff", "exited with code 1 (4 restarts): the folder /data is empty"],
        ),
        (pod({"lastState": {"terminated": {"exitCode": 137, "reason": "OOMKilled"}}}, Ready="True"), ["OOMKilled"]),
        (pod({"lastState": {"terminated": {"exitCode": 0}}}, Ready="True"), []),
    ],
)
def test_findings_show_why_a_pod_is_not_ready(given: dict[str, Any], words: list[str]) -> None:
    found = of_pod(given, [])
    assert len(found) == len(words), found
    assert all(word in one.what for word, one in zip(words, found, strict=True))


def test_findings_show_why_a_bookie_accepts_no_writes() -> None:
    state = {"running": True, "readOnly": True, "readOnlyReasons": ["disk", "operator"], "inLimbo": True}
    found = texts(of_pod(pod(Ready="True"), [], state))
    assert "read-only: disk, operator" in found[0] and "limbo" in found[1]
    assert of_pod(pod(Ready="True"), [], {"running": True, "readOnly": False, "inLimbo": False}) == []


def test_only_the_latest_warnings_of_events_are_shown() -> None:
    events = [
        {
            "type": "Warning",
            "reason": f"W{number}",
            "message": "m",
            "lastTimestamp": f"2026-01-0{number}",
            "count": number,
        }
        for number in range(1, 8)
    ] + [{"type": "Normal", "reason": "Pulled"}]
    found = texts(of_pod(pod(Ready="True"), events))
    assert found[0] == "event W7: m (7 times)" and len(found) == 5


def test_missing_bookies_of_a_ledger_are_findings() -> None:
    ledger = {"state": "CLOSED", "segments": [{"firstEntry": 0, "ensemble": ["a", "b", "c"]}]}
    assert of_ledger(ledger, [], ["a", "b", "c"], None) == []
    narrow = of_ledger(ledger | {"writeQuorum": 2, "wantedCopies": 3}, [], ["a", "b", "c"], None)
    assert texts(narrow, Severity.WRONG) == ["it has 2 of 3 copies: it was created while too few bookies were writable"]
    found = texts(of_ledger(ledger, ["b"], ["a", "c"], "no replica served entry 3"), Severity.WRONG)
    assert found == [
        "its replica on b is marked as missing or incomplete",
        "from entry 0 on, b not registered; 2 of its bookies are",
        "it has entries that no replica can serve: no replica served entry 3",
    ]


def test_a_backlog_is_wrong_without_a_consumer_and_a_note_with_one() -> None:
    subscriptions = {
        "a": {"msgBacklog": 5, "consumers": []},
        "b": {"msgBacklog": 5, "consumers": [{}]},
        "c": {"msgBacklog": 0, "consumers": []},
        "d": {"msgBacklog": 1, "consumers": [{}], "blockedSubscriptionOnUnackedMsgs": True},
    }
    found = of_topic({"subscriptions": subscriptions}, {"state": "LedgerOpened"})
    assert [one.severity for one in found] == [Severity.WRONG, Severity.NOTE, Severity.WRONG]


def test_the_line_of_a_drain_shows_the_remaining_ledgers() -> None:
    assert "not checked it yet" in drain_line({"state": "waiting"})
    row = {"state": "copying", "ledgers_left": 3, "ledgers_first": 9, "bytes_left": 25, "bytes_first": 100, "eta_s": 90}
    assert drain_line(row) == "copying: 3 of 9 ledgers left, 75 % of the bytes copied, about 1m30s left"


def test_settings_that_follow_from_limits_are_a_note() -> None:
    found = of_resource(resource(derivedSettings={"readsAtOnceMax": "64", "journalGroup": "4"}), ())
    assert texts(found, Severity.NOTE) == [
        "settings that follow from the limits of its pods: journalGroup = 4, readsAtOnceMax = 64"
    ]
