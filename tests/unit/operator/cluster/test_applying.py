"""Claims are given up in an order in which a crash loses nothing, also when their volume is gone already."""

from typing import Any

import pytest

from quire_operator.api.bookie import Bookie
from quire_operator.cluster.applied import Applied
from quire_operator.cluster.applying import PoolActions
from quire_operator.errors import KubeError
from quire_operator.plan.actions import ReleaseClaim
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
async def test_a_volume_is_kept_before_its_claim_goes(
    there: set[str], keep: bool, expected: list[tuple[str, str]]
) -> None:
    kube: Any = FakeKube(*there)
    http: Any = None
    actions = PoolActions(kube, http, Bookie.model_validate(bookie()), (), 1.0, Applied())
    await actions.perform([ReleaseClaim("ledgers0-pool-bookie-1", "c1", "pv-1", keep)])
    assert kube.done == expected
