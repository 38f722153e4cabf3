import json
from pathlib import Path
from typing import Any

from quire_jobs.job import Problem, Summary
from quire_jobs.main.termination_log import MESSAGE_BYTES_MAX, message_of, write_outcome


def row(problems: int, outputs: int = 1, **more: Any) -> dict[str, Any]:
    summary = Summary(
        kind="offload",
        run_id="offload-1",
        counts={"ledgers_offloaded": 3, "size_bytes": 1 << 40},
        outputs=[f"s3://bucket/reports/{number}/index.html" for number in range(outputs)],
        problems=[
            Problem(subject=f"persistent://tenant/namespace/topic-{number}", reason="é" * 60, retry_helps=True)
            for number in range(problems)
        ],
        notes=["a note"] * 3,
        details={"a": "b" * 10_000},
    )
    return {"outcome": summary.outcome.value, "seconds": 1.5} | summary.model_dump(mode="json") | more


def test_a_small_outcome_is_complete_except_for_the_details() -> None:
    given = row(2)
    said = json.loads(message_of(given))
    assert said == {name: value for name, value in given.items() if name != "details"}


def test_a_large_outcome_is_an_object_within_the_limit_with_the_first_problems() -> None:
    for problems in (10, 15, 20, 21, 5000):
        message = message_of(row(problems))
        said = json.loads(message)
        assert len(message) <= MESSAGE_BYTES_MAX
        assert said["outcome"] == "partly" and said["counts"]["ledgers_offloaded"] == 3 and said["outputs"]
        assert said["problems"][0]["subject"].endswith("topic-0")
        assert len(said["problems"]) + said.get("left_out", {}).get("problems", 0) == problems


def test_a_long_text_is_cut() -> None:
    said = json.loads(message_of({"kind": "audit", "outcome": "failed", "error": "x" * 100_000, "retry_helps": False}))
    assert said["outcome"] == "failed" and said["error"].startswith("xxx") and said["error"].endswith("…")


def test_a_lone_surrogate_does_not_prevent_the_message() -> None:
    given = row(0, error="--params \udcff: No such file")
    assert json.loads(message_of(given))["error"] == given["error"]


def test_counts_are_dropped_last() -> None:
    given = row(30, counts={f"count_{number}": number for number in range(1000)})
    message = message_of(given)
    said = json.loads(message)
    assert len(message) <= MESSAGE_BYTES_MAX
    assert said["left_out"] == {"notes": 3, "problems": 30, "outputs": 1, "counts": 1000} and said["run_id"]


def test_a_failed_write_is_reported(tmp_path: Path) -> None:
    assert write_outcome(tmp_path / "log", row(0)) is None
    assert json.loads((tmp_path / "log").read_text())["outcome"] == "succeeded"
    fault = write_outcome(tmp_path / "missing" / "log", row(0))
    assert fault is not None and str(tmp_path) in fault and "No such file" in fault
