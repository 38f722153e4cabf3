import pytest
from pydantic import Field, field_validator

from quire_jobs.compaction import job as compaction
from quire_jobs.errors import JobOptionsError
from quire_jobs.job import JobParameters, Outcome, Problem, Summary, job_name, parse_parameters, run_id_of


class Parameters(JobParameters):
    """Counts."""

    bucket_hours: int = Field(default=1, ge=1, description="Hours in a bucket.")
    topic: str = Field(description="Which topic.")

    @field_validator("topic")
    @classmethod
    def _named(cls, value: str) -> str:
        if not value:
            raise ValueError("name a topic")
        return value


def test_parameters_are_accepted_in_both_spellings() -> None:
    snake = parse_parameters(Parameters, {"bucket_hours": 2, "topic": "a"})
    assert snake == parse_parameters(Parameters, {"bucketHours": 2, "topic": "a"})
    assert snake.bucket_hours == 2


def test_all_wrong_parameters_are_reported_at_once_with_their_values() -> None:
    with pytest.raises(JobOptionsError) as raised:
        parse_parameters(Parameters, {"bucketHours": 0, "buckets": 3})
    said = str(raised.value)
    assert "bucketHours = 0: " in said and "greater than or equal to 1" in said
    assert "the parameter 'topic' is missing" in said
    assert "unknown parameter 'buckets'; known parameters: bucketHours, config, http, metadata, topic" in said


def test_the_text_of_a_validator_is_shown_without_a_prefix() -> None:
    with pytest.raises(JobOptionsError, match=r"^topic = '': name a topic$"):
        parse_parameters(Parameters, {"topic": ""})


def test_the_text_of_a_validator_of_all_parameters_is_shown_without_a_prefix() -> None:
    with pytest.raises(JobOptionsError, match=r"^metadata = http://h:1: a broker only reads .*: give etcd:"):
        parse_parameters(compaction.Parameters, {"topics": ["a"], "metadata": "http://h:1"})
    with pytest.raises(JobOptionsError, match=r"^the parameter 'metadata' is missing: .*, etcd://(?!.*http)"):
        parse_parameters(compaction.Parameters, {"topics": ["a"]})


def test_the_run_id_depends_on_the_slot_and_every_parameter() -> None:
    one = parse_parameters(Parameters, {"topic": "a"})
    other = parse_parameters(Parameters, {"topic": "b"})
    slot = "2026-01-01T00:00:00Z"
    assert run_id_of("count", one, slot) == run_id_of("count", one.model_copy(update={"run_id": "x"}), slot)
    assert job_name("count", one) != job_name("count", other)
    assert run_id_of("count", one, slot) != run_id_of("count", one, "2026-01-01T01:00:00Z")
    # A given value that equals the default changes nothing, so a release that adds a default keeps the names.
    assert job_name("count", one) == job_name("count", parse_parameters(Parameters, {"topic": "a", "bucketHours": 1}))


def test_the_outcome_follows_from_the_problems() -> None:
    problem = Problem(subject="ledger 7", reason="gone")
    assert Summary(kind="k").outcome is Outcome.SUCCEEDED
    assert Summary(kind="k", problems=[problem], done=3).outcome is Outcome.PARTLY
    assert Summary(kind="k", problems=[problem], done=0).outcome is Outcome.FAILED
