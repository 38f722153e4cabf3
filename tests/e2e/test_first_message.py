"""From `kubectl apply` of a pool and a ManagedLedger to the first acknowledged message of a stock Pulsar client."""

from collections.abc import Callable

import pytest

from tests.e2e import manifests, release
from tests.e2e.stack import Stack

pytestmark = pytest.mark.e2e_short


def test_the_first_message_is_acknowledged_and_every_one_is_kept(
    stack: Stack, measured: Callable[[str, float], None]
) -> None:
    for what, seconds in stack.timings.items():
        measured(what, seconds)
    assert stack.check_all() > 0


def test_the_release_reports_that_it_is_healthy(stack: Stack) -> None:
    assert "Succeeded" in release.helm(stack.cluster, "test", manifests.RELEASE)


def test_the_status_answers_whether_the_data_is_safe(stack: Stack) -> None:
    status = stack.pool()["status"]
    said = {one["type"]: one["status"] for one in status["conditions"]}
    assert said["Ready"] == said["FullyReplicated"] == said["MetadataReachable"] == said["CookiesConsistent"] == "True"
    assert said["Degraded"] == said["ScaleDownBlocked"] == "False"
    assert {row["state"] for row in status["bookies"]} == {"Writable"}
    assert len({row["node"] for row in status["bookies"]}) == 3, "each bookie is on a separate machine"
