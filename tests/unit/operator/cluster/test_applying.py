"""Claims are released in an order in which a crash loses no data, even if their volume is missing."""

from typing import Any, cast

import pytest

from quire_operator.api.bookie import Bookie
from quire_operator.cluster.applied import Applied
from quire_operator.cluster.applying import PoolActions
from quire_operator.errors import KubeError
from quire_operator.plan.actions import Apply, DeleteMonitor, ReleaseClaim
from tests.support.kube_resources import bookie

VOLUME = "/api/v1/persistentvolumes/pv-1"
CLAIM = "/api/v1/namespaces/default/persistentvolumeclaims/ledgers0-pool-bookie-1"


class FakeKube:
    def __init__(self, *there: str) -> None:
        self.there = set(there)
        self.done: list[tuple[str, str]] = []

    async def get(self, path: str) -> Any:
        return {} if path in self.there else None

    async def merge(self, path: str, patch: Any) -> Any:
        if path not in self.there:
            raise KubeError(404, f"{path} not found")
        self.done.append((patch["spec"]["persistentVolumeReclaimPolicy"], path))

    async def delete(self, path: str, uid: str) -> None:
        self.done.append((uid, path))


@pytest.mark.parametrize(
    ("there", "keep", "expected"),
    [
        ({VOLUME}, True, [("Retain", VOLUME), ("c1", CLAIM)]),
        ({VOLUME}, False, [("c1", CLAIM)]),
        (set(), True, [("c1", CLAIM)]),
    ],
    ids=["kept", "not kept", "gone already"],
)
async def test_a_volume_is_set_to_retain_before_its_claim_is_deleted(
    there: set[str], keep: bool, expected: list[tuple[str, str]]
) -> None:
    kube: Any = FakeKube(*there)
    http: Any = None
    actions = PoolActions(kube, http, Bookie.model_validate(bookie()), (), 1.0, Applied())
    await actions.perform([ReleaseClaim("ledgers0-pool-bookie-1", "c1", "pv-1", keep)])
    assert kube.done == expected


class RefusingKube:
    """Accepts every kind except one."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.asked: list[str] = []

    async def apply(self, manifest: Any) -> Any:
        self.asked.append(manifest["kind"])
        if manifest["kind"] == self.kind:
            raise KubeError(403, f"{manifest['kind']} is forbidden")
        return manifest

    async def delete(self, path: str, uid: str) -> None:
        self.asked.append(path.split("/")[-2])
        raise KubeError(403, f"{path} is forbidden")


def head(kind: str) -> dict[str, Any]:
    version = "monitoring.coreos.com/v1" if kind == "PodMonitor" else "v1"
    return {"apiVersion": version, "kind": kind, "metadata": {"name": "x", "namespace": "default"}}


async def test_a_refused_pod_monitor_stops_nothing_and_is_retried_later() -> None:
    kube: Any = RefusingKube("PodMonitor")
    applied, http, resource = Applied(watched=True), cast(Any, None), Bookie.model_validate(bookie())
    wanted = [Apply(head("PodMonitor")), Apply(head("ConfigMap"))]
    for now_s in (1.0, 2.0, 2000.0):
        await PoolActions(kube, http, resource, (), now_s, applied).perform(wanted)
    assert kube.asked == ["PodMonitor", "ConfigMap"] * 2, "the second reconciliation was too early for both"


async def test_a_refused_deletion_of_a_pod_monitor_stops_nothing(caplog: pytest.LogCaptureFixture) -> None:
    kube: Any = RefusingKube("PodMonitor")
    actions = PoolActions(kube, cast(Any, None), Bookie.model_validate(bookie()), (), 1.0, Applied())
    await actions.perform([DeleteMonitor("pool-bookie", "u1"), Apply(head("ConfigMap"))])
    assert kube.asked == ["podmonitors", "ConfigMap"]
    assert "could not be deleted" in caplog.text


async def test_a_refusal_of_any_other_child_stops_the_reconciliation() -> None:
    kube: Any = RefusingKube("ConfigMap")
    actions = PoolActions(kube, cast(Any, None), Bookie.model_validate(bookie()), (), 1.0, Applied())
    with pytest.raises(KubeError, match="forbidden"):
        await actions.perform([Apply(head("ConfigMap"))])
