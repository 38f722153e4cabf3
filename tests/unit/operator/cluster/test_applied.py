"""Entries of applied children, and when they become stale."""

from typing import Any

from quire_operator.cluster.applied import KEPT_S, KEPT_UNWATCHED_S, RELISTED_S, Applied
from quire_operator.cluster.memory import QUIET_REQUEUE_S_MAX, Paces
from quire_operator.cluster.paths import manifest_path


def manifest(kind: str = "ConfigMap", **more: Any) -> dict[str, Any]:
    version = "v1" if kind == "ConfigMap" else "apps/v1"
    return {"apiVersion": version, "kind": kind, "metadata": {"name": "a", "namespace": "ns"}} | more


def answer(version: int) -> dict[str, Any]:
    return {"metadata": {"resourceVersion": str(version), "generation": version}}


def noted(kind: str = "ConfigMap", version: int = 5) -> Applied:
    found = Applied(watched=True)
    found.note(manifest(kind), answer(version), 100.0)
    return found


PATH = manifest_path(manifest())


def test_only_a_changed_manifest_is_applied_again() -> None:
    applied = noted()
    assert applied.is_fresh(manifest(), 100.0)
    assert not applied.is_fresh(manifest(data={"a": "b"}), 100.0)
    assert not applied.is_fresh(manifest(), 100.0 + KEPT_S), "in case a watch missed an event"
    assert not applied.is_fresh(manifest(), 99.0), "the entry is stale if the clock was set back"


def test_only_a_version_after_our_own_write_is_a_change() -> None:
    applied = noted()
    assert not applied.saw(PATH, 5)
    assert applied.is_fresh(manifest(), 100.0)
    assert applied.saw(PATH, 6)
    assert not applied.is_fresh(manifest(), 100.0)
    applied.note(manifest(), answer(7), 101.0)
    assert applied.is_fresh(manifest(), 101.0)


def test_an_event_before_the_response_to_our_write_is_no_change() -> None:
    applied = noted()
    applied.saw(PATH, 6)
    applied.note(manifest(), answer(6), 100.0)
    assert applied.is_fresh(manifest(), 100.0)


def test_a_change_of_another_client_right_after_our_write_is_not_lost() -> None:
    applied = noted()
    applied.saw(PATH, 7)
    applied.note(manifest(), answer(6), 100.0)
    assert not applied.is_fresh(manifest(), 100.0)


def test_a_deleted_child_is_applied_again() -> None:
    applied = noted()
    applied.lost(PATH)
    assert not applied.is_fresh(manifest(), 100.0)
    assert applied.saw(PATH, 1), "an unknown child"


def test_without_watches_entries_expire_early_and_stateful_sets_are_not_remembered() -> None:
    applied = Applied()
    for kind in ("ConfigMap", "StatefulSet"):
        applied.note(manifest(kind), answer(5), 100.0)
    assert applied.is_fresh(manifest(), 100.0)
    assert not applied.is_fresh(manifest(), 100.0 + KEPT_UNWATCHED_S)
    assert not applied.is_fresh(manifest("StatefulSet"), 100.0)


def test_a_quiet_resource_is_reconciled_at_growing_intervals() -> None:
    paces = Paces()
    assert [paces.next_s("a", 2.0, quiet=True) for _ in range(4)] == [4, 8, QUIET_REQUEUE_S_MAX, QUIET_REQUEUE_S_MAX]
    assert paces.next_s("a", 2.0, quiet=False) == 2
    assert paces.next_s("a", 60.0, quiet=True) == 60, "never sooner than requested"


def test_a_repeated_list_makes_all_stale_once() -> None:
    applied = noted()
    applied.relisted(1000.0)
    assert not applied.is_fresh(manifest(), 100.0)
    applied.note(manifest(), answer(5), 100.0)
    applied.relisted(1000.0 + RELISTED_S / 2)  # the next object of the same list
    assert applied.is_fresh(manifest(), 100.0)
    applied.relisted(1000.0 + RELISTED_S)
    assert not applied.is_fresh(manifest(), 100.0)
