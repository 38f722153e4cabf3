"""Resources in kopf's indices, of which some no longer exist."""

from typing import Any

from quire_operator.cluster.memory import Resources


def item(name: str, uid: str, version: int) -> dict[str, Any]:
    return {"metadata": {"namespace": "ns", "name": name, "uid": uid, "resourceVersion": str(version)}}


def uids_of(resources: Resources) -> list[str]:
    return [each["metadata"]["uid"] for each in resources.all("Bookie")]


def test_a_resource_whose_deletion_no_watch_reported_is_hidden() -> None:
    resources = Resources({"Bookie": {("ns", "a"): [item("a", "1", 5)], ("ns", "b"): [item("b", "2", 6)]}})
    assert uids_of(resources) == ["1", "2"]
    resources.hide(resources.uids("Bookie", "ns", "a"))
    assert uids_of(resources) == ["2"]
    resources.hide(resources.uids("Bookie", "ns", "unknown"))
    assert uids_of(resources) == ["2"]


def test_a_resource_that_was_created_again_is_not_hidden() -> None:
    index = {("ns", "a"): [item("a", "1", 5)]}
    resources = Resources({"Bookie": index})
    before = resources.uids("Bookie", "ns", "a")
    index["ns", "a"].append(item("a", "3", 9))  # while the API server was asked
    resources.hide(before)
    assert uids_of(resources) == ["3"]


def test_of_two_resources_of_one_name_the_former_does_not_count() -> None:
    resources = Resources({"Bookie": {("ns", "a"): [item("a", "3", 12), item("a", "1", 9)]}})
    assert uids_of(resources) == ["3"]


def test_hidden_resources_are_forgotten_with_their_index() -> None:
    index = {("ns", "a"): [item("a", "1", 5)], ("ns", "b"): [item("b", "2", 6)]}
    resources = Resources({"Bookie": index})
    resources.hide(resources.uids("Bookie", "ns", "a"))
    del index["ns", "a"]
    resources.hide(resources.uids("Bookie", "ns", "b"))
    assert resources._hidden == {"2"}
