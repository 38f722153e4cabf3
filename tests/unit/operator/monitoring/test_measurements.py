"""Metrics of reconciliations and resources, as read by a scrape."""

import asyncio

import pytest
from prometheus_client.metrics_core import Metric

from quire_operator.errors import KubeError
from quire_operator.monitoring.measurements import Histogram, Measurements
from quire_operator.running.work_queue import Key

POOL = Key("Bookie", "ns", "pool")


def families(measurements: Measurements, now_s: float = 0.0, wall_s: float = 0.0) -> dict[str, Metric]:
    return {family.name: family for family in measurements.families(now_s, wall_s)}


def samples(measurements: Measurements, now_s: float = 0.0, wall_s: float = 0.0) -> dict[str, dict[str, float]]:
    """Return values by name and labels."""
    found: dict[str, dict[str, float]] = {}
    for family in families(measurements, now_s, wall_s).values():
        for sample in family.samples:
            labels = ",".join(f"{key}={value}" for key, value in sorted(sample.labels.items()))
            found.setdefault(sample.name, {})[labels] = sample.value
    return found


def resource(name: str = "pool", **status: object) -> dict[str, object]:
    return {"metadata": {"namespace": "ns", "name": name}, "status": status}


async def test_reconciliations_and_errors_are_counted_by_kind() -> None:
    measurements = Measurements()
    answers: list[float | Exception | None] = [2.0, KubeError(500, "no"), None]

    async def work(_: Key) -> float | None:
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    counted = measurements.measured(work)
    assert await counted(POOL) == 2.0
    with pytest.raises(KubeError):
        await counted(POOL)
    assert await counted(Key("ManagedLedger", "ns", "orders")) is None
    found = samples(measurements)
    assert found["quire_operator_reconcile_seconds_count"] == {"kind=Bookie": 2, "kind=ManagedLedger": 1}
    assert found["quire_operator_reconcile_errors_total"] == {"error=KubeError,kind=Bookie": 1}


async def test_a_running_reconciliation_has_an_age() -> None:
    measurements = Measurements()
    go_on = asyncio.Event()

    async def work(_: Key) -> float | None:
        await go_on.wait()
        return None

    task = asyncio.ensure_future(measurements.measured(work)(POOL))
    await asyncio.sleep(0)
    now_s = asyncio.get_running_loop().time()
    assert measurements.longest_pass_s(now_s + 700) >= 700
    go_on.set()
    await task
    assert measurements.longest_pass_s(now_s + 700) == 0


def test_operations_and_conditions_are_from_the_last_list() -> None:
    measurements = Measurements()
    operation = {
        "type": "Drain",
        "step": "Copying",
        "startedAt": "1970-01-01T00:00:10Z",
        "stepStartedAt": "1970-01-01T00:01:00Z",
    }
    conditions = [
        {"type": "Ready", "status": "True"},
        {"type": "Degraded", "status": "False"},
        {"type": "FullyReplicated", "status": "Unknown"},
    ]
    measurements.note_resources("Bookie", [resource(phase="Scaling", operation=operation, conditions=conditions)])
    measurements.note_resources("ManagedLedger", [resource("orders", state="Ready")])
    found = samples(measurements, wall_s=100.0)
    pool = "kind=Bookie,name=pool,namespace=ns"
    assert found["quire_operator_operation"] == {f"{pool},step=Copying,type=Drain": 1}
    assert found["quire_operator_operation_seconds"] == {f"{pool},type=Drain": 90}
    assert found["quire_operator_operation_step_seconds"] == {f"{pool},type=Drain": 40}
    assert found["quire_operator_resource_condition"] == {
        f"{pool},type=Ready": 1,
        f"{pool},type=Degraded": 0,
        f"{pool},type=FullyReplicated": -1,
    }
    assert f"{pool},phase=Scaling" in found["quire_operator_resource_phase"]
    measurements.note_resources("Bookie", [])
    assert "quire_operator_operation" not in samples(measurements)
    assert len(samples(measurements)["quire_operator_resource_phase"]) == 1, "the other kind is kept"
    measurements.note_resources("Topic", [resource("placed", conditions=conditions[:1])])
    found = samples(measurements)
    assert found["quire_operator_resource_condition"] == {"kind=Topic,name=placed,namespace=ns,type=Ready": 1}
    assert len(found["quire_operator_resource_phase"]) == 1, "a topic has no phase"


def test_metrics_of_jobs_are_read_from_the_status() -> None:
    measurements = Measurements()
    jobs = [
        {
            "name": "offload",
            "kind": "offload",
            "state": "Succeeded",
            "startedAt": "1970-01-01T00:00:10Z",
            "endedAt": "1970-01-01T00:00:40Z",
            "lastSuccess": "1970-01-01T00:00:40Z",
        },
        {"name": "rates", "kind": "throughput", "state": "Pending"},
    ]
    measurements.note_resources("ManagedLedger", [resource("orders", state="Open", jobs=jobs)])
    found = samples(measurements)
    offload = "job=offload,kind=offload,name=orders,namespace=ns"
    assert found["quire_operator_job_state"] == {
        f"{offload},state=Succeeded": 1,
        "job=rates,kind=throughput,name=orders,namespace=ns,state=Pending": 1,
    }
    assert found["quire_operator_job_last_success_timestamp_seconds"] == {offload: 40}
    assert found["quire_operator_job_run_seconds"] == {offload: 30}


def test_an_invalid_time_is_omitted() -> None:
    measurements = Measurements()
    measurements.note_resources(
        "Bookie", [resource(operation={"type": "Roll", "step": "Waiting", "startedAt": "yesterday"})]
    )
    assert "quire_operator_operation_seconds" not in samples(measurements)


def test_buckets_add_up() -> None:
    measurements = Measurements()
    measurements.passes["Bookie"] = histogram = Histogram()
    for took_s in (0.001, 0.3, 1000.0):
        histogram.observe(took_s)
    family = families(measurements)["quire_operator_reconcile_seconds"]
    buckets = {sample.labels["le"]: sample.value for sample in family.samples if sample.name.endswith("_bucket")}
    assert [buckets[bound] for bound in ("0.01", "0.5", "60.0", "+Inf")] == [1, 2, 2, 3]
    assert {sample.name: sample.value for sample in family.samples if "le" not in sample.labels} == {
        "quire_operator_reconcile_seconds_count": 3,
        "quire_operator_reconcile_seconds_sum": pytest.approx(1000.301),
    }
