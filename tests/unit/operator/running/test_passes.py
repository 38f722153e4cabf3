"""What a failed reconciliation tells the queue: whether a retry helps, and after how long."""

from typing import Any

import kopf
import pytest

from quire_operator.api.bookie import Bookie
from quire_operator.cluster.memory import Resources
from quire_operator.errors import UnreachableError
from quire_operator.running.passes import work_of
from quire_operator.running.work_queue import Key
from tests.support.kube_resources import BOOKIE, changed

KEY = Key("Bookie", "ns", "pool")
ITEM: dict[str, Any] = {"metadata": {"namespace": "ns", "name": "pool", "uid": "1", "resourceVersion": "5"}}


@pytest.mark.parametrize(("retry", "delay_s"), [(0, 0.5), (1, 1.0), (3, 4.0), (50, 60.0)])
async def test_an_error_of_another_system_is_temporary_and_the_delay_grows(retry: int, delay_s: float) -> None:
    async def failing(_: Key) -> float:
        raise UnreachableError("away")

    with pytest.raises(kopf.TemporaryError, match="away") as error:
        await work_of(failing, Resources())(KEY, retry)
    assert error.value.delay == delay_s


async def test_a_resource_that_does_not_match_its_crd_is_a_permanent_error() -> None:
    async def failing(_: Key) -> float:
        Bookie.model_validate(changed(BOOKIE, {"spec.replicas": "many"}))
        return 1.0

    with pytest.raises(kopf.PermanentError, match="replicas"):
        await work_of(failing, Resources())(KEY, 0)


async def test_a_resource_that_is_gone_is_hidden() -> None:
    resources = Resources({"Bookie": {("ns", "pool"): [ITEM]}})

    async def there(_: Key) -> float:
        return 60.0

    async def gone(_: Key) -> None:
        return None

    assert await work_of(there, resources)(KEY, 0) == 60.0
    assert resources.all("Bookie") == [ITEM]
    assert await work_of(gone, resources)(KEY, 0) is None
    assert resources.all("Bookie") == []
