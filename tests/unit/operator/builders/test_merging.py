"""A user's pod template over a generated one."""

import copy
from typing import Any

import pytest

from quire_operator.builders.merging import merged

BASE: dict[str, Any] = {
    "terminationGracePeriodSeconds": 120,
    "containers": [
        {
            "name": "quire",
            "image": "quire:1",
            "args": ["a", "b"],
            "env": [{"name": "POD_NAME", "value": "p"}],
            "volumeMounts": [{"name": "tmp", "mountPath": "/tmp"}],
        }
    ],
    "volumes": [{"name": "tmp", "emptyDir": {}}],
    "securityContext": {"runAsUser": 10001, "fsGroup": 10001},
}
TABLE: list[tuple[str, dict[str, Any], Any]] = [
    # path of the value, patch, expected value
    ("terminationGracePeriodSeconds", {"terminationGracePeriodSeconds": 300}, 300),
    ("securityContext", {"securityContext": {"fsGroup": 7}}, {"runAsUser": 10001, "fsGroup": 7}),
    ("securityContext", {"securityContext": {"fsGroup": None}}, {"runAsUser": 10001}),
    ("securityContext", {"securityContext": {"$patch": "replace", "fsGroup": 7}}, {"fsGroup": 7}),
    ("fieldOfTheFuture", {"fieldOfTheFuture": {"deep": [1, {"x": 2}]}}, {"deep": [1, {"x": 2}]}),
    ("tolerations", {"tolerations": [{"key": "a"}]}, [{"key": "a"}]),
    (
        "volumes",
        {"volumes": [{"name": "more", "emptyDir": {}}]},
        [{"name": "tmp", "emptyDir": {}}, {"name": "more", "emptyDir": {}}],
    ),
    ("volumes", {"volumes": [{"name": "tmp", "$patch": "delete"}]}, []),
    ("containers.0.image", {"containers": [{"name": "quire", "image": "quire:2"}]}, "quire:2"),
    ("containers.0.args", {"containers": [{"name": "quire", "image": "quire:2"}]}, ["a", "b"]),
    (
        "containers.0.env",
        {"containers": [{"name": "quire", "env": [{"name": "TZ", "value": "U"}, {"name": "POD_NAME", "value": "q"}]}]},
        [{"name": "POD_NAME", "value": "q"}, {"name": "TZ", "value": "U"}],
    ),
    ("containers.1", {"containers": [{"name": "sidecar", "image": "s"}]}, {"name": "sidecar", "image": "s"}),
    ("containers.1.ports", {"containers": [{"name": "s", "ports": [{"containerPort": 1}]}]}, [{"containerPort": 1}]),
]


def at(node: Any, path: str) -> Any:
    for part in path.split("."):
        node = node[int(part)] if isinstance(node, list) else node[part]
    return node


@pytest.mark.parametrize(("path", "patch", "expected"), TABLE)
def test_a_patch_changes_what_it_names(path: str, patch: dict[str, Any], expected: Any) -> None:
    assert at(merged(BASE, patch), path) == expected


@pytest.mark.parametrize(("path", "patch", "expected"), TABLE)
def test_merging_twice_is_merging_once_and_changes_no_side(path: str, patch: dict[str, Any], expected: Any) -> None:
    base, patch_before = copy.deepcopy(BASE), copy.deepcopy(patch)
    once = merged(BASE, patch)
    assert merged(once, patch) == once
    assert base == BASE
    assert patch_before == patch


def test_an_empty_patch_changes_nothing() -> None:
    assert merged(BASE, {}) == BASE


def test_a_list_whose_items_lack_the_key_is_replaced_as_a_whole() -> None:
    assert merged(BASE, {"volumes": [{"emptyDir": {}}]})["volumes"] == [{"emptyDir": {}}]
